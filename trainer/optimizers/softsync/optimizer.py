"""n-softsync: an update for every few gradients, each weighted by how stale it is."""

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from deepinsight.trainer.cluster.members import Members, Patience
from deepinsight.trainer.optimizers._apply import check_gradient
from deepinsight.trainer.optimizers._arguments import whole
from deepinsight.trainer.optimizers._statistics import Report, trace, traceable
from deepinsight.trainer.optimizers.exchange import GradientAndVariable, after
from deepinsight.trainer.optimizers.push import Push
from deepinsight.trainer.optimizers.softsync.accumulators import Accumulators, arrived
from deepinsight.trainer.optimizers.softsync.checks import (
    check_base,
    check_graph,
    checked_step,
    reading,
)
from deepinsight.trainer.optimizers.softsync.state import SharedState, trace_push
from deepinsight.trainer.optimizers.softsync.watch import SoftsyncHook
from deepinsight.trainer.optimizers.versions import NO_LIMIT, UpdateCounts, Versions

v1 = tf.compat.v1
WEIGHTINGS = ("inverse", "none")


class SoftsyncOptimizer(v1.train.Optimizer):
    r"""Collect the gradients of some workers, then let an optimizer apply their weighted mean.

    With M live workers the servers update once in c pushes, whoever makes them:

    .. math::

        c = \max(\lfloor M / n \rfloor, 1), \quad
        \bar g = \frac{1}{c} \sum_{l=1}^{c} \alpha(\tau_l)\, g_l, \quad
        \alpha(\tau) = \frac{1}{\max(\tau, 1)}, \quad w \leftarrow base(w, \bar g)

    n is `splits`; :math:`\tau_l` counts the updates between the moment at which a worker reads the
    global step, before it reads the variables, and the moment at which its gradient is added.
    :math:`\alpha` is relative to the base's own learning rate. n = M with constant weight is
    Downpour, push for push; n = 1 is close to a synchronous update, but nobody waits for it.

    There is no chief's thread. Each variable has an accumulator on its device; a push adds its
    gradients there, and the push that completes a round also takes the means, applies them and
    raises the global step by one. A lock on the global step's device makes each push, with its
    update if there is one, a single step for the others: so no gradient is counted twice or lost,
    a round has one taker even while c changes, and all variables are updated by the same
    gradients. What a push needs from its worker has arrived before it asks for the lock, so a
    worker that dies or stalls does not hold it. (A learning rate that is computed on the worker
    is the exception: place it on a server.)

    c follows the workers that live. One that ends or is lost takes no gradient with it: those it
    has added stay. If c falls below what has been collected, the next push takes all of it, and
    the mean is over as many. At the end of a run at most c - 1 gradients (c as of the last push)
    remain unapplied: `pending`.

    In a graph the hook records, as of each push, ``sync/gradients_per_update``,
    ``sync/round_staleness``, ``sync/largest_round_staleness``, ``sync/staleness_weight``,
    ``sync/live_workers`` and ``sync/pending_gradients``. What the base reports is NaN in pushes
    that made no update.

    Args:
        opt: The base, a ``tf.compat.v1`` optimizer; its slots are its own. It may not compensate
            for staleness, because that needs the value at which one worker's gradient was
            computed, and an update has the gradients of several.
        num_workers: Number of workers at the start, >= 1.
        splits: n, updates per M pushes, 1 … `num_workers`.
        worker_index: This worker, in [0, `num_workers`).
        staleness_weighting: ``"inverse"``: as above; ``"none"``: :math:`\alpha` = 1.
        name: Name of the optimizer, the same on all workers: a prefix of what they share.

    Attributes:
        step: After `apply_gradients`: the global step before this push, int64 scalar.
        reached: The global step after it, int64 scalar.
        staleness: :math:`\tau` of this push, int64 scalar.
        arrived: With `counts`: the update counts before this push, else None.
        pending: Gradients that wait for an update, read at any moment, int64 scalar.
        members: Who is expected to push.
        launch_variables: Variables that belong to one launch, set by `start_op`.
        start_op: The chief runs it once, after variables were initialised or restored. It empties
            the accumulators.
        leave_op: A worker runs it when it pushes no more.

    Raises:
        ValueError: If an argument is out of range, or `opt` cannot be a base.

    Example:
        >>> v1 = tf.compat.v1
        >>> with tf.Graph().as_default():
        ...     step = v1.train.get_or_create_global_step()
        ...     w = v1.get_variable("w", initializer=[4.0], use_resource=True)
        ...     base = v1.train.GradientDescentOptimizer(0.5)
        ...     optimizer = SoftsyncOptimizer(base, num_workers=2, worker_index=0)
        ...     push = optimizer.minimize(3 * tf.reduce_sum(w))
        ...     hook = optimizer.make_session_run_hook(is_chief=True)
        ...     with v1.train.MonitoredSession(hooks=[hook]) as session:
        ...         for _ in range(3):
        ...             _ = session.run(push)
        ...         print(*session.run([w, step, optimizer.pending]))
        [2.5] 1 1

    References:
        Zhang et al., 2016, Staleness-aware Async-SGD for Distributed Deep Learning. IJCAI.
        arXiv:1511.05950.
    """

    def __init__(
        self,
        opt: v1.train.Optimizer,
        num_workers: int,
        splits: int = 1,
        *,
        worker_index: int,
        staleness_weighting: str = "inverse",
        name: str = "SoftsyncOptimizer",
    ) -> None:
        super().__init__(False, name)
        check_base(opt)
        self._opt = opt
        self._num_workers = whole("num_workers", num_workers, 1)
        self._splits = whole("splits", splits, 1, self._num_workers)
        self._worker = whole("worker_index", worker_index, 0, self._num_workers - 1)
        if staleness_weighting not in WEIGHTINGS:
            raise ValueError(
                f"`staleness_weighting` must be 'inverse' or 'none'. "
                f"Received: staleness_weighting={staleness_weighting!r}."
            )
        self._inverse = staleness_weighting == "inverse"
        self._pulled: tuple[tf.Variable, tf.Tensor] | None = None
        self.members: Members | None = None
        self.arrived: Versions | None = None
        self._track_trackable(opt, "base")

    def get_slot(self, var: tf.Variable, name: str) -> tf.Variable | None:
        """As the base optimizer's."""
        return self._opt.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        """As the base optimizer's."""
        return self._opt.get_slot_names()

    def variables(self) -> list[tf.Variable]:
        """The base optimizer's variables."""
        return self._opt.variables()

    def compute_gradients(self, loss: tf.Tensor, *args: Any, **kwargs: Any) -> list[Any]:
        """Compute the gradients as the base does, and note how old they are.

        The graph's global step is read first: ops that read variables for the loss wait for it.

        Args:
            loss: The loss, a tensor of the graph.
            *args: As in `tf.compat.v1.train.Optimizer.compute_gradients`.
            **kwargs: As there.

        Returns:
            (gradient, variable) pairs.

        Raises:
            ValueError: If the graph has no global step.
            RuntimeError: In eager execution.
        """
        check_graph()
        step = checked_step(None)
        with tf.control_dependencies(None), tf.device(step.device):
            pulled = step.read_value()
        for op in reading(tf.convert_to_tensor(loss).op):
            op._add_control_input(pulled.op)
        self._pulled = step, pulled
        return self._opt.compute_gradients(loss, *args, **kwargs)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[GradientAndVariable],
        global_step: tf.Variable | None = None,
        name: str | None = None,
        *,
        pulled: tf.Tensor | None = None,
        counts: UpdateCounts | None = None,
    ) -> tf.Operation:
        """Push the gradients; call it once.

        Args:
            grads_and_vars: (gradient, variable) pairs; a gradient is a tensor, a
                `tf.IndexedSlices` (duplicate indices are summed) or None. The same variables on
                all workers, dense and sparse alike.
            global_step: Raised by one with each update; None: the graph's.
            name: Name of the op.
            pulled: The global step, read before the variables, int64 scalar; None: what
                `compute_gradients` has read.
            counts: Update counters to raise with each update, and with them the global step.

        Returns:
            The op of the push.

        Raises:
            ValueError: If a gradient, a variable or the global step does not fit, or there is no
                gradient, or it is not known at which global step they were computed.
            RuntimeError: In eager execution, or if called twice.
        """
        check_graph()
        if self.members is not None:
            raise RuntimeError(
                "`apply_gradients` must be called once per SoftsyncOptimizer: a push is one "
                "worker's gradients for all variables. Received: a second call; make an optimizer "
                "with another `name`."
            )
        pairs = [(check_gradient(grad, var), var) for grad, var in grads_and_vars]
        pairs = [(grad, var) for grad, var in pairs if grad is not None]
        if not pairs:
            raise ValueError("No gradients provided for any variable.")
        step = checked_step(global_step)
        pulled = self._checked_pull(step, pulled)
        with tf.init_scope():
            self._opt._create_slots([var for _, var in pairs])
        self._create_state(step, pairs)
        train_ops = v1.get_collection_ref(v1.GraphKeys.TRAIN_OP)
        known = len(train_ops)
        with tf.name_scope(name or self._name):
            op = self._push(pairs, step, pulled, counts)
        # The base has entered its op, which belongs to a branch: no meta graph could name it.
        del train_ops[known:]
        train_ops.append(op)
        return op

    def make_session_run_hook(
        self, is_chief: bool, patience: Patience | None = None
    ) -> v1.train.SessionRunHook:
        """Make the hook that begins and ends this worker's part.

        The chief's sets the shared state back at the start of a session, and takes off the list
        a worker that has not pushed for `Patience.timeout_s` while others have.

        Args:
            is_chief: Whether this is the chief.
            patience: None: `Patience` as it is by default.

        Raises:
            RuntimeError: Before `apply_gradients`.
        """
        self._check_applied("make_session_run_hook")
        return SoftsyncHook(
            self.members,
            patience or Patience(),
            watches=is_chief,
            start_op=self.start_op if is_chief else None,
            leave_op=self.leave_op,
        )

    def _check_applied(self, what: str) -> None:
        if self.members is None:
            raise RuntimeError(
                f"`{what}` must be called after apply_gradients or minimize, which make what the "
                "workers share. Received: a call before."
            )

    def _checked_pull(self, step: tf.Variable, pulled: tf.Tensor | None) -> tf.Tensor:
        if pulled is not None:
            return pulled
        if self._pulled is None or self._pulled[0] is not step:
            raise ValueError(
                "`pulled` must be the global step that was read before the variables, unless "
                "compute_gradients has read the same global step. Received: pulled=None."
            )
        return self._pulled[1]

    def _create_state(self, step: tf.Variable, pairs: Sequence[GradientAndVariable]) -> None:
        self._accumulators = Accumulators(pairs, self._inverse, self._name)
        self._shared = shared = SharedState(step.device, self._name, self._num_workers)
        self.members, self.pending = shared.members, shared.pending
        self.launch_variables = shared.variables
        self.start_op = shared.start(self._accumulators.clear)
        self.leave_op = shared.members.leave(self._worker)

    def _push(
        self,
        pairs: Sequence[GradientAndVariable],
        step: tf.Variable,
        pulled: tf.Tensor,
        counts: UpdateCounts | None,
    ) -> tf.Operation:
        shared = self._shared
        gradients, there = arrived(pairs)
        with tf.device(shared.home):
            pulled = tf.identity(pulled)
        lock = shared.lock([*there, pulled])
        with tf.control_dependencies([lock]):
            live, held = shared.count_push(self._worker)
            gradients = self._look(step, pulled, counts, gradients, pairs)
        added = self._accumulators.add(gradients, self.staleness)
        with tf.device(shared.home):
            due = held >= tf.maximum(live // self._splits, 1)
            reports: list[Report] = []
            outputs = tf.cond(
                due,
                lambda: self._update(added, step, counts, reports),
                lambda: [
                    tf.identity(self.step),
                    shared.last.read_value(),
                    *(tf.fill(part.values.shape, _nan(part.values)) for part in reports),
                ],
            )
            self.reached = outputs[0]
            left = tf.where(due, tf.zeros([], tf.int64), held)
            with tf.control_dependencies([*added, self.reached]):
                kept = shared.waiting.assign(left, read_value=False)
            seen = [] if self.arrived is None else self.arrived.tensors()
            op = shared.unlock(lock, [kept, live, *outputs, *seen])
            now = [self._accumulators.weight(self.staleness), live, left]
            now = tf.stack([tf.cast(value, tf.float64) for value in now])
            summary = tf.concat([outputs[1], now], 0)
        self._trace(summary, reports, outputs[2:])
        return op

    def _look(
        self,
        step: tf.Variable,
        pulled: tf.Tensor,
        counts: UpdateCounts | None,
        gradients: Sequence[Any],
        pairs: Sequence[GradientAndVariable],
    ) -> list[Any]:
        """See how stale the gradients are; they go on when the counts have been read."""
        if counts is None:
            with tf.device(step.device):
                self.step = step.read_value()
        else:
            self.arrived = counts.read()
            self.step = self.arrived.overall
            gradients = [
                after([self.arrived.variables[var.device]], gradient)
                for gradient, (_, var) in zip(gradients, pairs, strict=True)
            ]
        with tf.device(step.device):
            # A worker may have read before a restart from an older checkpoint.
            self.staleness = tf.maximum(self.step - pulled, 0)
        return list(gradients)

    def _update(
        self,
        added: Sequence[tf.Tensor],
        step: tf.Variable,
        counts: UpdateCounts | None,
        reports: list[Report],
    ) -> list[tf.Tensor]:
        """In a branch: take and apply; the global step then, what was taken, the base's reports."""
        graph = v1.get_default_graph()
        means, says = self._accumulators.take(added, self._shared.home)
        known = len(graph.get_operations())
        update = self._opt.apply_gradients(means)
        if counts is None:
            with tf.control_dependencies([update]):
                before = tf.raw_ops.ResourceCountUpTo(
                    resource=step.handle, limit=NO_LIMIT, T=tf.int64
                )
            raised = [before]
        else:
            versions = counts.raise_after(graph.get_operations()[known:], update)
            before, raised = versions.overall, versions.tensors()
        with tf.device(self._shared.home):
            kept = self._shared.last.assign(says, read_value=False)
            reports.extend(getattr(self._opt, "reported", ()))
            with tf.control_dependencies([update, kept, *raised]):
                outputs = [before + 1, tf.identity(says)]
                return outputs + [tf.identity(part.values) for part in reports]

    def _trace(
        self, summary: tf.Tensor, reports: Sequence[Report], values: Sequence[tf.Tensor]
    ) -> None:
        if not traceable():
            return
        details = {"optimizer": self._opt.get_name(), "splits": self._splits}
        parts = [
            part._replace(values=tf.ensure_shape(value, part.values.shape))
            for part, value in zip(reports, values, strict=True)
        ]
        if parts:
            trace(self._opt, parts, details)
        trace_push(summary, self._name, details | {"worker_index": self._worker})


def push_softsync(
    rule: v1.train.Optimizer,
    gradients: list[GradientAndVariable],
    counts: UpdateCounts,
    pulled: Versions,
    *,
    worker: int,
    workers: int,
    is_chief: bool,
    splits: int = 1,
    weighting: str = "inverse",
    patience: Patience | None = None,
) -> Push:
    """Push through `SoftsyncOptimizer`.

    Args:
        rule: The update rule; one that compensates for staleness is refused.
        gradients: What `exchange_gradients` returned.
        counts: The update counters, raised once per update.
        pulled: Their values at the pull.
        worker: Index of this worker.
        workers: Number of workers.
        is_chief: Whether this is the chief, which looks for silent workers.
        splits: n of n-softsync, 1 … `workers`.
        weighting: ``"inverse"`` or ``"none"``.
        patience: How long the chief gives a worker between two pushes.

    Returns:
        The push. Its `staleness` is as of the moment at which the gradients are added.

    Raises:
        ValueError: As `SoftsyncOptimizer`.
    """
    optimizer = SoftsyncOptimizer(
        rule, workers, splits, worker_index=worker, staleness_weighting=weighting, name="softsync"
    )
    op = optimizer.apply_gradients(
        gradients, counts.global_step, pulled=pulled.overall, counts=counts
    )
    hooks = ()
    if is_chief:
        hooks = (SoftsyncHook(optimizer.members, patience or Patience(), watches=True),)
    return Push(
        op,
        optimizer.step,
        optimizer.arrived.since(pulled),
        reached=optimizer.reached,
        hooks=hooks,
        variables=tuple(optimizer.launch_variables),
        start_op=optimizer.start_op,
        leave_op=optimizer.leave_op,
        members=optimizer.members,
    )


def _nan(like: tf.Tensor) -> tf.Tensor:
    return tf.constant(float("nan"), like.dtype)
