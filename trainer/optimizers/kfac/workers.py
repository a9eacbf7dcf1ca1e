"""K-FAC shared out among the workers of a cluster.

===================  ======================================================================
gradient             pulls, computes gradients and pushes them; they are preconditioned where
                     the variables are, with the inverses that are there
statistics           pulls, computes the moments of batches of its own and pushes them into the
                     covariances, once per `covariance_every` steps of the gradient workers
inverse              reads the covariances, inverts them and writes the inverses, whenever
                     they are `inverse_every` steps old
statistics+inverse   both
===================  ======================================================================

The roles meet in variables only. Where a statistics or inverse worker is gone, the others go on
with the last inverses, whose age grows; when it comes back it continues where the variables are.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from deepinsight.collectors.collection import trace_tensor, traced_tensors
from deepinsight.collectors.graph import closure, fetched_elements
from deepinsight.trainer.cluster.members import Members, Patience
from deepinsight.trainer.optimizers._arguments import whole
from deepinsight.trainer.optimizers._statistics import traceable
from deepinsight.trainer.optimizers.exchange import GradientAndVariable
from deepinsight.trainer.optimizers.kfac.layers import DenseLayer
from deepinsight.trainer.optimizers.kfac.optimizer import KFACOptimizer
from deepinsight.trainer.optimizers.kfac.state import Counters
from deepinsight.trainer.optimizers.push import Push, push_async
from deepinsight.trainer.optimizers.versions import UpdateCounts, Versions

v1 = tf.compat.v1
FIRST_PAUSE_S = 0.001
NO_PATIENCE_GIVEN = Patience()


def kfac_roles(workers: int) -> tuple[str, ...]:
    """The role of each worker; the first ones, the chief among them, compute gradients.

    Args:
        workers: Number of workers, >= 1.

    Returns:
        1: all of the work. 2: gradients, and the rest. More: the last two are the statistics
        worker and the inverse worker.

    Raises:
        ValueError: If there is no worker.

    Example:
        >>> kfac_roles(4)
        ('gradient', 'gradient', 'statistics', 'inverse')
    """
    count = whole("workers", workers, 1)
    if count < 3:
        return ("all",) if count == 1 else ("gradient", "statistics+inverse")
    return ("gradient",) * (count - 2) + ("statistics", "inverse")


def dense_layers(
    variables: Mapping[str, tf.Variable],
    tensors: Mapping[str, Sequence[tf.Tensor]] | None = None,
) -> list[DenseLayer]:
    """The layers among variables called ``<layer>/kernel`` and ``<layer>/bias``.

    Args:
        variables: The variables by name; others are left out.
        tensors: The inputs and outputs of each layer, as `Model.logits` collects them; None for
            workers that compute no statistics.

    Raises:
        ValueError: If a layer's tensors are missing.
    """
    layers = []
    for name, kernel in variables.items():
        layer, _, part = name.rpartition("/")
        if part != "kernel":
            continue
        if tensors is not None and layer not in tensors:
            raise ValueError(
                f"`tensors` must hold the inputs and outputs of every layer. Received: those of "
                f"{', '.join(map(repr, tensors)) or 'none'}, and the kernel {name!r}."
            )
        inputs, outputs = (None, None) if tensors is None else tensors[layer]
        layers.append(DenseLayer(kernel, variables.get(f"{layer}/bias"), inputs, outputs))
    return layers


def push_kfac(
    rule: KFACOptimizer,
    gradients: list[GradientAndVariable] | None,
    counts: UpdateCounts,
    pulled: Versions,
    *,
    worker: int,
    workers: int,
    patience: Patience = NO_PATIENCE_GIVEN,
) -> Push:
    """A worker's step in its role.

    A worker without gradients raises neither the global step nor any variable's count. Its hook
    waits until there is something to do; when the last gradient worker has left, it asks the
    session to stop (`MonitoredSession.should_stop`).

    Args:
        rule: K-FAC in this worker's role.
        gradients: What `exchange_gradients` returned; None for a worker without gradients.
        counts: The update counters.
        pulled: Their values at the pull.
        worker: Index of this worker.
        workers: Number of workers, shared out as in `kfac_roles`.
        patience: How long a worker without gradients waits for a step of others, before it does
            its work once more.

    Raises:
        ValueError: If the role is not this worker's, or does not fit `gradients`.
    """
    roles = kfac_roles(workers)
    if not 0 <= worker < workers or rule.role != roles[worker]:
        raise ValueError(
            f"`rule` must have the role of its worker: of {workers} workers these are "
            f"{', '.join(roles)}. Received: role={rule.role!r}, worker={worker}."
        )
    if (gradients is None) == (rule.role in ("all", "gradient")):
        raise ValueError(
            "`gradients` must be given by a worker that computes them, and by no other. "
            f"Received: {'None' if gradients is None else 'gradients'} for the role {rule.role!r}."
        )
    with tf.device(counts.global_step.device):
        members = Members(workers, "kfac")
    if gradients is not None:
        push = push_async(rule, gradients, counts, pulled)
        hooks: tuple[v1.train.SessionRunHook, ...] = (_ArriveHook(members.arrive(worker)),)
    else:
        push = _step_without_gradients(rule, counts, pulled)
        computing = sum(role in ("all", "gradient") for role in roles)
        with tf.device(counts.global_step.device):
            live = members.live.read_value()[:computing]
        hooks = (KFACPaceHook(rule, push.op, patience=patience, live=live),)
    return push._replace(
        hooks=(*push.hooks, *hooks),
        variables=(*push.variables, *members.variables),
        start_op=members.start_op,
        leave_op=members.leave(worker),
        members=members,
    )


def _step_without_gradients(rule: KFACOptimizer, counts: UpdateCounts, pulled: Versions) -> Push:
    work = []
    if "statistics" in rule.role:
        work.append(rule.statistics_op())
    if "inverse" in rule.role:
        with tf.control_dependencies(work):
            work.append(rule.inverse_op())
    with tf.control_dependencies(work):
        rule.trace()
        after = counts.read()
    with tf.device(counts.global_step.device):
        with tf.control_dependencies(after.tensors()):
            # Adds nothing; by it the trace hook knows a step, and at which global step it was.
            seen = counts.global_step.assign_add(0, read_value=False)
        op = tf.group(*work, seen)
    return Push(op, pulled.overall, after.since(pulled), reached=after.overall)


class _ArriveHook(v1.train.SessionRunHook):
    """Notes that a gradient worker is there, also when it comes back."""

    def __init__(self, arrive: tf.Operation) -> None:
        self._arrive = arrive

    def after_create_session(self, session: v1.Session, coord: Any) -> None:
        del coord
        session.run(self._arrive)


class KFACPaceHook(v1.train.SessionRunHook):
    """Holds a worker without gradients back until there is something to do.

    A statistics worker works once per `covariance_every` steps of the gradient workers, an inverse
    worker when the burn-in is over and the inverses are `inverse_every` steps old. Runs that do not
    execute the worker's step are not held back.

    Args:
        rule: The worker's optimizer.
        op: The worker's step.
        patience: After `timeout_s` in which no gradient step was made the wait ends, once; when
            `stop` is set it ends at once.
        live: int64 ``[gradient workers]``, 0 for those that have left: when all have, the hook
            asks the session to stop. None: it never does.
    """

    def __init__(
        self,
        rule: KFACOptimizer,
        op: tf.Operation,
        *,
        patience: Patience = NO_PATIENCE_GIVEN,
        live: tf.Tensor | None = None,
    ) -> None:
        self._rule, self._op, self._patience = rule, op, patience
        self._look: dict[str, Any] = {"counters": rule.state.read_counters()}
        if live is not None:
            self._look["live"] = live
        self._waited_s = v1.placeholder_with_default(tf.constant(0.0, tf.float64), [], "waited_s")
        taken = {traced.stream.name for traced in traced_tensors(v1.get_default_graph())}
        if traceable() and "sync/wait_time" not in taken:
            trace_tensor(
                "sync/wait_time", self._waited_s, "s", every_n_steps=None,
                description="How long this worker waited for steps of others before its own.",
            )  # fmt: skip
        self._last: int | None = None

    def begin(self) -> None:
        """Note the graph, which is about to be finished."""
        self._graph = v1.get_default_graph()

    def before_run(self, run_context: Any) -> v1.train.SessionRunArgs | None:
        """Wait before the worker's step."""
        args = run_context.original_args
        if self._op not in closure(fetched_elements(self._graph, args.fetches)):
            return None
        began_s = time.monotonic()
        if not self._wait(run_context.session):
            run_context.request_stop()
        return v1.train.SessionRunArgs([], {self._waited_s: time.monotonic() - began_s})

    def _wait(self, session: v1.Session) -> bool:
        """Wait; returns whether any gradient worker is left."""
        pause_s, seen, since_s = FIRST_PAUSE_S, None, time.monotonic()
        while True:
            try:
                found = session.run(self._look)
            except tf.errors.FailedPreconditionError:  # the chief has not begun its launch
                found = None
            if found is not None:
                counters: Counters = found["counters"]
                if "live" in found and not found["live"].any():
                    return False
                if self._ready(counters):
                    break
                if counters.steps != seen:
                    seen, since_s = counters.steps, time.monotonic()
            late = time.monotonic() - since_s > self._patience.timeout_s
            if late or self._patience.stop.wait(pause_s):
                break
            pause_s = min(2 * pause_s, self._patience.poll_s)
        if found is not None:
            self._last = int(found["counters"].steps)
        return True

    def _ready(self, counters: Counters) -> bool:
        if self._rule.role == "inverse":
            return bool(counters.due(self._rule.schedule))
        # Steps may have gone back: to those of a checkpoint.
        moved = None if self._last is None else int(counters.steps) - self._last
        return moved is None or moved < 0 or moved >= self._rule.schedule.covariance_every
