"""Staleness: how old the weights were that a gradient was computed on."""

from pathlib import Path

from dash import dcc, html
from dash.development.base_component import Component

from deepinsight.dashboard.address import first, make_query
from deepinsight.dashboard.follow import run_bar
from deepinsight.dashboard.pages.staleness.ids import Staleness
from deepinsight.dashboard.parts import figure_card, heading
from deepinsight.dashboard.shell.ids import query_id


def build(folder: Path, query: dict[str, list[str]]) -> Component:
    """The page."""
    return html.Div(
        [
            heading(
                "Staleness",
                "How many updates others had made between a worker's pull and its push, and how "
                "fast the workers go.",
            ),
            *run_bar(folder, Staleness, first(query, "run")),
            html.Div(
                [figure_card(Staleness.DISTRIBUTION), figure_card(Staleness.TIMELINE)],
                className="pair",
            ),
            figure_card(Staleness.THROUGHPUT),
            figure_card(Staleness.VARIABLES, 260),
            dcc.Store(id=query_id("staleness"), data=make_query(query)),
        ]
    )
