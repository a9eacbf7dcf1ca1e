"""Weights: where the large ones are, which feature group grows, how gradients move them."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from dash import dcc, html
from dash.development.base_component import Component

from deepinsight.dashboard.address import first, make_query
from deepinsight.dashboard.follow import run_bar
from deepinsight.dashboard.pages.weights.ids import Weights
from deepinsight.dashboard.pages.weights.snapshots import variables_and_steps
from deepinsight.dashboard.parts import choice, field, figure_card, heading, selector
from deepinsight.dashboard.shell.ids import query_id

_MARKS = 6


def build(folder: Path, query: dict[str, list[str]]) -> Component:
    """The page."""
    key = first(query, "run")
    variables, variable, steps = variables_and_steps(folder, key, first(query, "variable"))
    asked = first(query, "step", "") or ""
    position = steps.size - 1
    if asked.isdecimal() and steps.size:
        position = position_of(steps, int(asked))
    colours = first(query, "colours", "run")
    return html.Div(
        [
            heading("Weights", "Where the large weights are, and which feature group grows."),
            *run_bar(
                folder,
                Weights,
                key,
                field(
                    "Variable",
                    selector(Weights.VARIABLE, variables, variable, "None recorded"),
                    wide=True,
                ),
                field(
                    "Colours compare",
                    choice(
                        Weights.COLOURS,
                        {"run": "all snapshots", "step": "this one only"},
                        "step" if colours == "step" else "run",
                    ),
                ),
            ),
            _snapshot_bar(steps, position),
            figure_card(Weights.HEATMAP, 640),
            figure_card(Weights.GROUPS, 380, _statistic_choice()),
            html.Div(
                [figure_card(Weights.DISTRIBUTION, 380), figure_card(Weights.GRADIENTS, 620)],
                className="stack",
            ),
            dcc.Store(id=Weights.SNAPSHOT),
            dcc.Store(id=query_id("weights"), data=make_query(query)),
        ]
    )


def _statistic_choice() -> Component:
    return choice(Weights.STATISTIC, {"rms": "root mean square", "max": "largest |w|"}, "rms")


def _snapshot_bar(steps: npt.NDArray[np.int64], position: int) -> Component:
    slider = dcc.Slider(
        id=Weights.SLIDER,
        **slider_properties(steps, position),
        min=0,
        step=1,
        included=False,
        allow_direct_input=False,
        updatemode="mouseup",
    )
    return html.Div(
        [
            html.Div(
                [
                    html.Label("Snapshot", htmlFor=Weights.SLIDER),
                    html.Output(id=Weights.READOUT, className="readout"),
                ],
                className="slider-head",
            ),
            slider,
        ],
        className="slider-bar",
    )


def slider_properties(steps: npt.NDArray[np.int64], position: int) -> dict[str, Any]:
    """``max``, ``marks``, ``value`` and ``disabled`` of a slider over snapshots.

    The slider counts snapshots, since they need not be evenly spaced; its marks say their steps.
    """
    last = max(int(steps.size) - 1, 0)
    marks = steps.size if steps.size <= 2 * _MARKS else _MARKS
    picks = np.unique(np.linspace(0, last, marks).astype(int))[: steps.size]
    return {
        "max": max(last, 1),
        "marks": {str(int(i)): f"{int(steps[i]):,}" for i in picks} or None,
        "value": min(max(position, 0), last),
        "disabled": steps.size < 2,
    }


def position_of(steps: npt.NDArray[np.int64], step: int) -> int:
    """Position of the newest snapshot at or before a step; the first if there is none."""
    return max(int(np.searchsorted(steps, step, side="right")) - 1, 0)


def readout(steps: npt.NDArray[np.int64], position: int) -> str:
    """What the slider points at."""
    if not steps.size:
        return "none yet"
    text = f"step {int(steps[position]):,} · {position + 1} of {steps.size}"
    return text + (" · follows the newest" if position == steps.size - 1 else "")
