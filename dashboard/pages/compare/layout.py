"""Compare: two runs or more against step, samples or seconds."""

from pathlib import Path

from dash import dcc, html
from dash.development.base_component import Component

from deepinsight.dashboard.address import first, make_query
from deepinsight.dashboard.pages.compare.ids import Compare
from deepinsight.dashboard.pages.compare.selection import common_streams, preferred_stream
from deepinsight.dashboard.parts import (
    choice,
    field,
    figure_card,
    heading,
    number,
    selector,
)
from deepinsight.dashboard.several import AGAINST, chosen_runs, runs_bar
from deepinsight.dashboard.shell.ids import query_id
from deepinsight.figures import ComparisonInfo


def build(folder: Path, query: dict[str, list[str]]) -> Component:
    """The page."""
    chosen = chosen_runs(folder, query, 2)
    streams = common_streams(folder, chosen)
    stream = preferred_stream(streams, first(query, "stream"))
    against = first(query, "against", "step")
    quantities = selector(Compare.STREAM, streams, stream, "None recorded")
    axis = choice(Compare.AGAINST, AGAINST, against if against in AGAINST else "step")
    return html.Div(
        [
            heading("Compare", "Which run is better: per step, per sample, or per second?"),
            *runs_bar(
                folder,
                Compare,
                query,
                chosen,
                field("Quantity", quantities, wide=True),
                field("Against", axis),
            ),
            figure_card(Compare.FIGURE, 520),
            html.Div(id=Compare.TABLE),
            dcc.Store(id=query_id("compare"), data=make_query(query)),
        ]
    )


def table(info: ComparisonInfo) -> Component | None:
    """Newest, smallest and largest value of each line."""
    if not info.series:
        return None
    heads = ("Line", "Rows", "Newest", "Smallest", "Largest")
    head = html.Tr([html.Th(h, scope="col", className="num" if h != "Line" else "") for h in heads])
    rows = [
        html.Tr(
            [
                html.Th(line.name, scope="row"),
                html.Td(f"{line.rows:,}", className="num"),
                *(html.Td(number(value, 5), className="num") for value in (line.last, low, high)),
            ]
        )
        for line, low, high in zip(info.series, info.smallest, info.largest, strict=True)
    ]
    unit = {"": "", "1": " (dimensionless)"}.get(info.unit, f" ({info.unit})")
    caption = html.Caption(f"{info.stream}{unit}")
    return html.Div(
        html.Table([caption, html.Thead(head), html.Tbody(rows)]), className="card scroll"
    )
