"""Small pieces of layout that several pages are made of."""

import math
import time
from collections.abc import Sequence

from dash import dcc, html
from dash.development.base_component import Component

from deepinsight.figures import GRAPH_CONFIG

#: How often a page asks whether its run has changed.
TICK_MS = 2000

#: What stands where nothing is recorded.
MISSING = "\N{EN DASH}"

_STATUS_HELP = {
    "live": "At least one process is writing.",
    "finished": "Every process has closed its trace.",
    "crashed": "A process ended without closing its trace; what it had written is shown.",
    "empty": "No process has written yet.",
}


def heading(title: str, text: str) -> Component:
    """A page's title and one sentence on what it answers."""
    return html.Div([html.H1(title), html.P(text, className="lead")], className="heading")


def field(label: str, control: Component, *, wide: bool = False) -> Component:
    """A labelled control."""
    return html.Div(
        [html.Label(label, htmlFor=str(control.id)), control],
        className="field wide" if wide else "field",
    )


def selector(
    component_id: str, options: Sequence[str], value: object, placeholder: str, multi: bool = False
) -> Component:
    """A searchable list."""
    return dcc.Dropdown(
        id=component_id,
        options=list(options),
        value=value,
        multi=multi,
        clearable=False,
        placeholder=placeholder,
        maxHeight=320,
    )


def choice(component_id: str, options: dict[str, str], value: str) -> Component:
    """A few alternatives side by side."""
    return dcc.RadioItems(
        id=component_id,
        options=[{"label": label, "value": key} for key, label in options.items()],
        value=value,
        inline=True,
        className="choice",
    )


def revision_id(graph: str) -> str:
    """The store that holds the revision of the figure that a graph shows."""
    return f"{graph}-revision"


def figure_card(component_id: str, height: int = 380, tools: Component | None = None) -> Component:
    """A card with one figure; its height is reserved, so that nothing jumps."""
    graph = dcc.Graph(
        id=component_id,
        config=GRAPH_CONFIG,
        figure={"data": [], "layout": _BLANK},
        style={"height": f"{height}px"},
        responsive=True,
    )
    parts = [graph, dcc.Store(id=revision_id(component_id))]
    if tools is not None:
        parts.insert(0, html.Div(tools, className="tools"))
    return html.Section(parts, className="card")


def badge(status: str) -> Component:
    """A run's or a process' status."""
    return html.Span(
        status, className=f"badge {status}", title=_STATUS_HELP.get(status, "Unknown status.")
    )


def message(text: str, kind: str = "note") -> Component:
    """A sentence in a box: ``note``, ``warning`` or ``error``."""
    return html.Div(text, className=f"message {kind}", role="status")


def number(value: float, digits: int = 4) -> str:
    """A number for a table; NaN and infinity are said, a missing one is a dash by the caller."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "infinite" if value > 0 else "-infinite"
    if value and abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def duration(seconds: float) -> str:
    """A length of time in the two largest units that apply.

    Example:
        >>> duration(3725)
        '1 h 2 min'
    """
    if not math.isfinite(seconds):
        return MISSING
    whole = round(max(seconds, 0))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def moment(unix_s: float) -> str:
    """A moment in local time, to the minute."""
    if not math.isfinite(unix_s):
        return MISSING
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_s))


_BLANK = {
    "xaxis": {"visible": False},
    "yaxis": {"visible": False},
    "paper_bgcolor": "#ffffff",
    "plot_bgcolor": "#ffffff",
}
