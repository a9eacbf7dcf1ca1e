"""Compare: two runs or more against step, samples or seconds."""

from pathlib import Path

from dash import dcc, html
from dash.development.base_component import Component

from deepinsight.dashboard.address import first, make_query
from deepinsight.dashboard.pages.compare.ids import Compare
from deepinsight.dashboard.pages.compare.selection import common_streams, preferred_stream
from deepinsight.dashboard.parts import (
    TICK_MS,
    choice,
    field,
    figure_card,
    heading,
    message,
    number,
    selector,
)
from deepinsight.dashboard.runs import run_keys
from deepinsight.dashboard.shell.ids import query_id
from deepinsight.figures import ComparisonInfo

AGAINST = {"step": "steps", "samples": "samples", "seconds": "seconds"}


def build(folder: Path, query: dict[str, list[str]]) -> Component:
    """The page."""
    keys = run_keys(folder)
    chosen = [key for key in query.get("run", ()) if key in keys] or keys[:2]
    unknown = [key for key in query.get("run", ()) if key not in keys]
    streams = common_streams(folder, chosen)
    stream = preferred_stream(streams, first(query, "stream"))
    against = first(query, "against", "step")
    return html.Div(
        [
            heading("Compare", "Which run is better: per step, per sample, or per second?"),
            html.Div(
                [
                    field(
                        "Runs",
                        selector(Compare.RUNS, keys, chosen, "Choose runs", multi=True),
                        wide=True,
                    ),
                    field(
                        "Quantity",
                        selector(Compare.STREAM, streams, stream, "None recorded"),
                        wide=True,
                    ),
                    field(
                        "Against",
                        choice(Compare.AGAINST, AGAINST, against if against in AGAINST else "step"),
                    ),
                ],
                className="controls",
            ),
            html.Div(banner(unknown, keys), id=Compare.BANNER, className="banner"),
            figure_card(Compare.FIGURE, 520),
            html.Div(id=Compare.TABLE),
            dcc.Store(id=Compare.VERSION),
            dcc.Interval(id=Compare.TICK, interval=TICK_MS),
            dcc.Store(id=query_id("compare"), data=make_query(query)),
        ]
    )


def banner(unknown: list[str], keys: list[str]) -> list[Component]:
    """What keeps a run that was asked for from being shown."""
    if not keys:
        return [message("There are no runs in this folder yet.")]
    return [message(f"There is no run named {key!r} in this folder.", "error") for key in unknown]


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
