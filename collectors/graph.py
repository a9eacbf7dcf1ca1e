"""Reading a tf.compat.v1 graph: what a run evaluates, where gradients go, which step it is."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from deepinsight.collectors.probes.base import Slices

_TAKE = frozenset({"AccumulatorTakeGradient", "ResourceAccumulatorTakeGradient"})
_TAKE_SPARSE = "SparseAccumulatorTakeGradient"
_GIVE = frozenset({"AccumulatorApplyGradient", "ResourceAccumulatorApplyGradient"})
_GIVE_SPARSE = "SparseAccumulatorApplyGradient"
_ADDS = frozenset({"AssignAddVariableOp", "AssignAdd"})
_COUNTS = frozenset({"ResourceCountUpTo", "CountUpTo"})
_BRANCHES = frozenset({"If", "StatelessIf"})
_ASSIGNS = frozenset({"AssignVariableOp", "Assign"})
_WAITS = frozenset({"QueueDequeueV2", "QueueDequeue", "While"})  # a loop waits for tokens, too
_HANDLES = frozenset({"VarHandleOp", "VariableV2", "Variable"})
_CHANGES = re.compile(
    r"Apply|^Assign|^(Resource)?Scatter|CountUpTo|TakeGradient|Enqueue|Dequeue|Accumulator(Add|Take)"
)
_PASS = frozenset({"Identity", "Enter", "RefEnter", "Switch", "RefSwitch"})


def closure(elements: Iterable[Any], fed: frozenset[str] = frozenset()) -> frozenset[Any]:
    """All operations that evaluating the elements runs.

    Args:
        elements: Tensors and operations.
        fed: Names of fed tensors; the walk does not go past them.
    """
    stack = []
    for element in elements:
        if getattr(element, "op", None) is None:
            stack.append(element)
        elif element.name not in fed:
            stack.append(element.op)
    seen = set()
    while stack:
        op = stack.pop()
        if op in seen:
            continue
        seen.add(op)
        stack.extend(t.op for t in op.inputs if not fed or t.name not in fed)
        stack.extend(op.control_inputs)
    return frozenset(seen)


def placeholders(ops: Iterable[Any]) -> frozenset[str]:
    """Names of the tensors among the ops' outputs that must be fed."""
    return frozenset(
        op.outputs[0].name for op in ops if op.type in ("Placeholder", "PlaceholderV2")
    )


def changes(ops: Iterable[Any]) -> frozenset[Any]:
    """Those among the ops that change a variable, a queue or an accumulator."""
    return frozenset(
        op
        for op in ops
        if _CHANGES.search(op.type)
        and any(t.dtype.name == "resource" or t.dtype._is_ref_dtype for t in op.inputs)
    )


@dataclass(frozen=True)
class Application:
    """One place where a gradient reaches the optimizer.

    Attributes:
        variable: The ``tf.Variable``.
        gradient: A tensor, or :class:`Slices` of tensors.
        trigger: The op that consumes it: a run that executes it has computed the gradient.
    """

    variable: Any
    gradient: Any
    trigger: Any


def find_applications(graph: Any, variables: Sequence[Any]) -> list[Application]:
    """The gradients of the variables, found from the graph's apply ops.

    Under ``SyncReplicasOptimizer`` the apply ops take their gradients out of accumulators; fetching
    those would steal them. The gradients that this worker puts into the accumulators are returned
    instead.
    """
    by_handle = {_handle_op(v).name: v for v in variables}
    found, givers = [], None
    for op in graph.get_operations():
        if not op.inputs or op._get_control_flow_context() is not None:
            continue
        target = _origin(op.inputs[0]).name
        variable = by_handle.get(target)
        if variable is not None:
            gradient = _applied_gradient(op)
        else:
            variable = by_handle.get(target.rpartition("/")[0])
            gradient = _first_moment_gradient(op) if variable is not None else None
        if gradient is None:
            continue
        accumulators = _accumulators(gradient)
        if not accumulators:
            found.append(Application(variable, gradient, op))
            continue
        givers = _givers(graph) if givers is None else givers
        for accumulator in accumulators:
            for giver in givers.get(accumulator, ()):
                found.append(Application(variable, _given_gradient(giver), giver))
    return found


def _handle_op(variable: Any) -> Any:
    handle = getattr(variable, "handle", None)
    return handle.op if handle is not None else variable.op


def _origin(tensor: Any) -> Any:
    """The op that a reference or handle comes from, behind identities and control flow."""
    op = tensor.op
    while op.type in _PASS and op.inputs:
        op = op.inputs[0].op
    return op


def _applied_gradient(op: Any) -> Any:
    """The gradient input of an apply op; None if the op is none."""
    kind = op.type
    if kind in ("ResourceScatterAdd", "ScatterSub"):
        return _scattered_gradient(op)
    if "Apply" not in kind:
        return None
    names = [arg.name for arg in op.op_def.input_arg]
    if len(names) != len(op.inputs):
        return None
    inputs = dict(zip(names, op.inputs, strict=True))
    gradient = inputs.get("grad", inputs.get("delta"))
    if gradient is None:
        return None
    return Slices(gradient, inputs["indices"]) if "indices" in inputs else gradient


def _scattered_gradient(op: Any) -> Any:
    """Sparse gradient descent: scatter_add(-grad * rate) or scatter_sub(grad * rate)."""
    updates = op.inputs[2].op
    if updates.type != "Mul" or updates.inputs[1].shape.rank != 0:
        return None
    gradient = updates.inputs[0]
    if op.type == "ResourceScatterAdd":
        if gradient.op.type != "Neg":
            return None
        gradient = gradient.op.inputs[0]
    return Slices(gradient, op.inputs[1])


def _first_moment_gradient(op: Any) -> Any:
    """AdamOptimizer's sparse form, made of scatters: ``<var>/Adam`` += grad * (1 - beta1)."""
    if op.type not in ("ResourceScatterAdd", "ScatterAdd"):
        return None
    updates = op.inputs[2].op
    if updates.type != "Mul" or updates.inputs[1].shape.rank != 0:
        return None
    gradient = updates.inputs[0]
    if gradient.op.type in ("Mul", "Square") and len(set(map(id, gradient.op.inputs))) == 1:
        return None  # the second moment: grad * grad * (1 - beta2)
    return Slices(gradient, op.inputs[1])


def _accumulators(gradient: Any) -> list[Any]:
    """The accumulators that a gradient is taken out of, wherever in its ancestors."""
    tensors = [gradient.values, gradient.indices] if isinstance(gradient, Slices) else [gradient]
    takes = [op for op in closure(tensors) if op.type in _TAKE or op.type == _TAKE_SPARSE]
    return sorted({op.inputs[0].op.name for op in takes})


def _givers(graph: Any) -> dict[str, list[Any]]:
    """Accumulator name -> the ops that put gradients into it."""
    givers: dict[str, list[Any]] = {}
    for op in graph.get_operations():
        if op.type in _GIVE or op.type == _GIVE_SPARSE:
            givers.setdefault(op.inputs[0].op.name, []).append(op)
    return givers


def _given_gradient(op: Any) -> Any:
    inputs = dict(zip([arg.name for arg in op.op_def.input_arg], op.inputs, strict=True))
    if op.type == _GIVE_SPARSE:
        return Slices(inputs["gradient_values"], inputs["gradient_indices"])
    return inputs["gradient"]


@dataclass(frozen=True)
class StepReading:
    """A tensor that holds the global step.

    Attributes:
        tensor: Scalar integer tensor.
        trigger: Valid in runs that execute this op, and then read after it; None: valid in any run,
            but read at any moment of it.
        adds: The constant that `trigger` adds to the global step; None if it does not.
    """

    tensor: Any
    trigger: Any
    adds: int | None = None


def step_readings(tf: Any, global_step: Any) -> list[StepReading]:
    """How to read the global step after a training step; the first reading that applies is best.

    Where the run increments the step itself, it is read after that. Under ``SyncReplicasOptimizer``
    the chief increments it, and it is read after the token that ends a worker's step. Where a
    ``tf.cond`` increments it in some runs, it is read after that in all.
    """
    graph = global_step.graph
    handle = _handle_op(global_step)
    readings = []
    for op in graph.get_operations():
        if op.type in _BRANCHES and _raised_in(op, handle):
            with tf.device(op.device):  # a branch is over when its values are there
                over = [tf.identity(value) for value in op.outputs] or [op]
            with graph.control_dependencies(over), tf.device(handle.device):
                readings.append(StepReading(_read(tf, handle), op))
            continue
        if op.type not in _ADDS | _ASSIGNS | _COUNTS:
            continue
        if op._get_control_flow_context() is not None:
            continue
        origin = _origin(op.inputs[0])
        if op.type in _COUNTS and origin is handle:  # returns the value before, atomically
            with tf.device(op.device):
                readings.append(StepReading(op.outputs[0] + 1, op))
            continue
        increments = op.type in _ADDS and origin is handle
        if increments or (op.type in _ASSIGNS and _is_token(op, origin)):
            with graph.control_dependencies([op]), tf.device(op.device):
                adds = tf.get_static_value(op.inputs[1]) if increments else None
                read = _read(tf, _handle_op(global_step))
                reading = StepReading(read, op, None if adds is None else int(adds))
                readings.append(reading)
    readings.append(StepReading(_plain_read(tf, global_step), None))
    return readings


def _raised_in(op: Any, handle: Any) -> bool:
    """Whether a branch of a ``tf.cond`` raises the variable of a handle."""
    places = [i - 1 for i, tensor in enumerate(op.inputs) if tensor.op is handle]  # 0: condition
    for branch in ("then_branch", "else_branch") if places else ():
        body = op.graph._get_function(op.get_attr(branch).name).cached_definition
        names = {body.signature.input_arg[place].name for place in places}
        if any(n.op in _ADDS | _COUNTS and n.input[0] in names for n in body.node_def):
            return True
    return False


def _is_token(op: Any, origin: Any) -> bool:
    """Whether an assignment gives a worker of SyncReplicasOptimizer the step it waited for."""
    if not origin.name.split("/")[-1].startswith("sync_rep_local_step"):
        return False
    return any(o.type in _WAITS for o in closure([op.inputs[1]]))


def _read(tf: Any, handle_op: Any) -> Any:
    if handle_op.type == "VarHandleOp":
        dtype = tf.as_dtype(handle_op.get_attr("dtype"))
        return tf.raw_ops.ReadVariableOp(resource=handle_op.outputs[0], dtype=dtype)
    return tf.raw_ops.DeepCopy(x=handle_op.outputs[0])


def _plain_read(tf: Any, variable: Any) -> Any:
    return _read(tf, _handle_op(variable))


def is_resource(variable: Any) -> bool:
    """Whether the variable lives behind a handle, rather than as a mutable tensor."""
    return getattr(variable, "handle", None) is not None


def fetched_elements(graph: Any, fetches: Any) -> tuple[Any, ...]:
    """The tensors and operations of a fetches structure."""
    import tensorflow as tf

    elements = []
    for leaf in tf.nest.flatten(fetches, expand_composites=True):
        try:
            elements.append(graph.as_graph_element(leaf))
        except (TypeError, ValueError, KeyError):
            continue  # Session.run judges what cannot be fetched.
    return tuple(elements)


def structure_key(fetches: Any, leaves: list[Any]) -> Any:
    """A key for a fetches structure, valid while what goes into `leaves` is alive."""
    if isinstance(fetches, (list, tuple)):
        return tuple([structure_key(f, leaves) for f in fetches])
    if isinstance(fetches, dict):
        return tuple([(k, structure_key(f, leaves)) for k, f in fetches.items()])
    if isinstance(fetches, str):
        return fetches
    leaves.append(fetches)
    return id(fetches)
