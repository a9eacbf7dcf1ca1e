"""The protocol that every probe follows.

A probe is one quantity. It says what it needs and what it records; the hook (session, Keras,
recorder) decides when. There are two kinds of work:

- *per variable*: :meth:`Probe.parts` lists the measurements. A :class:`Part` names what it needs of
  a variable (``weight``, ``weight_before``, ``gradient``) and turns it into small arrays with the
  operations of :mod:`deepinsight.collectors.arrays`. It runs on the device that holds the
  variable. :meth:`Probe.finish` turns these into the values of streams, on a background thread.
- *per step*: :meth:`Probe.values` gets a :class:`StepReport` and returns the values of streams.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from deepinsight.traces import Axis

WEIGHT = "weight"
WEIGHT_BEFORE = "weight_before"
GRADIENT = "gradient"


@dataclass(frozen=True)
class Stream:
    """What a probe says about a stream before its first row; fields as in ``StreamInfo``."""

    name: str
    shape: tuple[int, ...] = ()
    dtype: str = "float64"
    unit: str = "1"
    description: str = ""
    axes: tuple[Axis, ...] = ()
    reduction: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Variable:
    """What is known of a variable without reading it.

    Attributes:
        name: As in stream names: ``fc1/kernel``.
        shape: Static shape.
        dtype: Of the summaries: ``float64`` for a float64 variable, else ``float32``.
        device: Where it lives; ``""`` if that is not known or does not matter.
        groups: Rows of axis 0 per feature group; empty if groups do not name this variable.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    device: str = ""
    groups: Mapping[str, slice] = field(default_factory=dict)

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Slices:
    """A sparse gradient: ``values[i]`` belongs to row ``indices[i]``; indices may repeat."""

    values: Any
    indices: Any


@dataclass(frozen=True)
class Part:
    """One measurement of one variable.

    Attributes:
        needs: Which of ``weight``, ``weight_before``, ``gradient`` `measure` is called with.
        measure: ``measure(arrays, variable, **needed)`` gives named arrays of static shape.
    """

    needs: frozenset[str]
    measure: Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class Predictions:
    """Labels and scores of the samples of one step, 1-D arrays of equal length."""

    labels: np.ndarray
    scores: np.ndarray
    sample_weight: np.ndarray | None
    step: int
    wall_time_s: float


@dataclass(frozen=True)
class StepReport:
    """What the hook knows after a step.

    Attributes:
        step: Global step after it.
        wall_time_s: Unix seconds after it.
        previous_step: Global step after this process's previous step; None at its first.
        step_time_s: Wall time of this step without the recording; NaN if not known.
        steps_done: Steps that this process has made since it began.
        samples: Samples that this process has consumed since it began; None if not known.
        own_steps: Steps of this process since `previous_step`.
        scalars: Values offered at this step (``trace_tensor``, Keras logs, ``scalars=``).
        offered: Names that are offered at some step or other.
    """

    step: int
    wall_time_s: float
    previous_step: int | None = None
    step_time_s: float = math.nan
    steps_done: int = 0
    samples: float | None = None
    own_steps: int = 1
    scalars: Mapping[str, Any] = field(default_factory=dict)
    offered: frozenset[str] = frozenset()


class Probe:
    """Base of all probes.

    Args:
        every_n_steps: Record at multiples of this many steps, >= 1; None takes the hook's setting.
        every_n_seconds: Record when this many seconds have passed, > 0, instead.

    Raises:
        ValueError: If one is out of range or both are given.
    """

    #: Name in messages and in ``recorder/probe_failures``.
    name = "probe"
    #: Taken where neither argument is given; None: the hook's ``every_n_steps``.
    default_every_n_steps: int | None = None
    #: Whether the probe wants every step's predictions, not only those of recorded steps.
    wants_predictions = False

    def __init__(
        self, *, every_n_steps: int | None = None, every_n_seconds: float | None = None
    ) -> None:
        check_cadence(every_n_steps, every_n_seconds)
        self.every_n_steps = every_n_steps
        self.every_n_seconds = every_n_seconds

    def parts(self) -> tuple[Part, ...]:
        """The measurements per variable."""
        return ()

    def accepts(self, variable: Variable) -> bool:
        """Whether the probe measures this variable."""
        return bool(self.parts())

    def variable_streams(self, variable: Variable, offered: frozenset[str]) -> Iterable[Stream]:
        """The streams of one variable, for what is `offered` of ``weight``, ``gradient``, ..."""
        return ()

    def finish(self, variable: Variable, measured: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Stream name -> value, from what the parts measured of a variable."""
        return {}

    def streams(self, *, samples_known: bool, offered: frozenset[str]) -> Iterable[Stream]:
        """The streams that belong to no variable."""
        return ()

    def observe(self, predictions: Predictions) -> None:
        """Take in one step's predictions; only called if ``wants_predictions``."""

    def values(self, report: StepReport) -> dict[str, Any]:
        """Stream name -> value at a recorded step."""
        return {}

    def reset(self) -> None:
        """Forget what an earlier session left behind."""


def check_cadence(every_n_steps: int | None, every_n_seconds: float | None) -> None:
    """Raise ValueError if a cadence is out of range or given twice."""
    if every_n_steps is not None and every_n_seconds is not None:
        raise ValueError(
            "Give `every_n_steps` or `every_n_seconds`, not both. "
            f"Received: every_n_steps={every_n_steps}, every_n_seconds={every_n_seconds}."
        )
    if every_n_steps is not None and (
        isinstance(every_n_steps, bool)
        or not isinstance(every_n_steps, (int, np.integer))
        or every_n_steps < 1
    ):
        raise ValueError(
            f"`every_n_steps` must be an integer >= 1. Received: every_n_steps={every_n_steps!r}."
        )
    if every_n_seconds is not None and not every_n_seconds > 0:
        raise ValueError(
            f"`every_n_seconds` must be > 0. Received: every_n_seconds={every_n_seconds!r}."
        )
