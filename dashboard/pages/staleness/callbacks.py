"""From the run selected on the staleness page to its figures."""

from pathlib import Path

import plotly.graph_objects as go
from dash import Dash, Input, Output

from deepinsight.dashboard.address import make_query
from deepinsight.dashboard.follow import register_figure, register_follow
from deepinsight.dashboard.pages.staleness.ids import Staleness
from deepinsight.dashboard.runs import opened
from deepinsight.dashboard.shell.ids import query_id
from deepinsight.figures import (
    compute_staleness_distribution_info,
    compute_staleness_timeline_info,
    compute_staleness_variables_info,
    compute_throughput_info,
    plot_staleness_distribution,
    plot_staleness_timeline,
    plot_staleness_variables,
    plot_throughput,
)


def register(app: Dash, folder: Path) -> None:
    """Wire the page."""
    register_follow(app, folder, Staleness)
    app.callback(
        Output(query_id("staleness"), "data"),
        Input(Staleness.RUN, "value"),
        prevent_initial_call=True,
    )(write_query)
    inputs = [(Staleness.RUN, "value"), (Staleness.VERSION, "data")]
    register_figure(app, folder, Staleness.DISTRIBUTION, draw_distribution, inputs)
    register_figure(app, folder, Staleness.TIMELINE, draw_timeline, inputs)
    register_figure(app, folder, Staleness.VARIABLES, draw_variables, inputs)
    register_figure(app, folder, Staleness.THROUGHPUT, draw_throughput, inputs)


def write_query(key: str | None) -> str:
    """The page's address."""
    return make_query({"run": key})


def draw_distribution(folder: Path, key: str | None, _version: str | None) -> go.Figure:
    """Histogram per worker."""
    with opened(folder, key) as run:
        info = compute_staleness_distribution_info(run)
    return plot_staleness_distribution(info)


def draw_timeline(folder: Path, key: str | None, _version: str | None) -> go.Figure:
    """Mean and range per worker over time."""
    with opened(folder, key) as run:
        info = compute_staleness_timeline_info(run)
    return plot_staleness_timeline(info)


def draw_variables(folder: Path, key: str | None, _version: str | None) -> go.Figure:
    """Mean per variable."""
    with opened(folder, key) as run:
        info = compute_staleness_variables_info(run)
    return plot_staleness_variables(info)


def draw_throughput(folder: Path, key: str | None, _version: str | None) -> go.Figure:
    """Step time per worker."""
    with opened(folder, key) as run:
        info = compute_throughput_info(run)
    return plot_throughput(info)
