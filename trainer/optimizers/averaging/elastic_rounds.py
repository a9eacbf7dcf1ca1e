"""Elastic averaging in rounds: all live workers take their distance from the same centre."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from deepinsight.trainer.cluster.members import Members
from deepinsight.trainer.optimizers._apply import compute_dtype
from deepinsight.trainer.optimizers.averaging.elastic_exchange import Tie, fetch_centers
from deepinsight.trainer.optimizers.averaging.local_copies import sum_of_squares
from deepinsight.trainer.optimizers.averaging.rounds import Rounds

Note = Callable[[tf.Tensor, tf.Tensor], tf.Operation]


def make_rounds(
    ties: Sequence[Tie],
    moving_rate: float,
    *,
    members: Members,
    worker: int,
    global_step: tf.Variable,
    note: Note,
    others: Sequence[Tie] = (),
    name: str,
) -> Rounds:
    """The rounds of a worker.

    A worker sends its distances from the centre that it knows; they are summed where they arrive.

    Args:
        ties: The worker's variables and their centres, with copies of these.
        moving_rate: Share of a distance by which both sides move, in [0, 1].
        members: Whom a round waits for.
        worker: Index of this worker.
        global_step: Counts rounds.
        note: Gets the norm of the distance before the round, and the seconds that the worker has
            waited, float64 scalars; makes an op.
        others: What only begins at its centre.
        name: Prefix of what is shared.
    """
    late = tf.compat.v1.placeholder(tf.bool, [], f"{name}/late")

    def finish(sums: Sequence[tuple[tf.Variable, tf.Tensor]]) -> list[tf.Operation]:
        return [_move(center, moving_rate, total) for center, total in sums]

    def receive(
        centers: Sequence[tf.Tensor], _: Sequence[tf.Tensor], waited_s: tf.Tensor
    ) -> list[tf.Operation]:
        distances = [_distance(tie) for tie in ties]
        moved = [
            _taken_back(tie, moving_rate, distance, late)
            for tie, distance in zip(ties, distances, strict=True)
        ]
        with tf.control_dependencies(distances):
            known = [
                tie.known.assign(value, read_value=False)
                for tie, value in zip(ties, centers, strict=True)
            ]
        return [*moved, *known, note(tf.sqrt(sum_of_squares(distances)), waited_s)]

    def join(centers: Sequence[tf.Tensor], *_: object) -> list[tf.Operation]:
        begun = [
            copy.assign(value, read_value=False)
            for tie, value in zip(ties, centers, strict=True)
            for copy in (tie.local, tie.known)
        ]
        return [*begun, *fetch_centers(others)]

    return Rounds(
        [_distance(tie) for tie in ties],
        [tie.center for tie in ties],
        finish,
        receive,
        join=join,
        members=members,
        worker=worker,
        global_step=global_step,
        sums=True,
        late=late,
        name=f"{name}/rounds",
    )


def _distance(tie: Tie) -> tf.Tensor:
    """The distance x - c, in the dtype of the arithmetic, on the worker."""
    dtype = compute_dtype(tie.local.dtype)
    return tf.cast(tie.weights(), dtype) - tf.cast(tie.known.read_value(), dtype)


def _move(center: tf.Variable, moving_rate: float, total: tf.Tensor) -> tf.Operation:
    value = tf.cast(center.read_value(), total.dtype) + moving_rate * total
    return center.assign(tf.cast(value, center.dtype.base_dtype), read_value=False)


def _taken_back(tie: Tie, moving_rate: float, distance: tf.Tensor, late: tf.Tensor) -> tf.Operation:
    """Move the worker's weights, unless what it sent came too late."""
    weights = tie.weights()
    moved = tf.cast(tf.cast(weights, distance.dtype) - moving_rate * distance, weights.dtype)
    return tie.set_weights(tf.where(late, weights, moved))
