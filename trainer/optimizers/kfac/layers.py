"""The layers of K-FAC: what they are made of, and how their small matrices travel."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

FLOATING = (tf.float32, tf.float64)


class DenseLayer(NamedTuple):
    """A dense layer ``outputs = inputs @ kernel + bias``, before its activation.

    Attributes:
        kernel: Variable, float32 or float64 ``[in, out]``.
        bias: Variable of the same dtype ``[out]``, or None.
        inputs: Tensor of the same dtype ``[n, in]``; None where no statistics are computed.
        outputs: The pre-activations ``[n, out]``, the tensor itself that the loss is computed
            from; None as `inputs`.
    """

    kernel: tf.Variable
    bias: tf.Variable | None = None
    inputs: tf.Tensor | None = None
    outputs: tf.Tensor | None = None

    @property
    def rows(self) -> int:
        """Rows of the gradient matrix: the inputs, and one for the bias."""
        return int(self.kernel.shape[0]) + (self.bias is not None)

    @property
    def columns(self) -> int:
        """Columns of the gradient matrix: the outputs."""
        return int(self.kernel.shape[1])

    @property
    def variables(self) -> list[tf.Variable]:
        """The kernel, and the bias if there is one."""
        return [self.kernel] if self.bias is None else [self.kernel, self.bias]


def check_layers(layers: Iterable[DenseLayer], statistics: bool) -> list[DenseLayer]:
    """Check what K-FAC is given.

    Args:
        layers: The layers.
        statistics: Whether their inputs and outputs are needed.

    Raises:
        ValueError: If there is no layer, one does not fit, or two share a variable.
    """
    checked = list(layers)
    if not checked:
        raise ValueError("`layers` must hold at least one DenseLayer. Received: none.")
    seen: set[Any] = set()
    for layer in checked:
        if not isinstance(layer, DenseLayer):
            raise ValueError(
                f"`layers` must hold DenseLayer tuples. Received: {type(layer).__name__}."
            )
        _check_variables(layer)
        if statistics or layer.inputs is not None or layer.outputs is not None:
            _check_tensor(layer, "inputs", layer.kernel.shape[0])
            _check_tensor(layer, "outputs", layer.kernel.shape[1])
        for variable in layer.variables:
            if variable.ref() in seen:
                raise ValueError(
                    "`layers` must not share variables: the factors of a layer that is used twice "
                    f"are other ones. Received: {variable.name!r} in two layers."
                )
            seen.add(variable.ref())
    return checked


def _check_variables(layer: DenseLayer) -> None:
    kernel, bias = layer.kernel, layer.bias
    if not isinstance(kernel, tf.Variable) or kernel.shape.rank != 2 or 0 in kernel.shape.as_list():
        raise ValueError(
            "`kernel` must be a variable of the shape [in, out]. Received: "
            f"{getattr(kernel, 'name', kernel)!r} of shape {getattr(kernel, 'shape', None)}."
        )
    if kernel.dtype.base_dtype not in FLOATING:
        raise ValueError(
            "`kernel` must be float32 or float64: smaller types cannot hold a covariance. "
            f"Received: {kernel.dtype.base_dtype.name} for {kernel.name!r}."
        )
    if bias is not None and (
        not isinstance(bias, tf.Variable)
        or bias.shape.as_list() != kernel.shape.as_list()[1:]
        or bias.dtype.base_dtype != kernel.dtype.base_dtype
    ):
        raise ValueError(
            f"`bias` must be None or a variable of the shape [{kernel.shape[1]}] and the dtype of "
            f"its kernel, {kernel.dtype.base_dtype.name}. Received: {bias!r} beside "
            f"{kernel.name!r}."
        )


def _check_tensor(layer: DenseLayer, name: str, width: int) -> None:
    tensor, dtype = getattr(layer, name), layer.kernel.dtype.base_dtype
    if (
        not isinstance(getattr(tensor, "graph", None), tf.Graph)
        or isinstance(tensor, tf.Variable)
        or tensor.dtype != dtype
        or not tensor.shape.is_compatible_with([None, width])
    ):
        raise ValueError(
            f"`{name}` must be a graph's tensor of the shape [n, {width}] and the dtype "
            f"{dtype.name}. Received: {tensor!r} for the layer of {layer.kernel.name!r}."
        )


def bring(
    tensors: Sequence[tf.Tensor], sources: Sequence[str], targets: Sequence[str | None]
) -> list[tf.Tensor]:
    """Bring tensors from devices to devices, those with the same way and dtype in one message.

    TensorFlow's runtime pays for every tensor that crosses from one process to another.

    Args:
        tensors: Tensors of known shapes.
        sources: The device of each, "" where it is that of the scope.
        targets: Where each is to go; None: where the scope puts it.

    Returns:
        The tensors there.
    """
    ways: dict[Any, list[int]] = {}
    for i, (tensor, source, target) in enumerate(zip(tensors, sources, targets, strict=True)):
        ways.setdefault((source, target, tensor.dtype), []).append(i)
    there = list(tensors)
    for (source, target, _), places in ways.items():
        if source == (target or "") or len(places) < 2:
            continue
        with tf.device(source):
            packed = tf.concat([tf.reshape(tensors[i], [-1]) for i in places], axis=0)
        shapes = [tensors[i].shape.as_list() for i in places]
        with tf.device(target or ""):
            parts = tf.split(packed, [int(np.prod(shape)) for shape in shapes])
            for i, part, shape in zip(places, parts, shapes, strict=True):
                there[i] = tf.reshape(part, shape)
    return there
