"""Optimizer: what the synchronization and the update rule recorded of themselves."""

from pathlib import Path

from dash import dcc, html
from dash.development.base_component import Component

from deepinsight.dashboard.address import first, make_query
from deepinsight.dashboard.pages.optimizer.ids import Optimizer
from deepinsight.dashboard.parts import choice, field, figure_card, heading
from deepinsight.dashboard.several import AGAINST, chosen_runs, runs_bar
from deepinsight.dashboard.shell.ids import query_id
from deepinsight.figures import Table


def build(folder: Path, query: dict[str, list[str]]) -> Component:
    """The page."""
    against = first(query, "against", "step")
    axis = choice(Optimizer.AGAINST, AGAINST, against if against in AGAINST else "step")
    return html.Div(
        [
            heading(
                "Optimizer",
                "What happens where gradients meet, and what the update rule makes of them. "
                "Choose several runs to compare them.",
            ),
            *runs_bar(
                folder, Optimizer, query, chosen_runs(folder, query, 1), field("Against", axis)
            ),
            html.Div(id=Optimizer.TABLE),
            figure_card(Optimizer.FIGURE, 520),
            dcc.Store(id=query_id("optimizer"), data=make_query(query)),
        ]
    )


def table(totals: Table | None) -> Component | None:
    """The totals of each worker."""
    if totals is None:
        return None
    head = html.Tr(
        [
            html.Th(text, scope="col", className="num" if number > 1 else "")
            for number, text in enumerate(totals.heads)
        ]
    )
    rows = [
        html.Tr(
            [
                html.Th(row[0], scope="row"),
                html.Td(row[1]),
                *(html.Td(text, className="num") for text in row[2:]),
            ]
        )
        for row in totals.rows
    ]
    parts = [html.Caption(totals.caption), html.Thead(head), html.Tbody(rows)]
    return html.Div(html.Table(parts), className="card scroll")
