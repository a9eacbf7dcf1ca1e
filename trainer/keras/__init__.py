"""Keras 3 optimizers over the C++ kernels, for the TensorFlow backend."""

from deepinsight.trainer.keras.boosted import (
    BoostedAdagrad,
    BoostedAdam,
    BoostedGradientDescent,
    BoostedMomentum,
)
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
