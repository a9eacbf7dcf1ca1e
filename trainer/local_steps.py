"""The graph of a worker that steps alone, on a copy of its own, and meets the others now and then.

    ids, labels ─▶ logits, loss ─▶ gradients ─▶ the worker's copy ◀─ now and then ─▶ the global copy

A step is one of this worker. What is evaluated and saved is the global copy.
"""

from typing import Any

import tensorflow as tf

from deepinsight.trainer.cluster.members import Patience
from deepinsight.trainer.data.base import DataSet
from deepinsight.trainer.graph import (
    Replica,
    TrainingGraph,
    device_function,
    mean_loss,
    placeholders,
)
from deepinsight.trainer.models import create_model
from deepinsight.trainer.optimizers import (
    ElasticAverageCustomGetter,
    ElasticAverageOptimizer,
    ModelAverageCustomGetter,
    ModelAverageOptimizer,
    Push,
    create_rule,
    exchange_gradients,
    pull,
)
from deepinsight.trainer.options import Options

v1 = tf.compat.v1


def build_local(
    options: Options, data: DataSet, replica: Replica, patience: Patience
) -> TrainingGraph:
    """Build the graph of a worker that steps alone into the default graph."""
    elastic = options.synchronization == "elastic-average"
    getter = (ElasticAverageCustomGetter if elastic else ModelAverageCustomGetter)(replica.device)
    with v1.device(device_function(replica)):
        saved_step, rounds = _counter("global_step"), _counter("rounds")
        with v1.variable_scope("", custom_getter=getter):
            model = create_model(options, data)
        ids, labels = placeholders(data)
        values = {name: variable.read_value() for name, variable in model.dense.items()}
        logits = model.logits(ids, values)
        loss = mean_loss(labels, logits)
        gradients = exchange_gradients(loss, model, values, sum_rows=False, stay=True)
        create = _elastic if elastic else _averaging
        optimizer, hook = create(options, replica, getter, patience)
        op = optimizer.apply_gradients(gradients, global_step=rounds)
        with tf.control_dependencies([op]):
            reached = optimizer.local_step.read_value()
        v1.add_to_collection(v1.GraphKeys.GLOBAL_STEP, optimizer.local_step)
        copies = {name: getter.global_variables[v] for name, v in model.variables.items()}
        shared = model.over(copies)
        new_step = v1.placeholder(tf.int64, [], "new_step")
        return TrainingGraph(
            model=model, ids=ids, labels=labels, logits=logits, loss=loss,
            gradients=gradients, reached=reached,
            evaluated=shared.logits(ids, pull(shared.dense).values),
            push=Push(
                op=op, step=reached, staleness=None,
                hooks=(hook, _StartAt(saved_step, optimizer.local_step)),
                variables=tuple(optimizer.launch_variables),
                start_op=optimizer.start_op,
                leave_op=optimizer.leave_op,
                members=optimizer.members,
                own=_own_state(optimizer),
            ),
            global_step=saved_step, progress=rounds,
            new_step=new_step, set_step=saved_step.assign(new_step, read_value=False),
        )  # fmt: skip


def _averaging(
    options: Options, replica: Replica, getter: ModelAverageCustomGetter, patience: Patience
) -> tuple[ModelAverageOptimizer, v1.train.SessionRunHook]:
    optimizer = ModelAverageOptimizer(
        create_rule(options),
        replica.workers,
        replica.index == 0,
        getter,
        interval_steps=options.communication_period,
        worker_index=replica.index,
        patience=patience,
        block_momentum=options.block_momentum,
        block_learning_rate=options.block_learning_rate or 1.0,
        block_nesterov=bool(options.block_nesterov),
    )
    return optimizer, optimizer.make_session_run_hook(starts=False)


def _elastic(
    options: Options, replica: Replica, getter: ElasticAverageCustomGetter, patience: Patience
) -> tuple[ElasticAverageOptimizer, v1.train.SessionRunHook]:
    optimizer = ElasticAverageOptimizer(
        create_rule(options),
        replica.workers,
        getter,
        communication_period=options.communication_period,
        moving_rate=options.moving_rate,
        rho=0.0,
        synchronous=bool(options.synchronous_exchange),
        patience=patience,
        kernel=True,
    )
    chief = replica.index == 0
    return optimizer, optimizer.make_session_run_hook(chief, replica.index, starts=False)


def _own_state(optimizer: Any) -> tuple[tf.Variable, ...]:
    """What a worker keeps over a restart: all but the weights, which begin as the global ones."""
    begun_anew = {v.ref() for v in optimizer.global_variables}
    return tuple(v for v in optimizer.local_variables if v.ref() not in begun_anew)


def _counter(name: str) -> tf.Variable:
    return v1.get_variable(
        name,
        [],
        tf.int64,
        initializer=v1.zeros_initializer(),
        trainable=False,
        use_resource=True,
    )


class _StartAt(v1.train.SessionRunHook):
    """Lets a worker count its steps from that of the checkpoint on."""

    def __init__(self, saved_step: tf.Variable, local_step: tf.Variable) -> None:
        self._saved_step = saved_step
        self._start = local_step.assign(
            tf.cast(saved_step, local_step.dtype.base_dtype), read_value=False
        )

    def after_create_session(self, session: v1.Session, coord: Any) -> None:
        """Set the worker's step."""
        del coord
        session.run(self._start)
