r"""Synchronous rounds that go on with the workers that are there.

TensorFlow's SyncReplicas waits in each round for a fixed number of gradients; when a worker has no
more data or dies, the others wait for ever. Here the chief counts who has pushed, and waits for

.. math::  n \ge \text{replicas\_to\_aggregate} \quad\text{or}\quad
           \text{every live worker has pushed, and } n \ge 1

The list of live workers becomes shorter when one leaves, or when a round has waited too long for
it. Then the accumulators of TensorFlow give the mean of all gradients of the round, and the chief
applies it, raises the global step and lets the workers go on.

Two more things differ. A worker leaves a round only when the global step has moved: TensorFlow's
tokens carry a number, those of slow or dead workers stay queued, and who takes one computes its
next gradient for a round that is over. And each push is counted as accepted or dropped, exactly.
(Each variable's accumulator decides for itself: a push that arrives in the very moment in which a
round ends with fewer than all may be in time for some variables. It counts as dropped.)
"""

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from deepinsight.trainer.cluster.members import Patience
from deepinsight.trainer.optimizers.exchange import GradientAndVariable
from deepinsight.trainer.optimizers.staleness.decision import read_after
from deepinsight.trainer.optimizers.sync_replicas.accumulators import MeanGradient, summed
from deepinsight.trainer.optimizers.sync_replicas.checks import check_arguments
from deepinsight.trainer.optimizers.sync_replicas.hook import Ops, SyncReplicasHook
from deepinsight.trainer.optimizers.sync_replicas.rounds import Rounds
from deepinsight.trainer.optimizers.sync_replicas.trace import bring
from deepinsight.trainer.optimizers.versions import UpdateCounts

v1 = tf.compat.v1


class SyncReplicasOptimizer(v1.train.SyncReplicasOptimizer):
    r"""Apply the mean gradient of all workers, once per round.

    .. math::  base.apply\_gradients\left(\frac{1}{n} \sum_{m} g_m\right)

    over the n workers m that have pushed for the round. A sparse gradient has the mean of each row
    over the workers that have the row, and is summed and sorted before it leaves the worker (the
    accumulators rely on it). The global step counts rounds. What a slow worker pushes for a round
    that is over is dropped, and it goes on with the newest variables.

    Each worker builds the graph with the index of its own, and gives the hook of
    `make_session_run_hook` to its session; that of the chief, worker 0, applies the gradients. A
    worker whose session ends leaves; one that stalls or dies is left behind when a round has
    waited `patience.timeout_s` seconds for it, and takes part again with its next push. The
    chief's session stays open at its end until no other worker pushes any more. Neither a
    checkpoint nor a collection has the variables of the rounds, so a run may resume with another
    number of workers.

    The session hook records ``sync/dropped_gradients`` and ``sync/accepted_gradients`` of this
    worker in this launch, ``sync/live_workers``, and ``sync/wait_time``, in s: its last wait for
    the end of a round.

    Args:
        opt: The update rule.
        replicas_to_aggregate: Gradients that a round waits for, 1 … `total_num_replicas`; workers
            beyond it are backups.
        total_num_replicas: Number of workers; None: `replicas_to_aggregate`.
        variable_averages: A `tf.train.ExponentialMovingAverage` that is updated after each round.
        variables_to_average: What it averages.
        use_locking: If True, the global step is raised under its lock.
        name: Name of the optimizer, the prefix of the names of what its workers share.
        worker_index: Index of this worker, 0 … `total_num_replicas` - 1.
        patience: How long a round waits for a worker that does not push.
        counts: Update counters to be raised with the global step.

    Attributes:
        members: Who rounds wait for.
        decided: What this worker knows after a step.
        start_op: Begins a launch; the chief's hook runs it.
        leave_op: Takes this worker out of the rounds; the hook runs it at the session's end.

    Raises:
        ValueError: If an argument is out of range or `opt` is no ``tf.compat.v1`` optimizer.

    Example:
        >>> with tf.Graph().as_default():
        ...     step = tf.compat.v1.train.get_or_create_global_step()
        ...     w = tf.compat.v1.get_variable("w", initializer=[1.0], use_resource=True)
        ...     base = tf.compat.v1.train.GradientDescentOptimizer(0.25)
        ...     sync = SyncReplicasOptimizer(base, 1, worker_index=0)
        ...     train = sync.minimize(w**2, step)
        ...     hook = sync.make_session_run_hook(is_chief=True)
        ...     with tf.compat.v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
        ...         session.run([train])
        ...         session.run(w)
        [None]
        array([0.5], dtype=float32)

    References:
        Chen et al., 2016, Revisiting Distributed Synchronous SGD. arXiv:1604.00981.
    """

    def __init__(
        self,
        opt: v1.train.Optimizer,
        replicas_to_aggregate: int,
        total_num_replicas: int | None = None,
        variable_averages: tf.train.ExponentialMovingAverage | None = None,
        variables_to_average: Sequence[tf.Variable] | None = None,
        use_locking: bool = False,
        name: str = "sync_replicas",
        *,
        worker_index: int,
        patience: Patience | None = None,
        counts: UpdateCounts | None = None,
    ) -> None:
        workers = replicas_to_aggregate if total_num_replicas is None else total_num_replicas
        check_arguments(opt, replicas_to_aggregate, workers, worker_index)
        super().__init__(
            opt, replicas_to_aggregate, workers, variable_averages, variables_to_average,
            use_locking, name,
        )  # fmt: skip
        self._worker, self._counts = worker_index, counts
        self._patience = Patience() if patience is None else patience
        self._pulled: tf.Tensor | None = None
        self._rounds: Rounds | None = None

    def compute_gradients(
        self, loss: tf.Tensor, *args: Any, **kwargs: Any
    ) -> list[GradientAndVariable]:
        """Compute the gradients with the update rule, of variables read after the global step.

        Args:
            loss: The loss, a tensor of a graph with a global step.
            *args: Further arguments of the rule's method.
            **kwargs: As well.

        Returns:
            (gradient, variable) pairs.
        """
        pairs = super().compute_gradients(loss, *args, **kwargs)
        step = v1.train.get_global_step(v1.get_default_graph())
        if step is not None and isinstance(loss, tf.Tensor) and self._pulled is None:
            with tf.device(step.device):
                self._pulled = tf.cast(step.read_value(), tf.int64)
        if self._pulled is not None:
            resources = [v for _, v in pairs if getattr(v, "handle", None) is not None]
            read_after(self._pulled, resources, loss)
        return pairs

    def apply_gradients(
        self,
        grads_and_vars: Iterable[GradientAndVariable],
        global_step: tf.Variable | None = None,
        name: str | None = None,
        *,
        local_step: tf.Tensor | None = None,
        unique_rows: bool = False,
    ) -> tf.Operation:
        """Build the worker's step, and what the chief does at the end of a round.

        Args:
            grads_and_vars: (gradient, variable) pairs; a gradient is a tensor, a
                `tf.IndexedSlices`, or None (the rule gets None).
            global_step: The global step, a resource variable, raised by one per round.
            name: Name of the ops.
            local_step: The global step as read before the variables that the gradients were
                computed of. None: as `compute_gradients` has read it; if it was not called, as it
                was at the end of the worker's last step.
            unique_rows: Whether sparse gradients have sorted, unique indices already.

        Returns:
            The op that pushes, and ends when the round is over. It raises nothing by itself.

        Raises:
            ValueError: If there is no gradient, or the global step is no resource variable.
        """
        pairs = list(grads_and_vars)
        if all(gradient is None for gradient, _ in pairs):
            raise ValueError("No gradients provided for any variable.")
        if getattr(global_step, "handle", None) is None:
            raise ValueError(
                "`global_step` must be a resource variable: it is the number of the round. "
                f"Received: {global_step!r}; call "
                "tf.compat.v1.train.get_or_create_global_step() with resource variables enabled."
            )
        self._global_step = global_step
        self._rounds = rounds = Rounds(
            self._name, self._total_num_replicas, self._replicas_to_aggregate, global_step
        )
        self.members = rounds.members
        with v1.name_scope(name or self._name):
            self._make_local_step()
            pulled = self._pulled if local_step is None else local_step
            pushed_for = self._local_step.read_value() if pulled is None else pulled
            number = rounds.number_for(self._worker, pushed_for)
            if not unique_rows:
                pairs = [(summed(gradient), variable) for gradient, variable in pairs]
            means = [
                None if gradient is None else MeanGradient(gradient, variable)
                for gradient, variable in pairs
            ]
            accumulated = [
                mean.add(gradient, number)
                for mean, (gradient, _) in zip(means, pairs, strict=True)
                if mean is not None
            ]
            arrived = rounds.arrive(self._worker, number, accumulated)
            self.decided = rounds.wait(self._worker, number, arrived)
            reached = bring(self.decided, self._name)
            op = self._local_step.assign(reached, read_value=False)
            variables = [variable for _, variable in pairs]
            over = self._end_round(list(zip(means, variables, strict=True)))
            self._make_session_ops(over, [mean for mean in means if mean is not None])
        self._gradients_applied = True
        return op

    @property
    def ready_for_local_init_op(self) -> tf.Tensor:
        """As TensorFlow's: the names of global variables that are not initialised."""
        return v1.report_uninitialized_variables(v1.global_variables())

    @property
    def session_variables(self) -> list[tf.Variable]:
        """Variables that belong to one launch: in no collection and no checkpoint."""
        return [] if self._rounds is None else self._rounds.variables

    def get_chief_queue_runner(self) -> v1.train.QueueRunner:
        """What ends the rounds, for who does not use the hook; its end closes the queue."""
        self._check_applied()
        return v1.train.QueueRunner(
            self._rounds.arrivals,
            [self._ops.round],
            queue_closed_exception_types=(tf.errors.OutOfRangeError, tf.errors.CancelledError),
        )

    def get_init_tokens_op(self, num_tokens: int = -1) -> tf.Operation:
        """Nothing: no worker goes ahead of its round."""
        return tf.no_op(name="no_init_tokens")

    def make_session_run_hook(
        self, is_chief: bool, num_tokens: int = -1, *, leaves: bool = True
    ) -> v1.train.SessionRunHook:
        """Make the hook that a worker's session needs.

        Args:
            is_chief: Whether this worker is the chief: its session ends the rounds.
            num_tokens: Of no effect; TensorFlow's hook has it.
            leaves: Whether the worker leaves at the session's end, and the chief waits there for
                the others; else whoever opens the session runs `leave_op`.

        Raises:
            ValueError: When the session is opened, if `apply_gradients` has not been called.
        """

        def ops() -> Ops:
            self._check_applied()
            return self._ops

        return SyncReplicasHook(
            ops,
            lambda: self.members,
            worker=self._worker,
            is_chief=is_chief,
            patience=self._patience,
            leaves=leaves,
        )

    def _check_applied(self) -> None:
        if self._rounds is None:
            raise ValueError(
                "`apply_gradients` must be called before, in the graph of the session. "
                "Received: no gradients."
            )

    def _make_local_step(self) -> None:
        """TensorFlow's variable for the worker's step, where this worker is."""
        with tf.device(tf.no_op().device):
            self._local_step = v1.Variable(
                tf.zeros([], tf.int64),
                trainable=False,
                collections=[v1.GraphKeys.LOCAL_VARIABLES],
                use_resource=True,
                name="sync_rep_local_step",
            )
        self.local_step_init_op = self._local_step.assign(self._rounds.step(), read_value=False)

    def _make_session_ops(self, over: tf.Operation, means: Sequence[MeanGradient]) -> None:
        rounds = self._rounds
        self.leave_op = rounds.members.leave(self._worker)
        self.start_op = rounds.make_start(lambda number: [mean.empty(number) for mean in means])
        self.chief_init_op = tf.group(self.start_op, self.local_step_init_op)
        with tf.control_dependencies([self.local_step_init_op]):
            join = rounds.make_join(self._worker)
        self._ops = Ops(
            start=self.start_op,
            join=join,
            round=over,
            release=rounds.make_release(),
            leave=self.leave_op,
            state=rounds.make_state(),
            is_open=rounds.is_open(),
        )
        self._sync_token_queue = rounds.arrivals

    def _end_round(self, means: Sequence[tuple[MeanGradient | None, tf.Variable]]) -> tf.Operation:
        """Apply the means, count, raise the global step, and let the workers go on."""
        graph, step = v1.get_default_graph(), self._global_step
        counted = self._rounds.wait_for_all()
        with tf.device(step.device):
            # All that count are there, and what is there is taken as a whole.
            some = tf.cast(tf.minimum(tf.reduce_sum(counted), 1), tf.int32)
        taken = [(None, variable) if mean is None else mean.take(some) for mean, variable in means]
        known = len(graph.get_operations())
        with tf.device(step.device), v1.name_scope(""):
            update = self._opt.apply_gradients(taken)
        updates = graph.get_operations()[known:]
        with tf.control_dependencies([update]):
            raised = self._raise(updates, self._rounds.accept(counted))
        with tf.control_dependencies([raised]):
            if self._variable_averages is not None:
                raised = self._variable_averages.apply(self._variables_to_average)
        with tf.control_dependencies([raised]):
            return self._rounds.tell_all()

    def _raise(self, updates: Sequence[tf.Operation], done: tf.Operation) -> tf.Operation:
        step = self._global_step
        with tf.device(step.device):
            if self._counts is not None:
                return tf.group(*self._counts.raise_after(updates, done).tensors())
            with tf.control_dependencies([done]):
                one = tf.ones([], step.dtype)
                return step.assign_add(one, use_locking=self._use_locking, read_value=False)
