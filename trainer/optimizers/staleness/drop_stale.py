r"""Gradients that are too old are dropped: whole pushes, decided in one place.

A worker reads the global step L, then the variables, and computes its gradients. When they have
arrived on the servers of their variables, the server of the global step S decides for all of them:

.. math::  S - L \le bound: \text{ apply and raise the step}; \quad \text{else drop}

What the decision says is one bool that goes to each server. It looks at the global step of that
moment: of pushes that are decided at the same time none sees the others, so that a push can be
counted, after the fact, as stale by up to the number of other workers more than the bound.
"""

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from deepinsight.trainer.optimizers._arguments import check_optimizer
from deepinsight.trainer.optimizers._statistics import traceable
from deepinsight.trainer.optimizers.exchange import GradientAndVariable
from deepinsight.trainer.optimizers.push import Push
from deepinsight.trainer.optimizers.staleness.decision import (
    apply_if,
    bring,
    bring_facts,
    count_pushes,
    is_fresh,
    read_after,
    trace_counts,
)
from deepinsight.trainer.optimizers.versions import UpdateCounts, Versions

v1 = tf.compat.v1


class DropStaleGradientOptimizer(v1.train.Optimizer):
    r"""Hand the gradients to an optimizer unless they are too old.

    A push whose gradients were computed at global step L and arrive at global step S is applied if
    :math:`S - L \le staleness`. Else no variable, no slot and not the global step changes, and the
    variable ``stale_counter`` beside the global step (float32, in checkpoints; one for all workers)
    rises by one.

    L is read in `compute_gradients`, and what the loss reads of its variables waits for it, so that
    no variable is older than L says. It works in a graph, on resource variables; the gradients may
    be dense or `tf.IndexedSlices`. Signature and behaviour are those of
    ``tf.contrib.opt.DropStaleGradientOptimizer`` in TensorFlow 1.15 (which read L beside the
    variables, in no certain order). The session hook records ``sync/dropped_gradients`` and
    ``sync/accepted_gradients`` of this worker, and there is a summary of the share of dropped
    gradients, of all workers, under TensorFlow's tag ``Gradient_staleness_percentage``.

    Args:
        opt: The optimizer, any of ``tf.compat.v1``.
        staleness: The bound in updates, an int or an integer tensor. 0 accepts only gradients of
            the newest variables, a negative bound nothing.
        use_locking: If True, the counter is raised under its lock.
        name: Name of the optimizer.

    Raises:
        ValueError: If `opt` is no ``tf.compat.v1`` optimizer or `staleness` no integer.

    Example:
        >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        ...     step = tf.compat.v1.train.get_or_create_global_step()
        ...     w = tf.compat.v1.get_variable("w", initializer=[1.0], use_resource=True)
        ...     base = tf.compat.v1.train.GradientDescentOptimizer(0.25)
        ...     train = DropStaleGradientOptimizer(base, 0).minimize(w**2, step)
        ...     session.run(tf.compat.v1.global_variables_initializer())
        ...     session.run(train).item(), session.run(w).tolist()
        (0.0, [0.5])
    """

    def __init__(
        self,
        opt: v1.train.Optimizer,
        staleness: Any,
        use_locking: bool = False,
        name: str = "DropStaleGradient",
    ) -> None:
        super().__init__(use_locking, name)
        check_optimizer("opt", opt)
        self._opt = opt
        self._staleness = _checked_bound(staleness)
        self._local_step: tf.Tensor | None = None
        self._here = ""
        self._counter: tf.Variable | None = None
        self._track_trackable(opt, "opt")

    def compute_gradients(
        self, loss: tf.Tensor, *args: Any, **kwargs: Any
    ) -> list[GradientAndVariable]:
        """Read the global step, then compute the gradients with the optimizer.

        Args:
            loss: The loss, a tensor of a graph.
            *args: Further arguments of the optimizer's method.
            **kwargs: As well.

        Returns:
            (gradient, variable) pairs.

        Raises:
            ValueError: If there is no graph or it has no global step.
        """
        if tf.executing_eagerly() or not isinstance(loss, tf.Tensor):
            raise ValueError(
                "`loss` must be a tensor of a tf.compat.v1 graph: between eager calls nothing is "
                f"stale. Received: {type(loss).__name__}."
            )
        local_step, self._here = self._read_local_step(loss.graph), loss.device
        with tf.device(loss.device), tf.control_dependencies([local_step]):
            gated = tf.identity(loss)
        pairs = self._opt.compute_gradients(gated, *args, **kwargs)
        read_after(local_step, [variable for _, variable in pairs], loss)
        return pairs

    def apply_gradients(
        self,
        grads_and_vars: Iterable[GradientAndVariable],
        global_step: tf.Variable | None = None,
        name: str | None = None,
        **options: Any,
    ) -> tf.Tensor:
        """Apply the gradients of `compute_gradients` unless they are too old.

        Args:
            grads_and_vars: (gradient, variable) pairs.
            global_step: The graph's global step, raised by one if the gradients are applied.
            name: Name of the ops.
            **options: Further arguments of the optimizer's `apply_gradients`, such as
                ``worker_index``.

        Returns:
            What makes the step: the number of gradients dropped so far, float32 scalar.

        Raises:
            ValueError: If `global_step` is not the graph's, no gradient is given, or
                `compute_gradients` was not called in this graph.
        """
        pairs = [(grad, var) for grad, var in grads_and_vars if grad is not None]
        if not pairs:
            raise ValueError("No gradients provided for any variable.")
        graph = v1.get_default_graph()
        if self._local_step is None or self._local_step.graph is not graph:
            raise ValueError(
                "`compute_gradients` must be called before `apply_gradients`, in the same graph: "
                "it notes when the gradients were computed. Received: no such call."
            )
        if global_step is None or global_step is not v1.train.get_global_step(graph):
            raise ValueError(
                "`global_step` must be the graph's, in which the age of the gradients is counted: "
                f"pass tf.compat.v1.train.get_global_step(). Received: {global_step!r}."
            )
        with v1.name_scope(self._name):
            arrived, facts = bring(pairs), bring_facts(options)
            outcome = apply_if(
                is_fresh(arrived, self._local_step, global_step, self._staleness),
                self._opt,
                global_step,
                lambda: (self._opt.apply_gradients(arrived, global_step, name, **facts), []),
                list,
            )
            dropped = self._count(outcome.accepted, global_step)
        v1.add_to_collection(v1.GraphKeys.TRAIN_OP, dropped.op)
        return dropped

    def get_slot(self, *args: Any, **kwargs: Any) -> tf.Variable | None:
        """As the optimizer's."""
        return self._opt.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> list[str]:
        """As the optimizer's."""
        return self._opt.get_slot_names(*args, **kwargs)

    def variables(self) -> list[tf.Variable]:
        """The optimizer's variables and the counter."""
        own = [] if self._counter is None else [self._counter]
        return [*self._opt.variables(), *own]

    def _read_local_step(self, graph: tf.Graph) -> tf.Tensor:
        """The global step as read at the beginning of a run; one for all losses of a graph."""
        if self._local_step is None or self._local_step.graph is not graph:
            global_step = v1.train.get_global_step(graph)
            if global_step is None:
                raise ValueError(
                    "The graph must have a global step, by which gradients age. Call "
                    "tf.compat.v1.train.get_or_create_global_step() first. Received: a graph "
                    "without."
                )
            with tf.device(global_step.device):
                # A sum, for the buffer of a mutable tensor would go with the step.
                self._local_step = global_step.read_value() + 0
        return self._local_step

    def _count(self, accepted: tf.Tensor, global_step: tf.Variable) -> tf.Tensor:
        """Raise the counter for a dropped push, and offer what is known to hook and summaries."""
        with (
            tf.device(global_step.device),
            v1.variable_scope(v1.get_variable_scope(), reuse=v1.AUTO_REUSE),
        ):
            self._counter = v1.get_variable(
                "stale_counter", [], tf.float32, v1.zeros_initializer(),
                trainable=False, use_resource=True,
            )  # fmt: skip
            raised = self._counter.assign_add(
                1.0 - tf.cast(accepted, tf.float32),
                use_locking=self._use_locking,
                read_value=False,
            )
            with tf.control_dependencies([raised]):
                dropped = self._counter.read_value()
            if traceable():
                updates = tf.cast(global_step.read_value() + 1, tf.float32)
                v1.summary.scalar("Gradient_staleness_percentage", dropped / updates)
            # In one message to the worker.
            packed = tf.stack([dropped, tf.cast(accepted, tf.float32)])
        with tf.device(self._here or tf.no_op().device):
            total, taken = tf.unstack(tf.identity(packed))
            mine = count_pushes(taken)
            with tf.control_dependencies([mine]):
                total = tf.identity(total)
        trace_counts(*tf.unstack(mine), since="the process began")
        return total


def push_drop_stale(
    rule: v1.train.Optimizer,
    gradients: list[GradientAndVariable],
    counts: UpdateCounts,
    pulled: Versions,
    *,
    worker: int,
    workers: int,
    bound: int,
    facts: Mapping[str, Any] | None = None,
) -> Push:
    """Apply the gradients as soon as they arrive, unless they are too old.

    A dropped push raises no count; its staleness is what it was at the decision.

    Args:
        rule: The update rule.
        gradients: What `exchange_gradients` returned.
        counts: The update counters.
        pulled: Their values at the pull.
        worker: Index of this worker.
        workers: Number of workers.
        bound: The largest staleness that is accepted, in updates, >= 0.
        facts: What the rule wants to know beside the gradients; see `push_async`.

    Raises:
        ValueError: If `bound` is negative or no integer.
    """
    if _checked_bound(bound) < 0:
        raise ValueError(f"`bound` must be >= 0. Received: bound={bound}.")
    home = counts.global_step.device
    with tf.device(home):
        pushes = v1.get_variable(
            "drop_stale/pushes", [2 * workers], tf.int64, v1.zeros_initializer(),
            trainable=False, use_resource=True,
        )  # fmt: skip

    arrived, known_facts = bring(gradients), bring_facts(facts or {})

    def told(now: Versions) -> list[tf.Tensor]:
        since = now.since(pulled)
        return [now.overall, since.overall, *since.variables.values()]

    def apply() -> tuple[tf.Operation, list[tf.Tensor]]:
        graph = v1.get_default_graph()
        known = len(graph.get_operations())
        update = rule.apply_gradients(arrived, **known_facts)
        before = counts.raise_after(graph.get_operations()[known:], update)
        return update, told(before)

    accept = is_fresh(arrived, pulled.overall, counts.global_step, bound)
    outcome = apply_if(accept, rule, counts.global_step, apply, lambda: told(counts.read()))
    step, overall, *variables = outcome.outputs
    with tf.device(home):
        accepted = tf.cast(outcome.accepted, tf.int64)
        place = worker + workers * (1 - accepted)
        raised = tf.raw_ops.ResourceScatterAdd(
            resource=pushes.handle, indices=[place], updates=tf.ones([1], tf.int64)
        )
        with tf.control_dependencies([raised]):
            taken, dropped = tf.unstack(tf.gather(pushes, [worker, worker + workers]))
        op = tf.group(raised, *outcome.outputs)
        reached = step + accepted
    trace_counts(taken, dropped, since="this launch began")
    staleness = Versions(overall, dict(zip(pulled.variables, variables, strict=True)))
    return Push(
        op, step, staleness, reached=reached, dropped=dropped,
        variables=(pushes,), start_op=pushes.initializer,
    )  # fmt: skip


def _checked_bound(bound: Any) -> Any:
    """The bound, an int or an integer tensor."""
    if tf.is_tensor(bound) and bound.dtype.is_integer and bound.shape.rank in (0, None):
        return bound
    try:
        return operator.index(bound)
    except TypeError:
        raise ValueError(
            f"The bound of the staleness must be an int. Received: {bound!r}."
        ) from None
