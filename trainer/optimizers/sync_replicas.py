"""TensorFlow's SyncReplicasOptimizer, with every dropped gradient counted.

An accumulator drops a gradient whose round is over, and says nothing. To count, one accumulator
more takes part in every round: each push adds a 1 at its worker's place, with the same round number
and directly before its gradients, and the chief takes the *sum* together with the gradients.
The sums add up, per worker, to the pushes that were accepted; `decided` holds them together with
the number of the next round, in one variable that changes in one assignment. A worker knows for
which rounds it has pushed; so

    dropped = pushes for rounds before the next one - accepted

is exact at any moment, and pushes still undecided are in neither number. (TensorFlow lets each
variable's accumulator decide by itself: a push that arrives in the very moment in which a round
ends may be accepted for some variables and dropped for others; it counts as it began.)

Tokens: every round ends with max(workers, replicas_to_aggregate) tokens that carry the next
round's number; a worker waits for one before it goes on. A worker that leaves raises a flag and
puts one more token per worker behind them, so that nobody waits for gradients that will not come.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from deepinsight.trainer.optimizers.exchange import GradientAndVariable, after
from deepinsight.trainer.optimizers.versions import UpdateCounts

v1 = tf.compat.v1


class CountingSyncReplicas(v1.train.SyncReplicasOptimizer):
    """SyncReplicas for one worker, which counts what is accepted.

    Args:
        rule: The update rule.
        counts: The update counters, raised once per round.
        worker: Index of this worker.
        workers: Number of workers.
        replicas_to_aggregate: Gradients per round, 1 … `workers`.

    Attributes:
        decided: After `apply_gradients`: pushes accepted per worker, the next round's number, and
            1 if a worker has left, as they stand when the worker has got its token; int64
            ``[workers + 2]``.
        accepted: Pushes accepted per worker, then the next round's number, read at any moment.
        pushed_for: The round for which the worker has pushed, int64 scalar.
        token: The round to go on with, int64 scalar.
        start_op: The chief runs it once, after variables were initialised or restored.
        leave_op: A worker runs it when it pushes no more.
    """

    def __init__(
        self,
        rule: v1.train.Optimizer,
        counts: UpdateCounts,
        *,
        worker: int,
        workers: int,
        replicas_to_aggregate: int,
    ) -> None:
        home = counts.global_step.device
        with tf.device(home):
            accumulator = v1.ConditionalAccumulator(
                tf.float64, shape=[workers], shared_name="push_count", reduction_type="SUM"
            )
            self._decided_variable = _counter("sync/decided", [workers + 1])
            self._left = _counter("sync/left", [])
        super().__init__(
            _RoundEnd(rule, counts, accumulator, self._decided_variable, replicas_to_aggregate),
            replicas_to_aggregate=replicas_to_aggregate,
            total_num_replicas=workers,
        )
        self._home, self._push_count = home, accumulator
        self._worker, self._workers = worker, workers
        # SyncReplicas sets the first round of the accumulators in this list.
        self._accumulator_list.append((accumulator, home))

    def apply_gradients(
        self,
        grads_and_vars: Iterable[GradientAndVariable],
        global_step: tf.Variable,
        name: str | None = None,
    ) -> tf.Operation:
        """Build the worker's step; see the base class.

        Args:
            grads_and_vars: Gradients on their variables' devices, sparse ones sorted and unique.
            global_step: The global step, which counts rounds.
            name: Name of the op.

        Returns:
            The op that pushes and then waits for a token.
        """
        graph = v1.get_default_graph()
        known = len(graph.get_operations())
        op = super().apply_gradients(self._counted(list(grads_and_vars)), global_step, name)
        (dequeue,) = [
            op for op in graph.get_operations()[known:] if op.type.startswith("QueueDequeue")
        ]
        self.token = dequeue.outputs[0]
        with tf.device(self._home):
            with tf.control_dependencies([self.token]):
                left = tf.expand_dims(self._left.read_value(), 0)
                self.decided = tf.concat([self._decided_variable.read_value(), left], 0)
            self.accepted = self._decided_variable.read_value()
            zeros = tf.zeros([self._workers], tf.int64)
            first = tf.expand_dims(global_step.read_value(), 0)
            self.start_op = tf.group(
                self._decided_variable.assign(tf.concat([zeros, first], 0)), self._left.initializer
            )
            with tf.control_dependencies([self._left.assign(1).op]):
                tokens = tf.fill([self._workers], global_step.read_value())
                self.leave_op = self._sync_token_queue.enqueue_many((tokens,))
        # The session's end cancels the chief's wait for gradients: that is no error.
        self._chief_queue_runner = v1.train.QueueRunner(
            self._sync_token_queue,
            self._chief_queue_runner.enqueue_ops,
            queue_closed_exception_types=(tf.errors.OutOfRangeError, tf.errors.CancelledError),
        )
        return op

    @property
    def session_variables(self) -> list[tf.Variable]:
        """Variables that belong to one launch: not in a checkpoint, set by `start_op`."""
        return [self._decided_variable, self._left]

    def _counted(self, pairs: Sequence[GradientAndVariable]) -> Iterator[GradientAndVariable]:
        """Hand the pairs on, the count of the push before the first.

        The base class asks for the pairs after it has made the variable with the worker's
        round, and hands that variable to every accumulator: as many messages to the server
        as there are gradients. It gets the value instead, once per server.
        """
        variable = self._local_step
        value = variable.read_value()
        rounds: dict[str, tf.Tensor] = {}
        for device in (self._home, *(variable.device for _, variable in pairs)):
            if device not in rounds:
                with tf.device(device):
                    rounds[device] = tf.identity(value)
        self.pushed_for = rounds[self._home]
        ready = [g if isinstance(g, tf.Tensor) else g.values for g, _ in pairs]
        with tf.device(self._home), tf.control_dependencies(ready):
            one = tf.one_hot(self._worker, self._workers, dtype=tf.float64)
            counted = self._push_count.apply_grad(one, local_step=self.pushed_for)
        for gradient, weights in pairs:
            self._local_step = rounds[weights.device]
            yield after([counted], gradient), weights
        self._local_step = variable

    def hook(self, is_chief: bool) -> v1.train.SessionRunHook:
        """The session hook; it hands out no tokens in advance.

        With tokens in advance (TensorFlow's default) every worker is a round ahead of its
        weights, and gradients are dropped although all workers are equally fast.
        """
        return self.make_session_run_hook(is_chief, num_tokens=0)


def _counter(name: str, shape: Sequence[int]) -> tf.Variable:
    return v1.get_variable(
        name,
        shape,
        tf.int64,
        initializer=v1.zeros_initializer(),
        trainable=False,
        use_resource=True,
    )


class _RoundEnd:
    """What the chief does with a round's aggregated gradients; stands in for the update rule."""

    def __init__(
        self,
        rule: v1.train.Optimizer,
        counts: UpdateCounts,
        accumulator: Any,
        decided: tf.Variable,
        replicas_to_aggregate: int,
    ) -> None:
        self._rule, self._counts = rule, counts
        self._accumulator, self._decided = accumulator, decided
        self._required = replicas_to_aggregate

    def apply_gradients(
        self, grads_and_vars: Iterable[GradientAndVariable], global_step: tf.Variable
    ) -> tf.Operation:
        """Apply, count the updates and the accepted pushes, and raise the global step."""
        graph = v1.get_default_graph()
        known = len(graph.get_operations())
        apply = self._rule.apply_gradients(grads_and_vars)
        updates = graph.get_operations()[known:]
        with tf.device(global_step.device):
            accepted = tf.cast(self._accumulator.take_grad(self._required), tf.int64)
            with tf.control_dependencies([apply, accepted]):
                following = tf.expand_dims(global_step.read_value() + 1, 0)
                total = self._decided.read_value()[:-1] + accepted
            decided = self._decided.assign(tf.concat([total, following], 0)).op
            with tf.control_dependencies([decided]):
                done = tf.group(apply, decided)
        return tf.group(*self._counts.raise_after(updates, done).tensors())
