"""What `SoftsyncOptimizer` asks of its arguments and of the graph."""

from typing import Any

import tensorflow as tf

from deepinsight.trainer.optimizers._arguments import check_optimizer
from deepinsight.trainer.optimizers._workers import WorkerOptimizer
from deepinsight.trainer.optimizers.accumulated import AccumulatedGradients

v1 = tf.compat.v1


def check_base(opt: Any) -> None:
    """Check that an optimizer can apply the mean of several workers' gradients.

    Raises:
        ValueError: If it cannot.
    """
    check_optimizer("opt", opt)
    if isinstance(opt, WorkerOptimizer):
        raise ValueError(
            "`opt` must not compensate for staleness: it compares the variable with what one "
            "worker read, and an update of softsync has the gradients of several. Received: "
            f"{type(opt).__name__}; softsync itself weights by staleness, so use the plain rule."
        )
    if isinstance(getattr(opt, "_opt", None), v1.train.Optimizer):
        raise ValueError(
            "`opt` must apply what it is given: gradients of several workers meet in one place. "
            f"Received: {type(opt).__name__}; give the optimizer within it."
        )
    if isinstance(opt, AccumulatedGradients):
        check_base(opt._base)


def check_graph() -> None:
    """Check that a graph is being built.

    Raises:
        RuntimeError: If ops are executed at once instead.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "SoftsyncOptimizer must be used in a tf.compat.v1 graph, whose sessions share a "
            "server. Received: eager execution; build it within `with tf.Graph().as_default():`."
        )


def checked_step(global_step: tf.Variable | None) -> tf.Variable:
    """The global step, or that of the graph.

    Raises:
        ValueError: If there is none, or it is no resource variable of int64.
    """
    step = v1.train.get_global_step() if global_step is None else global_step
    if step is None or not hasattr(step, "handle") or step.dtype.base_dtype != tf.int64:
        kind = "none" if step is None else f"{step.name!r}, {step.dtype.base_dtype.name}"
        raise ValueError(
            "`global_step` must be an int64 resource variable: staleness is counted with it. "
            f"Received: {kind}; call tf.compat.v1.train.get_or_create_global_step() first."
        )
    return step


def reading(loss: tf.Operation) -> list[tf.Operation]:
    """The ops, among those that a loss depends on, that read a variable."""
    known, ahead, found = {loss}, [loss], []
    while ahead:
        op = ahead.pop()
        if any(t.op.type == "VarHandleOp" for t in op.inputs):
            found.append(op)
        for other in (*(t.op for t in op.inputs), *op.control_inputs):
            if other not in known:
                known.add(other)
                ahead.append(other)
    return found
