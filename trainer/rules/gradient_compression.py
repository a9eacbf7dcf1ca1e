"""Deep Gradient Compression: send the largest part of a gradient, keep the rest for later.

References:
    Lin et al., 2018, Deep Gradient Compression. ICLR. arXiv:1712.01887.
"""

from typing import Any

import numpy as np

from deepinsight.trainer.rules._checks import (
    floating,
    positive,
    rule,
    same_arrays,
    same_dtype,
    share,
    whole,
)
from deepinsight.trainer.rules._rows import apply_to_rows, checked_indices, sum_duplicates
from deepinsight.trainer.rules.lars import norm


@rule
def clip_local_gradient(
    grad: np.ndarray, *, threshold: float, num_workers: int
) -> tuple[np.ndarray, ...]:
    r"""Clip a worker's gradient before it is accumulated.

    .. math::  g \min(1, (\theta M^{-1/2}) / \|g\|)

    Args:
        grad: Gradient :math:`g`, shape ``[...]``, float32 or float64.
        threshold: :math:`\theta`, > 0, for the sum over the workers.
        num_workers: :math:`M`, >= 1.

    Returns:
        ``(grad,)``; the input is not modified. A norm of 0 leaves it as it is.

    Raises:
        ValueError: If a dtype or a scalar is out of range.
    """
    grad = floating(grad=grad)
    limit = positive(grad, threshold=threshold) / np.sqrt(
        grad.dtype.type(whole(1, num_workers=num_workers))
    )
    length = norm(grad)
    return (grad * np.minimum(grad.dtype.type(1), limit / length) if length else grad.copy(),)


@rule
def accumulate_for_compression(
    velocity: np.ndarray, residual: np.ndarray, grad: np.ndarray, *, momentum: float = 0.9
) -> tuple[np.ndarray, ...]:
    r"""Add a gradient, with momentum, to what waits to be sent.

    .. math::  U \leftarrow \mu U + g; \qquad V \leftarrow V + U

    Args:
        velocity: :math:`U`, shape ``[...]``, float32 or float64, 0 at first.
        residual: :math:`V`, same shape and dtype, 0 at first.
        grad: Gradient :math:`g`, same shape and dtype.
        momentum: :math:`\mu` in [0, 1).

    Returns:
        ``(velocity, residual)``; the inputs are not modified.

    Raises:
        ValueError: If shapes or dtypes differ or a scalar is out of range.
    """
    velocity, residual, grad = same_arrays(velocity=velocity, residual=residual, grad=grad)
    velocity = share(velocity, momentum=momentum) * velocity + grad
    return velocity, residual + velocity


@rule
def sparse_accumulate_for_compression(
    velocity: np.ndarray,
    residual: np.ndarray,
    grad: np.ndarray,
    indices: np.ndarray,
    *,
    momentum: float = 0.9,
) -> tuple[np.ndarray, ...]:
    """Apply `accumulate_for_compression` to the rows of a sparse gradient.

    Args:
        velocity: Shape ``[rows, ...]``, float32 or float64; untouched rows do not decay.
        residual: Same shape and dtype.
        grad: Gradient rows, shape ``[n, ...]``, same dtype; duplicates are summed first.
        indices: Integers in [0, rows), shape ``[n]``.
        momentum: In [0, 1).

    Returns:
        ``(velocity, residual)``; the inputs are not modified.

    Raises:
        ValueError: If shapes or dtypes differ, an index or a scalar is out of range.
    """

    def dense(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        return accumulate_for_compression(*arrays, momentum=momentum)

    return apply_to_rows(dense, {"velocity": velocity, "residual": residual}, grad, indices)


@rule
def select_top_k(
    velocity: np.ndarray, residual: np.ndarray, *, sparsity: float, dtype: Any = None
) -> tuple[np.ndarray, ...]:
    r"""Take the :math:`k = \max(1, round((1 - sparsity) n))` largest :math:`|V|` to be sent.

    What rounding to `dtype` leaves stays in V; U is cleared where something is sent. Ties go to
    the lower index; NaN counts as the largest, so that it is not hidden. k is rounded half to even
    from the sparsity in float64; n = 0 sends nothing. What is not finite as sent leaves V - sent,
    which is not finite either.

    Args:
        velocity: :math:`U`, shape ``[...]``, float32 or float64.
        residual: :math:`V`, same shape and dtype.
        sparsity: Share that stays, in [0, 1).
        dtype: Type of the values sent; None for that of `residual`.

    Returns:
        ``(indices, values, velocity, residual)`` with flat, ascending int64 indices ``[k]`` and
        values ``[k]``; the inputs are not modified.

    Raises:
        ValueError: If shapes or dtypes differ or a scalar is out of range.

    Example:
        >>> import numpy as np
        >>> indices, values, _, rest = select_top_k(np.ones(4), [1.0, -4, 2, 0], sparsity=0.75)
        >>> indices, values, rest
        (array([1]), array([-4.]), array([1., 0., 2., 0.]))
    """
    velocity, residual = (a.copy() for a in same_arrays(velocity=velocity, residual=residual))
    share(residual, sparsity=sparsity)
    size = residual.size
    count = min(size, max(1, round((1 - float(sparsity)) * size)))
    magnitude = np.abs(residual).reshape(-1)
    magnitude[np.isnan(magnitude)] = np.inf
    indices = np.sort(np.argsort(-magnitude, kind="stable")[:count])
    values = residual.reshape(-1)[indices].astype(dtype or residual.dtype)
    velocity.reshape(-1)[indices] = 0
    residual.reshape(-1)[indices] -= values.astype(residual.dtype)
    return indices, values, velocity, residual


@rule
def scatter_gradient_descent_step(
    param: np.ndarray, indices: np.ndarray, values: np.ndarray, *, learning_rate: float
) -> tuple[np.ndarray, ...]:
    r"""Apply a received sparse gradient by plain gradient descent.

    .. math::  w_i \leftarrow w_i - \eta \sum_{j: indices_j = i} values_j

    Args:
        param: Weights :math:`w`, shape ``[...]``, float32 or float64.
        indices: Flat indices into `param`, integers, shape ``[k]``.
        values: Shape ``[k]``, the dtype of `param`; duplicates are summed first.
        learning_rate: :math:`\eta`, > 0.

    Returns:
        ``(param,)``; the inputs are not modified.

    Raises:
        ValueError: If shapes or dtypes differ, an index or a scalar is out of range.
    """
    param, values = floating(param=param).copy(), floating(values=values)
    same_dtype(param, values=values)
    rate = positive(param, learning_rate=learning_rate)
    indices = checked_indices(indices, param.size, "elements")
    if values.shape != indices.shape:
        raise ValueError(
            f"`values` must have one value per index: shape {indices.shape}. "
            f"Received: values of shape {values.shape}."
        )
    summed, unique = sum_duplicates(values, indices)
    param.reshape(-1)[unique] -= rate * summed
    return (param,)
