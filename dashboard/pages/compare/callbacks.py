"""From the runs selected on the compare page to its figure and table."""

from functools import partial
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from dash import Dash, Input, Output, State, no_update
from dash.development.base_component import Component

from deepinsight.dashboard.address import make_query
from deepinsight.dashboard.follow import register_figure
from deepinsight.dashboard.pages.compare.ids import Compare
from deepinsight.dashboard.pages.compare.layout import table
from deepinsight.dashboard.pages.compare.selection import common_streams, preferred_stream
from deepinsight.dashboard.several import opened_all, register_follow_runs
from deepinsight.dashboard.shell.ids import query_id
from deepinsight.errors import DeepInsightError
from deepinsight.figures import AXIS_TITLES, Against, compute_comparison_info, plot_comparison


def register(app: Dash, folder: Path) -> None:
    """Wire the page."""
    runs, stream = (Compare.RUNS, "value"), (Compare.STREAM, "value")
    against, version = (Compare.AGAINST, "value"), (Compare.VERSION, "data")
    register_follow_runs(app, folder, Compare)
    app.callback(
        Output(Compare.STREAM, "options"),
        Output(Compare.STREAM, "value"),
        Input(*runs),
        Input(*version),
        State(Compare.STREAM, "options"),
        State(*stream),
        prevent_initial_call=True,
    )(partial(choose_stream, folder))
    app.callback(
        Output(query_id("compare"), "data"),
        Input(*runs),
        Input(*stream),
        Input(*against),
        prevent_initial_call=True,
    )(write_query)
    inputs = [runs, stream, against, version]
    register_figure(app, folder, Compare.FIGURE, draw_comparison, inputs)
    app.callback(Output(Compare.TABLE, "children"), [Input(*pair) for pair in inputs])(
        partial(draw_table, folder)
    )


def choose_stream(
    folder: Path,
    chosen: list[str] | None,
    _version: str | None,
    options: list[str],
    stream: str | None,
) -> tuple[Any, Any]:
    """Offer what the runs record; keep the quantity chosen if one of them records it."""
    offered = common_streams(folder, chosen)
    wanted = preferred_stream(offered, stream)
    return (
        no_update if offered == options else offered,
        no_update if wanted == stream else wanted,
    )


def write_query(chosen: list[str] | None, stream: str | None, against: str) -> str:
    """The page's address."""
    return make_query(
        {
            "run": list(chosen or ()),
            "stream": stream,
            "against": None if against == "step" else against,
        }
    )


def draw_comparison(
    folder: Path,
    chosen: list[str] | None,
    stream: str | None,
    against: Against,
    _version: str | None,
) -> go.Figure:
    """All the lines."""
    with opened_all(folder, chosen) as runs:
        axis = against if against in AXIS_TITLES else "step"
        return plot_comparison(compute_comparison_info(runs, stream or "", against=axis))


def draw_table(
    folder: Path,
    chosen: list[str] | None,
    stream: str | None,
    against: Against,
    _version: str | None,
) -> Component | None:
    """The numbers below the figure."""
    try:
        with opened_all(folder, chosen) as runs:
            axis = against if against in AXIS_TITLES else "step"
            return table(compute_comparison_info(runs, stream or "", against=axis))
    except (DeepInsightError, OSError):
        return None
