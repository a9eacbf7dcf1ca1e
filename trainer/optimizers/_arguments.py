"""What several optimizers ask of their arguments."""

import operator
from typing import Any

import tensorflow as tf


def check_optimizer(name: str, value: Any) -> None:
    """Check that an argument is an optimizer of ``tf.compat.v1``.

    Raises:
        ValueError: If it is none.
    """
    if not isinstance(value, tf.compat.v1.train.Optimizer):
        raise ValueError(
            f"`{name}` must be a tf.compat.v1.train.Optimizer. "
            f"Received: {type(value).__module__}.{type(value).__qualname__}."
        )


def whole(name: str, value: Any, low: int, high: int | None = None) -> int:
    """A whole number in a range, to infinity if `high` is None.

    Raises:
        ValueError: If it is none, or lies elsewhere.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"`{name}` must be an int. Received: {name}={value!r}.") from None
    if number < low or (high is not None and number > high):
        wanted = f">= {low}" if high is None else f"in [{low}, {high}]"
        raise ValueError(f"`{name}` must be {wanted}. Received: {name}={value!r}.")
    return number
