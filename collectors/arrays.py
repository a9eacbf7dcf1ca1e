# ruff: noqa: D102
"""The few array operations that probes are written in, for NumPy and for TensorFlow.

A probe's formula is written once, against :class:`NumpyArrays` or :class:`TensorFlowArrays`
(the same methods, the same meaning). TensorFlow's run in a graph, in a ``tf.function``, under
XLA or eagerly. NaN propagates through every maximum and minimum: it is data.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

#: Tensors above this many elements are summarised in slices of rows, so that no second copy of a
#: huge embedding is ever made.
CHUNK_ELEMENTS = 1 << 22


class Arrays(Protocol):
    """What a probe may do with a tensor; shapes are Python integers throughout."""

    def floating(self, x: Any) -> Any:
        """``x`` as float32, or as float64 if it is float64."""

    def reshape(self, x: Any, shape: Sequence[int]) -> Any:
        """``x`` with another shape."""

    def concat(self, parts: Sequence[Any], axis: int = 0) -> Any:
        """The parts one after another along ``axis``."""

    def stack(self, parts: Sequence[Any]) -> Any:
        """Equal shapes, stacked along a new first axis."""

    def abs(self, x: Any) -> Any:
        """``|x|``."""

    def sqrt(self, x: Any) -> Any:
        """Square root; NaN below zero."""

    def max(self, x: Any, axis: int | None = None) -> Any:
        """Maximum; NaN where any is NaN."""

    def min(self, x: Any, axis: int | None = None) -> Any:
        """Minimum; NaN where any is NaN."""

    def sum(self, x: Any, axis: int | None = None) -> Any:
        """Sum in the dtype of ``x``."""

    def sum_of_squares(self, x: Any) -> Any:
        """Sum of squared elements, a scalar."""

    def subtract(self, x: Any, y: Any) -> Any:
        """``x - y``."""

    def share_of_zeros(self, x: Any) -> Any:
        """Share of elements that equal zero, in the dtype of ``x``."""

    def divide(self, x: Any, y: Any) -> Any:
        """``x / y``; 0/0 is NaN and x/0 infinite."""

    def rows(self, source: Any, start: Any, count: int) -> Any:
        """Rows ``start`` to ``start + count`` of a 1-D or 2-D source, without reading the rest."""

    def every(self, source: Any, stride: int, elements: int, columns: int) -> Any:
        """Every ``stride``-th of the ``elements`` of a source, in row-major order, as a vector."""

    def map_chunks(self, function: Callable[[Any], tuple[Any, ...]], count: int) -> tuple[Any, ...]:
        """``function(0) … function(count - 1)``, each output stacked along a new first axis."""

    def sum_duplicate_rows(self, values: Any, indices: Any) -> Any:
        """One row per distinct index: the sum of the rows that carry it."""


class NumpyArrays:
    """The operations in NumPy."""

    def floating(self, x: Any) -> np.ndarray:
        x = np.asarray(x)
        return x if x.dtype in (np.float32, np.float64) else x.astype(np.float32)

    def reshape(self, x: Any, shape: Sequence[int]) -> Any:
        return np.reshape(x, shape)

    def concat(self, parts: Sequence[Any], axis: int = 0) -> Any:
        return np.concatenate(parts, axis)

    def stack(self, parts: Sequence[Any]) -> Any:
        return np.stack(parts)

    def abs(self, x: Any) -> Any:
        return np.abs(x)

    def sqrt(self, x: Any) -> Any:
        with np.errstate(invalid="ignore"):
            return np.sqrt(x)

    def max(self, x: Any, axis: int | None = None) -> Any:
        with np.errstate(invalid="ignore"):
            return np.max(x, axis)

    def min(self, x: Any, axis: int | None = None) -> Any:
        with np.errstate(invalid="ignore"):
            return np.min(x, axis)

    def sum(self, x: Any, axis: int | None = None) -> Any:
        with np.errstate(invalid="ignore", over="ignore"):
            return np.sum(x, axis)

    def sum_of_squares(self, x: Any) -> Any:
        with np.errstate(invalid="ignore", over="ignore"):
            return np.sum(np.square(x))

    def subtract(self, x: Any, y: Any) -> Any:
        with np.errstate(invalid="ignore", over="ignore"):
            return np.subtract(x, y)

    def share_of_zeros(self, x: Any) -> Any:
        return np.mean(x == 0, dtype=x.dtype)

    def divide(self, x: Any, y: Any) -> Any:
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            return np.divide(x, y)

    def rows(self, source: Any, start: Any, count: int) -> Any:
        return np.asarray(source)[start : start + count]

    def every(self, source: Any, stride: int, elements: int, columns: int) -> Any:
        # A copy: the background thread reads it while training writes on.
        return np.reshape(source, -1)[::stride].copy()

    def map_chunks(self, function: Callable[[Any], tuple[Any, ...]], count: int) -> tuple[Any, ...]:
        outputs = [function(i) for i in range(count)]
        return tuple(np.stack(column) for column in zip(*outputs, strict=True))

    def sum_duplicate_rows(self, values: Any, indices: Any) -> Any:
        values = np.asarray(values)
        unique, inverse = np.unique(np.asarray(indices), return_inverse=True)
        merged = np.zeros((len(unique), *values.shape[1:]), values.dtype)
        np.add.at(merged, inverse.reshape(-1), values)
        return merged


class TensorFlowArrays:
    """The operations in TensorFlow: graph, ``tf.function``, XLA or eager.

    Args:
        static_shapes: Use only operations whose output shapes follow from the input shapes, for
            XLA.
    """

    def __init__(self, static_shapes: bool = False) -> None:
        import tensorflow as tf

        self._tf = tf
        self._static_shapes = static_shapes

    def floating(self, x: Any) -> Any:
        tf = self._tf
        x = tf.convert_to_tensor(x)
        return x if x.dtype in (tf.float32, tf.float64) else tf.cast(x, tf.float32)

    def reshape(self, x: Any, shape: Sequence[int]) -> Any:
        return self._tf.reshape(x, shape)

    def concat(self, parts: Sequence[Any], axis: int = 0) -> Any:
        return parts[0] if len(parts) == 1 else self._tf.concat(parts, axis)

    def stack(self, parts: Sequence[Any]) -> Any:
        return self._tf.stack(parts)

    def abs(self, x: Any) -> Any:
        return self._tf.abs(x)

    def sqrt(self, x: Any) -> Any:
        return self._tf.sqrt(x)

    def max(self, x: Any, axis: int | None = None) -> Any:
        return self._tf.reduce_max(x, axis)

    def min(self, x: Any, axis: int | None = None) -> Any:
        return self._tf.reduce_min(x, axis)

    def sum(self, x: Any, axis: int | None = None) -> Any:
        return self._tf.reduce_sum(x, axis)

    def sum_of_squares(self, x: Any) -> Any:
        return self._tf.reduce_sum(self._tf.square(x))

    def subtract(self, x: Any, y: Any) -> Any:
        return self._tf.subtract(x, y)

    def share_of_zeros(self, x: Any) -> Any:
        return self._tf.reduce_mean(self._tf.cast(self._tf.equal(x, 0), x.dtype))

    def divide(self, x: Any, y: Any) -> Any:
        return self._tf.divide(x, y)

    def rows(self, source: Any, start: Any, count: int) -> Any:
        indices = self._tf.range(count) + self._tf.cast(start, self._tf.int32)
        if hasattr(source, "sparse_read"):  # a resource variable: gather, never read it whole
            return source.sparse_read(indices)
        return self._tf.gather(source, indices)

    def every(self, source: Any, stride: int, elements: int, columns: int) -> Any:
        tf = self._tf
        if elements <= CHUNK_ELEMENTS or not hasattr(source, "sparse_read"):
            return tf.reshape(source, [-1])[::stride]
        flat = tf.range(0, elements, stride, dtype=tf.int64)
        rows = source.sparse_read(flat // columns)
        if len(source.shape) == 1:
            return rows
        return tf.gather(rows, flat % columns, batch_dims=1)

    def map_chunks(self, function: Callable[[Any], tuple[Any, ...]], count: int) -> tuple[Any, ...]:
        tf = self._tf
        first = function(0)
        if count == 1:
            return tuple(tf.expand_dims(x, 0) for x in first)
        signature = tuple(tf.TensorSpec(x.shape, x.dtype) for x in first)
        return tf.map_fn(
            function, tf.range(count), fn_output_signature=signature, parallel_iterations=1
        )

    def sum_duplicate_rows(self, values: Any, indices: Any) -> Any:
        tf = self._tf
        indices = tf.reshape(indices, [-1])
        if not self._static_shapes:
            unique, position = tf.unique(indices)
            return tf.math.unsorted_segment_sum(values, position, tf.size(unique))
        # Sorted, each run of equal indices is one row; the rows that are left over stay zero.
        order = tf.argsort(indices)
        sorted_indices = tf.gather(indices, order)
        changes = tf.cast(tf.not_equal(sorted_indices[1:], sorted_indices[:-1]), tf.int32)
        position = tf.concat([[0], tf.cumsum(changes)], 0)
        return tf.math.unsorted_segment_sum(tf.gather(values, order), position, tf.size(indices))
