"""How large each feature group's weights are over time: the group that grows is overfitting."""

from dataclasses import dataclass
from typing import Literal

import plotly.graph_objects as go

from deepinsight.figures._series import Series, make_series, process_suffix, read_rows
from deepinsight.figures._theme import (
    colour,
    dash,
    empty_figure,
    escape,
    new_figure,
    short,
)
from deepinsight.traces import Run

Statistic = Literal["rms", "max"]

_WORDS = {"rms": "Root mean square of w", "max": "Largest |w|"}


@dataclass(frozen=True, eq=False)
class GroupEnergyInfo:
    r"""One line per feature group (and process, where several record the variable).

    Attributes:
        run: The run's name.
        variable: The variable's name.
        statistic: ``"rms"``: :math:`\sqrt{\mathrm{mean}(w^2)}` over the group's rows;
            ``"max"``: the largest :math:`|w|` there.
        series: Lines against the step; unit of the weights.
        groups: The feature group of each line, in slice order.
        shown: What the lines are of: the variable, or ``"embedding/*"`` where every group has a
            variable of its own beside this one.
        reason: Why there is nothing to show; empty if there is.
    """

    run: str
    variable: str
    statistic: Statistic
    series: tuple[Series, ...] = ()
    groups: tuple[str, ...] = ()
    shown: str = ""
    reason: str = ""


def compute_group_energy_info(
    run: Run, variable: str, *, statistic: Statistic = "rms"
) -> GroupEnergyInfo:
    """Read ``weights/<variable>/group_rms`` or ``group_max``.

    A variable that belongs to one group alone, such as the embedding table of one feature, is shown
    together with those beside it, so that groups can be told apart.

    Args:
        run: An open run.
        variable: Name of a variable.
        statistic: ``"rms"`` or ``"max"``.
    """
    series: list[Series] = []
    groups: list[str] = []
    together, shown = _beside(run, variable, statistic)
    for stream in together:
        found = read_rows(run, stream)
        for rows in found:
            for column, group in enumerate(rows.labels):
                name = group + process_suffix(rows.process, len(found))
                series.append(make_series(name, rows.steps, rows.values[:, column]))
                groups.append(group)
    reason = "" if series else _reason(run, variable)
    return GroupEnergyInfo(
        run.name, variable, statistic, tuple(series), tuple(groups), shown, reason
    )


def _beside(run: Run, variable: str, statistic: Statistic) -> tuple[list[str], str]:
    """The streams to show with a variable's own, and what they are of together."""
    ending = f"/group_{statistic}"
    own = f"weights/{variable}{ending}"
    parent = variable.rpartition("/")[0]
    names = run.stream_names()
    if own not in names or run.stream(own).shape != (1,) or not parent:
        return [own], variable
    beside = [
        name
        for name in names
        if name.endswith(ending)
        and name.removesuffix(ending).rpartition("/")[0] == f"weights/{parent}"
        and run.stream(name).shape == (1,)
    ]
    return beside, f"{parent}/*" if len(beside) > 1 else variable


def plot_group_energy(info: GroupEnergyInfo) -> go.Figure:
    """Draw one line per feature group against the step."""
    title = f"{_WORDS[info.statistic]} per feature group, {info.shown or info.variable}"
    if not info.series:
        return empty_figure(title, info.reason)
    figure = new_figure(
        title,
        x_title="Step (updates)",
        y_title=f"{_WORDS[info.statistic]} (dimensionless)",
        revision=f"{info.run}/{info.shown}/{info.statistic}",
    )
    order = list(dict.fromkeys(info.groups))
    for line, group in zip(info.series, info.groups, strict=True):
        number = order.index(group)
        figure.add_trace(
            go.Scatter(
                x=line.x,
                y=line.y,
                name=escape(short(line.name)),
                mode="lines" if line.x.size > 1 else "markers",
                line={"color": colour(number), "dash": dash(number // 10), "width": 2},
                hovertemplate="step %{x:,}: %{y:.4g}",
            )
        )
    figure.update_layout(hovermode="x unified", yaxis_rangemode="tozero", showlegend=True)
    return figure


def _reason(run: Run, variable: str) -> str:
    if not variable:
        return "Choose a variable."
    if not run.feature_groups:
        return (
            "This run names no feature groups. Give the recorder or hook "
            'feature_groups={"user": slice(0, 8), …} to see which group grows.'
        )
    return (
        f"Nothing is recorded per feature group for {variable}. Groups apply to variables whose "
        "first dimension they cover; the Weights probe records them."
    )
