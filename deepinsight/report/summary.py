"""One run in a few numbers, for the dashboard's table and the top of a report."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from deepinsight.traces import Run

#: Streams of which the newest value is shown, in this order, with what they are called.
LATEST = (
    ("eval/auc", "Held-out AUC"),
    ("eval/loss", "Held-out loss"),
    ("train/loss", "Training loss"),
)
_RATE = "throughput/samples_per_second"


@dataclass(frozen=True)
class LatestValue:
    """The newest value of a scalar stream.

    Attributes:
        stream: Its name.
        label: What people call it.
        value: May be NaN or infinite, as recorded.
        unit: As recorded.
        step: When; an optimizer update.
    """

    stream: str
    label: str
    value: float
    unit: str
    step: int


@dataclass(frozen=True)
class RunSummary:
    """What a run is and how far it has come.

    Attributes:
        name: The run's name.
        status: ``"live"``, ``"finished"``, ``"crashed"`` or ``"empty"``.
        config: As recorded.
        processes: Name and status of each process.
        created_time_s: Unix seconds.
        duration_s: From the start to the end of the last process, or to its newest row; NaN if
            nothing was recorded.
        last_step: Largest step of any stream, -1 without any row.
        rows: Recorded rows of all streams.
        streams: Distinct stream names.
        latest: Values of `LATEST` that the run holds.
        samples_per_second: Newest rates of all processes added up, NaN if not recorded.
        warnings: What the reader has to say about the run.
    """

    name: str
    status: str
    config: Mapping[str, Any] = field(default_factory=dict)
    processes: tuple[tuple[str, str], ...] = ()
    created_time_s: float = float("nan")
    duration_s: float = float("nan")
    last_step: int = -1
    rows: int = 0
    streams: int = 0
    latest: tuple[LatestValue, ...] = ()
    samples_per_second: float = float("nan")
    warnings: tuple[str, ...] = ()

    def setting(self, name: str) -> str:
        """A configuration value as text, empty if there is none."""
        value = self.config.get(name)
        return "" if value is None else str(value)

    def latest_of(self, stream: str) -> LatestValue | None:
        """The newest value of one stream, or None."""
        return next((value for value in self.latest if value.stream == stream), None)


def summarise_run(run: Run) -> RunSummary:
    """Read what a table row needs, which is the newest row of a few streams.

    Args:
        run: An open run.
    """
    table = run.streams()
    filled = table[table["rows"] > 0]
    names = set(filled["name"])
    latest = tuple(_latest(run, name, label) for name, label in LATEST if name in names)
    writers = sorted(set(filled[filled["name"] == _RATE]["process"]))
    rates = [float(run.array(_RATE, process=name, last=1).values[-1]) for name in writers]
    return RunSummary(
        name=run.name,
        status=run.status,
        config=dict(run.config),
        processes=tuple((process.name, process.status) for process in run.processes),
        created_time_s=run.created_time_s,
        duration_s=_duration(run, names),
        last_step=int(filled["last_step"].max()) if len(filled) else -1,
        rows=int(filled["rows"].sum()),
        streams=len(names),
        latest=tuple(value for value in latest if value is not None),
        samples_per_second=float(np.sum(rates)) if rates else float("nan"),
        warnings=tuple(run.warnings),
    )


def _latest(run: Run, stream: str, label: str) -> LatestValue | None:
    info = run.stream(stream)
    row = run.array(stream, last=1)
    if info.shape or not len(row.steps):
        return None
    return LatestValue(stream, label, float(row.values[-1]), info.unit, int(row.steps[-1]))


def _duration(run: Run, names: set[str]) -> float:
    starts = [process.started_time_s for process in run.processes]
    ends = [process.ended_time_s for process in run.processes]
    if not starts:
        return float("nan")
    if all(end is not None for end in ends):
        return max(end for end in ends if end is not None) - min(starts)
    # No end was written: the newest row of a stream that is written often tells how far it came.
    often = [name for name in (*(name for name, _ in LATEST), _RATE) if name in names]
    rows = [run.array(name, last=1) for name in often or sorted(names)[:1]]
    newest = [float(row.wall_times_s[-1]) for row in rows if len(row.steps)]
    return max([*newest, *starts]) - min(starts)
