"""Lines ready to draw: read per process, thinned on this side, safe with NaN and infinity."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tsdownsample import MinMaxLTTBDownsampler

from deepinsight.traces import Run

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

#: Points drawn per line: about two per horizontal pixel of a wide screen.
POINTS_PER_LINE = 2000


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one scalar or 1-D stream of one process, in the order of their steps.

    Attributes:
        process: The process that wrote them.
        steps: Optimizer updates, ``[n]`` int64.
        wall_times_s: Unix seconds, ``[n]`` float64.
        values: ``[n]`` or ``[n, k]`` float64.
        labels: Names of the ``k`` columns; empty for a scalar stream.
    """

    process: str
    steps: Integers
    wall_times_s: Floats
    values: Floats
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Series:
    """One line of a figure.

    Attributes:
        name: What the legend says.
        x: Horizontal coordinates, ``[n]`` float64, not decreasing.
        y: Vertical coordinates, ``[n]`` float64; NaN is a gap in the line.
        rows: How many recorded rows the line stands for, >= ``n`` less its gaps.
        non_finite: How many of them were NaN or infinite, and are not drawn.
        last: The newest value, NaN where there is none; not affected by thinning.
    """

    name: str
    x: Floats
    y: Floats
    rows: int
    non_finite: int = 0
    last: float = float("nan")


def thin(x: Floats, y: Floats, points: int = POINTS_PER_LINE) -> tuple[Floats, Floats]:
    """Choose at most about ``points`` of the points such that the line looks the same.

    MinMaxLTTB keeps the extremes of every stretch; a run of NaN or infinite values stays visible
    as one gap. No value is averaged: every point returned is one of the points given.

    Args:
        x: ``[n]``, finite, not decreasing.
        y: ``[n]``; may hold NaN and infinities.
        points: At least 4.

    Returns:
        ``(x, y)`` with infinities turned into NaN.
    """
    finite = np.isfinite(y)
    y = np.where(finite, y, np.nan)
    if y.size <= points:
        return x, y
    kept = np.flatnonzero(finite)
    if kept.size > points:
        kept = kept[_choose(x[kept], y[kept], points)]
    gaps = np.flatnonzero(~finite & np.concatenate([[True], finite[:-1]]))
    gaps = gaps[:: max(1, -(-gaps.size // (points // 4)))]
    chosen = np.union1d(kept, gaps)
    return x[chosen], y[chosen]


def _choose(x: Floats, y: Floats, points: int) -> npt.NDArray[np.uint64]:
    sampler = MinMaxLTTBDownsampler()
    y = np.ascontiguousarray(y)
    if x[0] == x[-1]:
        return np.unique(sampler.downsample(y, n_out=points))
    return np.unique(sampler.downsample(np.ascontiguousarray(x), y, n_out=points))


def make_series(name: str, x: npt.ArrayLike, y: npt.ArrayLike) -> Series:
    """Order, thin and count one line; points without a finite ``x`` are left out."""
    xs, ys = np.asarray(x, np.float64), np.asarray(y, np.float64)
    placed = np.isfinite(xs)
    if not placed.all():
        xs, ys = xs[placed], ys[placed]
    if xs.size > 1 and np.any(xs[1:] < xs[:-1]):
        order = np.argsort(xs, kind="stable")
        xs, ys = xs[order], ys[order]
    bad = int(np.count_nonzero(~np.isfinite(ys)))
    last = float(ys[-1]) if ys.size else float("nan")
    thin_x, thin_y = thin(xs, ys)
    return Series(name, thin_x, thin_y, rows=int(ys.size), non_finite=bad, last=last)


def read_rows(run: Run, stream: str) -> tuple[Rows, ...]:
    """Every process' rows of a scalar or 1-D stream; ``()`` if nobody has recorded it.

    Rows that a restarted process wrote again are there once, from its later life.
    """
    if stream not in run.stream_names():
        return ()
    info = run.stream(stream)
    if len(info.shape) > 1:
        return ()
    table = run.frame(stream, superseded=False)
    steps = table["step"].to_numpy(np.int64)
    times = table["wall_time_s"].to_numpy(np.float64)
    values = table[table.columns[3:]].to_numpy(np.float64)
    labels = tuple(str(name) for name in table.columns[3:]) if info.shape else ()
    codes = table["process"].cat.codes.to_numpy()
    found = []
    for code, process in enumerate(table["process"].cat.categories):
        own = codes == code
        if own.any():
            part = values[own] if info.shape else values[own, 0]
            found.append(Rows(str(process), steps[own], times[own], part, labels))
    return tuple(found)


def process_suffix(process: str, processes: int) -> str:
    """`` · worker-0`` where several processes need telling apart, else nothing."""
    return f" · {process}" if processes > 1 else ""
