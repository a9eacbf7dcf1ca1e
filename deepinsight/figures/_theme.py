"""The look that every figure shares, and the figure that says why it is empty."""

import html
from typing import Any

import plotly.graph_objects as go

FONT_FAMILY = (
    'Inter, "Segoe UI", system-ui, -apple-system, "Helvetica Neue", "Liberation Sans", Arial, '
    "sans-serif"
)
TIMES = "\N{MULTIPLICATION SIGN}"
INK = "#1c2733"
MUTED = "#5d6b7a"
GRID = "#e9edf2"
LINE = "#c5cdd8"

#: Categorical colours, readable on white and distinguishable without red against green.
COLOURS = (
    "#2b6cb0",
    "#dd7a24",
    "#2f8f83",
    "#b83280",
    "#6b4fbb",
    "#8a7020",
    "#4299c7",
    "#9c4221",
    "#64748b",
    "#557a1f",
)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")

#: What plotly.js is told beside the figure. The button that uploads a chart stays off.
GRAPH_CONFIG: dict[str, Any] = {
    "displayModeBar": "hover",
    "displaylogo": False,
    "showSendToCloud": False,
    "plotlyServerURL": "",
    "responsive": True,
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
    "toImageButtonOptions": {"format": "png", "scale": 2},
}

_AXIS = {
    "automargin": True,
    "gridcolor": GRID,
    "linecolor": LINE,
    "showline": True,
    "tickcolor": LINE,
    "ticks": "outside",
    "ticklen": 4,
    "title": {"font": {"size": 12, "color": MUTED}, "standoff": 10},
    "zeroline": False,
}

TEMPLATE = go.layout.Template(
    layout={
        "colorway": COLOURS,
        "font": {"family": FONT_FAMILY, "size": 12, "color": INK},
        "hoverlabel": {
            "bgcolor": "#ffffff",
            "bordercolor": LINE,
            "font": {"family": FONT_FAMILY, "size": 12, "color": INK},
        },
        "legend": {"font": {"size": 12}, "tracegroupgap": 4, "itemsizing": "constant"},
        "margin": {"l": 64, "r": 24, "t": 76, "b": 56},
        "modebar": {
            "bgcolor": "rgba(255,255,255,0)",
            "color": "#a6b1be",
            "activecolor": INK,
            "orientation": "h",
        },
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "title": {
            "x": 0,
            "xref": "container",
            "xanchor": "left",
            "pad": {"l": 16},
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "font": {"size": 15, "color": INK},
            "subtitle": {"font": {"size": 12, "color": MUTED}},
        },
        "xaxis": _AXIS,
        "yaxis": _AXIS,
    }
)


def escape(text: object) -> str:
    """Make untrusted text literal in plotly's labels, which read a small HTML dialect."""
    return html.escape(str(text), quote=False)


def short(text: str, length: int = 34) -> str:
    """Shorten a name for a legend; the middle goes, since both ends tell names apart.

    Example:
        >>> short("a-rather-long-run-name", 12)
        'a-rath…-name'
    """
    if len(text) <= length:
        return text
    tail = (length - 1) // 2
    return f"{text[: length - 1 - tail]}…{text[len(text) - tail :]}"


def unit_words(unit: str) -> str:
    """A recorded unit as an axis says it: ``"1"`` is a pure number, ``""`` was not stated."""
    return {"1": "dimensionless", "": "no unit recorded"}.get(unit, unit)


def colour(index: int) -> str:
    """The categorical colour number ``index``; colours repeat after the last."""
    return COLOURS[index % len(COLOURS)]


def translucent(hex_colour: str, opacity: float) -> str:
    """``#rrggbb`` with an opacity in [0, 1], as plotly writes it."""
    red, green, blue = (int(hex_colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"


def dash(index: int) -> str:
    """The line dash number ``index``; dashes repeat after the last."""
    return DASHES[index % len(DASHES)]


def new_figure(
    title: str,
    *,
    subtitle: str = "",
    x_title: str = "",
    y_title: str = "",
    height: int = 380,
    revision: str = "",
) -> go.Figure:
    """An empty canvas in the house style.

    Args:
        title: What the figure shows; plain text, escaped here.
        subtitle: One quieter line below it; plain text, escaped here.
        x_title: Quantity and unit of the horizontal axis.
        y_title: Quantity and unit of the vertical axis.
        height: In CSS pixels; the width follows the page.
        revision: The user's zoom survives a new figure with the same revision.
    """
    figure = go.Figure()
    figure.update_layout(
        template=TEMPLATE,
        height=height,
        uirevision=revision or title,
        title_text=escape(title),
        title_pad_t=14,
        xaxis_title_text=escape(x_title),
        yaxis_title_text=escape(y_title),
    )
    if subtitle:
        figure.update_layout(title_subtitle_text=escape(subtitle))
    else:
        figure.update_layout(margin_t=56)
    return figure


def empty_figure(title: str, reason: str, *, height: int = 210) -> go.Figure:
    """A figure without data that says why, and what to do about it.

    Args:
        title: The title that the figure would have had.
        reason: Sentences in plain text; wrapped here.
        height: In CSS pixels.
    """
    figure = new_figure(title, height=height)
    figure.update_layout(
        xaxis_visible=False,
        yaxis_visible=False,
        dragmode=False,
        meta={"empty": True},
        modebar_remove=["toImage", "zoom", "pan", "zoomIn", "zoomOut", "resetScale"],
    )
    figure.add_annotation(
        text="<br>".join(escape(line) for line in wrap(reason, 84)),
        showarrow=False,
        x=0.5,
        y=0.55,
        xref="paper",
        yref="paper",
        font={"size": 13, "color": MUTED},
        align="center",
    )
    return figure


def is_empty_figure(figure: go.Figure) -> bool:
    """Whether :func:`empty_figure` made this figure."""
    meta = figure.layout.meta
    return isinstance(meta, dict) and bool(meta.get("empty"))


def wrap(text: str, width: int) -> list[str]:
    """Break a text into lines of at most ``width`` characters, between words."""
    lines: list[str] = [""]
    for word in text.split():
        candidate = f"{lines[-1]} {word}".strip()
        if len(candidate) <= width or not lines[-1]:
            lines[-1] = candidate
        else:
            lines.append(word)
    return lines
