"""Staleness-weighted accumulation of gradients (Softsync).

References:
    Zhang et al., 2016, Staleness-aware Async-SGD for Distributed Deep Learning. IJCAI.
    arXiv:1511.05950.
"""

import numpy as np

from deepinsight.trainer.rules._checks import floating, non_negative, rule, same_arrays, whole
from deepinsight.trainer.rules._rows import apply_to_rows


def staleness_weight(staleness: int, *, alpha: float = 1.0) -> float:
    r"""Return the weight of a gradient that is stale by some updates.

    .. math::  \alpha(\tau) = \alpha_0 / \max(\tau, 1)

    Args:
        staleness: :math:`\tau`, >= 0, updates between pull and push.
        alpha: :math:`\alpha_0`, >= 0.

    Returns:
        The weight, in float64.

    Raises:
        ValueError: If a scalar is out of range.

    Example:
        >>> [staleness_weight(tau) for tau in (0, 1, 4)]
        [1.0, 1.0, 0.25]
    """
    start = non_negative(np.zeros(()), alpha=alpha)
    return float(start) / max(whole(0, staleness=staleness), 1)


@rule
def weighted_accumulation(
    total: np.ndarray, grad: np.ndarray, *, weight: float
) -> tuple[np.ndarray, ...]:
    r"""Add a weighted gradient: :math:`S \leftarrow S + \alpha g`.

    Args:
        total: :math:`S`, shape ``[...]``, float32 or float64, 0 at first.
        grad: Gradient :math:`g`, same shape and dtype.
        weight: :math:`\alpha`, >= 0, as of `staleness_weight`.

    Returns:
        ``(total,)``; the inputs are not modified.

    Raises:
        ValueError: If shapes or dtypes differ or a scalar is out of range.
    """
    total, grad = same_arrays(total=total, grad=grad)
    return (total + non_negative(total, weight=weight) * grad,)


@rule
def sparse_weighted_accumulation(
    total: np.ndarray, grad: np.ndarray, indices: np.ndarray, *, weight: float
) -> tuple[np.ndarray, ...]:
    """Apply `weighted_accumulation` to the rows of a sparse gradient.

    Args:
        total: Shape ``[rows, ...]``, float32 or float64.
        grad: Gradient rows, shape ``[n, ...]``, same dtype; duplicates are summed first.
        indices: Integers in [0, rows), shape ``[n]``.
        weight: >= 0.

    Returns:
        ``(total,)``; the inputs are not modified.

    Raises:
        ValueError: If shapes or dtypes differ, an index or a scalar is out of range.
    """

    def dense(rows: np.ndarray, grad: np.ndarray) -> tuple[np.ndarray, ...]:
        return weighted_accumulation(rows, grad, weight=weight)

    return apply_to_rows(dense, {"total": total}, grad, indices)


@rule
def accumulated_mean(total: np.ndarray, *, count: int) -> tuple[np.ndarray, ...]:
    r"""Return the mean :math:`S / c` of what was accumulated.

    Each row is divided by the number of gradients, not by how often it was seen.

    Args:
        total: :math:`S`, shape ``[...]``, float32 or float64.
        count: :math:`c`, >= 1, gradients accumulated.

    Returns:
        ``(mean,)``; the input is not modified.

    Raises:
        ValueError: If the dtype or the count is out of range.
    """
    total = floating(total=total)
    return (total / total.dtype.type(whole(1, count=count)),)
