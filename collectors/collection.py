"""``trace_tensor``: name a graph tensor, and the session hook records it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deepinsight.collectors.probes.base import Stream, check_cadence
from deepinsight.traces import Axis, stream_name

#: Graph collection of JSON strings, so that it survives an exported and imported MetaGraph.
COLLECTION = "deepinsight/traced_tensors"


@dataclass(frozen=True)
class TracedTensor:
    """One entry of the collection."""

    tensor: Any
    stream: Stream
    every_n_steps: int | None


def trace_tensor(
    name: str,
    tensor: Any,
    unit: str = "",
    *,
    description: str = "",
    axes: Sequence[Axis] = (),
    reduction: str = "",
    details: Mapping[str, Any] | None = None,
    every_n_steps: int | None = 1,
) -> Any:
    """Let the session hook record a graph tensor.

    The hook evaluates it together with the training step, in ``session.run`` calls that run the
    train op, feed what the tensor needs and make the updates that it depends on, and in no others.
    Whether it is read before or after the update is up to the control dependencies of the tensor.

    Args:
        name: Stream name, for example ``"staleness/global"``.
        tensor: A number or an array of fixed shape, on any device.
        unit: Unit, ``"1"`` for a pure number.
        description: One sentence.
        axes: One :class:`Axis` per dimension, for labels.
        reduction: How the value was reduced, in words.
        details: Anything else, JSON.
        every_n_steps: Cadence, >= 1; None takes the hook's.

    Returns:
        The tensor.

    Raises:
        ValueError: If the tensor belongs to no graph, has no fixed shape, is not numeric, or the
            name is not valid or taken.
    """
    check_cadence(every_n_steps, None)
    if stream_name(name) != name:
        raise ValueError(
            f"`name` must be a valid stream name. Received: {name!r}; try {stream_name(name)!r}."
        )
    tensor, graph = _graph_tensor(name, tensor)
    if not tensor.shape.is_fully_defined():
        raise ValueError(
            f"`tensor` must have a fixed shape. Received: shape {tensor.shape} for {name!r}; "
            "reduce it or call set_shape."
        )
    if not (tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool):
        raise ValueError(f"`tensor` must be numeric. Received: {tensor.dtype.name} for {name!r}.")
    if axes and len(axes) != len(tensor.shape):
        raise ValueError(
            f"`axes` must name each dimension of {tensor.shape}. "
            f"Received: {len(axes)} for {name!r}."
        )
    entry = {
        "tensor": tensor.name,
        "name": name,
        "unit": unit,
        "description": description,
        "axes": [{"name": a.name, "labels": a.labels, "unit": a.unit} for a in axes],
        "reduction": reduction,
        "details": dict(details or {}),
        "every_n_steps": every_n_steps,
    }
    for other in graph.get_collection(COLLECTION):
        if json.loads(other)["name"] == name:
            raise ValueError(f"`name` must be unique in the graph. {name!r} is already traced.")
    graph.add_to_collection(COLLECTION, json.dumps(entry))
    return tensor


def _graph_tensor(name: str, tensor: Any) -> tuple[Any, Any]:
    import tensorflow as tf

    if hasattr(tensor, "handle") and not tf.executing_eagerly():
        tensor = tensor.read_value()
    if tf.is_tensor(tensor) and isinstance(getattr(tensor, "graph", None), tf.Graph):
        return tensor, tensor.graph
    raise ValueError(
        f"`tensor` must be a tensor of a tf.compat.v1 graph. Received: {type(tensor).__name__} for "
        f"{name!r}; in an eager loop use Recorder.record or after_step(scalars=...)."
    )


def traced_tensors(graph: Any) -> list[TracedTensor]:
    """What the graph's collection holds."""
    traced = []
    for text in graph.get_collection(COLLECTION):
        entry = json.loads(text)
        tensor = graph.get_tensor_by_name(entry["tensor"])
        axes = tuple(
            Axis(a["name"], tuple(a["labels"]) if a["labels"] is not None else None, a["unit"])
            for a in entry["axes"]
        )
        stream = Stream(
            entry["name"],
            tuple(tensor.shape.as_list()),
            stored_dtype(tensor.dtype, scalar=not tensor.shape.rank),
            entry["unit"],
            entry["description"],
            axes,
            entry["reduction"],
            entry["details"],
        )
        traced.append(TracedTensor(tensor, stream, entry["every_n_steps"]))
    return traced


def stored_dtype(dtype: Any, scalar: bool) -> str:
    """The dtype in the trace: floating scalars are float64, arrays of 16-bit floats float32."""
    name = dtype.base_dtype.name
    if scalar and dtype.is_floating:
        return "float64"
    return "float32" if name in ("float16", "bfloat16", "half") else name
