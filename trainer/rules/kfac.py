r"""Kronecker-factored approximate curvature (K-FAC) of dense layers.

A layer with inputs :math:`a` (a 1 appended for the bias) and pre-activations of which the loss has
the gradients :math:`s` has, for its kernel with the bias as last row, the Fisher matrix
:math:`F \approx A \otimes S` with :math:`A = E[a a^T]`, :math:`S = E[s s^T]`. So
:math:`F^{-1}` times the gradient needs two small inverses instead of one large one.
"""

from collections.abc import Sequence

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


@rule
def average_covariance(
    covariance: np.ndarray, rows: np.ndarray, *, updates: int, decay: float = 0.95
) -> tuple[np.ndarray, ...]:
    r"""Take a batch into the running mean of a second moment.

    .. math::

        C \leftarrow \epsilon C + (1 - \epsilon) \frac{1}{n} \sum_{i=1}^{n} x_i x_i^T; \quad
        \epsilon = \min(1 - 1 / k, decay)

    The first batch (k = 1) replaces what was there, and the first :math:`1 / (1 - decay)` batches
    have the same weight: no bias has to be corrected.

    Args:
        covariance: :math:`C`, shape ``[d, d]``, float32 or float64.
        rows: :math:`x_i`, shape ``[n, d]`` with n >= 1, same dtype.
        updates: k, the number of batches with this one, >= 1.
        decay: Weight of the past at most, in [0, 1).

    Returns:
        ``(covariance,)``; the inputs are not modified.

    Raises:
        ValueError: If shapes or dtypes do not fit or a scalar is out of range.

    Example:
        >>> average_covariance([[9.0]], [[1.0], [3.0]], updates=1)
        (array([[5.]]),)

    References:
        Martens, Grosse, 2015, Optimizing Neural Networks with Kronecker-factored Approximate
        Curvature, section 5. arXiv:1503.05671.
    """
    covariance = square(covariance=covariance)
    rows = floating(rows=rows)
    same_dtype(covariance, rows=rows)
    if rows.ndim != 2 or not len(rows) or rows.shape[1] != len(covariance):
        raise ValueError(
            f"`rows` must have the shape [n >= 1, {len(covariance)}]. Received: {rows.shape}."
        )
    decay = share(covariance, decay=decay)
    number = whole(1, updates=updates)
    past = np.minimum(covariance.dtype.type(1 - 1 / number), decay)
    batch = rows.T @ rows / covariance.dtype.type(len(rows))
    return (past * covariance + (1 - past) * batch if number > 1 else batch,)


@rule
def split_damping(
    input_covariance: np.ndarray, output_covariance: np.ndarray, *, damping: float
) -> tuple[np.ndarray, ...]:
    r"""Share a damping out between the two factors in proportion to their mean eigenvalues.

    .. math::

        \pi = \sqrt{\frac{tr A / \dim A}{tr S / \dim S}}, \quad
        (\pi \sqrt\lambda, \sqrt\lambda / \pi)

    :math:`\pi` is 1 where a trace is 0.

    Args:
        input_covariance: :math:`A`, shape ``[d, d]``, float32 or float64.
        output_covariance: :math:`S`, shape ``[e, e]``, same dtype.
        damping: :math:`\lambda`, > 0.

    Returns:
        ``(input_damping, output_damping)``, float64 scalars.

    Raises:
        ValueError: If shapes or dtypes do not fit or a scalar is out of range.

    Example:
        >>> split_damping(np.eye(2) * 4.0, np.eye(3), damping=0.25)
        (array(1.), array(0.25))

    References:
        Martens, Grosse, 2015, section 6.3. arXiv:1503.05671.
    """
    first = square(input_covariance=input_covariance)
    second = square(output_covariance=output_covariance)
    same_dtype(first, output_covariance=second)
    root = np.sqrt(float(positive(first.astype(np.float64), damping=damping)))
    means = [np.trace(c, dtype=np.float64) / len(c) for c in (first, second)]
    ratio = np.sqrt(means[0] / means[1]) if min(means) > 0 else 1.0
    return root * ratio, root / ratio


@rule
def invert_covariances(
    input_covariance: np.ndarray, output_covariance: np.ndarray, *, damping: float
) -> tuple[np.ndarray, ...]:
    r"""Invert the damped factors.

    .. math::  (A + \pi \sqrt\lambda I)^{-1}, \quad (S + \sqrt\lambda / \pi\, I)^{-1}

    The arithmetic is float64 whatever the dtype.

    Args:
        input_covariance: :math:`A`, shape ``[d, d]``, float32 or float64.
        output_covariance: :math:`S`, shape ``[e, e]``, same dtype.
        damping: :math:`\lambda`, > 0; see `split_damping`.

    Returns:
        ``(input_inverse, output_inverse)`` of the same shapes and dtype.

    Raises:
        ValueError: If shapes or dtypes do not fit, a scalar is out of range, or a damped factor is
            not positive definite.
    """
    factors = {
        "input_covariance": square(input_covariance=input_covariance),
        "output_covariance": square(output_covariance=output_covariance),
    }
    inverses = []
    for (name, factor), share_of in zip(
        factors.items(), split_damping(*factors.values(), damping=damping), strict=True
    ):
        damped = factor.astype(np.float64) + share_of * np.eye(len(factor))
        try:
            root = np.linalg.cholesky(damped)
        except np.linalg.LinAlgError:
            root = np.full_like(damped, np.nan)
        if not np.isfinite(root).all():
            raise ValueError(
                f"`{name}` must be finite, and positive definite with its damping {share_of:g}; "
                f"raise `damping`. Received: damping={damping!r}, diagonal elements from "
                f"{np.diag(factor).min():g} to {np.diag(factor).max():g}."
            )
        half = np.linalg.solve(root, np.eye(len(factor)))
        inverses.append((half.T @ half).astype(factor.dtype))
    return tuple(inverses)


@rule
def precondition(
    grad: np.ndarray, input_inverse: np.ndarray, output_inverse: np.ndarray
) -> tuple[np.ndarray, ...]:
    r"""Turn a layer's gradient into the direction of K-FAC.

    .. math::  \Delta = (A + \pi \sqrt\lambda I)^{-1} \nabla W (S + \sqrt\lambda / \pi\, I)^{-1}

    Args:
        grad: :math:`\nabla W`, the kernel's gradient with the bias's as last row, ``[d, e]``,
            float32 or float64.
        input_inverse: Shape ``[d, d]``, same dtype; see `invert_covariances`.
        output_inverse: Shape ``[e, e]``, same dtype.

    Returns:
        ``(delta,)`` of the shape of `grad`.

    Raises:
        ValueError: If shapes or dtypes do not fit.

    References:
        Ba, Grosse, Martens, 2017, Distributed Second-order Optimization using Kronecker-factored
        Approximations, ICLR.
    """
    grad = floating(grad=grad)
    first, second = square(input_inverse=input_inverse), square(output_inverse=output_inverse)
    same_dtype(grad, input_inverse=first)
    same_dtype(grad, output_inverse=second)
    if grad.shape != (len(first), len(second)):
        raise ValueError(
            f"`grad` must have the shape of its factors, {(len(first), len(second))}. "
            f"Received: {grad.shape}."
        )
    return (first @ grad @ second,)


@rule
def fisher_step_scale(
    deltas: Sequence[np.ndarray],
    grads: Sequence[np.ndarray],
    *,
    learning_rate: float,
    norm_constraint: float | None,
) -> tuple[np.ndarray, ...]:
    r"""Cap the norm of a step in the Fisher metric.

    .. math::

        q = \sum_l \langle \Delta_l, \nabla W_l \rangle, \quad
        \nu = \min(1, \sqrt{c / (\eta^2 q)})

    Args:
        deltas: :math:`\Delta_l` of all layers, float32 or float64.
        grads: :math:`\nabla W_l`, each of the shape and dtype of its direction.
        learning_rate: :math:`\eta`, > 0.
        norm_constraint: c, > 0; None: no cap.

    Returns:
        ``(scale, fisher_norm)``: :math:`\nu` in (0, 1] and q, float64 scalars.

    Raises:
        ValueError: If shapes or dtypes do not fit or a scalar is out of range.

    Example:
        >>> fisher_step_scale([np.array([2.0])], [np.array([2.0])], learning_rate=1.0,
        ...                   norm_constraint=1.0)
        (array(0.5), array(4.))

    References:
        Ba, Grosse, Martens, 2017, section 5.
    """
    total = np.zeros((), np.float64)
    for pair in zip(deltas, grads, strict=True):
        total += np.sum(np.multiply(*_same_pair(*pair)), dtype=np.float64)
    rate = positive(total, learning_rate=learning_rate)
    if norm_constraint is None:
        return np.ones(()), total
    cap = positive(total, norm_constraint=norm_constraint)
    length = rate * rate * total
    return np.sqrt(cap / length) if length > cap else np.ones(()) + 0 * length, total


def _same_pair(delta: np.ndarray, grad: np.ndarray) -> tuple[np.ndarray, ...]:
    return same_arrays(delta=delta, grad=grad)


def square(**named: np.ndarray) -> np.ndarray:
    """Return the one matrix that is given, square and not empty.

    Raises:
        ValueError: If it is something else.
    """
    ((name, value),) = named.items()
    matrix = floating(**named)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        raise ValueError(f"`{name}` must be a square matrix. Received: shape {np.shape(value)}.")
    return matrix
