"""Delay-compensated gradient descent (DC-ASGD), constant and adaptive.

Expressions are evaluated as written, in the dtype of the arrays; see `base` for what all rules
share.
"""

from functools import partial
from typing import Any

import numpy as np

from deepinsight.trainer.rules._checks import non_negative, positive, rule, same_arrays, share
from deepinsight.trainer.rules._rows import apply_to_rows


@rule
def delay_compensated_step(
    param: np.ndarray,
    backup: np.ndarray,
    grad: np.ndarray,
    *,
    learning_rate: float,
    variance_parameter: float = 0.04,
) -> tuple[np.ndarray, ...]:
    r"""Apply one DC-ASGD step with a constant variance parameter.

    .. math::  w \leftarrow w - \eta (g + \lambda g g (w - w_{bak})); \qquad w_{bak} \leftarrow w

    Args:
        param: Weights :math:`w` on the server, shape ``[...]``, float32 or float64.
        backup: The value the pushing worker pulled, same shape and dtype.
        grad: Gradient :math:`g` of the mean loss over the worker's batch, same shape and dtype.
            Where it is not finite, or its compensation is not, it is applied as it is.
        learning_rate: Step size :math:`\eta` per push, > 0.
        variance_parameter: :math:`\lambda`, >= 0; 0 is plain gradient descent.

    Returns:
        ``(param, backup)`` after the step; the inputs are not modified.

    Raises:
        ValueError: If shapes or dtypes differ or a scalar is out of range.

    Example:
        Another worker moved the weight from 1 to 2 meanwhile:

        >>> delay_compensated_step([2.0], [1.0], [1.0], learning_rate=0.5, variance_parameter=1)
        (array([1.]), array([1.]))

    References:
        Zheng et al., 2017, Asynchronous Stochastic Gradient Descent with Delay Compensation. ICML.
        arXiv:1609.08326.
    """
    param, backup, grad = same_arrays(param=param, backup=backup, grad=grad)
    rate = positive(param, learning_rate=learning_rate)
    variance = non_negative(param, variance_parameter=variance_parameter)
    param = param - rate * _compensated(grad, variance, param - backup)
    return param, param.copy()


@rule
def sparse_delay_compensated_step(
    param: np.ndarray,
    backup: np.ndarray,
    grad: np.ndarray,
    indices: np.ndarray,
    *,
    learning_rate: float,
    variance_parameter: float = 0.04,
) -> tuple[np.ndarray, ...]:
    """Apply `delay_compensated_step` to the rows of a sparse gradient.

    Args:
        param: Weights, shape ``[rows, ...]``, float32 or float64.
        backup: Same shape and dtype; only the touched rows are renewed.
        grad: Gradient rows, shape ``[n, ...]``, same dtype; duplicates are summed first.
        indices: Integers in [0, rows), shape ``[n]``.
        learning_rate: Step size, > 0.
        variance_parameter: As for the dense rule.

    Returns:
        ``(param, backup)`` after the step; the inputs are not modified.

    Raises:
        ValueError: If shapes or dtypes differ, an index or a scalar is out of range.
    """
    dense = partial(
        delay_compensated_step,
        learning_rate=learning_rate,
        variance_parameter=variance_parameter,
    )
    return apply_to_rows(dense, {"param": param, "backup": backup}, grad, indices)


@rule
def adaptive_delay_compensated_step(
    param: np.ndarray,
    backup: np.ndarray,
    mean_square: np.ndarray,
    grad: np.ndarray,
    *,
    learning_rate: float,
    variance_parameter: float = 2.0,
    decay: float = 0.95,
    epsilon: float = 1e-7,
) -> tuple[np.ndarray, ...]:
    r"""Apply one DC-ASGD step whose variance parameter follows the gradients' mean square.

    .. math::

        s \leftarrow d s + (1 - d)(g g); \quad \lambda_t = \lambda_0 / \sqrt{s + \epsilon}; \quad
        w \leftarrow w - \eta (g + \lambda_t g g (w - w_{bak})); \quad w_{bak} \leftarrow w

    Args:
        param: Weights :math:`w` on the server, shape ``[...]``, float32 or float64.
        backup: The value the pushing worker pulled, same shape and dtype.
        mean_square: :math:`s`, same shape and dtype, 0 at first; the worker's own or shared.
        grad: Gradient :math:`g`, same shape and dtype.
        learning_rate: Step size :math:`\eta` per push, > 0.
        variance_parameter: :math:`\lambda_0`, >= 0; 0 is plain gradient descent.
        decay: :math:`d` in [0, 1).
        epsilon: :math:`\epsilon`, >= 0.

    Returns:
        ``(param, backup, mean_square)`` after the step; the inputs are not modified.

    Raises:
        ValueError: If shapes or dtypes differ or a scalar is out of range.

    References:
        Zheng et al., 2017, ICML. arXiv:1609.08326.
    """
    param, backup, mean_square, grad = same_arrays(
        param=param, backup=backup, mean_square=mean_square, grad=grad
    )
    rate, one = positive(param, learning_rate=learning_rate), param.dtype.type(1)
    variance = non_negative(param, variance_parameter=variance_parameter)
    decay, epsilon = share(param, decay=decay), non_negative(param, epsilon=epsilon)
    mean_square = decay * mean_square + (one - decay) * (grad * grad)
    adapted = variance / np.sqrt(mean_square + epsilon)
    param = param - rate * _compensated(grad, adapted, param - backup)
    return param, param.copy(), mean_square


@rule
def sparse_adaptive_delay_compensated_step(
    param: np.ndarray,
    backup: np.ndarray,
    mean_square: np.ndarray,
    grad: np.ndarray,
    indices: np.ndarray,
    *,
    learning_rate: float,
    variance_parameter: float = 2.0,
    decay: float = 0.95,
    epsilon: float = 1e-7,
) -> tuple[np.ndarray, ...]:
    """Apply `adaptive_delay_compensated_step` to the rows of a sparse gradient.

    Args:
        param: Weights, shape ``[rows, ...]``, float32 or float64.
        backup: Same shape and dtype.
        mean_square: Same shape and dtype; untouched rows do not decay.
        grad: Gradient rows, shape ``[n, ...]``, same dtype; duplicates are summed first.
        indices: Integers in [0, rows), shape ``[n]``.
        learning_rate: Step size, > 0.
        variance_parameter: As for the dense rule.
        decay: As for the dense rule.
        epsilon: As for the dense rule.

    Returns:
        ``(param, backup, mean_square)`` after the step; the inputs are not modified.

    Raises:
        ValueError: If shapes or dtypes differ, an index or a scalar is out of range.
    """
    dense = partial(
        adaptive_delay_compensated_step,
        learning_rate=learning_rate,
        variance_parameter=variance_parameter,
        decay=decay,
        epsilon=epsilon,
    )
    tables = {"param": param, "backup": backup, "mean_square": mean_square}
    return apply_to_rows(dense, tables, grad, indices)


def _compensated(grad: np.ndarray, variance: Any, moved: np.ndarray) -> np.ndarray:
    """Return g + lambda g g moved as g (1 + lambda g moved), whose bits are g's with lambda = 0."""
    factor = variance * grad * moved
    return grad * (grad.dtype.type(1) + np.where(np.isfinite(factor), factor, 0))
