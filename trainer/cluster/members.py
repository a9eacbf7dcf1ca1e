"""Who takes part in the rounds of a run, kept on the first parameter server.

Workers do not see each other; what they share are two small variables. ``live`` says for whom a
round waits. ``progress`` counts each worker's arrivals, so that one that stands still can be told
from one that is slow. A worker is taken off the list when it leaves, or when others have waited
for it too long; with its next arrival it is on the list again.
"""

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

v1 = tf.compat.v1


class Patience(NamedTuple):
    """How long a worker waits for others.

    Attributes:
        timeout_s: Seconds after which whoever does not move is left behind.
        stop: Set when this process is to end: waiting ends at once then.
        poll_s: Longest pause between two looks, in seconds.
    """

    timeout_s: float = 60.0
    stop: threading.Event = threading.Event()
    poll_s: float = 0.02


class Members:
    """The list of members, built into a worker's graph on the device of the scope.

    Args:
        workers: Number of workers, >= 1; all are expected at the start.
        name: Prefix of the variables' names.
        wake: Makes an op that wakes whoever waits in the graph for a round; it runs after the
            list has become shorter.

    Attributes:
        live: 1 for a worker that rounds wait for, else 0; int64 ``[workers]``.
        progress: Arrivals of each worker in this launch; int64 ``[workers]``.
        start_op: The chief runs it at the start of a launch: everybody is expected again.

    Raises:
        ValueError: If `workers` is less than 1.
    """

    def __init__(
        self,
        workers: int,
        name: str = "members",
        wake: Callable[[], tf.Operation] | None = None,
    ) -> None:
        if not workers >= 1:
            raise ValueError(f"`workers` must be >= 1. Received: workers={workers}.")
        self.workers = workers
        self.live = _counters(f"{name}/live", workers, 1)
        self.progress = _counters(f"{name}/progress", workers, 0)
        self.start_op = tf.group(self.live.initializer, self.progress.initializer)
        self._device = self.live.device
        self._wake = wake
        with tf.device(self._device):
            self._lost = v1.placeholder(tf.int64, [None], f"{name}/lost")
            self._lose = self._remove(self._lost)

    def hide(self) -> None:
        """Take the variables out of the collection that is saved and that sessions wait for.

        For those whose workers wait for `start_op` by other means. Else a checkpoint would have
        to come from a run with members.
        """
        mine = {id(variable) for variable in self.variables}
        kept = v1.get_collection_ref(v1.GraphKeys.GLOBAL_VARIABLES)
        kept[:] = [variable for variable in kept if id(variable) not in mine]

    @property
    def variables(self) -> list[tf.Variable]:
        """Variables that belong to one launch: set by `start_op`, in no checkpoint."""
        return [self.live, self.progress]

    def count(self) -> tf.Tensor:
        """How many workers rounds wait for, at least 1; int64 scalar on the list's device."""
        with tf.device(self._device):
            return tf.maximum(tf.reduce_sum(self.live.read_value()), 1)

    def arrive(self, worker: int) -> tf.Operation:
        """Note, under the control dependencies of the scope, that a worker has arrived."""
        with tf.device(self._device):
            index = tf.constant([worker], tf.int64)
            counted = tf.raw_ops.ResourceScatterAdd(
                resource=self.progress.handle, indices=index, updates=tf.constant([1], tf.int64)
            )
            return tf.group(counted, self._set_live(index, 1))

    def leave(self, worker: int) -> tf.Operation:
        """Take a worker that is done off the list, and wake who waits."""
        with tf.device(self._device):
            return self._remove(tf.constant([worker], tf.int64))

    def lose(self, session: v1.Session, workers: Sequence[int]) -> None:
        """Take workers that do not answer off the list, and wake who waits.

        Args:
            session: A session without hooks.
            workers: Their indices.
        """
        session.run(self._lose, {self._lost: list(workers)})

    def _remove(self, workers: tf.Tensor) -> tf.Operation:
        gone = self._set_live(workers, 0)
        if self._wake is None:
            return gone
        with tf.control_dependencies([gone]):
            return self._wake()

    def _set_live(self, workers: tf.Tensor, value: int) -> tf.Operation:
        return tf.raw_ops.ResourceScatterUpdate(
            resource=self.live.handle,
            indices=workers,
            updates=tf.fill(tf.shape(workers), tf.constant(value, tf.int64)),
        )


def _counters(name: str, size: int, value: int) -> tf.Variable:
    return v1.get_variable(
        name,
        [size],
        tf.int64,
        initializer=v1.constant_initializer(value),
        trainable=False,
        use_resource=True,
        collections=[v1.GraphKeys.GLOBAL_VARIABLES],
    )
