"""Sparse gradients: rows of a table, by index. A rule sees the touched rows only."""

from collections.abc import Callable
from typing import Any

import numpy as np

from deepinsight.trainer.rules._checks import floating, same_arrays, same_dtype


def sum_duplicates(grad: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sum the rows that share an index, in the order in which they come.

    Args:
        grad: Rows, shape ``[n, ...]``.
        indices: The row of the table that each belongs to, integers, shape ``[n]``.

    Returns:
        ``(rows, indices)`` with ascending, unique indices, in the dtype of `grad`.
    """
    unique, first, place = np.unique(indices, return_index=True, return_inverse=True)
    summed = grad[first]  # not 0 + the first row: that would lose the sign of -0.0
    again = np.ones(len(indices), bool)
    again[first] = False
    np.add.at(summed, place[again], grad[again])
    return summed, unique


def checked_indices(indices: Any, size: int, what: str = "rows") -> np.ndarray:
    """Return indices as a vector of integers, each in [0, size).

    Raises:
        ValueError: If they are not; the message names the first that is out of range.
    """
    array = np.asarray(indices)
    if array.ndim != 1 or not (array.dtype.kind in "iu" or array.size == 0):
        raise ValueError(
            "`indices` must be a vector of integers. "
            f"Received: shape {array.shape} of dtype {array.dtype}."
        )
    wrong = np.flatnonzero((array < 0) | (array >= size))
    if wrong.size:
        raise ValueError(
            f"`indices` must be >= 0 and < {size}, the number of {what}. "
            f"Received: indices[{wrong[0]}] = {array[wrong[0]]}."
        )
    return array.astype(np.int64)


def apply_to_rows(
    dense: Callable[..., tuple[np.ndarray, ...]],
    tables: dict[str, Any],
    grad: Any,
    indices: Any,
) -> tuple[np.ndarray, ...]:
    """Apply a dense rule to the rows that a sparse gradient touches.

    Args:
        dense: The rule; takes the rows of each table, then the summed gradient.
        tables: The parameter and its state by name, each of shape ``[rows, ...]``.
        grad: Shape ``[n, ...]``, rows like the tables'.
        indices: Integers in [0, rows), shape ``[n]``; duplicates are summed first.

    Returns:
        The tables after the step; rows that `indices` does not name keep their bits.

    Raises:
        ValueError: If shapes or dtypes differ, or an index is out of range.
    """
    arrays = same_arrays(**tables)
    rows, unique = touched_rows(arrays[0], grad, indices)
    updated = dense(*(array[unique] for array in arrays), rows)
    results = tuple(array.copy() for array in arrays)
    for result, new in zip(results, updated, strict=True):
        result[unique] = new
    return results


def touched_rows(table: np.ndarray, grad: Any, indices: Any) -> tuple[np.ndarray, np.ndarray]:
    """Check a sparse gradient against its table and sum its duplicates.

    Raises:
        ValueError: If shapes or dtypes differ, or an index is out of range.
    """
    if table.ndim == 0:
        raise ValueError("a table must have at least one dimension. Received: shape ().")
    grad, indices = floating(grad=grad), checked_indices(indices, len(table))
    same_dtype(table, grad=grad)
    expected = (len(indices), *table.shape[1:])
    if grad.shape != expected:
        raise ValueError(
            "`grad` must have one row per index, each like a row of the table: shape "
            f"{expected}. Received: grad of shape {grad.shape}."
        )
    return sum_duplicates(grad, indices)
