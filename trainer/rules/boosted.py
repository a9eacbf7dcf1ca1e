r"""Correlation-boosted rules: a stale gradient is scaled by how the variable moved meanwhile.

The idea is TensorFlowRS's, the formula is ours. Where the variable, since this worker's pull, moved
against the gradient, others have gone that way already and the gradient shrinks; where it moved
with the gradient, the gradient grows. The factor lies in [1 - λ, 1 + λ]: no sign ever flips.

Every rule takes ``boost`` :math:`\lambda` in [0, 1), ``staleness`` :math:`\tau` >= 0 (updates by
others between pull and push), ``staleness_scale`` :math:`\tau_0` > 0, ``decay`` :math:`d` in
[0, 1) and ``epsilon`` >= 0. The three averages start at 0 and are shared by the workers; the
backup is a worker's own. ``boost=0`` is the plain rule, bit by bit, while the data is finite.
"""

from typing import Any

import numpy as np

from deepinsight.trainer.rules import base
from deepinsight.trainer.rules._checks import (
    non_negative,
    positive,
    rule,
    same_arrays,
    share,
    whole,
)

_BOOST = {"boost", "staleness", "staleness_scale", "decay", "epsilon"}
AVERAGES = ("correlation", "gradient_square", "movement_square")


@rule
def boosted_gradient(
    param: np.ndarray,
    backup: np.ndarray,
    correlation: np.ndarray,
    gradient_square: np.ndarray,
    movement_square: np.ndarray,
    grad: np.ndarray,
    *,
    boost: float = 0.5,
    staleness: int = 0,
    staleness_scale: float = 10.0,
    decay: float = 0.9,
    epsilon: float = 1e-12,
) -> tuple[np.ndarray, ...]:
    r"""Scale a gradient by its correlation with the variable's movement, per element.

    .. math::

        \Delta = w - w_{bak}; \quad
        c \leftarrow d c + (1 - d)(g \Delta); \quad
        s \leftarrow d s + (1 - d)(g g); \quad
        q \leftarrow d q + (1 - d)(\Delta \Delta) \\
        \rho = c / (\sqrt s \sqrt q + \epsilon) \text{, clipped to } [-1, 1]; \quad
        \lambda_\tau = \lambda / (1 + \tau / \tau_0); \quad
        g' = g (1 + \lambda_\tau \rho)

    Args:
        param: Weights :math:`w`, shape ``[...]``, float32 or float64.
        backup: The value the pushing worker pulled, same shape and dtype.
        correlation: :math:`c`, same shape and dtype.
        gradient_square: :math:`s`, same shape and dtype.
        movement_square: :math:`q`, same shape and dtype.
        grad: Gradient :math:`g`, same shape and dtype. Where it is not finite, or its
            history is not, :math:`\rho` is 0 and it is applied as it is.
        boost: :math:`\lambda` in [0, 1).
        staleness: :math:`\tau`, >= 0, updates.
        staleness_scale: :math:`\tau_0`, > 0, updates; there the factor has halved.
        decay: :math:`d` in [0, 1).
        epsilon: :math:`\epsilon`, >= 0.

    Returns:
        ``(boosted, rho, correlation, gradient_square, movement_square)``; the inputs are not
        modified.

    Raises:
        ValueError: If shapes or dtypes differ or a scalar is out of range.

    Example:
        The variable moved by -1, which is where this gradient points, too: it shrinks.

        >>> boosted, rho, *_ = boosted_gradient([1.0], [2.0], [0.0], [0.0], [0.0], [4.0])
        >>> boosted.round(6), rho.round(6)
        (array([2.]), array([-1.]))
    """
    param, backup, c, s, q, grad = same_arrays(
        param=param,
        backup=backup,
        correlation=correlation,
        gradient_square=gradient_square,
        movement_square=movement_square,
        grad=grad,
    )
    one = param.dtype.type(1)
    boost, scale = share(param, boost=boost), positive(param, staleness_scale=staleness_scale)
    decay, epsilon = share(param, decay=decay), non_negative(param, epsilon=epsilon)
    tau = param.dtype.type(whole(0, staleness=staleness))
    moved = param - backup
    c = decay * c + (one - decay) * (grad * moved)
    s = decay * s + (one - decay) * (grad * grad)
    q = decay * q + (one - decay) * (moved * moved)
    rho = np.clip(c / (np.sqrt(s) * np.sqrt(q) + epsilon), -one, one)
    rho = np.where(np.isnan(rho), 0, rho).astype(param.dtype)
    return grad * (one + boost / (one + tau / scale) * rho), rho, c, s, q


def apply_boosted(
    plain: Any, arrays: dict[str, Any], hyper: dict[str, Any]
) -> tuple[np.ndarray, ...]:
    """Apply a base rule to the boosted gradient.

    `arrays` holds param, the base rule's state, backup, the three averages and grad, in that order.
    """
    names, values = tuple(arrays), same_arrays(**arrays)
    named = dict(zip(names, values, strict=True))
    boost = {name: value for name, value in hyper.items() if name in _BOOST}
    others = {name: value for name, value in hyper.items() if name not in _BOOST}
    state = [named[n] for n in names if n not in ("backup", *AVERAGES, "grad")]
    averages = [named[n] for n in AVERAGES]
    grad, _, *averages = boosted_gradient(
        named["param"], named["backup"], *averages, named["grad"], **boost
    )
    param, *state = plain(*state, grad, **others)
    return param, *state, param.copy(), *averages


@rule
def boosted_gradient_descent_step(
    param: np.ndarray,
    backup: np.ndarray,
    correlation: np.ndarray,
    gradient_square: np.ndarray,
    movement_square: np.ndarray,
    grad: np.ndarray,
    **hyper: Any,
) -> tuple[np.ndarray, ...]:
    """Apply one step of gradient descent with the boosted gradient.

    `boosted_gradient`, then `gradient_descent_step`, then the backup takes the new value.

    Args:
        param: Weights, shape ``[...]``, float32 or float64.
        backup: The value the pushing worker pulled, same shape and dtype.
        correlation: As for `boosted_gradient`, same shape and dtype.
        gradient_square: As for `boosted_gradient`, same shape and dtype.
        movement_square: As for `boosted_gradient`, same shape and dtype.
        grad: Gradient, same shape and dtype.
        **hyper: As for `gradient_descent_step` and `boosted_gradient`.

    Returns:
        ``(param, backup, correlation, gradient_square, movement_square)`` after the
        step; the inputs are not modified.

    Raises:
        ValueError: If shapes or dtypes differ or a scalar is out of range.
    """
    arrays = {
        "param": param,
        "backup": backup,
        "correlation": correlation,
        "gradient_square": gradient_square,
        "movement_square": movement_square,
        "grad": grad,
    }
    return apply_boosted(base.gradient_descent_step, arrays, hyper)


@rule
def boosted_momentum_step(
    param: np.ndarray,
    velocity: np.ndarray,
    backup: np.ndarray,
    correlation: np.ndarray,
    gradient_square: np.ndarray,
    movement_square: np.ndarray,
    grad: np.ndarray,
    **hyper: Any,
) -> tuple[np.ndarray, ...]:
    """Apply one step of momentum with the boosted gradient.

    `boosted_gradient`, then `momentum_step`, then the backup takes the new value.

    Args:
        param: Weights, shape ``[...]``, float32 or float64.
        velocity: State of `momentum_step`, same shape and dtype.
        backup: The value the pushing worker pulled, same shape and dtype.
        correlation: As for `boosted_gradient`, same shape and dtype.
        gradient_square: As for `boosted_gradient`, same shape and dtype.
        movement_square: As for `boosted_gradient`, same shape and dtype.
        grad: Gradient, same shape and dtype.
        **hyper: As for `momentum_step` and `boosted_gradient`.

    Returns:
        ``(param, velocity, backup, correlation, gradient_square, movement_square)`` after the
        step; the inputs are not modified.

    Raises:
        ValueError: If shapes or dtypes differ or a scalar is out of range.
    """
    arrays = {
        "param": param,
        "velocity": velocity,
        "backup": backup,
        "correlation": correlation,
        "gradient_square": gradient_square,
        "movement_square": movement_square,
        "grad": grad,
    }
    return apply_boosted(base.momentum_step, arrays, hyper)


@rule
def boosted_adagrad_step(
    param: np.ndarray,
    accum: np.ndarray,
    backup: np.ndarray,
    correlation: np.ndarray,
    gradient_square: np.ndarray,
    movement_square: np.ndarray,
    grad: np.ndarray,
    **hyper: Any,
) -> tuple[np.ndarray, ...]:
    """Apply one step of Adagrad with the boosted gradient.

    `boosted_gradient`, then `adagrad_step`, then the backup takes the new value.

    Args:
        param: Weights, shape ``[...]``, float32 or float64.
        accum: State of `adagrad_step`, same shape and dtype.
        backup: The value the pushing worker pulled, same shape and dtype.
        correlation: As for `boosted_gradient`, same shape and dtype.
        gradient_square: As for `boosted_gradient`, same shape and dtype.
        movement_square: As for `boosted_gradient`, same shape and dtype.
        grad: Gradient, same shape and dtype.
        **hyper: As for `adagrad_step` and `boosted_gradient`.

    Returns:
        ``(param, accum, backup, correlation, gradient_square, movement_square)`` after the
        step; the inputs are not modified.

    Raises:
        ValueError: If shapes or dtypes differ or a scalar is out of range.
    """
    arrays = {
        "param": param,
        "accum": accum,
        "backup": backup,
        "correlation": correlation,
        "gradient_square": gradient_square,
        "movement_square": movement_square,
        "grad": grad,
    }
    return apply_boosted(base.adagrad_step, arrays, hyper)


@rule
def boosted_adam_step(
    param: np.ndarray,
    m: np.ndarray,
    v: np.ndarray,
    backup: np.ndarray,
    correlation: np.ndarray,
    gradient_square: np.ndarray,
    movement_square: np.ndarray,
    grad: np.ndarray,
    **hyper: Any,
) -> tuple[np.ndarray, ...]:
    """Apply one step of Adam with the boosted gradient.

    `boosted_gradient`, then `adam_step`, then the backup takes the new value.

    Args:
        param: Weights, shape ``[...]``, float32 or float64.
        m: State of `adam_step`, same shape and dtype.
        v: State of `adam_step`, same shape and dtype.
        backup: The value the pushing worker pulled, same shape and dtype.
        correlation: As for `boosted_gradient`, same shape and dtype.
        gradient_square: As for `boosted_gradient`, same shape and dtype.
        movement_square: As for `boosted_gradient`, same shape and dtype.
        grad: Gradient, same shape and dtype.
        **hyper: As for `adam_step` and `boosted_gradient`.

    Returns:
        ``(param, m, v, backup, correlation, gradient_square, movement_square)`` after the
        step; the inputs are not modified.

    Raises:
        ValueError: If shapes or dtypes differ or a scalar is out of range.
    """
    arrays = {
        "param": param,
        "m": m,
        "v": v,
        "backup": backup,
        "correlation": correlation,
        "gradient_square": gradient_square,
        "movement_square": movement_square,
        "grad": grad,
    }
    return apply_boosted(base.adam_step, arrays, hyper)
