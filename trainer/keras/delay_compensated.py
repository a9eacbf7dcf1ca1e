"""Delay-compensated gradient descent (DC-ASGD) as a Keras optimizer."""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from deepinsight.trainer.keras import _checks
from deepinsight.trainer.keras._base import NON_FINITE, PACKAGE, Quantity
from deepinsight.trainer.keras._workers import WorkerOptimizer


@keras.saving.register_keras_serializable(PACKAGE)
class DelayCompensatedGradientDescent(WorkerOptimizer):
    r"""Gradient descent that corrects each gradient for what happened since it was computed.

    A worker m reads the weights, computes the gradient g there and pushes it; meanwhile others
    moved the weights from :math:`w_{bak(m)}` to w. A Taylor expansion with :math:`\lambda g g` in
    place of the Hessian gives the gradient that it would have computed now:

    .. math::

        w \leftarrow w - \eta\,(g + \lambda_t\, g \odot g \odot (w - w_{bak(m)})); \quad
        w_{bak(m)} \leftarrow w

    :math:`\lambda_t = \lambda`, or, if `adaptive`,

    .. math::

        s_m \leftarrow d\, s_m + (1 - d)\, g \odot g; \quad
        \lambda_t = \lambda / \sqrt{s_m + \epsilon}

    ``fit`` has one worker: nothing is stale there, and this is gradient descent. For several, see
    `worker`. A push of a worker ends with its pull; `pull` is for those that pull at another time.
    With a sparse gradient only its rows are touched, all state included. NaN and infinity in a
    gradient are applied as they are, and counted in `statistics`.

    Args:
        learning_rate: :math:`\eta` > 0, a schedule or a callable. The arithmetic is float32 for
            half, bfloat16 and float32 variables and float64 for float64 variables.
        variance_parameter: :math:`\lambda` >= 0. 2 is the authors' for `adaptive`; without it they
            took 0.04.
        num_workers: Number of workers that push, >= 1.
        adaptive: Whether :math:`\lambda_t` follows the mean square of the gradient.
        decay: :math:`d` in [0, 1), for `adaptive`.
        epsilon: :math:`\epsilon` > 0, for `adaptive`.
        shared_mean_square: One mean square for all workers instead of one each.
        **settings: Arguments of ``keras.optimizers.Optimizer``, such as `weight_decay`, `clipnorm`
            and `name`.

    Raises:
        ValueError: If an argument is out of range.
        BackendError: If Keras does not run on TensorFlow.

    Example:
        Worker 1 computed its gradient before worker 0 moved the weight from 1 to 0:

        >>> w = keras.Variable([1.0])
        >>> optimizer = DelayCompensatedGradientDescent(0.5, 1.0, num_workers=2)
        >>> with optimizer.worker(0):
        ...     optimizer.apply([[2.0]], [w])
        >>> with optimizer.worker(1):
        ...     optimizer.apply([[1.0]], [w])
        >>> w.numpy()  # 0 - 0.5 (1 + 1 · 1 · 1 · (0 - 1))
        array([0.], dtype=float32)

    References:
        Zheng et al., 2017, Asynchronous Stochastic Gradient Descent with Delay Compensation. ICML.
        arXiv:1609.08326.
    """

    QUANTITIES = (
        Quantity(
            "compensation_ratio",
            "Sum of the absolute compensation over the sum of the absolute gradient.",
        ),
        Quantity("sign_flips", "Share of elements whose sign the compensation flipped."),
        NON_FINITE,
    )

    def __init__(
        self,
        learning_rate: Any = 0.01,
        variance_parameter: float = 2.0,
        num_workers: int = 1,
        adaptive: bool = False,
        *,
        decay: float = 0.95,
        epsilon: float = 1e-7,
        shared_mean_square: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(learning_rate, num_workers, **settings)
        self.variance_parameter = _checks.non_negative("variance_parameter", variance_parameter)
        self.adaptive = bool(adaptive)
        self.decay = _checks.share("decay", decay)
        self.epsilon = _checks.positive("epsilon", epsilon)
        self.shared_mean_square = bool(shared_mean_square)

    def _initial_slots(self) -> Mapping[str, float]:
        return {"mean_square": 0.0} if self.adaptive and self.shared_mean_square else {}

    def _initial_own_slots(self) -> Mapping[str, float]:
        return {"mean_square": 0.0} if self.adaptive and not self.shared_mean_square else {}

    def _kernel(self) -> str:
        return f"{'adaptive_' if self.adaptive else ''}delay_compensated_gradient_descent"

    def _hyperparameters(self, dtype: tf.DType) -> Mapping[str, Any]:
        constant = {"variance_parameter": self.variance_parameter}
        return constant | ({"decay": self.decay, "epsilon": self.epsilon} if self.adaptive else {})

    def get_config(self) -> dict[str, Any]:
        """The arguments to make this optimizer again, without its state."""
        return super().get_config() | {
            "variance_parameter": self.variance_parameter,
            "adaptive": self.adaptive,
            "decay": self.decay,
            "epsilon": self.epsilon,
            "shared_mean_square": self.shared_mean_square,
        }
