"""What travels between a worker and its parameter servers, in one message each way and server.

TensorFlow's runtime pays for every tensor that crosses from one process to another, not for its
bytes. So the values of a server's dense variables are packed into one vector before they leave
it, and the worker's gradients are packed likewise; the variables themselves stay as they are.
Rows of embedding tables are looked up, and their gradients expanded, on the server (the model
does the former, `exchange_gradients` the latter).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from deepinsight.trainer.devices import by_device
from deepinsight.trainer.models.base import Model

v1 = tf.compat.v1
GradientAndVariable = tuple[tf.Tensor | tf.IndexedSlices, tf.Variable]


class LeastLoaded:
    """A placement strategy for `replica_device_setter`: each variable to the emptiest server."""

    def __init__(self, servers: int) -> None:
        self._bytes = [0] * servers

    def __call__(self, op: tf.Operation) -> int:
        """The task index for a variable's handle op."""
        task = int(np.argmin(self._bytes))
        elements = op.get_attr("shape")
        count = int(np.prod([dim.size for dim in elements.dim], dtype=np.int64))
        self._bytes[task] += count * tf.as_dtype(op.get_attr("dtype")).size
        return task


def _pack(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)


def _unpack(packed: tf.Tensor, variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
    sizes = [int(np.prod(variable.shape.as_list())) for variable in variables]
    parts = tf.split(packed, sizes)
    return [
        tf.reshape(part, variable.shape) for part, variable in zip(parts, variables, strict=True)
    ]


class Pulled(NamedTuple):
    """What a worker read.

    Attributes:
        values: The variables' values by name, on the device of the calling scope.
        snapshots: The same values where the variables are.
    """

    values: dict[str, tf.Tensor]
    snapshots: dict[str, tf.Tensor]


def pull(
    variables: Mapping[str, tf.Variable], elsewhere: Mapping[str, str] | None = None
) -> Pulled:
    """Read variables where they are and bring their values to where they are needed.

    Args:
        variables: The variables by name.
        elsewhere: The device that needs a variable, where that is not the device of the scope.

    Returns:
        What was read, under the control dependencies of the calling scope.
    """
    values: dict[str, tf.Tensor] = {}
    snapshots: dict[str, tf.Tensor] = {}
    for home, target, names in _routes(variables, elsewhere or {}):
        there = [variables[name] for name in names]
        with tf.device(home):
            read = [variable.read_value() for variable in there]
            packed = _pack(read) if len(read) > 1 and home not in ("", target) else None
        snapshots.update(zip(names, read, strict=True))
        with tf.device(target):
            brought = read if packed is None else _unpack(packed, there)
        values.update(zip(names, brought, strict=True))
    return Pulled({name: values[name] for name in variables}, snapshots)


def _routes(
    variables: Mapping[str, tf.Variable], elsewhere: Mapping[str, str]
) -> Iterator[tuple[str, str, list[str]]]:
    """The variables that travel together: their device, the device that needs them, names.

    The device of the scope is "".
    """
    for home, names in by_device(variables).items():
        targets = dict.fromkeys(elsewhere.get(name, "") for name in names)
        for target in targets:
            yield home, target, [name for name in names if elsewhere.get(name, "") == target]


def exchange_gradients(
    loss: tf.Tensor,
    model: Model,
    pulled: Mapping[str, tf.Tensor],
    *,
    sum_rows: bool = True,
    stay: bool = False,
) -> list[GradientAndVariable]:
    """Compute the gradients here and bring them to the devices of their variables.

    Args:
        loss: The loss, a scalar that depends on all of the model's variables.
        model: The model.
        pulled: `Pulled.values` of `model.dense`, used in the forward pass.
        sum_rows: Give sparse gradients sorted, unique indices (TensorFlow's sparse accumulators
            rely on it); else they have a row for each row that was looked up.
        stay: Leave the gradients of dense variables where they were computed.

    Returns:
        (gradient, variable) pairs, each gradient on its variable's device.
    """
    sources = [pulled[name] for name in model.dense]
    handles = [table.handle for table in model.tables.values()]
    # Colocation keeps the gradient of a lookup on the server that did the lookup.
    gradients = v1.gradients(loss, sources + handles, colocate_gradients_with_ops=True)
    dense = dict(zip(model.dense, gradients, strict=False))
    pairs: dict[str, tf.Tensor | tf.IndexedSlices] = dict(dense) if stay else {}
    for home, target, names in () if stay else _routes(model.dense, model.elsewhere):
        mine = [dense[name] for name in names]
        if len(mine) > 1 and home not in ("", target):
            with tf.device(target):
                packed = _pack(mine)
            with tf.device(home):
                mine = _unpack(packed, [model.dense[name] for name in names])
        pairs.update(zip(names, mine, strict=True))
    for (name, table), gradient in zip(
        model.tables.items(), gradients[len(sources) :], strict=True
    ):
        with tf.device(table.device):
            pairs[name] = _sum_rows(gradient) if sum_rows else _slices(gradient)
    return [(pairs[name], variable) for name, variable in model.variables.items()]


def _sum_rows(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """Sum the rows that share an index; indices come out sorted."""
    order = tf.argsort(gradient.indices)
    indices, segments = tf.unique(tf.gather(gradient.indices, order))
    values = tf.math.segment_sum(tf.gather(gradient.values, order), segments)
    return tf.IndexedSlices(values, indices, gradient.dense_shape)


def _slices(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    return tf.IndexedSlices(gradient.values, gradient.indices, gradient.dense_shape)


def after(
    before: Sequence[tf.Tensor | tf.Operation], gradient: tf.Tensor | tf.IndexedSlices
) -> tf.Tensor | tf.IndexedSlices:
    """The same gradient, on its own device, only once `before` has happened."""
    if isinstance(gradient, tf.Tensor):
        with tf.device(gradient.device), tf.control_dependencies(before):
            return tf.identity(gradient)
    with tf.device(gradient.values.device), tf.control_dependencies(before):
        return tf.IndexedSlices(
            tf.identity(gradient.values), tf.identity(gradient.indices), gradient.dense_shape
        )
