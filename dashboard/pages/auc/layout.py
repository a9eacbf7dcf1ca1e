"""AUC: the live AUC of the training predictions beside the AUC on held-out data."""

import math
from pathlib import Path

from dash import dcc, html
from dash.development.base_component import Component

from deepinsight.dashboard.address import first, make_query
from deepinsight.dashboard.follow import run_bar
from deepinsight.dashboard.pages.auc.ids import Auc
from deepinsight.dashboard.parts import MISSING, figure_card, heading
from deepinsight.dashboard.shell.ids import query_id
from deepinsight.figures import AucHistoryInfo


def build(folder: Path, query: dict[str, list[str]]) -> Component:
    """The page."""
    return html.Div(
        [
            heading(
                "AUC",
                "Decayed and windowed AUC tell what the model does now, cumulative AUC what it "
                "has done on the whole.",
            ),
            *run_bar(folder, Auc, first(query, "run")),
            html.Div(id=Auc.TILES, className="tiles"),
            figure_card(Auc.HISTORY, 480),
            html.Div([figure_card(Auc.TRAIN_LOSS), figure_card(Auc.EVAL_LOSS)], className="pair"),
            dcc.Store(id=query_id("auc"), data=make_query(query)),
        ]
    )


def tiles(info: AucHistoryInfo) -> list[Component]:
    """The newest value of each line."""
    return [
        html.Div([html.Span(line.name), html.Strong(_four_places(line.last))], className="tile")
        for line in info.series
    ]


def _four_places(value: float) -> str:
    return MISSING if math.isnan(value) else f"{value:.4f}"
