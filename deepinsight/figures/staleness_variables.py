"""How stale each variable is: some are updated more often than others."""

from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from deepinsight.figures._series import Floats, read_rows
from deepinsight.figures._theme import colour, empty_figure, escape, new_figure, short
from deepinsight.figures.staleness_distribution import LOCAL_STEPS, steps_alone
from deepinsight.traces import Run


@dataclass(frozen=True, eq=False)
class StalenessVariablesInfo:
    """Mean staleness per variable and worker.

    Attributes:
        run: The run's name.
        variables: In the order they were recorded in.
        workers: Process names.
        means: In updates, ``[workers, variables]``; NaN where a worker recorded none.
        reason: Why there is nothing to show; empty if there is.
    """

    run: str
    variables: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    means: Floats | None = None
    reason: str = ""


def compute_staleness_variables_info(run: Run) -> StalenessVariablesInfo:
    """Average ``staleness/variables`` over the pushes of each worker, NaN and infinity left out.

    Args:
        run: An open run.
    """
    found = [rows for rows in read_rows(run, "staleness/variables") if rows.labels]
    variables = tuple(dict.fromkeys(label for rows in found for label in rows.labels))
    if not variables:
        reason = LOCAL_STEPS if steps_alone(run) else _NOT_RECORDED
        return StalenessVariablesInfo(run.name, reason=reason)
    means = np.full((len(found), len(variables)), np.nan)
    for number, rows in enumerate(found):
        finite = np.isfinite(rows.values)
        sums = np.where(finite, rows.values, 0.0).sum(axis=0)
        counts = finite.sum(axis=0)
        mean = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
        means[number, [variables.index(label) for label in rows.labels]] = mean
    workers = tuple(rows.process for rows in found)
    return StalenessVariablesInfo(run.name, variables, workers, means)


def plot_staleness_variables(info: StalenessVariablesInfo) -> go.Figure:
    """Draw horizontal bars, one group per variable."""
    title = "Mean staleness per variable"
    if info.means is None:
        return empty_figure(title, info.reason)
    if not info.means.any():
        return empty_figure(title, _never_stale(len(info.variables), len(info.workers)))
    bars = len(info.variables) * len(info.workers)
    figure = new_figure(
        title,
        subtitle="Updates of the variable between a worker's pull and its push",
        x_title="Mean staleness (updates of the variable)",
        height=min(1200, 170 + max(22 * len(info.variables), 12 * bars)),
        revision=f"{info.run}/staleness-variables",
    )
    names = [escape(short(name, 30)) for name in info.variables]
    for number, (worker, means) in enumerate(zip(info.workers, info.means, strict=True)):
        figure.add_trace(
            go.Bar(
                x=means,
                y=list(range(len(names))),
                orientation="h",
                name=escape(short(worker)),
                marker_color=colour(number),
                customdata=names,
                hovertemplate="%{customdata}: %{x:.3g} updates",
            )
        )
    figure.update_layout(barmode="group", bargap=0.3, showlegend=True)
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(
        tickvals=list(range(len(names))), ticktext=names, autorange="reversed", showgrid=False
    )
    return figure


def _never_stale(variables: int, workers: int) -> str:
    return (
        f"0 updates for each of {variables} variables and {workers} "
        f"worker{'' if workers == 1 else 's'}: every gradient met the very weights that it was "
        "computed on."
    )


_NOT_RECORDED = (
    "This run records no staleness per variable. The asynchronous trainer does, as the stream "
    "staleness/variables with one column per variable."
)
