"""Layer-wise adaptive rate scaling (LARS), for very large batches."""

import numpy as np

from deepinsight.trainer.rules._checks import non_negative, positive, rule, same_arrays, share
from deepinsight.trainer.rules._rows import touched_rows


@rule
def lars_step(
    param: np.ndarray,
    velocity: np.ndarray,
    grad: np.ndarray,
    *,
    learning_rate: float,
    momentum: float = 0.9,
    weight_decay: float = 1e-4,
    eeta: float = 1e-3,
    epsilon: float = 0.0,
    use_nesterov: bool = False,
) -> tuple[np.ndarray, ...]:
    r"""Apply one LARS step.

    .. math::

        t = \phi \|w\| / (\|g\| + \beta \|w\| + \epsilon) \text{, 1 where a norm is 0}; \quad
        u = g + \beta w; \quad v \leftarrow v \mu + (\eta t) u; \quad w \leftarrow w - v

    With Nesterov :math:`w \leftarrow w - (v \mu + (\eta t) u)`. The velocity holds
    :math:`\eta`, as in the paper. Norms are summed in float64, then rounded to the arrays' dtype.

    Args:
        param: Weights :math:`w` of one layer, shape ``[...]``, float32 or float64.
        velocity: :math:`v`, same shape and dtype, 0 at first.
        grad: Gradient :math:`g`, same shape and dtype.
        learning_rate: :math:`\eta`, > 0.
        momentum: :math:`\mu` in [0, 1).
        weight_decay: :math:`\beta`, >= 0.
        eeta: Trust coefficient :math:`\phi`, > 0.
        epsilon: :math:`\epsilon`, >= 0.
        use_nesterov: Whether to look ahead.

    Returns:
        ``(param, velocity, trust)`` after the step, with the trust ratio ``[]``; the inputs are
        not modified.

    Raises:
        ValueError: If shapes or dtypes differ or a scalar is out of range.

    References:
        You et al., 2017, Large Batch Training of Convolutional Networks. arXiv:1708.03888.
    """
    param, velocity, grad = same_arrays(param=param, velocity=velocity, grad=grad)
    rate, eeta = positive(param, learning_rate=learning_rate), positive(param, eeta=eeta)
    mu, decay = share(param, momentum=momentum), non_negative(param, weight_decay=weight_decay)
    epsilon, trust = non_negative(param, epsilon=epsilon), param.dtype.type(1)
    weights, gradients = norm(param), norm(grad)
    if weights != 0 and gradients != 0:
        trust = eeta * weights / (gradients + decay * weights + epsilon)
    update = (rate * trust) * (grad + decay * param)
    velocity = velocity * mu + update
    return param - (velocity * mu + update if use_nesterov else velocity), velocity, trust


@rule
def sparse_lars_step(
    param: np.ndarray,
    velocity: np.ndarray,
    grad: np.ndarray,
    indices: np.ndarray,
    *,
    learning_rate: float,
    momentum: float = 0.9,
    weight_decay: float = 1e-4,
    eeta: float = 1e-3,
    epsilon: float = 0.0,
    use_nesterov: bool = False,
) -> tuple[np.ndarray, ...]:
    """Apply `lars_step` to the rows of a sparse gradient.

    Norms and decay cover the touched rows only. That is ours: TensorFlow 1.15 took plain momentum.

    Args:
        param: Weights, shape ``[rows, ...]``, float32 or float64.
        velocity: Same shape and dtype.
        grad: Gradient rows, shape ``[n, ...]``, same dtype; duplicates are summed first.
        indices: Integers in [0, rows), shape ``[n]``.
        learning_rate: As for the dense rule, as are the scalars that follow.
        momentum: In [0, 1).
        weight_decay: >= 0.
        eeta: > 0.
        epsilon: >= 0.
        use_nesterov: Whether to look ahead.

    Returns:
        ``(param, velocity, trust)`` after the step; the inputs are not modified.

    Raises:
        ValueError: If shapes or dtypes differ, an index or a scalar is out of range.
    """
    param, velocity = (a.copy() for a in same_arrays(param=param, velocity=velocity))
    rows, unique = touched_rows(param, grad, indices)
    param[unique], velocity[unique], trust = lars_step(
        param[unique],
        velocity[unique],
        rows,
        learning_rate=learning_rate,
        momentum=momentum,
        weight_decay=weight_decay,
        eeta=eeta,
        epsilon=epsilon,
        use_nesterov=use_nesterov,
    )
    return param, velocity, trust


def norm(array: np.ndarray) -> np.floating:
    """Return the Euclidean norm, summed in float64, in the array's dtype."""
    return array.dtype.type(np.sqrt(np.sum(np.square(array, dtype=np.float64))))
