"""Where the small panels of one figure stand: two columns under headings, sized in pixels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from deepinsight.figures._theme import INK, LINE, MUTED, escape

COLUMNS = 2

_GUTTER = 0.11  # between the columns, of the width: room for the right one's numbers and unit
_TOP, _BOTTOM = 70, 20
_HEADING = 40
_PLOT = 150
_BELOW = 58  # numbers and title of the horizontal axis
_LINE = 15


@dataclass(frozen=True)
class Place:
    """One panel.

    Attributes:
        x: Where it begins and ends, in [0, 1] of the figure's width.
        top: Pixels from the figure's top to the plot.
        bottom: Pixels from the figure's top to the plot's end.
    """

    x: tuple[float, float]
    top: int
    bottom: int


@dataclass(frozen=True)
class Grid:
    """Where everything stands.

    Attributes:
        headings: Pixels from the figure's top to the base line of each heading.
        places: One per panel, in order.
        top: Pixels from the figure's top to where the panels begin.
        height: Of the figure, pixels.
    """

    headings: tuple[int, ...]
    places: tuple[Place, ...]
    top: int
    height: int

    @property
    def margins(self) -> dict[str, int]:
        """The figure's margins above and below all panels."""
        return {"t": self.top, "b": _BOTTOM}

    def share(self, pixels: int) -> float:
        """A height in pixels from the top as plotly counts it: 1 on top, 0 at the bottom."""
        return 1 - (pixels - self.top) / (self.height - self.top - _BOTTOM)


def make_grid(groups: Sequence[Sequence[int]], above: int = 0) -> Grid:
    """Place the panels of each group below its heading, two in a row.

    Args:
        groups: For each heading, the number of text lines above each of its panels.
        above: Pixels to leave between the figure's title and the first heading.
    """
    width = (1 - _GUTTER * (COLUMNS - 1)) / COLUMNS
    begin = at = _TOP + above
    headings, places = [], []
    for lines in groups:
        headings.append(at + _HEADING - 14)
        at += _HEADING
        for first in range(0, len(lines), COLUMNS):
            row = lines[first : first + COLUMNS]
            top = at + _LINE * max(row) + 8
            for column in range(len(row)):
                left = column * (width + _GUTTER)
                places.append(Place((left, left + width), top, top + _PLOT))
            at = top + _PLOT + _BELOW
    return Grid(tuple(headings), tuple(places), begin, at + _BOTTOM)


def add_heading(figure: go.Figure, grid: Grid, number: int, text: str) -> None:
    """Write a heading above a thin line across the figure."""
    y = grid.share(grid.headings[number])
    figure.add_annotation(
        **_corner(0.0, y), text=f"<b>{escape(text)}</b>", font={"size": 14, "color": INK}
    )
    figure.add_shape(
        type="line", xref="paper", yref="paper", x0=0, x1=1, y0=y, y1=y,
        line={"color": LINE, "width": 1},
    )  # fmt: skip


def add_panel(
    figure: go.Figure, grid: Grid, number: int, lines: Sequence[str], hover: str
) -> tuple[str, str]:
    """Add the axes of a panel and the lines of text above it.

    Args:
        figure: The figure.
        grid: Where the panels stand.
        number: Which of them.
        lines: The panel's title and what is said below it, as plotly's markup.
        hover: What the text says in full, plain.

    Returns:
        The names of its axes, as a trace refers to them.
    """
    place, ending = grid.places[number], str(number + 1) if number else ""
    top, bottom = grid.share(place.top), grid.share(place.bottom)
    figure.add_annotation(
        **_corner(place.x[0], top),
        yshift=4,
        text="<br>".join(lines),
        font={"size": 11, "color": MUTED},
        hovertext=escape(hover),
    )
    figure.layout[f"xaxis{ending}"] = {"domain": place.x, "anchor": f"y{ending}"}
    figure.layout[f"yaxis{ending}"] = {"domain": (bottom, top), "anchor": f"x{ending}"}
    if number:
        figure.layout[f"xaxis{ending}"]["matches"] = "x"
    return f"x{ending}", f"y{ending}"


def _corner(x: float, y: float) -> dict[str, Any]:
    return {
        "x": x, "y": y, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom",
        "align": "left", "showarrow": False,
    }  # fmt: skip
