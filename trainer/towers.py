"""In-graph replication: one client, a tower on every worker, one update with their mean gradient.

The chief builds one graph with a copy of the forward and backward pass on each worker and deals
every batch out to them in equal parts; the gradients are summed where the variables are. So a step
is that of one process with the whole batch, bit for bit but for the order of the sums. The other
workers run what they are sent and hold nothing; the client cannot go on without one of them.

With ``--placement`` on workers there is one replica instead, its layers spread over them.
"""

import tensorflow as tf

from deepinsight.trainer.data.base import DataSet
from deepinsight.trainer.graph import (
    Replica,
    TrainingGraph,
    device_function,
    outputs,
    placeholders,
)
from deepinsight.trainer.models import Model, create_model
from deepinsight.trainer.optimizers import (
    GradientAndVariable,
    UpdateCounts,
    create_rule,
    exchange_gradients,
    pull,
    push_async,
)
from deepinsight.trainer.options import Options
from deepinsight.trainer.placement import uses_workers

v1 = tf.compat.v1


def build_towers(options: Options, data: DataSet, replica: Replica) -> TrainingGraph:
    """Build the client's graph into the default graph."""
    with v1.device(device_function(replica)):
        global_step = v1.train.get_or_create_global_step()
        model = create_model(options, data)
        counts = UpdateCounts(model.variables, global_step)
        ids, labels = placeholders(data)
        pulled = counts.read()
    towers = 1 if uses_workers(options.placement) else replica.workers
    logits, losses, gradients = [], [], []
    for worker in range(towers):
        with v1.device(device_function(replica._replace(index=worker))):
            part = _part(ids, worker, towers), _part(labels, worker, towers)
            with tf.control_dependencies(pulled.tensors()):
                values = pull(model.dense, model.elsewhere).values
                logits.append(model.logits(part[0], values))
            share = tf.cast(tf.size(labels), tf.float32)
            losses.append(_summed_loss(part[1], logits[-1]) / share)
            gradients.append(exchange_gradients(losses[-1], model, values))
    with v1.device(device_function(replica)):
        summed = [_sum(variable, parts) for variable, parts in _by_variable(model, gradients)]
        push = push_async(create_rule(options), summed, counts, pulled)
        return outputs(
            model, ids, labels, tf.concat(logits, axis=0), tf.add_n(losses), summed, push, counts
        )


def _part(batch: tf.Tensor, index: int, parts: int) -> tf.Tensor:
    """The examples of one tower; towers' parts differ by one example at most."""
    rows = tf.shape(batch)[0]
    return batch[rows * index // parts : rows * (index + 1) // parts]


def _summed_loss(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))


def _by_variable(
    model: Model, towers: list[list[GradientAndVariable]]
) -> list[tuple[tf.Variable, list[tf.Tensor | tf.IndexedSlices]]]:
    columns = zip(*towers, strict=True)
    return [
        (variable, [gradient for gradient, _ in column])
        for variable, column in zip(model.variables.values(), columns, strict=True)
    ]


def _sum(
    variable: tf.Variable, gradients: list[tf.Tensor | tf.IndexedSlices]
) -> GradientAndVariable:
    """Sum the towers' gradients where the variable is; rows may come more than once."""
    with tf.device(variable.device):
        if isinstance(gradients[0], tf.Tensor):
            return tf.add_n(gradients), variable
        values = tf.concat([g.values for g in gradients], axis=0)
        indices = tf.concat([g.indices for g in gradients], axis=0)
        return tf.IndexedSlices(values, indices, gradients[0].dense_shape), variable
