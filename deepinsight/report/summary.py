"""One run in a few numbers, for the dashboard's table and the top of a report."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from deepinsight.traces import Run, StreamNotFoundError, TraceArray

#: Streams of which the newest value is shown, in this order, with what they are called.
LATEST = (
    ("eval/auc", "Held-out AUC"),
    ("eval/loss", "Held-out loss"),
    ("train/loss", "Training loss"),
)
_RATE = "throughput/samples_per_second"
_MOST_LOOKED_AT = 12
_AFTER_ALL = 2**63 - 1


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
        last_step: Largest step recorded, -1 without any row.
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
    streams: int = 0
    latest: tuple[LatestValue, ...] = ()
    samples_per_second: float = float("nan")
    warnings: tuple[str, ...] = ()

    def setting(self, name: str) -> str:
        """A configuration value as text, empty if there is none."""
        value = self.config.get(name)
        return "" if value is None else str(value)

    @property
    def synchronized(self) -> str:
        """How gradients meet, with its settings: ``model-average (communication period 20)``."""
        way = self.setting("synchronization")
        said = [_words(name, self.config.get(name)) for name in _SETTINGS]
        if self.config.get("replication") == "in-graph":
            said.insert(0, "in-graph")
        told = ", ".join(text for text in said if text)
        return f"{way} ({told})" if way and told else way

    def latest_of(self, stream: str) -> LatestValue | None:
        """The newest value of one stream, or None."""
        return next((value for value in self.latest if value.stream == stream), None)


def summarise_run(run: Run) -> RunSummary:
    """Read what a table row needs, which is the newest row of a few streams.

    Args:
        run: An open run.
    """
    names = run.stream_names()
    rows = {name: _newest(run, name) for name in _telling(names)}
    steps = [int(row.steps[-1]) for row in rows.values() if len(row.steps)]
    latest = (_latest(run, name, label) for name, label in LATEST if name in names)
    return RunSummary(
        name=run.name,
        status=run.status,
        config=dict(run.config),
        processes=tuple((process.name, process.status) for process in run.processes),
        created_time_s=run.created_time_s,
        duration_s=_duration(run, list(rows.values())),
        last_step=max(steps, default=-1),
        streams=len(names),
        latest=tuple(value for value in latest if value is not None),
        samples_per_second=_rate(run) if _RATE in names else float("nan"),
        warnings=tuple(run.warnings),
    )


def _words(name: str, value: object) -> str:
    """A setting in words; empty where it is not set."""
    words = name.replace("_", " ")
    if value is True:
        return words
    if isinstance(value, float):
        return f"{words} {value:g}"
    return f"{words} {value}" if isinstance(value, int | str) and value is not False else ""


def _telling(names: Sequence[str]) -> list[str]:
    """Streams that tell how far a run has come: those written often, or any few if there is none.

    A run of a large model has hundreds of streams; to look at each would take too long.
    """
    often = [name for name in names if name.startswith(("train/", "eval/", "throughput/", "auc/"))]
    own = [name for name in names if not name.startswith("recorder/")]
    return (often or own)[:_MOST_LOOKED_AT]


def _newest(run: Run, stream: str) -> TraceArray:
    """The row of the largest step; of 0 rows if there is none."""
    return run.row(stream, _AFTER_ALL)


def _latest(run: Run, stream: str, label: str) -> LatestValue | None:
    info, row = run.stream(stream), _newest(run, stream)
    if info.shape or not len(row.steps):
        return None
    return LatestValue(stream, label, float(row.values[-1]), info.unit, int(row.steps[-1]))


def _rate(run: Run) -> float:
    rates = []
    for process in run.processes:
        with contextlib.suppress(StreamNotFoundError):
            rates.extend(run.array(_RATE, process=process.name, last=1).values.tolist())
    return float(np.sum(rates)) if rates else float("nan")


def _duration(run: Run, rows: Sequence[TraceArray]) -> float:
    starts = [process.started_time_s for process in run.processes]
    ends = [process.ended_time_s for process in run.processes]
    if not starts:
        return float("nan")
    begin = min([*starts, run.created_time_s])
    if all(end is not None for end in ends):
        return max(end for end in ends if end is not None) - begin
    # No end was written: the newest row tells how far it came.
    newest = [float(row.wall_times_s[-1]) for row in rows if len(row.steps)]
    return max([*newest, *starts]) - begin


#: Settings of the ways to synchronize, as `deepinsight train` records them.
_SETTINGS = (
    "replicas_to_aggregate", "staleness_bound", "splits", "staleness_weighting",
    "communication_period", "block_momentum", "block_learning_rate", "block_nesterov",
    "moving_rate", "synchronous_exchange", "sparsity", "warm_up_steps", "clip_norm",
    "damping", "covariance_decay", "inverse_every", "burn_in", "norm_constraint", "placement",
)  # fmt: skip
