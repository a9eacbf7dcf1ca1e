"""The rounds of SyncReplicas: who has pushed, when a round is over, and who is told so.

All of it is small state on the device of the global step. A worker notes the round for which it has
pushed and sends the chief's loop a token to look again; so does a list of members that has become
shorter. The chief's loop ends when the round is *due*: enough gradients are there, or all that
will come. Then every worker has a queue of its own, into which a token is put when a round is over.

A token means "look again" and nothing else: what counts is what is read after it. So a token too
many does no harm, none can be taken by another worker, and none of an old round is ever mistaken
for a new one. A queue that nobody empties keeps its one token.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from deepinsight.trainer.cluster.members import Members

v1 = tf.compat.v1
LAUNCH = 2**40  # rounds of a launch at most; at 10^6 rounds/s this is 12 days


class Decided(NamedTuple):
    """What a worker knows when its push is decided; on the device of the global step.

    Attributes:
        reached: The global step, int64 scalar.
        accepted: Pushes of the worker in this launch that were taken into a round, int64 scalar.
        dropped: Those that missed their round, int64 scalar.
        live: Workers that rounds wait for, int64 scalar.
        waited_us: How long the worker has waited for the round's end, in µs, int64 scalar.
    """

    reached: tf.Tensor
    accepted: tf.Tensor
    dropped: tf.Tensor
    live: tf.Tensor
    waited_us: tf.Tensor


class Rounds:
    """The state of the rounds, built into a worker's graph.

    Args:
        name: Prefix of the names of variables and queues, the same on every worker.
        workers: Number of workers.
        replicas_to_aggregate: Gradients that a round waits for, if there are so many workers.
        global_step: The number of the round, raised by the chief at its end.

    Attributes:
        members: Who rounds wait for.
        variables: Everything here belongs to one launch: in no collection and no checkpoint.
    """

    def __init__(
        self, name: str, workers: int, replicas_to_aggregate: int, global_step: tf.Variable
    ) -> None:
        self._workers, self._required = workers, replicas_to_aggregate
        self._global_step, self._home = global_step, global_step.device
        with tf.device(self._home):
            self.arrivals = _queue(f"{name}/arrivals")
            self._ends = [_queue(f"{name}/round_over_{k}") for k in range(workers)]
            self.members = Members(workers, f"{name}/members", wake=self._tell_chief)
            self._launch = _counters(f"{name}/launch", [])
            # The launch that a worker knows of, the round it has pushed for, and how many of its
            # pushes were accepted.
            self._joined = _counters(f"{name}/joined", [workers])
            self._pushed = _counters(f"{name}/pushed_for", [workers])
            self._accepted = _counters(f"{name}/accepted", [workers])
        self.variables = [
            *self.members.variables, self._launch, self._joined, self._pushed, self._accepted
        ]  # fmt: skip
        self.members.hide()

    def step(self) -> tf.Tensor:
        """The global step now, int64 scalar."""
        with tf.device(self._home):
            return tf.cast(self._global_step.read_value(), tf.int64)

    def number_for(self, worker: int, pulled: tf.Tensor) -> tf.Tensor:
        """The number of the round that a worker's gradients are for, int64 scalar.

        Args:
            worker: Its index.
            pulled: The global step that they were computed at. The worker has joined its launch
                before; if there has been another one since, the number is too small.
        """
        with tf.device(self._home):
            launch = self._joined.read_value()[worker]
            return launch * LAUNCH + tf.cast(pulled, tf.int64)

    def _number(self) -> tf.Tensor:
        return self._launch.read_value() * LAUNCH + self.step()

    def arrive(
        self, worker: int, number: tf.Tensor, accumulated: Sequence[tf.Operation]
    ) -> tf.Operation:
        """Note that a worker's gradients are in the accumulators.

        Args:
            worker: Its index.
            number: The number of their round.
            accumulated: What has put them there. An accumulator thus has every gradient that is
                noted, and taking it never blocks.
        """
        with tf.device(self._home), tf.control_dependencies(accumulated):
            noted = _set(self._pushed, tf.constant([worker], tf.int64), number)
            with (
                tf.control_dependencies([noted]),
                tf.control_dependencies([self.members.arrive(worker)]),
            ):
                return self._tell_chief()

    def wait(self, worker: int, number: tf.Tensor, arrived: tf.Operation) -> Decided:
        """Wait until a worker's push is decided: accepted, or dropped because it was late.

        Also ends when the chief has begun a new launch.
        """

        def undecided() -> tf.Tensor:
            return tf.equal(self._number(), number)

        with tf.device(self._home), tf.control_dependencies([arrived]):
            begin_s = tf.timestamp()
            with tf.control_dependencies([begin_s]):
                waiting = self._repeat(undecided, self._ends[worker])
            with tf.control_dependencies([waiting]):
                waited_us = tf.cast((tf.timestamp() - begin_s) * 1e6, tf.int64)
                joined = self.make_join(worker)
            with tf.control_dependencies([joined]):
                accepted = self._accepted.read_value()[worker]
                return Decided(
                    self.step(),
                    accepted,
                    self.members.progress.read_value()[worker] - accepted,
                    tf.reduce_sum(self.members.live.read_value()),
                    waited_us,
                )

    def wait_for_all(self) -> tf.Tensor:
        """The chief's wait for the round: who has pushed for it, int64 ``[workers]`` of 0 and 1."""
        with tf.device(self._home):
            first = self._look()

            def body(*_: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                with tf.device(self._home), tf.control_dependencies([self.arrivals.dequeue()]):
                    return self._look()

            counted, _ = v1.while_loop(
                lambda _, due: tf.logical_not(due), body, first,
                parallel_iterations=1, back_prop=False,
            )  # fmt: skip
        return counted

    def _look(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Who has pushed for this round, and whether it is due."""
        live = self.members.live.read_value()
        with tf.control_dependencies([live]):  # who pushes and then leaves has pushed
            counted = tf.equal(self._pushed.read_value(), self._number())
        here = tf.reduce_sum(tf.cast(counted, tf.int64))
        missing = tf.reduce_any(tf.equal(live, 1) & tf.logical_not(counted))
        due = (here >= self._required) | ((here >= 1) & tf.logical_not(missing))
        return tf.cast(counted, tf.int64), due

    def accept(self, counted: tf.Tensor) -> tf.Operation:
        """Count the accepted pushes; under the control dependencies of the scope."""
        with tf.device(self._home):
            return self._accepted.assign_add(counted, read_value=False)

    def tell_all(self) -> tf.Operation:
        """Let every worker that waits look again."""
        return tf.group(*(self._tell(worker) for worker in range(self._workers)))

    def make_join(self, worker: int) -> tf.Operation:
        """Let a worker know of the launch; under the control dependencies of the scope."""
        with tf.device(self._home):
            return _set(self._joined, tf.constant([worker], tf.int64), self._launch.read_value())

    def make_start(self, reset: Callable[[tf.Tensor], Sequence[tf.Operation]]) -> tf.Operation:
        """Make the op with which the chief begins a launch.

        Args:
            reset: Makes the ops that empty the accumulators and set their round, from its number.
        """
        with tf.device(self._home):
            launch = tf.cond(
                self.is_open(),
                lambda: self._launch.read_value() + 1,
                lambda: tf.constant(1, tf.int64),
            )
            ready = [
                *reset(launch * LAUNCH + self.step()),
                self.members.start_op,
                *(v.initializer for v in (self._joined, self._pushed, self._accepted)),
            ]
            # Last of all: only now anybody can take part.
            with tf.control_dependencies(ready):
                begun = self._launch.assign(launch, read_value=False)
            with tf.control_dependencies([begun]):
                return self.tell_all()

    def make_release(self) -> tf.Operation:
        """Make the op that ends everybody's wait, whatever becomes of the round."""
        with tf.device(self._home):
            next_launch = self._launch.assign_add(tf.constant(1, tf.int64), read_value=False)
            with tf.control_dependencies([next_launch]):
                return self.tell_all()

    def make_state(self) -> tf.Tensor:
        """What the chief's watch reads, int64 ``[1 + 3 workers]``; `State.parse` knows how."""
        with tf.device(self._home):
            return tf.concat(
                [
                    tf.expand_dims(self._number(), 0),
                    self._pushed.read_value(),
                    self.members.live.read_value(),
                    self.members.progress.read_value(),
                ],
                0,
            )

    def is_open(self) -> tf.Tensor:
        """Whether the chief has ever begun a launch, bool scalar."""
        with tf.device(self._home):
            return tf.raw_ops.VarIsInitializedOp(resource=self._launch.handle)

    def _tell_chief(self) -> tf.Operation:
        return self.arrivals.enqueue(tf.constant(0, tf.int64))

    def _tell(self, worker: int) -> tf.Operation:
        with tf.device(self._home):
            queue = self._ends[worker]
            missing = tf.maximum(1 - queue.size(), 0)
            return queue.enqueue_many([tf.zeros(tf.expand_dims(missing, 0), tf.int64)])

    def _repeat(self, condition: Callable[[], tf.Tensor], queue: tf.queue.FIFOQueue) -> tf.Tensor:
        """Take tokens out of a queue until a condition, read after each, is False."""

        def body(_: tf.Tensor) -> tf.Tensor:
            with tf.device(self._home), tf.control_dependencies([queue.dequeue()]):
                return condition()

        return v1.while_loop(
            lambda waiting: waiting, body, [condition()], parallel_iterations=1, back_prop=False
        )


def _queue(name: str) -> tf.queue.FIFOQueue:
    return tf.queue.FIFOQueue(-1, [tf.int64], shapes=[()], shared_name=name, name="tokens")


def _counters(name: str, shape: Sequence[int]) -> tf.Variable:
    return v1.get_variable(
        name,
        shape,
        tf.int64,
        initializer=v1.zeros_initializer(),
        trainable=False,
        use_resource=True,
        collections=[],
    )


def _set(variable: tf.Variable, rows: tf.Tensor, value: tf.Tensor) -> tf.Operation:
    return tf.raw_ops.ResourceScatterUpdate(
        resource=variable.handle, indices=rows, updates=tf.fill(tf.shape(rows), value)
    )
