"""Apply gradients only if they are not too old: the decision, and what depends on it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from deepinsight.collectors.collection import trace_tensor, traced_tensors
from deepinsight.collectors.graph import closure
from deepinsight.trainer.devices import by_device
from deepinsight.trainer.optimizers._statistics import Report, trace, traceable
from deepinsight.trainer.optimizers.exchange import GradientAndVariable

v1 = tf.compat.v1
Branch = Callable[[], tuple[tf.Operation | tf.Tensor | None, list[tf.Tensor]]]


class Outcome(NamedTuple):
    """What became of a push; all tensors are on the device of the global step.

    Attributes:
        accepted: Whether the gradients were applied; bool scalar, there when they are.
        outputs: What the branch that ran has returned.
    """

    accepted: tf.Tensor
    outputs: list[tf.Tensor]


def bring(pairs: Sequence[GradientAndVariable]) -> list[GradientAndVariable]:
    """Bring each gradient to its variable's device, where it waits for the decision."""
    brought = []
    for gradient, variable in pairs:
        with tf.device(variable.device):
            if isinstance(gradient, tf.IndexedSlices):
                values, indices = tf.identity(gradient.values), tf.identity(gradient.indices)
                here = tf.IndexedSlices(values, indices, gradient.dense_shape)
            else:
                here = tf.identity(gradient)
        brought.append((here, variable))
    return brought


def bring_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Bring what a rule wants to know to the devices of the variables, as the gradients.

    Args:
        facts: Keyword arguments of the rule's `apply_gradients`: values, or lists of
            (tensor, variable) pairs.
    """
    return {key: bring(value) if isinstance(value, list) else value for key, value in facts.items()}


def is_fresh(
    pairs: Sequence[GradientAndVariable],
    local_step: tf.Tensor,
    global_step: tf.Variable,
    bound: Any,
) -> tf.Tensor:
    """Decide, once all gradients have arrived where they are, for all of them.

    Args:
        pairs: Gradients on their variables' devices.
        local_step: The global step at which they were computed.
        global_step: The global step.
        bound: The largest age that is accepted.

    Returns:
        bool scalar on the device of the global step.
    """
    values = {
        variable.name: g.values if isinstance(g, tf.IndexedSlices) else g for g, variable in pairs
    }
    arrived = []
    for device, names in by_device(values).items():
        # One message per server, however many gradients it has.
        with tf.device(device), tf.control_dependencies([values[name] for name in names]):
            arrived.append(tf.no_op())
    with tf.device(global_step.device), tf.control_dependencies(arrived):
        age = global_step.read_value() - tf.cast(local_step, global_step.dtype.base_dtype)
        return age <= tf.cast(bound, age.dtype)


def apply_if(
    accept: tf.Tensor,
    rule: v1.train.Optimizer,
    global_step: tf.Variable,
    apply: Branch,
    drop: Callable[[], list[tf.Tensor]],
) -> Outcome:
    """Apply, or leave everything as it is.

    The statistics that a rule of this project reports to the session hook are NaN where nothing
    was applied.

    Args:
        accept: The decision, bool scalar.
        rule: The optimizer that `apply` uses.
        global_step: The global step; `apply` raises it.
        apply: Makes the update, and returns its op and what it has to say.
        drop: Returns tensors of the same shapes and dtypes without an update.
    """
    reports: list[Report] = []
    train_ops = v1.get_collection_ref(v1.GraphKeys.TRAIN_OP)
    known = len(train_ops)

    def accepted() -> list[tf.Tensor]:
        update, outputs = apply()
        reports.extend(getattr(rule, "reported", ()))
        with tf.control_dependencies([] if update is None else [update]):
            done = tf.constant(True)
            parts = [tf.identity(part.values) for part in reports]
        return [done, *outputs, *parts]

    def dropped() -> list[tf.Tensor]:
        return [tf.constant(False), *drop(), *(_nothing(part.values) for part in reports)]

    with tf.device(global_step.device):
        done, *outputs = tf.cond(accept, accepted, dropped)
        with tf.control_dependencies([done]):
            # The branch hides from recorders what raises the global step; they read it after this.
            marked = global_step.assign_add(
                tf.zeros_like(accept, global_step.dtype.base_dtype), read_value=False
            )
        with tf.control_dependencies([marked]):
            done = tf.identity(done)
    # What the rule has entered there belongs to a branch: no meta graph could name it.
    del train_ops[known:]
    count = len(outputs) - len(reports)
    if traceable() and reports:
        parts = [
            part._replace(values=tf.ensure_shape(values, part.values.shape))
            for part, values in zip(reports, outputs[count:], strict=True)
        ]
        trace(rule, parts, rule._trace_details())
    return Outcome(done, outputs[:count])


def read_after(
    step: tf.Tensor, variables: Sequence[tf.Variable], element: tf.Tensor | tf.Operation
) -> None:
    """Let everything that reads the variables for `element` wait until the step has been read.

    Args:
        step: The step as read.
        variables: The variables.
        element: What is computed from them. Readers on which `step` itself depends do not wait.
    """
    readers, before = closure([element]), closure([step])
    for variable in variables:
        # Older scripts have mutable tensors for variables.
        handle = getattr(variable, "handle", variable.op.outputs[0])
        for op in handle.consumers():
            if op in readers and op not in before:
                op._add_control_inputs([step.op])


def count_pushes(accepted: tf.Tensor) -> tf.Tensor:
    """Count a push of this process, on the device of the scope.

    The counts begin at 0 with their first use: a script that initialises nothing but its global
    variables must do.

    Args:
        accepted: 1 if it was accepted, else 0; scalar.

    Returns:
        Pushes accepted and dropped so far, int64 ``[2]``.
    """
    with v1.variable_scope(v1.get_variable_scope(), reuse=v1.AUTO_REUSE):
        counts = v1.get_variable(
            "drop_stale/pushes", [2], tf.int64, v1.zeros_initializer(),
            trainable=False, use_resource=True, collections=[],
        )  # fmt: skip
    known = tf.raw_ops.VarIsInitializedOp(resource=counts.handle)
    before = tf.cond(known, counts.read_value, lambda: tf.zeros([2], tf.int64))
    after = before + tf.cast(tf.stack([accepted, 1 - accepted]), tf.int64)
    with tf.control_dependencies([counts.assign(after, read_value=False)]):
        return tf.identity(after)


def trace_counts(accepted: tf.Tensor, dropped: tf.Tensor, *, since: str) -> None:
    """Offer a worker's counts to the session hook, unless another optimizer's are there."""
    if not traceable():
        return
    known = {traced.stream.name for traced in traced_tensors(v1.get_default_graph())}
    for name, tensor, fate in (
        ("sync/accepted_gradients", accepted, "applied"),
        ("sync/dropped_gradients", dropped, "dropped, being too old"),
    ):
        if name not in known:
            trace_tensor(
                name, tensor, "gradients",
                description=f"Gradients of this worker, since {since}, that were {fate}.",
                every_n_steps=None,
            )  # fmt: skip


def _nothing(values: tf.Tensor) -> tf.Tensor:
    return tf.fill(values.shape, tf.constant(float("nan"), values.dtype))
