"""How stale the gradients of each worker are when they are applied."""

from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from deepinsight.figures._series import Floats, read_rows
from deepinsight.figures._theme import colour, empty_figure, escape, new_figure, short
from deepinsight.traces import Run

#: More distinct values than this are gathered into bins of equal width.
MOST_BARS = 60


@dataclass(frozen=True, eq=False)
class WorkerStaleness:
    """The staleness of one worker's pushes.

    Attributes:
        worker: Process name.
        pushes: Pushes with a finite staleness.
        centres: Middles of the bars, in updates, ``[bars]`` float64.
        shares: Share of the pushes in each bar, ``[bars]``; they sum to 1.
        mean: In updates.
        p95: 95th percentile, in updates.
        largest: In updates.
        non_finite: Pushes whose staleness was NaN or infinite, not counted elsewhere.
    """

    worker: str
    pushes: int
    centres: Floats
    shares: Floats
    mean: float
    p95: float
    largest: float
    non_finite: int = 0


@dataclass(frozen=True, eq=False)
class StalenessDistributionInfo:
    """One histogram per worker over common bars.

    Attributes:
        run: The run's name.
        workers: In the order of their names.
        bar_width: Width of every bar, in updates; 1 where each value has its own bar.
        reason: Why there is nothing to show; empty if there is.
    """

    run: str
    workers: tuple[WorkerStaleness, ...] = ()
    bar_width: float = 1.0
    reason: str = ""


def compute_staleness_distribution_info(run: Run) -> StalenessDistributionInfo:
    """Count ``staleness/global``, one row per push, per worker.

    Args:
        run: An open run.
    """
    found = [(rows.process, rows.values) for rows in read_rows(run, "staleness/global")]
    finite = [values[np.isfinite(values)] for _, values in found]
    pooled = np.concatenate(finite) if finite else np.empty(0)
    if not pooled.size:
        return StalenessDistributionInfo(run.name, reason=no_staleness(run))
    edges = bar_edges(pooled)
    workers = [
        _count(process, values, good, edges)
        for (process, values), good in zip(found, finite, strict=True)
    ]
    return StalenessDistributionInfo(run.name, tuple(workers), float(edges[1] - edges[0]))


def bar_edges(values: Floats) -> Floats:
    """Borders of at most :data:`MOST_BARS` bars of equal whole width that hold every value.

    Staleness counts updates, so bars are centred on whole numbers where each gets its own.

    Args:
        values: Finite, at least one.
    """
    low, high = np.floor(values.min()), np.floor(values.max())
    width = max(1.0, np.ceil((high - low + 1) / MOST_BARS))
    bars = int((high - low) // width) + 1
    edges: Floats = low + width * np.arange(bars + 1) - 0.5
    return edges


def _count(worker: str, values: Floats, good: Floats, edges: Floats) -> WorkerStaleness:
    counts, _ = np.histogram(np.floor(good), bins=edges)
    if not good.size:
        nan = float("nan")
        nothing = np.zeros(edges.size - 1)
        return WorkerStaleness(worker, 0, _middles(edges), nothing, nan, nan, nan, values.size)
    return WorkerStaleness(
        worker=worker,
        pushes=int(good.size),
        centres=_middles(edges),
        shares=counts / good.size,
        mean=float(good.mean()),
        p95=float(np.percentile(good, 95)),
        largest=float(good.max()),
        non_finite=int(values.size - good.size),
    )


def _middles(edges: Floats) -> Floats:
    return (edges[1:] + edges[:-1]) / 2


def plot_staleness_distribution(info: StalenessDistributionInfo) -> go.Figure:
    """Draw grouped bars, one colour per worker."""
    title = "Staleness of the applied gradients"
    if not info.workers:
        return empty_figure(title, info.reason)
    pushes = sum(worker.pushes for worker in info.workers)
    lost = sum(worker.non_finite for worker in info.workers)
    subtitle = f"{pushes:,} pushes; global step at apply less global step at pull"
    if info.bar_width > 1:
        subtitle += f"; bars are {info.bar_width:g} updates wide"
    if lost:
        subtitle += f"; {lost:,} not finite and left out"
    figure = new_figure(
        title,
        subtitle=subtitle,
        x_title="Staleness (updates)",
        y_title="Share of the worker's pushes (%)",
        revision=f"{info.run}/staleness",
    )
    for number, worker in enumerate(info.workers):
        figure.add_trace(
            go.Bar(
                x=worker.centres,
                y=100 * worker.shares,
                name=f"{escape(short(worker.worker, 24))}<br>"
                f"mean {worker.mean:.2f}, p95 {worker.p95:.3g}",
                marker_color=colour(number),
                hovertemplate="%{y:.2f} % at staleness %{x}",
            )
        )
    figure.update_layout(barmode="group", hovermode="x unified", showlegend=True, bargap=0.15)
    every = len(info.workers[0].centres) <= 16 and info.bar_width == 1
    figure.update_xaxes(tickmode="linear" if every else "auto", dtick=1)
    return figure


def no_staleness(run: Run) -> str:
    """Why a run has no staleness, and what to do about it."""
    synchronization = run.config.get("synchronization")
    if synchronization == "sync":
        return (
            "This run is synchronous: every gradient is applied to the weights it was computed "
            "on, so none is stale."
        )
    if steps_alone(run):
        return LOCAL_STEPS
    return (
        "This run records no staleness. The asynchronous trainer records it for every push; "
        "an own training loop records it with deepinsight.probes.Staleness."
    )


def steps_alone(run: Run) -> bool:
    """Whether each worker steps on a copy of its own."""
    return run.config.get("synchronization") in _ON_COPIES


#: Why a run of workers that step alone has no staleness.
LOCAL_STEPS = (
    "Each worker of this run applies its gradients to a copy of its own, so none is stale. "
    "What the optimizer recorded of itself tells how far the copies are apart."
)

#: Values of ``--synchronization`` with which workers step alone.
_ON_COPIES = ("model-average", "block-momentum", "elastic-average")
