"""What an optimizer tells of itself: one small panel per quantity, of one run or several."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from deepinsight.figures._clock import NO_SAMPLES, Against, Clock, make_clock
from deepinsight.figures._series import Floats, Rows, Series, make_series, read_rows
from deepinsight.figures._theme import short
from deepinsight.traces import Run, StreamInfo

#: First part of a stream's name and the heading that its panels stand under, in their order.
HEADINGS = {"sync": "Synchronization", "optimizer": "Update rule"}

#: Panels drawn at most; a graph of many towers has more streams than anyone looks at.
MOST_PANELS = 40

#: Processes of one run in a panel at most.
MOST_PROCESSES = 12

#: Lines of a panel of vectors at most, one per entry and process.
MOST_LINES = 12

#: Entries of a vector in a panel at most.
MOST_ENTRIES = 4

_RowsOfRuns = dict[str, tuple[Rows, ...]]


@dataclass(frozen=True, eq=False)
class OptimizerLine:
    """One line of a panel.

    Attributes:
        run: Key of its run.
        process: Who recorded it.
        entry: Which entry of a vector it is; empty for a scalar.
        series: What is drawn.
    """

    run: str
    process: str
    entry: str
    series: Series


@dataclass(frozen=True, eq=False)
class OptimizerPanel:
    """One stream.

    Attributes:
        stream: Its name.
        title: What it is, in words.
        unit: As recorded.
        description: As recorded, of the first run that has it.
        lines: By run, then process, then entry.
        entries: Entries shown: those whose finite values have the largest extent (largest less
            smallest) over all runs and processes.
        more_entries: How many entries are not shown.
        more_processes: How many processes are not shown.
        smallest: Smallest finite value shown, NaN if there is none.
        largest: Largest finite value shown.
        whole: Whether all finite values are whole numbers >= 0: a count.
    """

    stream: str
    title: str
    unit: str
    description: str
    lines: tuple[OptimizerLine, ...]
    entries: tuple[str, ...] = ()
    more_entries: int = 0
    more_processes: int = 0
    smallest: float = float("nan")
    largest: float = float("nan")
    whole: bool = False

    @property
    def non_finite(self) -> int:
        """Rows that are NaN or infinite and leave a gap."""
        return sum(line.series.non_finite for line in self.lines)

    @property
    def moves(self) -> bool:
        """Whether any line is not constant."""
        drawn = [line.series.y[np.isfinite(line.series.y)] for line in self.lines]
        return any(bool(np.any(values != values[0])) for values in drawn if values.size)

    @property
    def logarithmic(self) -> bool:
        """Whether the values span so much that a linear axis would hide the small ones."""
        return 0 < 1000 * self.smallest < self.largest


@dataclass(frozen=True, eq=False)
class OptimizerInfo:
    """All panels.

    Attributes:
        runs: Keys of the runs that record anything of the kind, in the order given.
        processes: Names of the processes shown of each of these runs, sorted.
        against: What the horizontal axis counts.
        panels: Synchronization first, then the update rule.
        left_out: Key and reason of every run that cannot be shown.
        more_streams: How many streams are not shown.
        reason: Why there is nothing to show; empty if there is.
    """

    runs: tuple[str, ...] = ()
    processes: tuple[tuple[str, ...], ...] = ()
    against: Against = "step"
    panels: tuple[OptimizerPanel, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    more_streams: int = 0
    reason: str = ""


def optimizer_streams(runs: Mapping[str, Run]) -> tuple[str, ...]:
    """Streams ``sync/…`` and ``optimizer/…`` of scalars or vectors that one of the runs holds.

    Synchronization comes first, then by name; a count or a wait that every way to synchronize
    has comes before what is special to one.
    """
    names = {
        name
        for run in runs.values()
        for name in run.stream_names()
        if name.split("/")[0] in HEADINGS and len(run.stream(name).shape) <= 1
    }
    return tuple(sorted(names, key=_place))


def _place(name: str) -> tuple[int, int, str]:
    head, *_, tail = name.split("/")
    first = _FIRST.index(tail) if tail in _FIRST else len(_FIRST)
    return list(HEADINGS).index(head), first, name


def compute_optimizer_info(runs: Mapping[str, Run], *, against: Against = "step") -> OptimizerInfo:
    """Read what the optimizers of some runs recorded, and place it on a common axis.

    Args:
        runs: Open runs by the key that names them in the figure; one is fine.
        against: ``"step"``, ``"samples"`` or ``"seconds"``, as for `compute_comparison_info`.
    """
    names = optimizer_streams(runs)
    found = {name: _rows_of(runs, name) for name in names[:MOST_PANELS]}
    clocks: dict[str, Clock] = {}
    left_out: list[tuple[str, str]] = []
    for key, run in runs.items():
        own = [rows for of_runs in found.values() for rows in of_runs.get(key, ())]
        clock = make_clock(run, own, against) if own else None
        if clock is not None:
            clocks[key] = clock
        else:
            left_out.append((key, NO_SAMPLES if own else _NOTHING))
    panels = [_panel(name, runs, of_runs, clocks) for name, of_runs in found.items()]
    panels = [panel for panel in panels if panel.lines]
    lines = [line for panel in panels for line in panel.lines]
    return OptimizerInfo(
        runs=tuple(clocks),
        processes=tuple(
            tuple(sorted({line.process for line in lines if line.run == key})) for key in clocks
        ),
        against=against,
        panels=tuple(panels),
        left_out=tuple(left_out),
        more_streams=max(len(names) - MOST_PANELS, 0),
        reason="" if panels else _reason(left_out),
    )


def _rows_of(runs: Mapping[str, Run], name: str) -> _RowsOfRuns:
    """The rows of each run that has some."""
    found = {key: read_rows(run, name) for key, run in runs.items()}
    return {key: rows for key, rows in found.items() if rows}


def _panel(
    name: str, runs: Mapping[str, Run], found: _RowsOfRuns, clocks: Mapping[str, Clock]
) -> OptimizerPanel:
    chosen = {key: rows[:MOST_PROCESSES] for key, rows in found.items() if key in clocks}
    own = [rows for of_run in chosen.values() for rows in of_run]
    entries, all_entries = _entries(own, MOST_ENTRIES if len(clocks) == 1 else 1)
    lines: list[OptimizerLine] = []
    values: list[Floats] = [np.empty(0)]
    for key, of_run in chosen.items():
        for rows in of_run:
            at = clocks[key].place(rows)
            for entry, column in _columns(rows, entries):
                first = _first(column)
                line = make_series(entry or rows.process, at[first:], column[first:])
                lines.append(OptimizerLine(key, rows.process, entry, line))
                values.append(column[np.isfinite(column)])
    finite = np.concatenate(values)
    about = next((runs[key].stream(name) for key in chosen), StreamInfo(name))
    return OptimizerPanel(
        stream=name,
        title=_title(name),
        unit=about.unit,
        description=about.description,
        lines=tuple(lines),
        entries=entries,
        more_entries=all_entries - len(entries),
        more_processes=sum(len(found[key]) - len(chosen[key]) for key in chosen),
        smallest=float(finite.min()) if finite.size else float("nan"),
        largest=float(finite.max()) if finite.size else float("nan"),
        whole=bool(finite.size and np.all(finite >= 0) and np.all(finite == np.floor(finite))),
    )


def _first(values: Floats) -> int:
    """Where a line begins: NaN before the first value says that there is none yet."""
    told = np.flatnonzero(~np.isnan(values))
    return int(told[0]) if told.size else 0


def _columns(rows: Rows, entries: Sequence[str]) -> list[tuple[str, Floats]]:
    """The values to draw: all of a scalar stream, the chosen entries of a vector."""
    if not rows.labels:
        return [("", rows.values)]
    return [
        (entry, rows.values[:, rows.labels.index(entry)])
        for entry in entries
        if entry in rows.labels
    ]


def _entries(found: Sequence[Rows], most: int) -> tuple[tuple[str, ...], int]:
    """The entries with the largest extent, in the order of the extents, and how many there are."""
    bounds: dict[str, tuple[float, float]] = {}
    for rows in found:
        for number, entry in enumerate(rows.labels):
            finite = rows.values[np.isfinite(rows.values[:, number]), number]
            low, high = bounds.get(entry, (np.inf, -np.inf))
            if finite.size:
                low, high = min(low, float(finite.min())), max(high, float(finite.max()))
            bounds[entry] = (low, high)
    most = min(most, max(MOST_LINES // max(len(found), 1), 1))
    ranked = sorted(bounds, key=lambda entry: _extent(*bounds[entry]), reverse=True)
    return tuple(ranked[:most]), len(bounds)


def _extent(low: float, high: float) -> tuple[float, float]:
    return (high - low, max(abs(low), abs(high))) if low <= high else (-1.0, 0.0)


def _title(name: str) -> str:
    _, *between, quantity = name.split("/")
    words = quantity.replace("_", " ")
    return " · ".join([words[:1].upper() + words[1:], *between])


def _reason(left_out: Sequence[tuple[str, str]]) -> str:
    if not left_out:
        return "Choose one run or more."
    why = "; ".join(f"{short(key)} {text}" for key, text in left_out)
    return why + "." if all(text == NO_SAMPLES for _, text in left_out) else f"{why}. {_ADVICE}"


_NOTHING = "has recorded nothing about its optimizer"
_FIRST = (
    "live_workers",
    "wait_time",
    "rounds",
    "accepted_gradients",
    "dropped_gradients",
    "gradients_per_update",
)
_ADVICE = (
    "Staleness has figures of its own. deepinsight train records more under most values of "
    "--synchronization (sync, model-average, …) and of --optimizer (lars, dc-asgd, boosted-adam, "
    "…). Your own optimizer offers a number with "
    'deepinsight.trace_tensor("optimizer/<quantity>", tensor) or "sync/<quantity>", and the '
    "session hook records it."
)
