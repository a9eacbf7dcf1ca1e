r"""Stale-synchronous parallel: pushes meet no barrier, but no worker runs far ahead.

Every worker has a clock, the number of its steps. Its push is applied at once; before its next
step it waits until

.. math::  c_m - \min_{k\ live} c_k \le bound

so that no two live workers are ever more than bound + 1 steps apart, and what a worker reads lacks
at most the last bound + 1 updates of each other one.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from deepinsight.collectors.collection import trace_tensor, traced_tensors
from deepinsight.trainer.cluster.members import Patience
from deepinsight.trainer.optimizers._arguments import check_optimizer, whole
from deepinsight.trainer.optimizers._statistics import traceable
from deepinsight.trainer.optimizers.exchange import GradientAndVariable
from deepinsight.trainer.optimizers.push import Push
from deepinsight.trainer.optimizers.staleness.clocks import ClockHook, Clocks
from deepinsight.trainer.optimizers.versions import UpdateCounts, Versions

v1 = tf.compat.v1
NO_PATIENCE_GIVEN = Patience()


class BoundedStalenessOptimizer(v1.train.Optimizer):
    r"""Apply gradients as they come, and hold back workers that are too far ahead.

    A worker that has made more than `bound` steps more than the slowest live one waits before its
    next step; the waiting is done by the hook of `make_session_run_hook`, which every worker's
    session needs. With bound 0 all workers step in turn, each by itself (no mean is taken).

    A worker whose session ends holds up nobody. One that stands still for `patience.timeout_s`
    while others wait for it is waited for no more until its next step, with which it comes in again
    at the front of the live ones; so does one that starts late or again. When the chief starts, all
    clocks are set to 0.

    The clocks are an int64 vector on the device of the global step; they belong to one launch, and
    are in no checkpoint. The trace hook records ``sync/clock_lead``, ``sync/wait_time`` and
    ``sync/live_workers``.

    Args:
        opt: The optimizer, any of ``tf.compat.v1``.
        bound: Steps that a worker may be ahead of the slowest, >= 0.
        worker_index: Index of this worker.
        num_workers: Number of workers.
        patience: How long to wait for a worker that stands still.
        name: Name of the optimizer.

    Raises:
        ValueError: If `opt` is no ``tf.compat.v1`` optimizer or a number is out of range.

    Example:
        >>> with tf.Graph().as_default():
        ...     step = tf.compat.v1.train.get_or_create_global_step()
        ...     w = tf.compat.v1.get_variable("w", initializer=[1.0], use_resource=True)
        ...     base = tf.compat.v1.train.GradientDescentOptimizer(0.25)
        ...     optimizer = BoundedStalenessOptimizer(base, 3, worker_index=0, num_workers=1)
        ...     train = optimizer.minimize(w**2, step)
        ...     hooks = [optimizer.make_session_run_hook(is_chief=True)]
        ...     with tf.compat.v1.train.MonitoredTrainingSession(hooks=hooks) as session:
        ...         _ = session.run(train)
        ...         session.run(w)
        array([0.5], dtype=float32)

    References:
        Ho et al., 2013, More Effective Distributed ML via a Stale Synchronous Parallel Parameter
        Server. NeurIPS.
    """

    def __init__(
        self,
        opt: v1.train.Optimizer,
        bound: int,
        *,
        worker_index: int,
        num_workers: int,
        patience: Patience = NO_PATIENCE_GIVEN,
        name: str = "BoundedStaleness",
    ) -> None:
        super().__init__(False, name)
        check_optimizer("opt", opt)
        self._opt, self._bound = opt, whole("bound", bound, 0)
        self._workers = whole("num_workers", num_workers, 1)
        self._worker = whole("worker_index", worker_index, 0, self._workers - 1)
        self._patience = patience
        self._clocks: Clocks | None = None
        self._waited_s: tf.Tensor | None = None
        self._track_trackable(opt, "opt")

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[GradientAndVariable]:
        """As the optimizer's."""
        return self._opt.compute_gradients(*args, **kwargs)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[GradientAndVariable],
        global_step: tf.Variable | None = None,
        name: str | None = None,
        **options: Any,
    ) -> tf.Operation:
        """Apply gradients, and raise the worker's clock.

        Args:
            grads_and_vars: (gradient, variable) pairs.
            global_step: Variable to raise by one; the clocks are beside it. None: beside the
                graph's global step, which stands still then.
            name: Name of the ops.
            **options: Further arguments of the optimizer's `apply_gradients`.

        Returns:
            The op that makes the step.

        Raises:
            ValueError: If there is no global step, or the method was called before.
        """
        if tf.executing_eagerly() or self._clocks is not None:
            raise ValueError(
                "`apply_gradients` must be called once, in a tf.compat.v1 graph: it is the "
                f"worker's step. Received: "
                f"{'a second call' if self._clocks is not None else 'a call in eager execution'}."
            )
        beside = global_step if global_step is not None else v1.train.get_global_step()
        if beside is None:
            raise ValueError(
                "The graph must have a global step, beside which the clocks are kept. Call "
                "tf.compat.v1.train.get_or_create_global_step(). Received: a graph without."
            )
        train_ops = v1.get_collection_ref(v1.GraphKeys.TRAIN_OP)
        known = len(train_ops)
        update = self._opt.apply_gradients(grads_and_vars, global_step, name, **options)
        del train_ops[known:]
        with v1.name_scope(self._name):
            self._clocks, self._waited_s = _build(
                self._worker, self._workers, beside.device, [update]
            )
            with tf.device(beside.device):
                op = tf.group(update, self._clocks.ticked)
        v1.add_to_collection(v1.GraphKeys.TRAIN_OP, op)
        return op

    def make_session_run_hook(self, is_chief: bool) -> v1.train.SessionRunHook:
        """The hook that does the waiting.

        Args:
            is_chief: Whether this worker begins a launch, as one of them must.
        """
        return ClockHook(
            self._built, self._bound,
            starts=is_chief, awaits=not is_chief, patience=self._patience,
        )  # fmt: skip

    def get_slot(self, *args: Any, **kwargs: Any) -> tf.Variable | None:
        """As the optimizer's."""
        return self._opt.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> list[str]:
        """As the optimizer's."""
        return self._opt.get_slot_names(*args, **kwargs)

    def variables(self) -> list[tf.Variable]:
        """The optimizer's variables; the clocks belong to one launch only."""
        return self._opt.variables()

    def _built(self) -> tuple[Clocks, tf.Tensor]:
        if self._clocks is None or self._waited_s is None:
            raise ValueError(
                "`apply_gradients` or `minimize` must be called before the session is made. "
                "Received: a hook without a step."
            )
        return self._clocks, self._waited_s


def push_bounded(
    rule: v1.train.Optimizer,
    gradients: list[GradientAndVariable],
    counts: UpdateCounts,
    pulled: Versions,
    *,
    worker: int,
    workers: int,
    is_chief: bool,
    bound: int,
    patience: Patience,
    facts: Mapping[str, Any] | None = None,
) -> Push:
    """Apply the gradients as soon as they arrive; the push's hook waits before the next step.

    Args:
        rule: The update rule.
        gradients: What `exchange_gradients` returned.
        counts: The update counters.
        pulled: Their values at the pull.
        worker: Index of this worker.
        workers: Number of workers.
        is_chief: Whether this worker runs `Push.start_op` before its first step; the others wait
            for that.
        bound: Steps that a worker may be ahead of the slowest, >= 0.
        patience: How long to wait for a worker that stands still.
        facts: What the rule wants to know beside the gradients; see `push_async`.

    Raises:
        ValueError: If a number is out of range.
    """
    bound = whole("bound", bound, 0)
    graph = v1.get_default_graph()
    known = len(graph.get_operations())
    update = rule.apply_gradients(gradients, **(facts or {}))
    before = counts.raise_after(graph.get_operations()[known:], update)
    home = counts.global_step.device
    clocks, waited_s = _build(worker, workers, home, [before.overall])
    hook = ClockHook(
        lambda: (clocks, waited_s), bound, starts=False, awaits=not is_chief, patience=patience
    )
    with tf.device(home):
        op = tf.group(update, clocks.ticked, *before.tensors())
        reached = before.overall + 1
    return Push(
        op, before.overall, before.since(pulled),
        reached=reached, hooks=(hook,), variables=clocks.variables,
        start_op=clocks.start_op, leave_op=clocks.leave_op, members=clocks.members,
    )  # fmt: skip


def _build(
    worker: int, workers: int, device: str, after: list[tf.Operation | tf.Tensor]
) -> tuple[Clocks, tf.Tensor]:
    """The clocks with the worker's tick, and the placeholder of the seconds that it waited."""
    clocks = Clocks(worker, workers, device)
    clocks.tick(after)
    waited_s = v1.placeholder_with_default(tf.constant(0.0, tf.float64), [], "waited_s")
    if traceable():
        taken = {traced.stream.name for traced in traced_tensors(v1.get_default_graph())}
        for name, tensor, unit, description in (
            ("clock_lead", clocks.lead, "steps",
             "Steps of this worker minus those of the slowest live one, after its step."),
            ("wait_time", waited_s, "s", "How long this worker waited for others before its step."),
            ("live_workers", clocks.live_workers, "workers", "Workers that are waited for."),
        ):  # fmt: skip
            if f"sync/{name}" not in taken:
                trace_tensor(
                    f"sync/{name}", tensor, unit, description=description, every_n_steps=None
                )
    return clocks, waited_s
