"""The graph of a worker under K-FAC, in the role that it has among the workers.

All pull and compute the loss; those with the role of a gradient worker push gradients, the others
push covariances or inverses and raise no step.
"""

import tensorflow as tf

from deepinsight.trainer.cluster.members import Patience
from deepinsight.trainer.data.base import DataSet
from deepinsight.trainer.graph import (
    Replica,
    TrainingGraph,
    device_function,
    mean_loss,
    outputs,
    placeholders,
)
from deepinsight.trainer.models import create_model
from deepinsight.trainer.models.base import LayerTensors
from deepinsight.trainer.optimizers import (
    KFACOptimizer,
    UpdateCounts,
    create_rule,
    dense_layers,
    exchange_gradients,
    kfac_roles,
    pull,
    push_kfac,
    sampled_loss,
)
from deepinsight.trainer.options import Options

v1 = tf.compat.v1


def build_kfac(
    options: Options, data: DataSet, replica: Replica, patience: Patience
) -> TrainingGraph:
    """Build the graph of a worker into the default graph."""
    role = kfac_roles(replica.workers)[replica.index]
    measures, pushes = role.startswith(("all", "statistics")), role in ("all", "gradient")
    with v1.device(device_function(replica)):
        global_step = v1.train.get_or_create_global_step()
        model = create_model(options, data)
        counts = UpdateCounts(model.variables, global_step)
        ids, labels = placeholders(data)
        pulled = counts.read()
        layers: dict[str, LayerTensors] = {}
        with tf.control_dependencies(pulled.tensors()):
            values = pull(model.dense).values
            logits = model.logits(ids, values, layers=layers)
        loss = mean_loss(labels, logits)
        rule = KFACOptimizer(
            create_rule(options),
            dense_layers(model.dense, layers if measures else None),
            fisher_loss=sampled_loss(logits, seed=options.seed) if measures else None,
            damping=options.damping,
            covariance_decay=options.covariance_decay,
            inverse_every=options.inverse_every,
            burn_in=options.burn_in,
            norm_constraint=options.norm_constraint,
            role=role,
        )
        gradients = exchange_gradients(loss, model, values) if pushes else None
        push = push_kfac(
            rule,
            gradients,
            counts,
            pulled,
            worker=replica.index,
            workers=replica.workers,
            patience=patience,
        )
        return outputs(model, ids, labels, logits, loss, gradients or [], push, counts)
