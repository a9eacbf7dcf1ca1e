"""What a worker sends to one parameter server: elements of many variables in one tensor.

TensorFlow pays for every tensor that crosses from one process to another, so indices, values and
the learning rate share one vector of bytes. The indices count through the server's variables, one
after the other; as they ascend, the server finds each variable's part by a binary search, and no
sizes need to travel although they change with the sparsity.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import tensorflow as tf

from deepinsight.trainer.optimizers._apply import compute_dtype

Elements = tuple[tf.Tensor, tf.Tensor]


class Layout(NamedTuple):
    """What both ends know of a message.

    The bytes, in the machine's order: all indices, their values, the values of the variables that
    are sent whole, the learning rate.

    Attributes:
        dtype: Type of the values.
        selected: Elements of each variable of which some are sent, >= 1 each.
        whole: Elements of each variable that is sent whole.
        rate: Whether the learning rate is in it, in the dtype of the arithmetic.
    """

    dtype: tf.DType
    selected: tuple[int, ...]
    whole: tuple[int, ...]
    rate: bool

    @property
    def index_dtype(self) -> tf.DType:
        """int32, unless the variables have more than 2^31 elements together."""
        return tf.int32 if sum(self.selected) < 2**31 else tf.int64

    @property
    def offsets(self) -> list[int]:
        """The number at which each variable's indices begin."""
        return [0, *accumulate(self.selected[:-1])] if self.selected else []


class Content(NamedTuple):
    """What a message says.

    Attributes:
        selected: (indices, values) of some elements of a variable, flat and ascending.
        whole: The values of all elements of a variable, flat.
        rate: The learning rate, or None.
    """

    selected: list[Elements]
    whole: list[tf.Tensor]
    rate: tf.Tensor | None


def pack(layout: Layout, content: Content) -> tf.Tensor:
    """Make the message, uint8 ``[bytes]``, on the device of the scope."""
    parts = [
        _to_bytes(tf.cast(indices + offset, layout.index_dtype))
        for (indices, _), offset in zip(content.selected, layout.offsets, strict=True)
    ]
    parts += [_to_bytes(values) for _, values in content.selected]
    parts += [_to_bytes(values) for values in content.whole]
    if content.rate is not None:
        parts.append(_to_bytes(content.rate))
    return tf.concat(parts, axis=0)


def unpack(layout: Layout, message: tf.Tensor) -> Content:
    """Read a message on the device of the scope."""
    rate_dtype = compute_dtype(layout.dtype)
    rate_bytes = rate_dtype.size if layout.rate else 0
    whole_bytes = sum(layout.whole) * layout.dtype.size
    left = tf.size(message, tf.int64) - (whole_bytes + rate_bytes)
    count = left // (layout.index_dtype.size + layout.dtype.size)
    sizes = [count * layout.index_dtype.size, count * layout.dtype.size, whole_bytes, rate_bytes]
    indices, values, whole, rate = tf.split(message, tf.stack(sizes), num=4)
    return Content(
        _split_selected(
            layout, _from_bytes(indices, layout.index_dtype), _from_bytes(values, layout.dtype)
        ),
        tf.split(_from_bytes(whole, layout.dtype), list(layout.whole)) if layout.whole else [],
        _from_bytes(rate, rate_dtype)[0] if layout.rate else None,
    )


def _split_selected(layout: Layout, indices: tf.Tensor, values: tf.Tensor) -> list[Elements]:
    if len(layout.selected) < 2:
        return [(indices, values)] * len(layout.selected)
    offsets = tf.constant(layout.offsets, layout.index_dtype)
    begins = tf.searchsorted(indices, offsets)
    sizes = tf.concat([begins[1:], tf.shape(indices)], axis=0) - begins
    number = len(layout.selected)
    parts = zip(
        tf.split(indices, sizes, num=number),
        tf.unstack(offsets),
        tf.split(values, sizes, num=number),
        strict=True,
    )
    return [(index - offset, value) for index, offset, value in parts]


def _to_bytes(tensor: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tf.bitcast(tensor, tf.uint8), [-1])


def _from_bytes(some: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return tf.bitcast(tf.reshape(some, [-1, dtype.size]), dtype)


def byte_counts(messages: Sequence[tf.Tensor]) -> tf.Tensor:
    """Bytes of all messages, int64 scalar, on the device of the scope."""
    return tf.add_n([tf.size(message, tf.int64) for message in messages])
