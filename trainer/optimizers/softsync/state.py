"""What the workers of a softsync run share on the global step's device, and what it says."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from deepinsight.collectors.collection import trace_tensor
from deepinsight.trainer.cluster.members import Members
from deepinsight.trainer.optimizers._statistics import free_prefix

v1 = tf.compat.v1
STREAMS = (  # name, unit, description; in the order of the vector that is brought to the worker
    ("gradients_per_update", "gradients", "Gradients in the last update, by whomever."),
    ("round_staleness", "updates", "Mean staleness of the gradients in the last update."),
    ("largest_round_staleness", "updates", "Largest staleness in the last update."),
    ("staleness_weight", "1", "What the gradient of this push was multiplied by."),
    ("live_workers", "workers", "Workers that are expected to push."),
    ("pending_gradients", "gradients", "Gradients that wait for an update after this push."),
)


class SharedState:
    """Counters, and the lock under which they change.

    Args:
        home: Device of the global step.
        name: Prefix of the shared names.
        workers: Number of workers at the start.

    Attributes:
        members: Who is expected to push.
        waiting: Gradients that wait for an update, int64 scalar.
        last: Of the last update: gradients, their mean staleness, the largest; float64 ``[3]``,
            0 and NaN before the first.
        pending: `waiting`, read at any moment.
    """

    def __init__(self, home: str, name: str, workers: int) -> None:
        self.home, self._name = home, name
        with tf.device(home):
            self.members = Members(workers, f"{name}/members")
            self._nothing = tf.constant([0.0, float("nan"), float("nan")], tf.float64)
            self._none = tf.zeros([], tf.int64)
            self.waiting = _variable(f"{name}/pending", self._none)
            self.last = _variable(f"{name}/last_update", self._nothing)
            self.pending = self.waiting.read_value()
            self._mutex = tf.raw_ops.MutexV2(shared_name=f"{name}/lock")

    @property
    def variables(self) -> list[tf.Variable]:
        """Variables that belong to one launch."""
        return [*self.members.variables, self.waiting, self.last]

    def lock(self, ready: Sequence[Any]) -> tf.Tensor:
        """Ask for the lock when all of `ready` is there.

        What happens under the lock may wait for servers only, never for a worker.
        """
        with tf.device(self.home), tf.control_dependencies(ready):
            return tf.raw_ops.MutexLock(mutex=self._mutex)

    def unlock(self, lock: tf.Tensor, done: Sequence[Any]) -> tf.Operation:
        """Give the lock back after `done`; a step that fails gives it back at once.

        The lock is held as long as an op is still to take the tensor `lock`.
        """
        with tf.device(self.home), tf.control_dependencies(done):
            return tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)

    def count_push(self, worker: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Note a push, under the scope's control dependencies.

        Returns:
            How many workers are live, and how many gradients wait with this one.
        """
        with tf.device(self.home):
            with tf.control_dependencies([self.members.arrive(worker)]):
                live = self.members.count()
            return live, self.waiting.read_value() + 1

    def start(self, clear: Callable[[], list[tf.Operation]]) -> tf.Operation:
        """Make the op that begins a launch.

        Args:
            clear: Makes the ops that empty the accumulators.
        """
        with tf.name_scope(f"{self._name}/start"):
            lock = self.lock([self.members.start_op])
            with tf.control_dependencies([lock]):
                waiting, last = self.waiting.assign(self._none), self.last.assign(self._nothing)
                return self.unlock(lock, [*clear(), waiting, last])


def trace_push(summary: tf.Tensor, optimizer: str, details: Mapping[str, Any]) -> None:
    """Offer what a push has seen to the session hook.

    The streams are ``sync/<quantity>``; where another push of the graph has these names, they
    carry the optimizer's name.

    Args:
        summary: float64, in the order of `STREAMS`, on the servers.
        optimizer: Name of the optimizer.
        details: Of the streams.
    """
    prefix = free_prefix("sync", [stream for stream, _, _ in STREAMS], optimizer)
    here = tf.unstack(tf.identity(summary))  # one message, then apart
    for (stream, unit, description), value in zip(STREAMS, here, strict=True):
        trace_tensor(
            f"{prefix}/{stream}",
            value,
            unit,
            description=description,
            details=details,
            every_n_steps=None,
        )


def _variable(name: str, value: tf.Tensor) -> tf.Variable:
    return v1.get_variable(
        name,
        value.shape,
        value.dtype,
        initializer=v1.constant_initializer(tf.get_static_value(value)),
        trainable=False,
        use_resource=True,
    )
