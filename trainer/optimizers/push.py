"""The two ways in which a worker's gradients meet the variables.

Both return a `Push`: the op that is a training step, and one small tensor per parameter server
that says what happened to it. Fetch both in one `Session.run`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from deepinsight.trainer.cluster.members import Members, Patience
from deepinsight.trainer.optimizers.exchange import GradientAndVariable, after
from deepinsight.trainer.optimizers.sync_replicas.optimizer import SyncReplicasOptimizer
from deepinsight.trainer.optimizers.versions import UpdateCounts, Versions

v1 = tf.compat.v1


class Push(NamedTuple):
    """A training step.

    Attributes:
        op: Runs the step.
        step: The global step before this update, or the round that the gradients were computed
            for. int64 scalar.
        staleness: Updates by others between the pull and the push.
        reached: The global step when this step is over, int64 scalar.
        dropped: Gradients of this worker dropped so far in this launch, int64 scalar, or None.
        hooks: Session hooks that the synchronization needs.
        variables: Variables that belong to one launch: in no checkpoint, set by `start_op`.
        start_op: The chief runs it once, after variables were initialised or restored.
        leave_op: A worker runs it when it pushes no more.
        members: Who rounds wait for, where there are rounds.
        own: State of this worker alone, which it saves itself.
    """

    op: tf.Operation
    step: tf.Tensor
    staleness: Versions
    reached: tf.Tensor | None = None
    dropped: tf.Tensor | None = None
    hooks: tuple[v1.train.SessionRunHook, ...] = ()
    variables: tuple[tf.Variable, ...] = ()
    start_op: tf.Operation | None = None
    leave_op: tf.Operation | None = None
    members: Members | None = None
    own: tuple[tf.Variable, ...] = ()


def push_async(
    rule: v1.train.Optimizer,
    gradients: list[GradientAndVariable],
    counts: UpdateCounts,
    pulled: Versions,
    facts: Mapping[str, Any] | None = None,
) -> Push:
    """Apply the gradients as soon as they arrive (Downpour).

    Args:
        rule: The update rule.
        gradients: What `exchange_gradients` returned.
        counts: The update counters.
        pulled: Their values at the pull.
        facts: What the rule wants to know beside the gradients: keyword arguments of its
            `apply_gradients`, such as `backup` and `staleness`.
    """
    graph = v1.get_default_graph()
    known = len(graph.get_operations())
    apply = rule.apply_gradients(gradients, **(facts or {}))
    before = counts.raise_after(graph.get_operations()[known:], apply)
    with tf.device(counts.global_step.device):
        op = tf.group(apply, *before.tensors())
    return Push(op, before.overall, before.since(pulled))


def push_sync(
    rule: v1.train.Optimizer,
    gradients: list[GradientAndVariable],
    counts: UpdateCounts,
    pulled: Versions,
    *,
    worker: int,
    workers: int,
    is_chief: bool,
    replicas_to_aggregate: int,
    patience: Patience,
) -> Push:
    """Push to `SyncReplicasOptimizer` and wait for the round's end.

    The staleness counts the updates between the pull and the arrival at the accumulators: it is 0
    for every push that is accepted, because one that missed a round is dropped.

    Args:
        rule: The update rule, applied by the chief once per round.
        gradients: What `exchange_gradients` returned.
        counts: The update counters, raised once per round.
        pulled: Their values at the pull.
        worker: Index of this worker.
        workers: Number of workers.
        is_chief: Whether this worker is the chief.
        replicas_to_aggregate: Gradients per round, <= `workers`.
        patience: How long a round waits for a worker.
    """
    arrival = [
        gradient if isinstance(gradient, tf.Tensor) else gradient.values
        for gradient, _ in gradients
    ]
    with tf.control_dependencies(arrival):
        arrived = counts.read()
    sync = SyncReplicasOptimizer(
        rule,
        replicas_to_aggregate,
        workers,
        name="sync",
        worker_index=worker,
        patience=patience,
        counts=counts,
    )
    op = sync.apply_gradients(
        [(after(arrived.tensors(), gradient), variable) for gradient, variable in gradients],
        counts.global_step,
        local_step=pulled.overall,
        unique_rows=True,
    )
    return Push(
        op,
        pulled.overall,
        arrived.since(pulled),
        reached=sync.decided.reached,
        dropped=sync.decided.dropped,
        hooks=(sync.make_session_run_hook(is_chief, leaves=False),),
        variables=tuple(sync.session_variables),
        leave_op=sync.leave_op,
        members=sync.members,
    )
