"""The correlation-boosted rules on the rows of a sparse gradient; see `boosted`."""

from functools import partial
from typing import Any

import numpy as np

from deepinsight.trainer.rules import base
from deepinsight.trainer.rules._checks import rule
from deepinsight.trainer.rules._rows import apply_to_rows
from deepinsight.trainer.rules.boosted import (
    AVERAGES,
    apply_boosted,
    boosted_adagrad_step,
    boosted_adam_step,
    boosted_gradient_descent_step,
)


@rule
def sparse_boosted_gradient_descent_step(
    param: np.ndarray,
    backup: np.ndarray,
    correlation: np.ndarray,
    gradient_square: np.ndarray,
    movement_square: np.ndarray,
    grad: np.ndarray,
    indices: np.ndarray,
    **hyper: Any,
) -> tuple[np.ndarray, ...]:
    """Apply `boosted_gradient_descent_step` to the rows of a sparse gradient.

    Args:
        param: Weights, shape ``[rows, ...]``, float32 or float64.
        backup: The value the pushing worker pulled, same shape and dtype.
        correlation: As for `boosted_gradient`, same shape and dtype.
        gradient_square: As for `boosted_gradient`, same shape and dtype.
        movement_square: As for `boosted_gradient`, same shape and dtype.
        grad: Gradient rows, shape ``[n, ...]``, same dtype; duplicates are summed first.
        indices: Integers in [0, rows), shape ``[n]``.
        **hyper: As for `gradient_descent_step` and `boosted_gradient`.

    Returns:
        ``(param, backup, correlation, gradient_square, movement_square)`` after the
        step; the inputs are not modified.

    Raises:
        ValueError: If shapes or dtypes differ, an index or a scalar is out of range.
    """
    tables = {
        "param": param,
        "backup": backup,
        "correlation": correlation,
        "gradient_square": gradient_square,
        "movement_square": movement_square,
    }
    return apply_to_rows(partial(boosted_gradient_descent_step, **hyper), tables, grad, indices)


@rule
def sparse_boosted_momentum_step(
    param: np.ndarray,
    velocity: np.ndarray,
    backup: np.ndarray,
    correlation: np.ndarray,
    gradient_square: np.ndarray,
    movement_square: np.ndarray,
    grad: np.ndarray,
    indices: np.ndarray,
    **hyper: Any,
) -> tuple[np.ndarray, ...]:
    """Apply `boosted_momentum_step` to the rows of a sparse gradient.

    Args:
        param: Weights, shape ``[rows, ...]``, float32 or float64.
        velocity: State of `momentum_step`, same shape and dtype.
        backup: The value the pushing worker pulled, same shape and dtype.
        correlation: As for `boosted_gradient`, same shape and dtype.
        gradient_square: As for `boosted_gradient`, same shape and dtype.
        movement_square: As for `boosted_gradient`, same shape and dtype.
        grad: Gradient rows, shape ``[n, ...]``, same dtype; duplicates are summed first.
        indices: Integers in [0, rows), shape ``[n]``.
        **hyper: As for `momentum_step` and `boosted_gradient`.

    Returns:
        ``(param, velocity, backup, correlation, gradient_square, movement_square)`` after the
        step; the inputs are not modified.

    Raises:
        ValueError: If shapes or dtypes differ, an index or a scalar is out of range.
    """
    tables = {
        "param": param,
        "velocity": velocity,
        "backup": backup,
        "correlation": correlation,
        "gradient_square": gradient_square,
        "movement_square": movement_square,
    }
    return apply_to_rows(partial(_momentum_rows, **hyper), tables, grad, indices)


@rule
def sparse_boosted_adagrad_step(
    param: np.ndarray,
    accum: np.ndarray,
    backup: np.ndarray,
    correlation: np.ndarray,
    gradient_square: np.ndarray,
    movement_square: np.ndarray,
    grad: np.ndarray,
    indices: np.ndarray,
    **hyper: Any,
) -> tuple[np.ndarray, ...]:
    """Apply `boosted_adagrad_step` to the rows of a sparse gradient.

    Args:
        param: Weights, shape ``[rows, ...]``, float32 or float64.
        accum: State of `adagrad_step`, same shape and dtype.
        backup: The value the pushing worker pulled, same shape and dtype.
        correlation: As for `boosted_gradient`, same shape and dtype.
        gradient_square: As for `boosted_gradient`, same shape and dtype.
        movement_square: As for `boosted_gradient`, same shape and dtype.
        grad: Gradient rows, shape ``[n, ...]``, same dtype; duplicates are summed first.
        indices: Integers in [0, rows), shape ``[n]``.
        **hyper: As for `adagrad_step` and `boosted_gradient`.

    Returns:
        ``(param, accum, backup, correlation, gradient_square, movement_square)`` after the
        step; the inputs are not modified.

    Raises:
        ValueError: If shapes or dtypes differ, an index or a scalar is out of range.
    """
    tables = {
        "param": param,
        "accum": accum,
        "backup": backup,
        "correlation": correlation,
        "gradient_square": gradient_square,
        "movement_square": movement_square,
    }
    return apply_to_rows(partial(boosted_adagrad_step, **hyper), tables, grad, indices)


@rule
def sparse_boosted_adam_step(
    param: np.ndarray,
    m: np.ndarray,
    v: np.ndarray,
    backup: np.ndarray,
    correlation: np.ndarray,
    gradient_square: np.ndarray,
    movement_square: np.ndarray,
    grad: np.ndarray,
    indices: np.ndarray,
    **hyper: Any,
) -> tuple[np.ndarray, ...]:
    """Apply `boosted_adam_step` to the rows of a sparse gradient.

    Args:
        param: Weights, shape ``[rows, ...]``, float32 or float64.
        m: State of `adam_step`, same shape and dtype.
        v: State of `adam_step`, same shape and dtype.
        backup: The value the pushing worker pulled, same shape and dtype.
        correlation: As for `boosted_gradient`, same shape and dtype.
        gradient_square: As for `boosted_gradient`, same shape and dtype.
        movement_square: As for `boosted_gradient`, same shape and dtype.
        grad: Gradient rows, shape ``[n, ...]``, same dtype; duplicates are summed first.
        indices: Integers in [0, rows), shape ``[n]``.
        **hyper: As for `adam_step` and `boosted_gradient`.

    Returns:
        ``(param, m, v, backup, correlation, gradient_square, movement_square)`` after the
        step; the inputs are not modified.

    Raises:
        ValueError: If shapes or dtypes differ, an index or a scalar is out of range.
    """
    tables = {
        "param": param,
        "m": m,
        "v": v,
        "backup": backup,
        "correlation": correlation,
        "gradient_square": gradient_square,
        "movement_square": movement_square,
    }
    return apply_to_rows(partial(boosted_adam_step, **hyper), tables, grad, indices)


def _momentum_rows(*arrays: np.ndarray, **hyper: Any) -> tuple[np.ndarray, ...]:
    """Apply `boosted_momentum_step` in the order of TensorFlow's sparse kernel."""
    names = ("param", "velocity", "backup", *AVERAGES, "grad")
    return apply_boosted(base.momentum_rows_step, dict(zip(names, arrays, strict=True)), hyper)
