"""One worker's training graph, in between-graph replication.

    ids, labels ─▶ pull (update counts, then variables) ─▶ logits, loss ─▶ gradients ─▶ push

Everything a step has to say comes back in one `Session.run` and, however many variables there
are, in one message from each parameter server.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from deepinsight.trainer.data.base import DataSet
from deepinsight.trainer.devices import by_device
from deepinsight.trainer.models import Model, create_model
from deepinsight.trainer.optimizers import (
    GradientAndVariable,
    LeastLoaded,
    Push,
    UpdateCounts,
    create_rule,
    exchange_gradients,
    pull,
    push_async,
    push_sync,
)
from deepinsight.trainer.options import Options

v1 = tf.compat.v1


class Replica(NamedTuple):
    """This worker's place: worker `index` of `workers`, with `ps` parameter servers."""

    index: int
    workers: int
    ps: int


@dataclass(frozen=True)
class TrainingGraph:
    """The graph's inputs and outputs; everything but `model` and `push` is on the worker.

    Attributes:
        ids: Placeholder, int32 ``[n, slots]``.
        labels: Placeholder, float32 ``[n]``.
        logits: float32 ``[n]``; fetching it alone changes nothing.
        loss: Mean binary cross-entropy in nat, float32 scalar.
        step: The global step at which the push was counted, int64 scalar.
        staleness: Updates by others between pull and push, int64 scalar.
        variable_staleness: The same per variable, int64 ``[variables]``.
        variable_names: The variables in the order of `variable_staleness`.
        token: `Push.token` (sync only).
        decided: `Push.decided` (sync only).
    """

    model: Model
    ids: tf.Tensor
    labels: tf.Tensor
    logits: tf.Tensor
    loss: tf.Tensor
    push: Push
    step: tf.Tensor
    staleness: tf.Tensor
    variable_staleness: tf.Tensor
    variable_names: list[str]
    token: tf.Tensor | None
    decided: tf.Tensor | None
    global_step: tf.Variable


def device_function(replica: Replica) -> Callable[[tf.Operation], str] | None:
    """Variables to the parameter servers, the emptiest first; everything else to the worker."""
    if not replica.ps:
        return None
    return v1.train.replica_device_setter(
        ps_tasks=replica.ps,
        worker_device=f"/job:worker/task:{replica.index}",
        ps_strategy=LeastLoaded(replica.ps),
    )


def build_graph(options: Options, data: DataSet, replica: Replica) -> TrainingGraph:
    """Build a worker's graph into the default graph."""
    with v1.device(device_function(replica)):
        global_step = v1.train.get_or_create_global_step()
        model = create_model(options, data)
        counts = UpdateCounts(model.variables, global_step)
        ids = v1.placeholder(tf.int32, [None, data.slots], "ids")
        labels = v1.placeholder(tf.float32, [None], "labels")
        pulled = counts.read()
        with tf.control_dependencies(pulled.tensors()):
            read = pull(model.dense)
            looked_up: dict[str, tf.Tensor] = {}
            logits = model.logits(ids, read.values, looked_up)
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
        gradients = exchange_gradients(loss, model, read.values, sum_rows=not options.compensated)
        rule = create_rule(options, replica.workers)
        if options.synchronization == "async":
            facts: dict[str, Any] = {}
            if options.compensated:
                named = dict(zip(model.variables, gradients, strict=True))
                facts = {
                    "worker_index": replica.index,
                    "backup": _what_was_read(named, {**read.snapshots, **looked_up}),
                }
                if options.optimizer.startswith("boosted"):
                    ages = counts.staleness(pulled, {name: g for name, (g, _) in named.items()})
                    facts["staleness"] = [(ages[name], v) for name, (_, v) in named.items()]
            push = push_async(rule, gradients, counts, pulled, facts)
        else:
            push = push_sync(
                rule, gradients, counts, pulled,
                worker=replica.index,
                workers=replica.workers,
                replicas_to_aggregate=options.replicas_to_aggregate or replica.workers,
            )  # fmt: skip
        here = bring_here(
            {
                "step": push.step,
                "staleness": push.staleness.overall,
                "token": push.token,
                "decided": push.decided,
                **push.staleness.variables,
            }
        )
        variable_staleness = tf.concat([here[d] for d in push.staleness.variables], axis=0)
    return TrainingGraph(
        model=model, ids=ids, labels=labels, logits=logits, loss=loss, push=push,
        step=here["step"], staleness=here["staleness"],
        variable_staleness=variable_staleness, variable_names=counts.labels,
        token=here.get("token"), decided=here.get("decided"), global_step=global_step,
    )  # fmt: skip


def _what_was_read(
    gradients: Mapping[str, GradientAndVariable], read: Mapping[str, tf.Tensor]
) -> list[tuple[tf.Tensor | tf.IndexedSlices, tf.Variable]]:
    """Each variable as the worker read it: whole, or the rows that its gradient belongs to."""
    backup = []
    for name, (gradient, variable) in gradients.items():
        rows = isinstance(gradient, tf.IndexedSlices)
        seen = tf.IndexedSlices(read[name], gradient.indices) if rows else read[name]
        backup.append((seen, variable))
    return backup


def bring_here(tensors: Mapping[str, tf.Tensor | None]) -> dict[str, tf.Tensor]:
    """Bring small int64 scalars and vectors to the device of the scope, one message per device."""
    known = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    here = {}
    for device, names in by_device(known).items():
        there = {name: known[name] for name in names}
        sizes = [1 if t.shape.rank == 0 else int(t.shape[0]) for t in there.values()]
        with tf.device(device):
            packed = tf.concat([tf.reshape(t, [-1]) for t in there.values()], axis=0)
        for (name, tensor), part in zip(there.items(), tf.split(packed, sizes), strict=True):
            here[name] = part[0] if tensor.shape.rank == 0 else part
    return here
