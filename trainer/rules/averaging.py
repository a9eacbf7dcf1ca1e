"""Averaging of workers that train on their own: elastic averaging and block momentum (BMUF)."""

from collections.abc import Callable

import numpy as np

from deepinsight.trainer.rules._checks import (
    floating,
    positive,
    rule,
    same_arrays,
    share,
    unit,
)
from deepinsight.trainer.rules._rows import checked_indices


@rule
def elastic_exchange(
    local: np.ndarray, center: np.ndarray, *, moving_rate: float
) -> tuple[np.ndarray, ...]:
    r"""Pull a worker's weights and the centre towards each other.

    .. math::  d = \alpha (x - c); \qquad x \leftarrow x - d; \qquad c \leftarrow c + d

    x + c is conserved up to rounding.

    Args:
        local: The worker's weights :math:`x`, shape ``[...]``, float32 or float64.
        center: The centre :math:`c`, same shape and dtype.
        moving_rate: :math:`\alpha` in [0, 1].

    Returns:
        ``(local, center)`` after the exchange; the inputs are not modified.

    Raises:
        ValueError: If shapes or dtypes differ or a scalar is out of range.

    Example:
        >>> elastic_exchange([8.0], [0.0], moving_rate=0.25)
        (array([6.]), array([2.]))

    References:
        Zhang, Choromanska, LeCun, 2015, Deep learning with Elastic Averaging SGD. NeurIPS.
        arXiv:1412.6651.
    """
    local, center = same_arrays(local=local, center=center)
    moved = unit(local, moving_rate=moving_rate) * (local - center)
    return local - moved, center + moved


@rule
def sparse_elastic_exchange(
    local: np.ndarray, center: np.ndarray, indices: np.ndarray, *, moving_rate: float
) -> tuple[np.ndarray, ...]:
    """Apply `elastic_exchange` to some rows; a row that is named twice is exchanged once.

    Args:
        local: The worker's weights, shape ``[rows, ...]``, float32 or float64.
        center: Same shape and dtype.
        indices: Integers in [0, rows), shape ``[n]``.
        moving_rate: In [0, 1].

    Returns:
        ``(local, center)`` after the exchange; the inputs are not modified.

    Raises:
        ValueError: If shapes or dtypes differ, an index or a scalar is out of range.
    """
    local, center = (a.copy() for a in same_arrays(local=local, center=center))
    rows = np.unique(checked_indices(indices, len(local) if local.ndim else 0))
    local[rows], center[rows] = elastic_exchange(local[rows], center[rows], moving_rate=moving_rate)
    return local, center


@rule
def block_momentum_step(
    param: np.ndarray,
    delta: np.ndarray,
    mean: np.ndarray,
    *,
    block_momentum: float,
    block_learning_rate: float = 1.0,
    use_nesterov: bool = False,
) -> tuple[np.ndarray, ...]:
    r"""Update what is broadcast from the mean of the workers' weights (BMUF).

    .. math::

        G = \bar w - w; \quad \Delta' = \eta \Delta + \zeta G; \quad w \leftarrow w + \Delta'

    With Nesterov :math:`w \leftarrow w + \Delta' + \eta (\Delta' - \Delta)`; the block model
    without look-ahead is then :math:`w - \eta \Delta'`.

    Args:
        param: What was broadcast, :math:`w`, shape ``[...]``, float32 or float64.
        delta: :math:`\Delta`, same shape and dtype, 0 at first.
        mean: Mean :math:`\bar w` of the workers' weights, same shape and dtype.
        block_momentum: :math:`\eta` in [0, 1), typically 1 - 1/workers.
        block_learning_rate: :math:`\zeta`, > 0.
        use_nesterov: Whether the workers start from a look-ahead.

    Returns:
        ``(param, delta)`` after the step; the inputs are not modified.

    Raises:
        ValueError: If shapes or dtypes differ or a scalar is out of range.

    References:
        Chen and Huo, 2016, Scalable training of deep learning machines by incremental block
        training with intra-block parallel optimization and blockwise model-update filtering.
        ICASSP.
    """
    param, delta, mean = same_arrays(param=param, delta=delta, mean=mean)
    eta = share(param, block_momentum=block_momentum)
    zeta = positive(param, block_learning_rate=block_learning_rate)
    updated = eta * delta + zeta * (mean - param)
    param = param + updated
    return (param + eta * (updated - delta) if use_nesterov else param), updated


@rule
def elastic_round(
    locals_: np.ndarray, center: np.ndarray, *, moving_rate: float
) -> tuple[np.ndarray, ...]:
    r"""Pull the weights of several workers and the centre towards each other, all at once.

    .. math::

        d_i = \alpha (x_i - c); \qquad x_i \leftarrow x_i - d_i; \qquad c \leftarrow c + \sum_i d_i

    The sum of all is conserved up to rounding.

    Args:
        locals_: The workers' weights :math:`x_i`, shape ``[workers, ...]``, float32 or float64.
        center: The centre :math:`c`, shape ``[...]``, same dtype.
        moving_rate: :math:`\alpha` in [0, 1]; the centre is drawn beyond the workers' mean if it
            is more than 1/workers.

    Returns:
        ``(locals_, center)`` after the round; the inputs are not modified.

    Raises:
        ValueError: If shapes or dtypes differ or a scalar is out of range.

    Example:
        >>> elastic_round(np.array([[8.0], [4.0]]), [0.0], moving_rate=0.25)
        (array([[6.],
               [3.]]), array([3.]))

    References:
        Zhang, Choromanska, LeCun, 2015, Deep learning with Elastic Averaging SGD. NeurIPS.
        arXiv:1412.6651.
    """
    locals_ = floating(locals_=locals_)
    if locals_.ndim < 1:
        raise ValueError("`locals_` must have a row per worker. Received: a scalar.")
    _, center = same_arrays(locals_=np.zeros(locals_.shape[1:], locals_.dtype), center=center)
    moved = unit(locals_, moving_rate=moving_rate) * (locals_ - center)
    return locals_ - moved, center + moved.sum(axis=0)


def eamsgd_step(
    param: np.ndarray,
    velocity: np.ndarray,
    gradient: Callable[[np.ndarray], np.ndarray],
    *,
    learning_rate: float,
    momentum: float,
) -> tuple[np.ndarray, ...]:
    r"""Apply a worker's own step of EAMSGD, the elastic averaging with Nesterov's momentum.

    .. math::

        v \leftarrow \delta v - \eta \nabla f(x + \delta v); \qquad x \leftarrow x + v

    Its exchange with the centre is `elastic_exchange` of x.

    Args:
        param: The worker's weights :math:`x`, shape ``[...]``, float32 or float64.
        velocity: :math:`v`, same shape and dtype, 0 at first.
        gradient: Returns :math:`\nabla f` at a point, same shape and dtype.
        learning_rate: :math:`\eta`, > 0.
        momentum: :math:`\delta` in [0, 1); 0.99 in the paper.

    Returns:
        ``(param, velocity)`` after the step; the inputs are not modified.

    Raises:
        ValueError: If shapes or dtypes differ or a scalar is out of range.

    Example:
        >>> x, v = eamsgd_step([1.0], [1.0], lambda at: at, learning_rate=0.5, momentum=0.5)
        >>> x, v  # the gradient is taken at 1.5
        (array([0.75]), array([-0.25]))

    References:
        Zhang, Choromanska, LeCun, 2015, Deep learning with Elastic Averaging SGD. NeurIPS.
        arXiv:1412.6651.
    """
    param, velocity = same_arrays(param=param, velocity=velocity)
    eta = positive(param, learning_rate=learning_rate)
    delta = share(param, momentum=momentum)
    grad = gradient(param + delta * velocity)
    param, velocity, grad = same_arrays(param=param, velocity=velocity, grad=grad)
    velocity = delta * velocity - eta * grad
    return param + velocity, velocity
