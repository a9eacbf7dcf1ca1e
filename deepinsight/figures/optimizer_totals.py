"""What synchronization came to per worker: gradients dropped, bytes sent, time waited."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from deepinsight.figures._clock import gains
from deepinsight.figures._series import read_rows
from deepinsight.figures._theme import TIMES
from deepinsight.traces import Run


@dataclass(frozen=True)
class WorkerTotals:
    """One process; NaN stands for what it does not record.

    Attributes:
        run: Key of its run.
        worker: Name of the process.
        accepted: Gradients that the variables took in, of all its lives.
        dropped: Gradients that came too late for them.
        bytes_sent: Bytes of gradients, or of models, that it sent.
        dense_bytes: Bytes that the same would have taken uncompressed.
        wait_s: Mean of its recorded waits for other workers, in seconds each.
    """

    run: str
    worker: str
    accepted: float = math.nan
    dropped: float = math.nan
    bytes_sent: float = math.nan
    dense_bytes: float = math.nan
    wait_s: float = math.nan

    @property
    def pushed(self) -> float:
        """Gradients of which is known whether they were accepted; NaN if either is not recorded."""
        return self.accepted + self.dropped


@dataclass(frozen=True)
class OptimizerTotals:
    """All workers that recorded any of it, by run, then name."""

    workers: tuple[WorkerTotals, ...] = ()


@dataclass(frozen=True)
class Table:
    """Text for people; the first two columns name the row, the others hold numbers.

    Attributes:
        caption: What the numbers are.
        heads: Names of the columns.
        rows: One text per column.
    """

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def compute_optimizer_totals(runs: Mapping[str, Run]) -> OptimizerTotals:
    """Add up what each process counted, and average what it waited.

    ``sync/accepted_gradients``, ``sync/dropped_gradients``, ``sync/total_bytes_sent`` and
    ``sync/total_dense_bytes`` are running counts. A restarted process begins them again; what it
    had counted before is added. ``sync/wait_time`` is the process' last wait, in seconds.

    Args:
        runs: Open runs by the key that names them.
    """
    workers: list[WorkerTotals] = []
    for key, run in runs.items():
        found: dict[str, dict[str, float]] = {}
        for field, (stream, reduce) in _STREAMS.items():
            for rows in read_rows(run, stream):
                finite = rows.values[np.isfinite(rows.values)] if not rows.labels else ()
                if len(finite):
                    found.setdefault(rows.process, {})[field] = reduce(np.asarray(finite))
        workers += [WorkerTotals(key, process, **found[process]) for process in sorted(found)]
    return OptimizerTotals(tuple(workers))


def tabulate_optimizer_totals(totals: OptimizerTotals) -> Table | None:
    """The table of the totals: only the columns that someone records.

    Returns:
        The table, or None if nobody records any of it.
    """
    if not totals.workers:
        return None
    columns = [
        (head, texts)
        for head, text, value in _COLUMNS
        if any(math.isfinite(value(worker)) for worker in totals.workers)
        for texts in [[_said(text, value(worker)) for worker in totals.workers]]
    ]
    names = [(worker.run, worker.worker) for worker in totals.workers]
    cells = zip(*(texts for _, texts in columns), strict=True)
    heads = {head for head, _ in columns}
    told = [text for text, of in _CAPTIONS.items() if heads & set(of)]
    return Table(
        f"Per worker, as last recorded: {', '.join(told)}",
        ("Run", "Worker", *(head for head, _ in columns)),
        tuple((*name, *row) for name, row in zip(names, cells, strict=True)),
    )


def _said(text: Callable[[float], str], value: float) -> str:
    return text(value) if math.isfinite(value) else "\N{EN DASH}"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def in_bytes(value: float) -> str:
    """A number of bytes in the unit that suits it, powers of 1000.

    Example:
        >>> in_bytes(999.0), in_bytes(1_234_567.0)
        ('999 B', '1.23 MB')
    """
    power = min(int(math.log10(max(value, 1)) // 3), len(_UNITS) - 1)
    return f"{value / 1000**power:.3g} {_UNITS[power]}"


def _dropped_share(worker: WorkerTotals) -> float:
    return 100 * worker.dropped / worker.pushed if worker.pushed > 0 else math.nan


def _ratio(worker: WorkerTotals) -> float:
    return worker.dense_bytes / worker.bytes_sent if worker.bytes_sent > 0 else math.nan


_UNITS = ("B", "kB", "MB", "GB", "TB")
#: What stands above the table, and the columns that it is about.
_CAPTIONS = {
    "gradients of which it is known whether they were accepted": (
        "Pushed", "Accepted", "Dropped", "Dropped (%)",
    ),
    "bytes of all pushes": ("Sent", "Uncompressed", f"Compression ({TIMES})"),
    "mean of the recorded waits for others": ("Mean wait (ms)",),
}  # fmt: skip
_STREAMS: dict[str, tuple[str, Callable[[np.ndarray], float]]] = {
    "accepted": ("sync/accepted_gradients", lambda counts: float(gains(counts).sum())),
    "dropped": ("sync/dropped_gradients", lambda counts: float(gains(counts).sum())),
    "bytes_sent": ("sync/total_bytes_sent", lambda counts: float(gains(counts).sum())),
    "dense_bytes": ("sync/total_dense_bytes", lambda counts: float(gains(counts).sum())),
    "wait_s": ("sync/wait_time", lambda waits: float(waits.mean())),
}
_COLUMNS: tuple[tuple[str, Callable[[float], str], Callable[[WorkerTotals], float]], ...] = (
    ("Pushed", _count, lambda worker: worker.pushed),
    ("Accepted", _count, lambda worker: worker.accepted),
    ("Dropped", _count, lambda worker: worker.dropped),
    ("Dropped (%)", lambda value: f"{value:.3g}", _dropped_share),
    ("Sent", in_bytes, lambda worker: worker.bytes_sent),
    ("Uncompressed", in_bytes, lambda worker: worker.dense_bytes),
    (f"Compression ({TIMES})", lambda value: f"{value:.3g}", _ratio),
    ("Mean wait (ms)", lambda value: f"{1e3 * value:.3g}", lambda worker: worker.wait_s),
)
