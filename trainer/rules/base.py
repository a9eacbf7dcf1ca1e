r"""Gradient descent, momentum, Adagrad and Adam, in the operation order of TensorFlow's kernels.

In float32 each result has the bits of TensorFlow's CPU kernel. An expression is evaluated in the
order in which it is written; scalars are first rounded to the arrays' dtype. Sparse rules touch
the rows of the gradient's indices only; other rows, state included, keep their bits.

NaN and infinity in a gradient are applied as they are. All arrays are float32 or float64, all of
one dtype and, except for a sparse gradient ``[n, ...]``, of one shape.
"""

from functools import partial
from typing import Any

import numpy as np

from deepinsight.trainer.rules._checks import non_negative, positive, rule, same_arrays, share
from deepinsight.trainer.rules._rows import apply_to_rows


@rule
def gradient_descent_step(
    param: np.ndarray, grad: np.ndarray, *, learning_rate: float
) -> tuple[np.ndarray, ...]:
    r"""Apply one step of gradient descent.

    .. math::  w \leftarrow w - \eta g

    Args:
        param: Weights :math:`w`, shape ``[...]``, float32 or float64.
        grad: Gradient :math:`g`, same shape and dtype.
        learning_rate: Step size :math:`\eta`, > 0.

    Returns:
        ``(param,)`` after the step; the inputs are not modified.

    Raises:
        ValueError: If shapes or dtypes differ or a scalar is out of range.

    Example:
        >>> gradient_descent_step([1.0, 2.0], [2.0, 4.0], learning_rate=0.5)
        (array([0., 0.]),)
    """
    param, grad = same_arrays(param=param, grad=grad)
    return (param - positive(param, learning_rate=learning_rate) * grad,)


@rule
def sparse_gradient_descent_step(
    param: np.ndarray, grad: np.ndarray, indices: np.ndarray, *, learning_rate: float
) -> tuple[np.ndarray, ...]:
    """Apply `gradient_descent_step` to the rows of a sparse gradient.

    Args:
        param: Weights, shape ``[rows, ...]``, float32 or float64.
        grad: Gradient rows, shape ``[n, ...]``, same dtype; duplicates are summed first.
        indices: Integers in [0, rows), shape ``[n]``.
        learning_rate: Step size, > 0.

    Returns:
        ``(param,)`` after the step; the inputs are not modified.

    Raises:
        ValueError: If shapes or dtypes differ, an index or a scalar is out of range.
    """
    dense = partial(gradient_descent_step, learning_rate=learning_rate)
    return apply_to_rows(dense, {"param": param}, grad, indices)


@rule
def momentum_step(
    param: np.ndarray,
    velocity: np.ndarray,
    grad: np.ndarray,
    *,
    learning_rate: float,
    momentum: float,
    use_nesterov: bool = False,
) -> tuple[np.ndarray, ...]:
    r"""Apply one momentum step, as ``ResourceApplyMomentum`` does.

    .. math::  v \leftarrow v \mu + g; \qquad w \leftarrow w - v \eta

    With Nesterov :math:`w \leftarrow w - (g \eta + (v \mu) \eta)`.

    Args:
        param: Weights :math:`w`, shape ``[...]``, float32 or float64.
        velocity: :math:`v`, same shape and dtype, 0 at first.
        grad: Gradient :math:`g`, same shape and dtype.
        learning_rate: Step size :math:`\eta`, > 0.
        momentum: :math:`\mu` in [0, 1).
        use_nesterov: Whether to look ahead.

    Returns:
        ``(param, velocity)`` after the step; the inputs are not modified.

    Raises:
        ValueError: If shapes or dtypes differ or a scalar is out of range.

    References:
        Sutskever et al., 2013, On the importance of initialization and momentum in deep learning.
        ICML.
    """
    param, velocity, grad = same_arrays(param=param, velocity=velocity, grad=grad)
    rate, mu = positive(param, learning_rate=learning_rate), share(param, momentum=momentum)
    velocity = velocity * mu + grad
    if use_nesterov:
        return param - (grad * rate + velocity * mu * rate), velocity
    return param - velocity * rate, velocity


@rule
def momentum_rows_step(
    param: np.ndarray,
    velocity: np.ndarray,
    grad: np.ndarray,
    *,
    learning_rate: float,
    momentum: float,
    use_nesterov: bool = False,
) -> tuple[np.ndarray, ...]:
    r"""Apply `momentum_step` in the order of ``ResourceSparseApplyMomentum``.

    With Nesterov :math:`w \leftarrow w - (g \eta + v (\mu \eta))`: the scalars are multiplied
    first, which in float32 differs from the dense kernel in the last bit. Otherwise the same.

    Args:
        param: The touched rows of the weights, any shape, float32 or float64.
        velocity: Same shape and dtype.
        grad: Same shape and dtype.
        learning_rate: Step size, > 0.
        momentum: In [0, 1).
        use_nesterov: Whether to look ahead.

    Returns:
        ``(param, velocity)`` after the step; the inputs are not modified.

    Raises:
        ValueError: If shapes or dtypes differ or a scalar is out of range.
    """
    param, velocity, grad = same_arrays(param=param, velocity=velocity, grad=grad)
    rate, mu = positive(param, learning_rate=learning_rate), share(param, momentum=momentum)
    velocity = velocity * mu + grad
    if use_nesterov:
        return param - (grad * rate + velocity * (mu * rate)), velocity
    return param - velocity * rate, velocity


@rule
def sparse_momentum_step(
    param: np.ndarray, velocity: np.ndarray, grad: np.ndarray, indices: np.ndarray, **hyper: Any
) -> tuple[np.ndarray, ...]:
    """Apply `momentum_rows_step` to the rows of a sparse gradient.

    Args:
        param: Weights, shape ``[rows, ...]``, float32 or float64.
        velocity: Same shape and dtype.
        grad: Gradient rows, shape ``[n, ...]``, same dtype; duplicates are summed first.
        indices: Integers in [0, rows), shape ``[n]``.
        **hyper: As for `momentum_step`.

    Returns:
        ``(param, velocity)`` after the step; the inputs are not modified.

    Raises:
        ValueError: If shapes or dtypes differ, an index or a scalar is out of range.
    """
    dense = partial(momentum_rows_step, **hyper)
    return apply_to_rows(dense, {"param": param, "velocity": velocity}, grad, indices)


@rule
def adagrad_step(
    param: np.ndarray,
    accum: np.ndarray,
    grad: np.ndarray,
    *,
    learning_rate: float,
    accum_epsilon: float = 1e-7,
) -> tuple[np.ndarray, ...]:
    r"""Apply one Adagrad step, as ``ResourceApplyAdagradV2`` does.

    .. math::  a \leftarrow a + g^2; \qquad w \leftarrow w - g \eta / (\sqrt a + \epsilon_a)

    Args:
        param: Weights :math:`w`, shape ``[...]``, float32 or float64.
        accum: :math:`a`, same shape and dtype, > 0 at first (TensorFlow: 0.1).
        grad: Gradient :math:`g`, same shape and dtype.
        learning_rate: Step size :math:`\eta`, > 0.
        accum_epsilon: :math:`\epsilon_a`, >= 0.

    Returns:
        ``(param, accum)`` after the step; the inputs are not modified.

    Raises:
        ValueError: If shapes or dtypes differ or a scalar is out of range.

    References:
        Duchi et al., 2011, Adaptive Subgradient Methods. JMLR 12.
    """
    param, accum, grad = same_arrays(param=param, accum=accum, grad=grad)
    rate = positive(param, learning_rate=learning_rate)
    epsilon = non_negative(param, accum_epsilon=accum_epsilon)
    accum = accum + grad * grad
    return param - grad * rate / (np.sqrt(accum) + epsilon), accum


@rule
def sparse_adagrad_step(
    param: np.ndarray, accum: np.ndarray, grad: np.ndarray, indices: np.ndarray, **hyper: Any
) -> tuple[np.ndarray, ...]:
    """Apply `adagrad_step` to the rows of a sparse gradient (``ResourceSparseApplyAdagradV2``).

    Args:
        param: Weights, shape ``[rows, ...]``, float32 or float64.
        accum: Same shape and dtype.
        grad: Gradient rows, shape ``[n, ...]``, same dtype; duplicates are summed first.
        indices: Integers in [0, rows), shape ``[n]``.
        **hyper: As for `adagrad_step`.

    Returns:
        ``(param, accum)`` after the step; the inputs are not modified.

    Raises:
        ValueError: If shapes or dtypes differ, an index or a scalar is out of range.
    """
    dense = partial(adagrad_step, **hyper)
    return apply_to_rows(dense, {"param": param, "accum": accum}, grad, indices)


@rule
def adam_step(
    param: np.ndarray,
    m: np.ndarray,
    v: np.ndarray,
    grad: np.ndarray,
    *,
    learning_rate: float,
    beta1_power: float,
    beta2_power: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    adam_epsilon: float = 1e-8,
) -> tuple[np.ndarray, ...]:
    r"""Apply one Adam step, as ``ResourceApplyAdam`` does.

    .. math::

        \alpha = \eta \sqrt{1 - \beta_2^t} / (1 - \beta_1^t); \quad
        m \leftarrow m + (g - m)(1 - \beta_1); \quad
        v \leftarrow v + (g^2 - v)(1 - \beta_2); \quad
        w \leftarrow w - m \alpha / (\sqrt v + \epsilon)

    Args:
        param: Weights :math:`w`, shape ``[...]``, float32 or float64.
        m: Mean of the gradients, same shape and dtype, 0 at first.
        v: Mean of their squares, same shape and dtype, 0 at first.
        grad: Gradient :math:`g`, same shape and dtype.
        learning_rate: Step size :math:`\eta`, > 0.
        beta1_power: :math:`\beta_1^t` in [0, 1), t = 1 at the first step; kept by the caller.
        beta2_power: :math:`\beta_2^t` in [0, 1), likewise.
        beta1: :math:`\beta_1` in [0, 1).
        beta2: :math:`\beta_2` in [0, 1).
        adam_epsilon: :math:`\epsilon`, >= 0.

    Returns:
        ``(param, m, v)`` after the step; the inputs are not modified.

    Raises:
        ValueError: If shapes or dtypes differ or a scalar is out of range.

    References:
        Kingma and Ba, 2015, Adam. ICLR. arXiv:1412.6980.
    """
    param, m, v, grad = same_arrays(param=param, m=m, v=v, grad=grad)
    rate, one = positive(param, learning_rate=learning_rate), param.dtype.type(1)
    power1, power2 = share(param, beta1_power=beta1_power), share(param, beta2_power=beta2_power)
    beta1, beta2 = share(param, beta1=beta1), share(param, beta2=beta2)
    epsilon = non_negative(param, adam_epsilon=adam_epsilon)
    alpha = rate * np.sqrt(one - power2) / (one - power1)
    m = m + (grad - m) * (one - beta1)
    v = v + (grad * grad - v) * (one - beta2)
    return param - m * alpha / (np.sqrt(v) + epsilon), m, v


@rule
def sparse_adam_step(
    param: np.ndarray,
    m: np.ndarray,
    v: np.ndarray,
    grad: np.ndarray,
    indices: np.ndarray,
    **hyper: Any,
) -> tuple[np.ndarray, ...]:
    """Apply `adam_step` to the rows of a sparse gradient; the other rows' means do not decay.

    Args:
        param: Weights, shape ``[rows, ...]``, float32 or float64.
        m: Same shape and dtype.
        v: Same shape and dtype.
        grad: Gradient rows, shape ``[n, ...]``, same dtype; duplicates are summed first.
        indices: Integers in [0, rows), shape ``[n]``.
        **hyper: As for `adam_step`.

    Returns:
        ``(param, m, v)`` after the step; the inputs are not modified.

    Raises:
        ValueError: If shapes or dtypes differ, an index or a scalar is out of range.
    """
    return apply_to_rows(
        partial(adam_step, **hyper), {"param": param, "m": m, "v": v}, grad, indices
    )
