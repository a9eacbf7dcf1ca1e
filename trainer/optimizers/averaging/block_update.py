"""What a round does to the global variables: the mean replaces them, or moves them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from deepinsight.trainer import kernels
from deepinsight.trainer.optimizers._apply import (
    POSITIVE,
    SHARE,
    Range,
    check_hyperparameter,
    make_slot,
)
from deepinsight.trainer.optimizers.averaging.local_copies import group_variables, sum_of_squares
from deepinsight.trainer.optimizers.averaging.round_ops import launch_variable

v1 = tf.compat.v1
SLOT = "block_update"


class BlockMomentum(NamedTuple):
    r"""How a round moves the global variables.

    Attributes:
        momentum: :math:`\eta` in [0, 1).
        learning_rate: :math:`\zeta` > 0.
        nesterov: Whether the workers look ahead.
    """

    momentum: float
    learning_rate: float
    nesterov: bool


def usual_block_momentum(workers: int) -> float:
    r"""The block momentum of Chen and Huo for a number of workers M, :math:`1 - 1/M`.

    Raises:
        ValueError: If `workers` is less than 1.
    """
    if not workers >= 1:
        raise ValueError(f"`workers` must be >= 1. Received: workers={workers}.")
    return 1.0 - 1.0 / workers


def check_block_momentum(
    momentum: Any, learning_rate: Any, nesterov: Any, workers: int
) -> BlockMomentum | None:
    """Check the three options.

    Returns:
        What they say; None for plain averaging.

    Raises:
        ValueError: If one is out of range, or of no use without the momentum.
    """
    if momentum is not None:
        return BlockMomentum(
            _number("block_momentum", momentum, SHARE),
            _number("block_learning_rate", learning_rate, POSITIVE),
            bool(nesterov),
        )
    if learning_rate == 1 and not nesterov:
        return None
    raise ValueError(
        "`block_learning_rate` and `block_nesterov` belong to block momentum. Received: "
        f"block_learning_rate={learning_rate!r}, block_nesterov={nesterov!r} with "
        "block_momentum=None; set block_momentum, for this number of workers usually to "
        f"{usual_block_momentum(workers):g}."
    )


def _number(name: str, value: Any, allowed: Range) -> float:
    checked = check_hyperparameter(name, value, allowed)
    if not isinstance(checked, float):
        raise ValueError(f"`{name}` must be a number. Received: {name}={value!r}.")
    return checked


class RoundUpdate:
    """The update of the global variables at the end of a round, and its norm.

    Args:
        optimizer: Whose slots the block updates are.
        targets: The global variables.
        block: The block momentum, or None.
        use_locking: Whether variables are changed under a lock.
    """

    def __init__(
        self,
        optimizer: v1.train.Optimizer,
        targets: Sequence[tf.Variable],
        block: BlockMomentum | None,
        use_locking: bool,
    ) -> None:
        self._optimizer, self._block, self._use_locking = optimizer, block, use_locking
        self._squares = {}
        for number, group in enumerate(group_variables(targets)):
            with tf.device(group.device):
                self._squares[targets[group.places[0]].ref()] = launch_variable(
                    f"{optimizer.get_name()}/{SLOT}_{number}", [], tf.float64
                )
        for target in targets if block is not None else ():
            make_slot(optimizer, target, SLOT)

    @property
    def variables(self) -> list[tf.Variable]:
        """Variables that belong to one launch."""
        return list(self._squares.values())

    def norm(self) -> tf.Tensor:
        """Norm of the last update of all variables, float64 scalar on the device of the scope."""
        return tf.sqrt(tf.add_n([square.read_value() for square in self.variables]))

    def finish(self, pairs: Sequence[tuple[tf.Variable, tf.Tensor]]) -> list[tf.Operation]:
        """The update of one group; see `RoundOps`."""
        step = self._average if self._block is None else self._block_step
        done, squares = zip(*[step(target, mean) for target, mean in pairs], strict=True)
        kept = self._squares[pairs[0][0].ref()]
        return [*done, kept.assign(tf.add_n(squares), read_value=False)]

    def _average(self, target: tf.Variable, mean: tf.Tensor) -> tuple[tf.Operation, tf.Tensor]:
        moved = sum_of_squares([mean - tf.cast(target.read_value(), mean.dtype)])
        with tf.control_dependencies([moved]):
            value = tf.cast(mean, target.dtype.base_dtype)
            return target.assign(value, self._use_locking, read_value=False), moved

    def _block_step(self, target: tf.Variable, mean: tf.Tensor) -> tuple[tf.Operation, tf.Tensor]:
        statistics = kernels.ops().resource_apply_block_momentum(
            target.handle,
            self._optimizer.get_slot(target, SLOT).handle,
            tf.constant(self._block.momentum, mean.dtype),
            tf.constant(self._block.learning_rate, mean.dtype),
            tf.cast(mean, target.dtype.base_dtype),
            use_nesterov=self._block.nesterov,
        )
        return statistics.op, tf.square(statistics[0])
