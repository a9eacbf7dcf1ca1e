"""From the runs selected on the compare page to its figure and table."""

from functools import partial
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from dash import Dash, Input, Output, State, no_update
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from deepinsight.dashboard.address import make_query
from deepinsight.dashboard.follow import register_figure, version_or_reason
from deepinsight.dashboard.pages.compare.ids import Compare
from deepinsight.dashboard.pages.compare.layout import banner, table
from deepinsight.dashboard.pages.compare.selection import (
    common_streams,
    opened_all,
    preferred_stream,
)
from deepinsight.dashboard.runs import run_keys
from deepinsight.dashboard.shell.ids import query_id
from deepinsight.errors import DeepInsightError
from deepinsight.figures import AXIS_TITLES, Against, compute_comparison_info, plot_comparison


def register(app: Dash, folder: Path) -> None:
    """Wire the page."""
    runs, stream = (Compare.RUNS, "value"), (Compare.STREAM, "value")
    against, version = (Compare.AGAINST, "value"), (Compare.VERSION, "data")
    app.callback(
        Output(Compare.VERSION, "data"),
        Output(Compare.RUNS, "options"),
        Output(Compare.BANNER, "children"),
        Input(Compare.TICK, "n_intervals"),
        Input(*runs),
        State(*version),
        State(Compare.RUNS, "options"),
        prevent_initial_call=True,
    )(partial(follow_runs, folder))
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


def follow_runs(
    folder: Path,
    _ticks: int | None,
    chosen: list[str] | None,
    version: str | None,
    options: list[str],
) -> tuple[Any, Any, Any]:
    """Say whether one of the runs, or the list of all, has changed."""
    keys = run_keys(folder)
    newest = "|".join(version_or_reason(folder, key) for key in chosen or ())
    if newest == version and keys == options:
        raise PreventUpdate
    unknown = [key for key in chosen or () if key not in keys]
    return (
        no_update if newest == version else newest,
        no_update if keys == options else keys,
        banner(unknown, keys),
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
