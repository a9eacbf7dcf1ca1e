"""Gradient descent and momentum on correlation-boosted gradients, as Keras optimizers."""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from deepinsight.trainer.keras import _checks
from deepinsight.trainer.keras._base import PACKAGE
from deepinsight.trainer.keras._boosted import Boosted


@keras.saving.register_keras_serializable(PACKAGE)
class BoostedGradientDescent(Boosted):
    r"""Gradient descent on gradients boosted by their correlation with the variable's movement.

    Since worker m pulled, others moved the weights by :math:`\Delta = w - w_{bak(m)}`. Per element,
    where they moved along the gradient's descent, the gradient shrinks; where they moved against
    it, it is a turning signal and grows:

    .. math::

        c \leftarrow d c + (1 - d)\, g \Delta; \quad
        s \leftarrow d s + (1 - d)\, g^2; \quad
        q \leftarrow d q + (1 - d)\, \Delta^2 \\
        \rho = \frac{c}{\sqrt s \sqrt q + \epsilon} \in [-1, 1]; \quad
        g' = g\,(1 + \frac{\lambda}{1 + \tau / \tau_0}\, \rho) \\
        w \leftarrow w - \eta\, g'; \quad w_{bak(m)} \leftarrow w

    The staleness :math:`\tau`, updates by others between a worker's pull and its push, is counted
    here. No sign ever flips. The idea is TensorFlowRS's, the formula is ours.

    ``fit`` has one worker: nothing is stale there, and this is the plain rule. For several, see
    `worker`. A push of a worker ends with its pull; `pull` is for those that pull at another time.
    With several workers the movement includes what the base class does to the variables itself
    (`weight_decay`, EMA, constraints). With a sparse gradient only its rows are touched, all state
    included. NaN and infinity in a gradient are applied as they are, and counted in `statistics`.

    Args:
        learning_rate: :math:`\eta` > 0, a schedule or a callable. The arithmetic is float32 for
            half, bfloat16 and float32 variables and float64 for float64 variables.
        num_workers: Number of workers that push, >= 1.
        boost: :math:`\lambda` in [0, 1); 0 is the plain rule, bit by bit.
        staleness_scale: :math:`\tau_0` > 0, updates; there the boost has halved.
        decay: :math:`d` in [0, 1).
        correlation_epsilon: :math:`\epsilon` > 0.
        **settings: Arguments of ``keras.optimizers.Optimizer``, such as `weight_decay`, `clipnorm`
            and `name`.

    Raises:
        ValueError: If an argument is out of range.
        BackendError: If Keras does not run on TensorFlow.

    Example:
        >>> w = keras.Variable([1.0], name="w")
        >>> optimizer = BoostedGradientDescent(0.5, num_workers=2)
        >>> with optimizer.worker(0):
        ...     optimizer.apply([[2.0]], [w])
        >>> with optimizer.worker(1):  # the weight went where this gradient points
        ...     optimizer.apply([[2.0]], [w])
        >>> round(optimizer.statistics["correlation"]["w"], 3)
        -0.725

    References:
        Zheng et al., 2017, Asynchronous Stochastic Gradient Descent with Delay Compensation. ICML.
        arXiv:1609.08326: the compensation that this one keeps bounded.
    """

    def __init__(
        self,
        learning_rate: Any = 0.01,
        num_workers: int = 1,
        *,
        boost: float = 0.5,
        staleness_scale: float = 10.0,
        decay: float = 0.9,
        correlation_epsilon: float = 1e-12,
        **settings: Any,
    ) -> None:
        super().__init__(
            learning_rate,
            num_workers,
            boost,
            staleness_scale,
            decay,
            correlation_epsilon,
            **settings,
        )

    def _kernel(self) -> str:
        return "boosted_gradient_descent"


@keras.saving.register_keras_serializable(PACKAGE)
class BoostedMomentum(Boosted):
    r"""Momentum on gradients boosted by their correlation with the variable's movement.

    With the boosted gradient :math:`g'` of `BoostedGradientDescent`:

    .. math::  v \leftarrow \mu v + g'; \qquad w \leftarrow w - \eta\, v

    and with `nesterov` :math:`w \leftarrow w - \eta\,(g' + \mu v)`. Here v does not hold the
    learning rate; in ``keras.optimizers.SGD`` it does.

    Args:
        learning_rate: :math:`\eta` > 0, a schedule or a callable.
        momentum: :math:`\mu` in [0, 1).
        nesterov: Whether to look ahead.
        num_workers: Number of workers that push, >= 1.
        boost: As for `BoostedGradientDescent`.
        staleness_scale: As for `BoostedGradientDescent`.
        decay: As for `BoostedGradientDescent`.
        correlation_epsilon: As for `BoostedGradientDescent`.
        **settings: Arguments of ``keras.optimizers.Optimizer``.

    Raises:
        ValueError: If an argument is out of range.
        BackendError: If Keras does not run on TensorFlow.

    Example:
        >>> model.compile(BoostedMomentum(0.01, nesterov=True), "mse")  # doctest: +SKIP

    References:
        Sutskever et al., 2013, On the importance of initialization and momentum in deep learning.
        ICML.
    """

    def __init__(
        self,
        learning_rate: Any = 0.01,
        momentum: float = 0.9,
        nesterov: bool = False,
        num_workers: int = 1,
        *,
        boost: float = 0.5,
        staleness_scale: float = 10.0,
        decay: float = 0.9,
        correlation_epsilon: float = 1e-12,
        **settings: Any,
    ) -> None:
        super().__init__(
            learning_rate,
            num_workers,
            boost,
            staleness_scale,
            decay,
            correlation_epsilon,
            **settings,
        )
        self.momentum = _checks.share("momentum", momentum)
        self.nesterov = bool(nesterov)

    def _initial_slots(self) -> Mapping[str, float]:
        return {"accum": 0.0, **super()._initial_slots()}

    def _kernel(self) -> str:
        return "boosted_momentum"

    def _hyperparameters(self, dtype: tf.DType) -> Mapping[str, Any]:
        own = {"momentum": self.momentum, "use_nesterov": self.nesterov}
        return own | dict(super()._hyperparameters(dtype))

    def get_config(self) -> dict[str, Any]:
        """The arguments to make this optimizer again, without its state."""
        return super().get_config() | {"momentum": self.momentum, "nesterov": self.nesterov}
