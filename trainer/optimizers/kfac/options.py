"""What K-FAC can be told."""

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1
MOMENTUM = 0.9
ROLES = ("all", "gradient", "statistics", "inverse", "statistics+inverse")


def check_base(given: Any, momentum: float | None) -> v1.train.Optimizer:
    """The base optimizer that was given, or the one for a learning rate.

    Raises:
        ValueError: If it is another one than gradient descent with or without momentum.
    """
    if isinstance(given, int | float) and not isinstance(given, bool):
        rate = check_number("opt_or_learning_rate", given, "> 0", lambda x: x > 0)
        share = MOMENTUM if momentum is None else momentum
        share = check_number("momentum", share, "in [0, 1)", lambda x: 0 <= x < 1)
        return v1.train.MomentumOptimizer(rate, share)
    if not isinstance(given, v1.train.GradientDescentOptimizer | v1.train.MomentumOptimizer):
        raise ValueError(
            "`opt_or_learning_rate` must be a learning rate, or a GradientDescentOptimizer or "
            "MomentumOptimizer of tf.compat.v1.train: K-FAC has scaled the gradient by its "
            "curvature, and an optimizer that scales or corrects it once more undoes that. "
            f"Received: {type(given).__module__}.{type(given).__qualname__}."
        )
    if momentum is not None:
        raise ValueError(
            "`momentum` must be None where an optimizer is given, which has its own. "
            f"Received: momentum={momentum!r}."
        )
    return given


def check_role(role: str) -> str:
    """A role that is known.

    Raises:
        ValueError: If it is not.
    """
    if role not in ROLES:
        raise ValueError(f"`role` must be one of {', '.join(ROLES)}. Received: {role!r}.")
    return role


def check_number(name: str, value: Any, must: str, holds: Callable[[float], bool]) -> float:
    """A finite number in a range.

    Raises:
        ValueError: If it is none.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not holds(value):
        raise ValueError(f"`{name}` must be a finite number {must}. Received: {name}={value!r}.")
    return float(value)
