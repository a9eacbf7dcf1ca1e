"""Layer-wise adaptive rate scaling (LARS) as a ``tf.compat.v1`` optimizer."""

from collections.abc import Sequence
from typing import Any, ClassVar

import tensorflow as tf

from deepinsight.trainer.optimizers._apply import (
    NON_NEGATIVE,
    POSITIVE,
    SHARE,
    KernelOptimizer,
    make_slot,
)
from deepinsight.trainer.optimizers._statistics import Statistic


class LARSOptimizer(KernelOptimizer):
    r"""Momentum with a learning rate per variable, for very large batches.

    .. math::

        t = \frac{\phi \|w\|}{\|g\| + \beta \|w\| + \epsilon} \text{, 1 where a norm is 0}; \quad
        u = g + \beta w; \quad v \leftarrow \mu v + \eta t u; \quad w \leftarrow w - v

    With Nesterov :math:`w \leftarrow w - (\mu v + \eta t u)`. The slot ``momentum`` holds v, which
    includes :math:`\eta` as in the paper; in TensorFlow 1.15 it did not, so that a change of the
    learning rate also scaled the momentum of earlier steps. Norms and decay of a sparse gradient
    cover its rows only (TensorFlow 1.15 took plain momentum).

    Variables with a name in `skip_list`, usually biases and normalisation, get plain momentum:
    t = 1 and no decay. The batch grows beyond the memory with `AccumulatedGradients`. In a graph
    the hook records ``optimizer/trust_ratio`` and ``optimizer/nonfinite_gradients``, per variable.

    Args:
        learning_rate: :math:`\eta` > 0; a number, a tensor or a callable that returns one, as all
            hyperparameters.
        momentum: :math:`\mu` in [0, 1).
        weight_decay: :math:`\beta` >= 0.
        eeta: Trust coefficient :math:`\phi` > 0.
        epsilon: :math:`\epsilon` >= 0.
        name: Name of the optimizer, the prefix of its slots' names.
        skip_list: Parts of the names of variables that are neither scaled nor decayed.
        use_nesterov: Whether to look ahead.

    Raises:
        ValueError: If a number is out of range or `skip_list` is a string.

    Example:
        >>> w, bias = tf.Variable([3.0, 4.0], name="w"), tf.Variable([1.0], name="bias")
        >>> optimizer = LARSOptimizer(1.0, weight_decay=0.0, eeta=0.1, skip_list=["bias"])
        >>> gradients = [(tf.constant([0.0, 2.0]), w), (tf.constant([0.5]), bias)]
        >>> optimizer.apply_gradients(gradients)
        >>> w.numpy(), bias.numpy()  # t = 0.1 · 5 / 2
        (array([3. , 3.5], dtype=float32), array([0.5], dtype=float32))

    References:
        You et al., 2017, Large Batch Training of Convolutional Networks. arXiv:1708.03888.
    """

    RANGES: ClassVar = {
        "learning_rate": POSITIVE,
        "momentum": SHARE,
        "weight_decay": NON_NEGATIVE,
        "eeta": POSITIVE,
        "epsilon": NON_NEGATIVE,
    }
    STATISTICS: ClassVar = (
        Statistic(
            0, "trust_ratio", "1", "What the learning rate was scaled by; 1 for skipped variables."
        ),
        Statistic(3, "nonfinite_gradients", "elements", "NaN and infinity in the gradient."),
    )

    def __init__(
        self,
        learning_rate: Any,
        momentum: Any = 0.9,
        weight_decay: Any = 0.0001,
        eeta: Any = 0.001,
        epsilon: Any = 0.0,
        name: str = "LARSOptimizer",
        skip_list: Sequence[str] | None = None,
        use_nesterov: bool = False,
    ) -> None:
        super().__init__(
            name,
            False,
            learning_rate=learning_rate,
            momentum=momentum,
            weight_decay=weight_decay,
            eeta=eeta,
            epsilon=epsilon,
        )
        if isinstance(skip_list, str):
            raise ValueError(
                f"`skip_list` must be a list of parts of names. Received: skip_list={skip_list!r}; "
                f"write [{skip_list!r}]."
            )
        self._skip_list = tuple(skip_list or ())
        self._use_nesterov = use_nesterov

    def _skips(self, var: tf.Variable) -> bool:
        return any(part in var.name for part in self._skip_list)

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        for var in var_list:
            make_slot(self, var, "momentum")

    def _push(
        self, var: tf.Variable, grad: tf.Tensor, indices: tuple[tf.Tensor, ...]
    ) -> tuple[Any, tf.Tensor]:
        ops = self._ops()
        statistics = (ops.resource_sparse_apply_lars if indices else ops.resource_apply_lars)(
            var.handle,
            self._handle(var, "momentum"),
            *(
                self._scalar(name, var)
                for name in ("learning_rate", "eeta", "weight_decay", "momentum", "epsilon")
            ),
            grad,
            *indices,
            use_nesterov=self._use_nesterov,
            adapt=not self._skips(var),
        )
        return statistics, statistics
