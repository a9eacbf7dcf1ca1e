"""Where a row stands on a horizontal axis of steps, of samples or of seconds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from deepinsight.figures._series import Floats, Rows, read_rows
from deepinsight.traces import Run

Against = Literal["step", "samples", "seconds"]

AXIS_TITLES: dict[Against, str] = {
    "step": "Step (updates)",
    "samples": "Samples consumed by all workers (samples)",
    "seconds": "Time since the run's start (s)",
}

#: Why a run cannot be placed on the axis of samples.
NO_SAMPLES = "does not record throughput/samples"


@dataclass(frozen=True, eq=False)
class Clock:
    """Places the rows of one run on the horizontal axis.

    Attributes:
        against: What the axis counts.
        start_s: The run's start, Unix seconds.
        counts: Times and samples consumed until then, one pair per process.
        samples_per_step: Samples that all workers together consume for one step, where there are
            no `counts`.
    """

    against: Against
    start_s: float
    counts: tuple[tuple[Floats, Floats], ...] = ()
    samples_per_step: float = float("nan")

    def place(self, rows: Rows) -> Floats:
        """Horizontal coordinates of the rows, ``[n]`` float64."""
        if self.against == "seconds":
            return rows.wall_times_s - self.start_s
        steps = rows.steps.astype(np.float64)
        if self.against == "step":
            return steps
        if not self.counts:
            return steps * self.samples_per_step
        total = np.zeros(rows.steps.size)
        for times, samples in self.counts:
            total += np.interp(rows.wall_times_s, times, samples)
        return total


def make_clock(run: Run, found: Sequence[Rows], against: Against) -> Clock | None:
    """The clock of a run.

    Samples are those that all processes of the run had consumed by a row's wall time, linearly
    between the recorded counts (``throughput/samples``): how much a step stands for differs
    between ways to synchronize, and only the counts tell it for all of them. A run that records
    none is placed by ``samples_per_step`` of its configuration.

    Args:
        run: An open run.
        found: The rows to place; the run starts no later than the first of them.
        against: What the axis counts.

    Returns:
        The clock, or None if the run does not tell how many samples it consumed.
    """
    start = min([run.created_time_s, *(float(rows.wall_times_s.min()) for rows in found)])
    if against != "samples":
        return Clock(against, start)
    counts = tuple(_consumed(rows, start) for rows in read_rows(run, "throughput/samples"))
    each = _samples_per_step(run)
    return Clock(against, start, counts, each) if counts or math.isfinite(each) else None


def _samples_per_step(run: Run) -> float:
    each = run.config.get("samples_per_step")
    if not isinstance(each, int | float) or isinstance(each, bool):
        return float("nan")
    return float(each) if 0 < each < math.inf else float("nan")


def _consumed(rows: Rows, start_s: float) -> tuple[Floats, Floats]:
    """One process' samples over time from zero; a count that restarts goes on from where it was."""
    finite = np.isfinite(rows.values)
    counts, times = rows.values[finite], rows.wall_times_s[finite]
    order = np.argsort(times, kind="stable")
    return np.append(start_s, times[order]), np.append(0.0, np.cumsum(gains(counts))[order])


def gains(counts: Floats) -> Floats:
    """What a running count grew by from row to row, a count that begins again included.

    Example:
        >>> gains(np.array([2.0, 5.0, 1.0, 3.0]))
        array([2., 3., 1., 2.])
    """
    grown = np.diff(counts, prepend=0.0)
    return np.where(grown < 0, counts, grown)
