"""From the run selected on the AUC page to its figures."""

from functools import partial
from pathlib import Path

import plotly.graph_objects as go
from dash import Dash, Input, Output
from dash.development.base_component import Component

from deepinsight.dashboard.address import make_query
from deepinsight.dashboard.follow import register_figure, register_follow
from deepinsight.dashboard.pages.auc.ids import Auc
from deepinsight.dashboard.pages.auc.layout import tiles
from deepinsight.dashboard.runs import opened
from deepinsight.dashboard.shell.ids import query_id
from deepinsight.errors import DeepInsightError
from deepinsight.figures import (
    compute_auc_history_info,
    compute_comparison_info,
    plot_auc_history,
    plot_comparison,
)


def register(app: Dash, folder: Path) -> None:
    """Wire the page."""
    register_follow(app, folder, Auc)
    app.callback(
        Output(query_id("auc"), "data"), Input(Auc.RUN, "value"), prevent_initial_call=True
    )(write_query)
    inputs = [(Auc.RUN, "value"), (Auc.VERSION, "data")]
    app.callback(Output(Auc.TILES, "children"), [Input(*pair) for pair in inputs])(
        partial(draw_tiles, folder)
    )
    register_figure(app, folder, Auc.HISTORY, draw_history, inputs)
    register_figure(app, folder, Auc.TRAIN_LOSS, draw_train_loss, inputs)
    register_figure(app, folder, Auc.EVAL_LOSS, draw_eval_loss, inputs)


def write_query(key: str | None) -> str:
    """The page's address."""
    return make_query({"run": key})


def draw_tiles(folder: Path, key: str | None, _version: str | None) -> list[Component]:
    """The newest values; the figure below says what is wrong if they cannot be had."""
    try:
        with opened(folder, key) as run:
            return tiles(compute_auc_history_info(run))
    except (DeepInsightError, OSError):
        return []


def draw_history(folder: Path, key: str | None, _version: str | None) -> go.Figure:
    """Every kind of AUC against the step."""
    with opened(folder, key) as run:
        info = compute_auc_history_info(run)
    return plot_auc_history(info)


def draw_train_loss(folder: Path, key: str | None, _version: str | None) -> go.Figure:
    """Loss on the training part."""
    with opened(folder, key) as run:
        info = compute_comparison_info({run.name: run}, "train/loss")
    return plot_comparison(info)


def draw_eval_loss(folder: Path, key: str | None, _version: str | None) -> go.Figure:
    """Loss on held-out data."""
    with opened(folder, key) as run:
        info = compute_comparison_info({run.name: run}, "eval/loss")
    return plot_comparison(info)
