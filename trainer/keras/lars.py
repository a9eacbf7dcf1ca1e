"""Layer-wise adaptive rate scaling (LARS) as a Keras optimizer."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from deepinsight.trainer.keras import _checks
from deepinsight.trainer.keras._base import (
    NON_FINITE,
    PACKAGE,
    KernelOptimizer,
    Quantity,
    Row,
)


@keras.saving.register_keras_serializable(PACKAGE)
class LARS(KernelOptimizer):
    r"""Momentum whose step size follows, per variable, the ratio of weight and gradient norm.

    .. math::

        t = \frac{\phi \|w\|}{\|g\| + \beta \|w\| + \epsilon} \text{, 1 where a norm is 0}; \quad
        v \leftarrow \mu v + \eta\, t\,(g + \beta w); \quad w \leftarrow w - v

    and with `nesterov` :math:`w \leftarrow w - (\mu v + \eta\, t\,(g + \beta w))`. A variable of
    the skip list takes t = 1 and :math:`\beta = 0`.

    The decay is part of the rule; the base class's own weight decay is not applied on top of it,
    and variables of ``exclude_from_weight_decay`` take :math:`\beta = 0`. With a sparse gradient
    norms and decay cover the touched rows, and only these change. NaN and infinity in a gradient
    are applied as they are, and counted in `statistics`.

    Args:
        learning_rate: :math:`\eta` > 0, a schedule or a callable. The arithmetic is float32 for
            half, bfloat16 and float32 variables and float64 for float64 variables.
        momentum: :math:`\mu` in [0, 1).
        weight_decay: :math:`\beta` >= 0.
        eeta: :math:`\phi` > 0, the trust coefficient.
        epsilon: :math:`\epsilon` >= 0.
        skip_list: Variables whose path contains one of these strings are neither scaled nor
            decayed, such as ``["bias", "gamma", "beta"]``.
        nesterov: Whether to look ahead.
        **settings: Arguments of ``keras.optimizers.Optimizer``, such as `clipnorm` and `name`. Very
            large batches: `gradient_accumulation_steps`.

    Raises:
        ValueError: If an argument is out of range.
        BackendError: If Keras does not run on TensorFlow.

    Example:
        The trust ratio is 0.001 · 5 / 1, with weights of norm 5 and a gradient of norm 1:

        >>> w = keras.Variable([3.0, 4.0])
        >>> optimizer = LARS(10.0, weight_decay=0.0)
        >>> optimizer.apply([[1.0, 0.0]], [w])
        >>> w.numpy()  # 3 - 10 · 0.005 · 1
        array([2.95, 4.  ], dtype=float32)

    References:
        You et al., 2017, Large Batch Training of Convolutional Networks. arXiv:1708.03888.
    """

    QUANTITIES = (
        Quantity("trust_ratio", "Factor of the learning rate."),
        Quantity("weight_norm", "Euclidean norm of the weights before the update.", "", False),
        Quantity("gradient_norm", "Euclidean norm of the gradient.", "", False),
        NON_FINITE,
    )

    def __init__(
        self,
        learning_rate: Any,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        eeta: float = 1e-3,
        epsilon: float = 0.0,
        skip_list: Sequence[str] | None = None,
        nesterov: bool = False,
        **settings: Any,
    ) -> None:
        weight_decay = _checks.non_negative("weight_decay", weight_decay)
        super().__init__(learning_rate, weight_decay=weight_decay, **settings)
        self.momentum = _checks.share("momentum", momentum)
        self.eeta = _checks.positive("eeta", eeta)
        self.epsilon = _checks.non_negative("epsilon", epsilon)
        self.skip_list = _strings(skip_list)
        self.nesterov = bool(nesterov)

    def _initial_slots(self) -> Mapping[str, float]:
        return {"accum": 0.0}

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        """Leave the weight decay to the kernel, where it is part of the gradient."""

    def _push(self, gradient: Any, variable: Any, rate: tf.Tensor, row: Row) -> tf.Tensor:
        path = _checks.label(self._trainable_variables[self._get_variable_index(variable)])
        inputs = {
            **row.slots,
            "eeta": self.eeta,
            "weight_decay": self.weight_decay if self._use_weight_decay(variable) else 0.0,
            "momentum": self.momentum,
            "epsilon": self.epsilon,
            "use_nesterov": self.nesterov,
            "adapt": not any(part in path for part in self.skip_list),
        }
        return self._call("lars", variable, gradient, rate, inputs)

    def get_config(self) -> dict[str, Any]:
        """The arguments to make this optimizer again, without its state."""
        return super().get_config() | {
            "momentum": self.momentum,
            "eeta": self.eeta,
            "epsilon": self.epsilon,
            "skip_list": list(self.skip_list),
            "nesterov": self.nesterov,
        }


def _strings(skip_list: Any) -> tuple[str, ...]:
    given = () if skip_list is None else skip_list
    if isinstance(given, str) or not all(isinstance(part, str) and part for part in given):
        raise ValueError(
            "`skip_list` must be a list of non-empty strings. "
            f"Received: skip_list={skip_list!r}; write ['bias']."
        )
    return tuple(given)
