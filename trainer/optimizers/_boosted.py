"""What the boosted optimizers share."""

from collections.abc import Sequence
from typing import Any, ClassVar

import tensorflow as tf

from deepinsight.trainer.optimizers._apply import NON_NEGATIVE, POSITIVE, SHARE
from deepinsight.trainer.optimizers._statistics import Statistic
from deepinsight.trainer.optimizers._workers import WorkerOptimizer

_AVERAGES = ("correlation", "gradient_square", "movement_square")
_BOOST = ("boost", "staleness_scale", "decay", "correlation_epsilon")


class BoostedOptimizer(WorkerOptimizer):
    """What the boosted optimizers share: the boost's slots and scalars, and the call of the op.

    A subclass names its `KERNEL`, the slots of its base rule and their first values, and the
    base rule's `SCALARS` after the learning rate, in the kernel's order.
    """

    USES_STALENESS = True
    KERNEL: ClassVar[str] = ""
    SLOTS: ClassVar[tuple[str, ...]] = ()
    SCALARS: ClassVar[tuple[str, ...]] = ()
    RANGES: ClassVar = {
        "learning_rate": POSITIVE,
        "momentum": SHARE,
        "beta1": SHARE,
        "beta2": SHARE,
        "epsilon": NON_NEGATIVE,
        "boost": SHARE,
        "staleness_scale": POSITIVE,
        "decay": SHARE,
        "correlation_epsilon": POSITIVE,
    }
    STATISTICS: ClassVar = (
        Statistic(0, "correlation", "1", "Mean correlation of the gradient and the movement."),
        Statistic(
            1,
            "compensation_ratio",
            "1",
            "Sum of the absolute change of the gradient over the sum of the absolute gradient.",
        ),
        Statistic(2, "nonfinite_gradients", "elements", "NaN and infinity in the gradient."),
    )

    def _create_state(self, var: tf.Variable) -> None:
        for slot in (*self.SLOTS, *_AVERAGES):
            self._slot(var, slot)

    def _base_scalars(self, var: tf.Variable) -> Sequence[tf.Tensor]:
        return [self._scalar(name, var) for name in self.SCALARS]

    def _attributes(self) -> dict[str, bool]:
        return {"use_locking": self._use_locking}

    def _push(
        self, var: tf.Variable, grad: tf.Tensor, indices: tuple[tf.Tensor, ...]
    ) -> tuple[Any, tf.Tensor]:
        kind = "resource_sparse_apply_" if indices else "resource_apply_"
        with tf.control_dependencies([grad]):  # others push while the gradient is computed
            staleness, count = self._stale(var)
        boost, *others = (self._scalar(name, var) for name in _BOOST)
        statistics = getattr(self._ops(), kind + self.KERNEL)(
            var.handle,
            *(self._handle(var, slot) for slot in self.SLOTS),
            self._backup(var, grad, indices),
            *(self._handle(var, slot) for slot in _AVERAGES),
            self._scalar("learning_rate", var),
            *self._base_scalars(var),
            boost,
            staleness,
            *others,
            grad,
            *indices,
            **self._attributes(),
        )
        if count is None:
            return statistics, statistics
        with tf.control_dependencies([statistics]):
            return count(), statistics
