"""Keras 3 optimizers over the C++ kernels, for the TensorFlow backend, on CPUs.

``model.compile(optimizer=LARS(0.1))``, and all that Keras's own optimizers can do: schedules,
weight decay, clipping, EMA, mixed precision, ``.keras`` files (import this package before
``keras.models.load_model``), ``MirroredStrategy``. The exception is XLA. Keras leaves it off where
there is no GPU; elsewhere, and where it is asked for, pass ``jit_compile=False``, and make the
model under ``with tf.device("CPU:0"):``. What each update was like is in ``optimizer.statistics``,
and `deepinsight.TraceCallback` records it.
"""

from deepinsight.trainer.keras.boosted import BoostedGradientDescent, BoostedMomentum
from deepinsight.trainer.keras.boosted_adaptive import BoostedAdagrad, BoostedAdam
from deepinsight.trainer.keras.delay_compensated import DelayCompensatedGradientDescent
from deepinsight.trainer.keras.errors import BackendError, CompiledStepError
from deepinsight.trainer.keras.lars import LARS

__all__ = [
    "LARS",
    "BackendError",
    "BoostedAdagrad",
    "BoostedAdam",
    "BoostedGradientDescent",
    "BoostedMomentum",
    "CompiledStepError",
    "DelayCompensatedGradientDescent",
]
