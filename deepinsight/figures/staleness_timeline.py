"""How the staleness of each worker's gradients develops while the run goes on."""

from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from deepinsight.figures._series import Floats, Rows, read_rows
from deepinsight.figures._theme import (
    colour,
    empty_figure,
    escape,
    new_figure,
    short,
    translucent,
)
from deepinsight.figures.staleness_distribution import no_staleness
from deepinsight.traces import Run

#: Stretches of steps that a line is drawn from.
MOST_STRETCHES = 100


@dataclass(frozen=True, eq=False)
class StalenessLine:
    """One worker's staleness over stretches of equally many steps.

    Attributes:
        worker: Process name.
        steps: Middle step of each stretch that holds a push, ``[n]`` float64.
        mean: In updates, ``[n]``.
        smallest: In updates, ``[n]``.
        largest: In updates, ``[n]``.
        pushes: Pushes counted, those that are not finite excluded.
    """

    worker: str
    steps: Floats
    mean: Floats
    smallest: Floats
    largest: Floats
    pushes: int


@dataclass(frozen=True, eq=False)
class StalenessTimelineInfo:
    """One line per worker.

    Attributes:
        run: The run's name.
        lines: In the order of the workers' names.
        stretch: Steps that one point stands for.
        reason: Why there is nothing to show; empty if there is.
    """

    run: str
    lines: tuple[StalenessLine, ...] = ()
    stretch: int = 1
    reason: str = ""


def compute_staleness_timeline_info(run: Run) -> StalenessTimelineInfo:
    """Average ``staleness/global`` per worker over stretches of steps.

    Args:
        run: An open run.
    """
    found = [rows for rows in read_rows(run, "staleness/global") if np.isfinite(rows.values).any()]
    if not found:
        return StalenessTimelineInfo(run.name, reason=no_staleness(run))
    first = min(int(rows.steps.min()) for rows in found)
    last = max(int(rows.steps.max()) for rows in found)
    stretch = max(1, -(-(last - first + 1) // MOST_STRETCHES))
    lines = tuple(_summarise(rows, first, stretch) for rows in found)
    return StalenessTimelineInfo(run.name, lines, stretch)


def _summarise(rows: Rows, first: int, stretch: int) -> StalenessLine:
    good = np.isfinite(rows.values)
    values = rows.values[good]
    index = (rows.steps[good] - first) // stretch
    order = np.argsort(index, kind="stable")
    values, index = values[order], index[order]
    present, starts, counts = np.unique(index, return_index=True, return_counts=True)
    return StalenessLine(
        worker=rows.process,
        steps=(first + present * stretch + (stretch - 1) / 2).astype(np.float64),
        mean=np.add.reduceat(values, starts) / counts,
        smallest=np.minimum.reduceat(values, starts),
        largest=np.maximum.reduceat(values, starts),
        pushes=int(values.size),
    )


def plot_staleness_timeline(info: StalenessTimelineInfo) -> go.Figure:
    """Draw each worker's mean with a band from its smallest to its largest."""
    title = "Staleness over time, per worker"
    if not info.lines:
        return empty_figure(title, info.reason)
    steps = "each push" if info.stretch == 1 else f"mean of every {info.stretch:,} steps"
    figure = new_figure(
        title,
        subtitle=f"Line: {steps}; band: smallest to largest",
        x_title="Step (updates)",
        y_title="Staleness (updates)",
        revision=f"{info.run}/staleness-timeline",
    )
    for number, line in enumerate(info.lines):
        figure.add_trace(
            go.Scatter(
                x=np.concatenate([line.steps, line.steps[::-1]]),
                y=np.concatenate([line.largest, line.smallest[::-1]]),
                fill="toself",
                fillcolor=translucent(colour(number), 0.14),
                line={"width": 0},
                hoverinfo="skip",
                showlegend=False,
                legendgroup=str(number),
                mode="lines",
            )
        )
        figure.add_trace(
            go.Scatter(
                x=line.steps,
                y=line.mean,
                name=escape(short(line.worker)),
                legendgroup=str(number),
                mode="lines" if line.steps.size > 1 else "markers",
                line={"color": colour(number), "width": 2},
                hovertemplate="%{y:.3g} updates",
            )
        )
    figure.update_layout(hovermode="x unified", yaxis_rangemode="tozero", showlegend=True)
    return figure
