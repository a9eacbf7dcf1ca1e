"""From the runs selected on the optimizer page to its figure and table."""

from functools import partial
from pathlib import Path

import plotly.graph_objects as go
from dash import Dash, Input, Output
from dash.development.base_component import Component

from deepinsight.dashboard.address import make_query
from deepinsight.dashboard.follow import register_figure
from deepinsight.dashboard.pages.optimizer.ids import Optimizer
from deepinsight.dashboard.pages.optimizer.layout import table
from deepinsight.dashboard.several import opened_all, register_follow_runs
from deepinsight.dashboard.shell.ids import query_id
from deepinsight.errors import DeepInsightError
from deepinsight.figures import (
    AXIS_TITLES,
    Against,
    compute_optimizer_info,
    compute_optimizer_totals,
    plot_optimizer,
    tabulate_optimizer_totals,
)


def register(app: Dash, folder: Path) -> None:
    """Wire the page."""
    runs, against = (Optimizer.RUNS, "value"), (Optimizer.AGAINST, "value")
    version = (Optimizer.VERSION, "data")
    register_follow_runs(app, folder, Optimizer)
    app.callback(
        Output(query_id("optimizer"), "data"),
        Input(*runs),
        Input(*against),
        prevent_initial_call=True,
    )(write_query)
    register_figure(app, folder, Optimizer.FIGURE, draw_optimizer, [runs, against, version])
    app.callback(Output(Optimizer.TABLE, "children"), Input(*runs), Input(*version))(
        partial(draw_table, folder)
    )


def write_query(chosen: list[str] | None, against: str) -> str:
    """The page's address."""
    return make_query(
        {"run": list(chosen or ()), "against": None if against == "step" else against}
    )


def draw_optimizer(
    folder: Path, chosen: list[str] | None, against: Against, _version: str | None
) -> go.Figure:
    """A panel for each quantity."""
    with opened_all(folder, chosen) as runs:
        axis = against if against in AXIS_TITLES else "step"
        return plot_optimizer(compute_optimizer_info(runs, against=axis))


def draw_table(folder: Path, chosen: list[str] | None, _version: str | None) -> Component | None:
    """What it came to per worker; the figure below says what is wrong if it cannot be had."""
    try:
        with opened_all(folder, chosen) as runs:
            return table(tabulate_optimizer_totals(compute_optimizer_totals(runs)))
    except (DeepInsightError, OSError):
        return None
