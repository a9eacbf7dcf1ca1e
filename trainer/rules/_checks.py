"""What the rules accept, and how they treat NaN and infinity: one place for all of them."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec

import numpy as np

P = ParamSpec("P")


def rule(function: Callable[P, tuple[Any, ...]]) -> Callable[P, tuple[np.ndarray, ...]]:
    """Make a rule let NaN and infinity through without a warning, and return arrays only."""

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> tuple[np.ndarray, ...]:
        with np.errstate(all="ignore"):
            return tuple(np.asarray(result) for result in function(*args, **kwargs))

    return checked


def same_arrays(**arrays: Any) -> tuple[np.ndarray, ...]:
    """Return the arrays, all of the first one's shape and dtype.

    Raises:
        ValueError: If the first is neither float32 nor float64, or another one differs from it.
    """
    (first, reference), *others = ((name, np.asarray(array)) for name, array in arrays.items())
    floating(**{first: reference})
    for name, array in others:
        if array.shape != reference.shape:
            raise ValueError(
                f"`{name}` must have the shape of `{first}`, {reference.shape}. "
                f"Received: {name} of shape {array.shape}."
            )
        same_dtype(reference, **{name: array})
    return (reference, *(array for _, array in others))


def same_dtype(reference: np.ndarray, **named: np.ndarray) -> None:
    """Check that an array has a reference's dtype.

    Raises:
        ValueError: If it has another.
    """
    ((name, array),) = named.items()
    if array.dtype != reference.dtype:
        raise ValueError(
            f"`{name}` must be {reference.dtype} as the other arrays are; convert it first. "
            f"Received: {name} of dtype {array.dtype}."
        )


def floating(**named: Any) -> np.ndarray:
    """Return the one array that is given, float32 or float64.

    Raises:
        ValueError: If it has another dtype.
    """
    ((name, value),) = named.items()
    array = np.asarray(value)
    if array.dtype not in (np.float32, np.float64):
        raise ValueError(
            f"`{name}` must be float32 or float64; convert half types to float32 first. "
            f"Received: {name} of dtype {array.dtype}."
        )
    return array


def positive(like: np.ndarray, **named: float) -> Any:
    """Return a scalar in an array's dtype, finite and > 0 there."""
    return _scalar(like, named, "finite and > 0", lambda x: x > 0 and np.isfinite(x))


def non_negative(like: np.ndarray, **named: float) -> Any:
    """Return a scalar in an array's dtype, finite and >= 0 there."""
    return _scalar(like, named, "finite and >= 0", lambda x: x >= 0 and np.isfinite(x))


def share(like: np.ndarray, **named: float) -> Any:
    """Return a scalar in an array's dtype, in [0, 1) there."""
    return _scalar(like, named, ">= 0 and < 1", lambda x: 0 <= x < 1)


def unit(like: np.ndarray, **named: float) -> Any:
    """Return a scalar in an array's dtype, in [0, 1]."""
    return _scalar(like, named, ">= 0 and <= 1", lambda x: 0 <= x <= 1)


def whole(least: int, **named: int) -> int:
    """Return an integer of at least `least`.

    Raises:
        ValueError: If it is none, or smaller.
    """
    ((name, value),) = named.items()
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"`{name}` must be an integer >= {least}. Received: {name}={value!r}.")
    return int(value)


def _scalar(
    like: np.ndarray, named: dict[str, float], must: str, holds: Callable[[Any], bool]
) -> Any:
    """Return the one scalar in the dtype of `like`; its range is checked in that dtype."""
    ((name, value),) = named.items()
    if not isinstance(value, int | float | np.integer | np.floating | np.ndarray):
        raise ValueError(f"`{name}` must be a number. Received: {name}={value!r}.")
    if np.ndim(value) != 0:
        raise ValueError(f"`{name}` must be a scalar. Received: shape {np.shape(value)}.")
    with np.errstate(all="ignore"):
        scalar = like.dtype.type(value)
    if not holds(scalar):
        raise ValueError(f"`{name}` must be {must} in {like.dtype}. Received: {name}={value!r}.")
    return scalar
