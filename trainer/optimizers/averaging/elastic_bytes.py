"""Tensors of any dtype as one vector of bytes: one message instead of many."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf


class Layout(NamedTuple):
    """What lies in a packed vector, one after the other.

    Attributes:
        shapes: Shape of each tensor.
        dtypes: Dtype of each tensor.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[tf.DType, ...]

    @classmethod
    def of(cls, tensors: Sequence[tf.Tensor]) -> "Layout":
        """The layout of tensors of fixed shapes."""
        return cls(
            tuple(tuple(tensor.shape.as_list()) for tensor in tensors),
            tuple(tensor.dtype.base_dtype for tensor in tensors),
        )

    @property
    def sizes(self) -> list[int]:
        """Bytes of each tensor."""
        return [
            int(np.prod(shape, dtype=np.int64)) * dtype.size
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        ]


def pack(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Put the bytes of tensors of fixed shapes into one vector, uint8 ``[bytes]``."""
    return tf.concat([tf.reshape(tf.bitcast(tensor, tf.uint8), [-1]) for tensor in tensors], 0)


def unpack(packed: tf.Tensor, layout: Layout) -> list[tf.Tensor]:
    """Take the tensors out of the vector again; no bit changes."""
    parts = tf.split(packed, layout.sizes)
    return [
        tf.bitcast(tf.reshape(part, [*shape, dtype.size]), dtype)
        for part, shape, dtype in zip(parts, layout.shapes, layout.dtypes, strict=True)
    ]


def carry(tensors: Sequence[tf.Tensor], device: str, *, limit: int) -> list[tf.Tensor]:
    """Bring tensors to another device: small ones in one message, large ones each on its own.

    Args:
        tensors: Tensors of fixed shapes, all on one device.
        device: Where they are wanted.
        limit: Bytes up to which a tensor is small; copying a large one would cost more than its
            message.

    Returns:
        The tensors there, in the same order.
    """
    if not tensors:
        return []
    layout = Layout.of(tensors)
    small = [i for i, size in enumerate(layout.sizes) if size <= limit]
    there = dict(enumerate(tensors))
    if len(small) > 1 and tensors[0].device != device:
        chosen = [tensors[i] for i in small]
        with tf.device(tensors[0].device):
            packed = pack(chosen)
        with tf.device(device):
            there.update(zip(small, unpack(packed, Layout.of(chosen)), strict=True))
    return [there[i] for i in range(len(tensors))]
