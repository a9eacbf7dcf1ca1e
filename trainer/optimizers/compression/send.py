"""How compressed gradients get to their variables, and are applied there."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from deepinsight.trainer import kernels
from deepinsight.trainer.optimizers._apply import Gradient, compute_dtype
from deepinsight.trainer.optimizers.compression.message import Content, Layout, pack, unpack
from deepinsight.trainer.optimizers.compression.state import Selected, Waiting
from deepinsight.trainer.optimizers.exchange import GradientAndVariable


class Rates:
    """The learning rate where it is needed.

    A number is a constant on each server. A tensor goes along in the message to a server.

    Args:
        rate: A float or a scalar tensor.
    """

    def __init__(self, rate: Any) -> None:
        self.travels = not isinstance(rate, float)
        self._rate = rate
        self._there: dict[tuple[str, tf.DType], tf.Tensor] = {}

    def here(self, dtype: tf.DType) -> tf.Tensor:
        """The rate in a dtype, on the device of the scope."""
        return tf.cast(self._rate, dtype)

    def arrived(self, device: str, rate: tf.Tensor) -> None:
        """Remember what a message has brought."""
        self._there[device, rate.dtype] = rate

    def at(self, var: tf.Variable) -> tf.Tensor:
        """The rate in the dtype of a variable's arithmetic, on its device."""
        dtype = compute_dtype(var.dtype)
        if (var.device, dtype) not in self._there:
            with tf.device(var.device):
                self._there[var.device, dtype] = self.here(dtype)
        return self._there[var.device, dtype]


def send(
    states: Sequence[Waiting], taken: Sequence[Selected], rates: Rates, worker: str
) -> tuple[tf.Tensor, list[tf.Operation]]:
    """Bring what was taken to one server in one message, and apply it there.

    Args:
        states: The state of variables on one device and of one dtype.
        taken: What was taken from each.
        rates: The learning rate.
        worker: Where the message is made.

    Returns:
        The message, and the ops that update the variables.
    """
    pairs = list(zip(states, taken, strict=True))
    some = [(state.variable, part) for state, part in pairs if not state.whole]
    whole = [(state.variable, part) for state, part in pairs if state.whole]
    first = states[0].variable
    layout = Layout(
        first.dtype.base_dtype,
        tuple(var.shape.num_elements() for var, _ in some),
        tuple(var.shape.num_elements() for var, _ in whole),
        rates.travels,
    )
    with tf.device(worker):
        rate = rates.here(compute_dtype(layout.dtype)) if rates.travels else None
        message = pack(
            layout,
            Content(
                [(part.indices, part.values) for _, part in some],
                [part.values for _, part in whole],
                rate,
            ),
        )
    with tf.device(first.device):
        content = unpack(layout, message)
        if content.rate is not None:
            rates.arrived(first.device, content.rate)
        everywhere = [(tf.range(n, dtype=layout.index_dtype)) for n in layout.whole]
        elements = [*content.selected, *zip(everywhere, content.whole, strict=True)]
        updates = [
            kernels.ops().resource_scatter_apply_gradient_descent(
                var.handle, rates.at(var), indices, values, use_locking=True
            )
            for (var, _), (indices, values) in zip([*some, *whole], elements, strict=True)
        ]
    return message, updates


def apply_rows(gradient: tf.IndexedSlices, var: tf.Variable, rates: Rates) -> tf.Operation:
    """Plain gradient descent on rows, as TensorFlow's own optimizer."""
    with tf.device(var.device):
        step = tf.cast(rates.at(var), var.dtype.base_dtype) * gradient.values
        return tf.raw_ops.ResourceScatterSub(
            resource=var.handle, indices=gradient.indices, updates=step
        )


def clip_together(gradients: Sequence[Gradient], limit: float) -> list[Gradient]:
    r"""Scale all gradients by :math:`\min(1, limit / \|g\|)`, g being all of them together.

    The norm is summed in float64, and what comes out is in the dtype of the arithmetic. A norm
    that is NaN makes everything NaN, as the kernels do: what is wrong is not hidden.
    """
    gradients = [_summed(g) if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    squares = [2 * tf.nn.l2_loss(tf.cast(_values(g), tf.float64)) for g in gradients]
    ratio = limit / tf.sqrt(tf.add_n(squares))
    scale = tf.where(ratio >= 1, tf.ones_like(ratio), ratio)
    return [_scaled(g, scale) for g in gradients]


def dense_bytes(pairs: Sequence[GradientAndVariable]) -> tf.Tensor:
    """What the gradients would be as bytes if they were sent as they are, int64 scalar."""
    total = tf.zeros([], tf.int64)
    for gradient, var in pairs:
        if isinstance(gradient, tf.IndexedSlices):
            total += tf.size(gradient.values, tf.int64) * gradient.values.dtype.size
            total += tf.size(gradient.indices, tf.int64) * gradient.indices.dtype.size
        else:
            total += var.shape.num_elements() * var.dtype.base_dtype.size
    return total


def _values(gradient: Gradient) -> tf.Tensor:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _summed(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """Rows of the same index added up, in the dtype of the arithmetic: their norm counts."""
    indices, places = tf.unique(gradient.indices)
    values = tf.cast(gradient.values, compute_dtype(gradient.dtype))
    summed = tf.math.unsorted_segment_sum(values, places, tf.size(indices))
    return tf.IndexedSlices(summed, indices, gradient.dense_shape)


def _scaled(gradient: Gradient, scale: tf.Tensor) -> Gradient:
    values = _values(gradient)
    dtype = compute_dtype(values.dtype)
    scaled = tf.cast(values, dtype) * tf.cast(scale, dtype)
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(scaled, gradient.indices, gradient.dense_shape)
    return scaled
