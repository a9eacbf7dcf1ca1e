"""Adagrad and Adam on correlation-boosted gradients, as Keras optimizers."""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from deepinsight.trainer.keras import _checks
from deepinsight.trainer.keras._base import PACKAGE
from deepinsight.trainer.keras._boosted import Boosted


@keras.saving.register_keras_serializable(PACKAGE)
class BoostedAdagrad(Boosted):
    r"""Adagrad on gradients boosted by their correlation with the variable's movement.

    With the boosted gradient :math:`g'` of `BoostedGradientDescent`:

    .. math::  a \leftarrow a + g'^2; \qquad w \leftarrow w - \eta\, g' / (\sqrt a + \epsilon_a)

    Args:
        learning_rate: :math:`\eta` > 0, a schedule or a callable.
        initial_accumulator_value: a at first, > 0.
        epsilon: :math:`\epsilon_a` >= 0.
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
        >>> model.compile(BoostedAdagrad(0.05), "mse")  # doctest: +SKIP

    References:
        Duchi et al., 2011, Adaptive Subgradient Methods. JMLR 12.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
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
        self.initial_accumulator_value = _checks.positive(
            "initial_accumulator_value", initial_accumulator_value
        )
        self.epsilon = _checks.non_negative("epsilon", epsilon)

    def _initial_slots(self) -> Mapping[str, float]:
        return {"accum": self.initial_accumulator_value, **super()._initial_slots()}

    def _kernel(self) -> str:
        return "boosted_adagrad"

    def _hyperparameters(self, dtype: tf.DType) -> Mapping[str, Any]:
        return {"accum_epsilon": self.epsilon} | dict(super()._hyperparameters(dtype))

    def get_config(self) -> dict[str, Any]:
        """The arguments to make this optimizer again, without its state."""
        return super().get_config() | {
            "initial_accumulator_value": self.initial_accumulator_value,
            "epsilon": self.epsilon,
        }


@keras.saving.register_keras_serializable(PACKAGE)
class BoostedAdam(Boosted):
    r"""Adam on gradients boosted by their correlation with the variable's movement.

    With the boosted gradient :math:`g'` of `BoostedGradientDescent`, at the step t:

    .. math::

        m \leftarrow m + (1 - \beta_1)(g' - m); \quad
        v \leftarrow v + (1 - \beta_2)(g'^2 - v); \quad
        w \leftarrow w - \eta \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t}
        \frac{m}{\sqrt v + \epsilon_a}

    All workers' updates count as steps. With a sparse gradient m and v of the other rows do not
    decay (lazy Adam).

    Args:
        learning_rate: :math:`\eta` > 0, a schedule or a callable.
        beta_1: :math:`\beta_1` in [0, 1).
        beta_2: :math:`\beta_2` in [0, 1).
        epsilon: :math:`\epsilon_a` >= 0; TensorFlow's default, Keras's is 1e-7.
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
        >>> model.compile(BoostedAdam(0.001), "mse")  # doctest: +SKIP

    References:
        Kingma and Ba, 2015, Adam. ICLR. arXiv:1412.6980.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
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
        self.beta_1 = _checks.share("beta_1", beta_1)
        self.beta_2 = _checks.share("beta_2", beta_2)
        self.epsilon = _checks.non_negative("epsilon", epsilon)

    def _initial_slots(self) -> Mapping[str, float]:
        return {"m": 0.0, "v": 0.0, **super()._initial_slots()}

    def _kernel(self) -> str:
        return "boosted_adam"

    def _hyperparameters(self, dtype: tf.DType) -> Mapping[str, Any]:
        step = tf.cast(tf.convert_to_tensor(self.iterations), tf.float64) + 1
        return {
            "beta1_power": tf.cast(tf.pow(tf.constant(self.beta_1, tf.float64), step), dtype),
            "beta2_power": tf.cast(tf.pow(tf.constant(self.beta_2, tf.float64), step), dtype),
            "beta1": self.beta_1,
            "beta2": self.beta_2,
            "adam_epsilon": self.epsilon,
        } | dict(super()._hyperparameters(dtype))

    def get_config(self) -> dict[str, Any]:
        """The arguments to make this optimizer again, without its state."""
        return super().get_config() | {
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
        }
