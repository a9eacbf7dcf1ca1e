"""From the selectors of the weights page to its figures."""

from functools import partial
from pathlib import Path
from typing import Any, Literal

import plotly.graph_objects as go
from dash import Dash, Input, Output, State, no_update

from deepinsight.dashboard.address import make_query
from deepinsight.dashboard.follow import register_figure, register_follow
from deepinsight.dashboard.pages.weights.ids import Weights
from deepinsight.dashboard.pages.weights.layout import position_of, readout, slider_properties
from deepinsight.dashboard.pages.weights.snapshots import variables_and_steps
from deepinsight.dashboard.runs import opened
from deepinsight.dashboard.shell.ids import query_id
from deepinsight.figures import (
    compute_gradient_norms_info,
    compute_group_energy_info,
    compute_weight_distribution_info,
    compute_weight_heatmap_info,
    plot_gradient_norms,
    plot_group_energy,
    plot_weight_distribution,
    plot_weight_heatmap,
)


def register(app: Dash, folder: Path) -> None:
    """Wire the page."""
    register_follow(app, folder, Weights)
    run, variable = (Weights.RUN, "value"), (Weights.VARIABLE, "value")
    version = (Weights.VERSION, "data")
    app.callback(
        Output(Weights.VARIABLE, "options"),
        Output(Weights.VARIABLE, "value"),
        Input(*run),
        Input(*version),
        State(Weights.VARIABLE, "options"),
        State(*variable),
        prevent_initial_call=True,
    )(partial(choose_variable, folder))
    app.callback(
        Output(Weights.SLIDER, "max"),
        Output(Weights.SLIDER, "marks"),
        Output(Weights.SLIDER, "value"),
        Output(Weights.SLIDER, "disabled"),
        Input(*run),
        Input(*variable),
        Input(*version),
        State(Weights.SNAPSHOT, "data"),
        prevent_initial_call=True,
    )(partial(move_slider, folder))
    app.callback(
        Output(Weights.SNAPSHOT, "data"),
        Output(Weights.READOUT, "children"),
        Input(*run),
        Input(*variable),
        Input(Weights.SLIDER, "value"),
        Input(Weights.SLIDER, "max"),
        State(Weights.SLIDER, "disabled"),
        State(Weights.SNAPSHOT, "data"),
    )(partial(choose_snapshot, folder))
    app.callback(
        Output(query_id("weights"), "data"),
        Input(Weights.SNAPSHOT, "data"),
        Input(Weights.COLOURS, "value"),
        prevent_initial_call=True,
    )(write_query)
    colours, snapshot = (Weights.COLOURS, "value"), (Weights.SNAPSHOT, "data")
    statistic = (Weights.STATISTIC, "value")
    register_figure(app, folder, Weights.HEATMAP, draw_heatmap, [snapshot, colours])
    register_figure(app, folder, Weights.GROUPS, draw_groups, [run, variable, statistic, version])
    register_figure(app, folder, Weights.DISTRIBUTION, draw_distribution, [run, variable, version])
    register_figure(app, folder, Weights.GRADIENTS, draw_gradients, [run, version])


def choose_variable(
    folder: Path, key: str | None, _version: str | None, options: list[str], variable: str | None
) -> tuple[Any, Any]:
    """Offer the variables of the run; keep the one chosen if the run holds it."""
    offered, chosen, _ = variables_and_steps(folder, key, variable)
    return (
        no_update if offered == options else offered,
        no_update if chosen == variable else chosen,
    )


def move_slider(
    folder: Path,
    key: str | None,
    variable: str | None,
    _version: str | None,
    snapshot: dict[str, Any] | None,
) -> tuple[Any, Any, Any, Any]:
    """Give the slider room for new snapshots; one at the newest goes along, others stay."""
    _, _, steps = variables_and_steps(folder, key, variable)
    known = snapshot or {}
    stays = steps.size and not known.get("newest", True)
    position = position_of(steps, int(known["step"])) if stays else int(steps.size) - 1
    slider = slider_properties(steps, position)
    return slider["max"], slider["marks"], slider["value"], slider["disabled"]


def choose_snapshot(
    folder: Path,
    key: str | None,
    variable: str | None,
    position: int | None,
    last: int | None,
    single: bool | None,
    known: dict[str, Any] | None,
) -> tuple[Any, str]:
    """Turn the slider's position into a step.

    Whether the page follows the newest snapshot is judged by the slider that the user sees: by
    now the run may hold snapshots that the slider does not show yet.
    """
    _, variable, steps = variables_and_steps(folder, key, variable)
    end = int(steps.size) - 1
    newest = bool(single) or position is None or position >= (last or 0)
    place = end if newest else min(max(int(position or 0), 0), end)
    step = int(steps[place]) if steps.size else None
    snapshot = {"run": key, "variable": variable, "step": step, "newest": newest}
    return no_update if snapshot == known else snapshot, readout(steps, place)


def write_query(snapshot: dict[str, Any] | None, colours: str) -> str:
    """The page's address: the step only if the page does not follow the newest."""
    shown = snapshot or {}
    return make_query(
        {
            "run": shown.get("run"),
            "variable": shown.get("variable"),
            "step": None if shown.get("newest", True) else str(shown["step"]),
            "colours": "step" if colours == "step" else None,
        }
    )


def draw_heatmap(
    folder: Path, snapshot: dict[str, Any] | None, colours: Literal["run", "step"]
) -> go.Figure:
    """The picture of one snapshot."""
    shown = snapshot or {}
    with opened(folder, shown.get("run")) as run:
        variable, step = str(shown.get("variable") or ""), shown.get("step")
        chosen = None if step is None else int(step)
        limits: Literal["run", "step"] = "step" if colours == "step" else "run"
        info = compute_weight_heatmap_info(run, variable, step=chosen, colour_range=limits)
    return plot_weight_heatmap(info)


def draw_groups(
    folder: Path, key: str | None, variable: str | None, statistic: str, _version: str | None
) -> go.Figure:
    """Size of each feature group over time."""
    with opened(folder, key) as run:
        which: Literal["rms", "max"] = "max" if statistic == "max" else "rms"
        info = compute_group_energy_info(run, variable or "", statistic=which)
    return plot_group_energy(info)


def draw_distribution(
    folder: Path, key: str | None, variable: str | None, _version: str | None
) -> go.Figure:
    """Percentiles and moments over time."""
    with opened(folder, key) as run:
        info = compute_weight_distribution_info(run, variable or "")
    return plot_weight_distribution(info)


def draw_gradients(folder: Path, key: str | None, _version: str | None) -> go.Figure:
    """Gradient norms and update ratios of all variables."""
    with opened(folder, key) as run:
        info = compute_gradient_norms_info(run)
    return plot_gradient_norms(info)
