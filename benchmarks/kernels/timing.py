"""Contenders that take turns, and what their times say."""

import gc
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Seconds of one pass, measured over about so many seconds.
Contender = Callable[[float], float]
Times = dict[str, NDArray[np.float64]]


def take_turns(contenders: dict[str, Contender], rounds: int, turn_s: float) -> Times:
    """Seconds of one pass of every contender, one value per round.

    All take one turn per round, in an order that rotates, so that whatever drifts on the machine
    hits all alike; ratios are to be taken within a round. A first round warms up.
    """
    names = list(contenders)
    times: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    gc.disable()
    try:
        for number in range(-1, rounds):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                seconds = contenders[name](turn_s if number >= 0 else 0.0)
                if number >= 0:
                    times[name].append(seconds)
    finally:
        gc.enable()
    return {name: np.array(values) for name, values in times.items()}


class Repeated:
    """A function that makes ``passes`` passes per call, called again and again.

    The first call of a turn is not counted: the contender before has left the caches, and maybe a
    variable's buffer, in another state.
    """

    def __init__(self, call: Callable[[], Any], passes: int) -> None:
        self._call, self._passes = call, passes

    def __call__(self, turn_s: float) -> float:
        began = time.perf_counter()
        self._call()
        once_s = time.perf_counter() - began
        calls = max(1, math.ceil(turn_s / once_s))
        began = time.perf_counter()
        for _ in range(calls):
            self._call()
        return (time.perf_counter() - began) / (calls * self._passes)


def spread(results: dict[str, float], key: str, values: NDArray[np.float64]) -> float:
    """Enter median and interquartile range as ``key`` and ``key_iqr``; return the median."""
    low, median, high = np.percentile(values, [25, 50, 75])
    results[key], results[f"{key}_iqr"] = float(median), float(high - low)
    return float(median)
