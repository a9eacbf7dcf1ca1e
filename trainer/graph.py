"""One worker's training graph.

    ids, labels ─▶ pull (update counts, then variables) ─▶ logits, loss ─▶ gradients ─▶ push

Everything a step has to say comes back in one `Session.run` and, however many variables there
are, in one message from each parameter server. Workers that step alone, and one client with many
towers, have graphs of their own: `deepinsight.trainer.local_steps` and
`deepinsight.trainer.towers`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from deepinsight.trainer.cluster.members import Patience
from deepinsight.trainer.data.base import DataSet
from deepinsight.trainer.devices import by_device
from deepinsight.trainer.models import Model, create_model
from deepinsight.trainer.optimizers import (
    GradientAndVariable,
    LeastLoaded,
    Push,
    UpdateCounts,
    Versions,
    create_rule,
    exchange_gradients,
    pull,
)
from deepinsight.trainer.options import Options
from deepinsight.trainer.pushes import Place, create_push

v1 = tf.compat.v1


class Replica(NamedTuple):
    """This worker's place: worker `index` of `workers`, with `ps` parameter servers."""

    index: int
    workers: int
    ps: int

    @property
    def device(self) -> str:
        """The worker's device; "" in a run of a single process."""
        return f"/job:worker/task:{self.index}" if self.ps else ""


@dataclass(frozen=True)
class TrainingGraph:
    """The graph's inputs and outputs; everything but `model` and `push` is on the worker.

    Attributes:
        ids: Placeholder, int32 ``[n, slots]``.
        labels: Placeholder, float32 ``[n]``.
        logits: The worker's, float32 ``[n]``; fetching it alone changes nothing.
        evaluated: Those of the model that all share, float32 ``[n]``.
        loss: Mean binary cross-entropy in nat, float32 scalar.
        gradients: What this worker computed, with the variables.
        reached: The step that the worker has come to, int64 scalar.
        staleness: Updates by others between pull and push, int64 scalar; None: there are none.
        variable_staleness: The same per variable, int64 ``[variables]``.
        variable_names: The variables in the order of `variable_staleness`.
        dropped: `Push.dropped`.
        global_step: The step that a checkpoint keeps.
        progress: What rises while anybody trains; None: the global step.
        new_step: Placeholder of `set_step`.
        set_step: Sets `global_step`, where only the chief's own step says what it is.
    """

    model: Model
    ids: tf.Tensor
    labels: tf.Tensor
    logits: tf.Tensor
    evaluated: tf.Tensor
    loss: tf.Tensor
    gradients: Sequence[GradientAndVariable]
    push: Push
    reached: tf.Tensor
    global_step: tf.Variable
    progress: tf.Variable | None = None
    staleness: tf.Tensor | None = None
    variable_staleness: tf.Tensor | None = None
    variable_names: tuple[str, ...] = ()
    dropped: tf.Tensor | None = None
    new_step: tf.Tensor | None = None
    set_step: tf.Operation | None = None


def device_function(replica: Replica) -> Callable[[tf.Operation], str] | None:
    """Variables to the parameter servers, the emptiest first; everything else to the worker."""
    if not replica.ps:
        return None
    return v1.train.replica_device_setter(
        ps_tasks=replica.ps, worker_device=replica.device, ps_strategy=LeastLoaded(replica.ps)
    )


def placeholders(data: DataSet) -> tuple[tf.Tensor, tf.Tensor]:
    """The placeholders of a batch: ids and labels."""
    ids = v1.placeholder(tf.int32, [None, data.slots], "ids")
    return ids, v1.placeholder(tf.float32, [None], "labels")


def mean_loss(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Mean binary cross-entropy in nat."""
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))


def build_graph(
    options: Options, data: DataSet, replica: Replica, patience: Patience
) -> TrainingGraph:
    """Build the graph of a worker that pulls and pushes into the default graph."""
    compressed = options.synchronization == "gradient-compression"
    with v1.device(device_function(replica)):
        global_step = v1.train.get_or_create_global_step()
        model = create_model(options, data)
        counts = UpdateCounts(model.variables, global_step)
        ids, labels = placeholders(data)
        pulled = counts.read()
        with tf.control_dependencies(pulled.tensors()):
            read = pull(model.dense, model.elsewhere)
            looked_up: dict[str, tf.Tensor] = {}
            logits = model.logits(ids, read.values, looked_up)
        loss = mean_loss(labels, logits)
        gradients = exchange_gradients(
            loss, model, read.values, sum_rows=not options.compensated, stay=compressed
        )
        facts = {}
        if options.compensated:
            named = dict(zip(model.variables, gradients, strict=True))
            seen = _what_was_read(named, {**read.snapshots, **looked_up})
            facts = _facts(options, replica, counts, pulled, named, seen)
        place = Place(replica.index, replica.workers, replica.device, patience)
        rule = create_rule(options, replica.workers)
        push = create_push(options, place, rule, gradients, counts, pulled, facts)
        return outputs(model, ids, labels, logits, loss, gradients, push, counts)


def outputs(
    model: Model,
    ids: tf.Tensor,
    labels: tf.Tensor,
    logits: tf.Tensor,
    loss: tf.Tensor,
    gradients: Sequence[GradientAndVariable],
    push: Push,
    counts: UpdateCounts,
) -> TrainingGraph:
    """What a step of pushed gradients says, brought to the device of the scope."""
    here = bring_here(
        {
            "step": push.step,
            "reached": push.reached,
            "staleness": push.staleness.overall,
            "dropped": push.dropped,
            **push.staleness.variables,
        }
    )
    return TrainingGraph(
        model=model, ids=ids, labels=labels, logits=logits, evaluated=logits, loss=loss,
        gradients=gradients, push=push, global_step=counts.global_step,
        reached=here["reached"] if "reached" in here else here["step"] + 1,
        staleness=here["staleness"],
        variable_staleness=tf.concat([here[d] for d in push.staleness.variables], axis=0),
        variable_names=tuple(counts.labels),
        dropped=here.get("dropped"),
    )  # fmt: skip


def _facts(
    options: Options,
    replica: Replica,
    counts: UpdateCounts,
    pulled: Versions,
    gradients: Mapping[str, GradientAndVariable],
    seen: list[GradientAndVariable],
) -> dict[str, Any]:
    """What a rule that corrects stale gradients wants to know."""
    facts: dict[str, Any] = {"worker_index": replica.index, "backup": seen}
    if options.optimizer.startswith("boosted"):
        ages = counts.staleness(pulled, {name: g for name, (g, _) in gradients.items()})
        facts["staleness"] = [(ages[name], v) for name, (_, v) in gradients.items()]
    return facts


def _what_was_read(
    gradients: Mapping[str, GradientAndVariable], read: Mapping[str, tf.Tensor]
) -> list[GradientAndVariable]:
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
