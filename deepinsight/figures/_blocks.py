"""Matrices brought down to the pixels that can be seen."""

from typing import Any

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.floating[Any]]


def block_maximum(
    values: Matrix, max_rows: int, max_columns: int
) -> tuple[Matrix, tuple[int, int]]:
    """Reduce a matrix to at most ``max_rows`` x ``max_columns`` by the maximum over blocks.

    The maximum keeps an outlying edge visible however far out one zooms; NaN wins over numbers.

    Args:
        values: ``[rows, columns]``, not empty.
        max_rows: At least 1.
        max_columns: At least 1.

    Returns:
        The maxima and the block's ``(rows, columns)``; the last blocks may be smaller.

    Example:
        >>> block_maximum(np.array([[1.0, 5.0, 2.0], [4.0, 3.0, 0.0]]), 2, 2)
        (array([[5., 2.],
               [4., 0.]]), (1, 2))
    """
    rows = -(-values.shape[0] // max_rows)
    columns = -(-values.shape[1] // max_columns)
    if rows > 1:
        values = np.maximum.reduceat(values, np.arange(0, values.shape[0], rows), axis=0)
    if columns > 1:
        values = np.maximum.reduceat(values, np.arange(0, values.shape[1], columns), axis=1)
    return values, (rows, columns)


def block_edges(length: int, block: int) -> npt.NDArray[np.float64]:
    """Borders of the blocks along one axis, in the axis' own indices, at the half steps.

    Index ``i`` lies at coordinate ``i``, so block ``k`` reaches from ``k * block - 0.5`` to
    ``min((k + 1) * block, length) - 0.5``.

    Example:
        >>> block_edges(5, 2)
        array([-0.5,  1.5,  3.5,  4.5])
    """
    starts = np.arange(0, length, block, dtype=np.float64)
    return np.append(starts, float(length)) - 0.5
