"""Where in a variable the large weights are: block maxima of abs(w) at one step."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from deepinsight.figures._blocks import block_edges, block_maximum
from deepinsight.figures._theme import (
    INK,
    MUTED,
    TIMES,
    empty_figure,
    escape,
    new_figure,
    short,
)
from deepinsight.traces import Run, StreamNotFoundError, group_slices

#: Light for small weights to dark red for large ones; not finite is blue, which is not on it.
COLOUR_SCALE = (
    "#fbf8f1",
    "#fdeccb",
    "#fdd49e",
    "#fdbb84",
    "#fc8d59",
    "#e8603c",
    "#cb2a1d",
    "#990000",
    "#5f0010",
)
NON_FINITE_COLOUR = "#1d4ed8"

#: Drawn colours span at least one decade, so that noise is calm, and at most four.
LEAST_DECADES, MOST_DECADES = 1.0, 4.0

#: A step that no run reaches.
NEWEST = 2**63 - 1

_LEVELS = 254
_HEIGHT = 640
_STRIP_WIDTH = 0.1
_BAND_SHADES = ("#dbe4ee", "#eef2f7")
_SNAPSHOTS_FOR_RANGE = 8
_MOST_RINGS = 100


@dataclass(frozen=True)
class GroupBand:
    """Rows ``start`` to ``stop`` (exclusive) of a variable that belong to one feature group."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class WeightHeatmapInfo:
    """The evidence of one heatmap.

    Attributes:
        run: The run's name.
        variable: The variable's name.
        step: Step of the snapshot; -1 if there is none.
        values: Largest abs(w) of each block, ``[rows, columns]`` float32; NaN and infinity stay.
        block_shape: Rows and columns of the variable that one value stands for.
        full_shape: The variable's own rows and columns.
        groups: Feature groups along axis 0, in the order of their rows.
        colour_limits: Smallest and largest abs(w) that the colour scale tells apart, both > 0.
        non_finite: Blocks that hold a NaN or an infinity.
        reason: Why there is nothing to show; empty if there is.
    """

    run: str
    variable: str
    step: int = -1
    values: npt.NDArray[np.float32] | None = None
    block_shape: tuple[int, int] = (1, 1)
    full_shape: tuple[int, int] = (0, 0)
    groups: tuple[GroupBand, ...] = ()
    colour_limits: tuple[float, float] = (0.1, 1.0)
    non_finite: int = 0
    reason: str = ""


def heatmap_variables(run: Run) -> tuple[str, ...]:
    """Variables of which a run holds tiles or small matrices, the largest first."""
    sizes: dict[str, int] = {}
    for name in run.stream_names():
        parts = name.split("/")
        if len(parts) > 2 and parts[0] == "weights" and parts[-1] in ("tiles", "raw"):
            variable = "/".join(parts[1:-1])
            shape = run.variables.get(variable, {}).get("shape") or run.stream(name).shape
            if len(run.steps(name)):
                sizes[variable] = max(sizes.get(variable, 0), int(np.prod(shape, dtype=np.int64)))
    return tuple(sorted(sizes, key=lambda name: (-sizes[name], name)))


def heatmap_stream(run: Run, variable: str) -> str:
    """The stream that holds a variable's picture: its tiles, or the small variable itself.

    Raises:
        StreamNotFoundError: If the run has neither.
    """
    names = run.stream_names()
    for ending in ("tiles", "raw"):
        if (stream := f"weights/{variable}/{ending}") in names:
            return stream
    raise StreamNotFoundError(f"weights/{variable}/tiles")


def compute_weight_heatmap_info(
    run: Run,
    variable: str,
    *,
    step: int | None = None,
    colour_range: Literal["run", "step"] = "run",
    max_rows: int = 512,
    max_columns: int = 512,
) -> WeightHeatmapInfo:
    """Read one snapshot of one variable.

    Args:
        run: An open run.
        variable: Name of a variable, such as ``"fc1/kernel"``.
        step: The newest snapshot at or before this step; None is the newest of all.
        colour_range: ``"run"`` keeps the colours comparable between snapshots (limits over up to
            8 of them, evenly spread); ``"step"`` uses this snapshot alone.
        max_rows: Most rows of the picture; more are merged by their maximum.
        max_columns: Most columns of the picture.

    Returns:
        The evidence; with a ``reason`` and no values if there is nothing to show.
    """
    try:
        stream = heatmap_stream(run, variable)
        snapshot = run.row(stream, NEWEST if step is None else step)
    except StreamNotFoundError:
        return WeightHeatmapInfo(run.name, variable, reason=_no_tiles(variable))
    if not len(snapshot.steps):
        until = "" if step is None else f" at or before step {step:,}"
        reason = f"There is no snapshot of {variable}{until} yet."
        return WeightHeatmapInfo(run.name, variable, reason=reason)
    values = _as_matrix(snapshot.values[-1])
    if not values.size:
        return WeightHeatmapInfo(run.name, variable, reason=f"{variable} has no elements.")
    stored_block, full_shape = _layout_of(run, stream, values.shape)
    picture, merged = block_maximum(values, max_rows, max_columns)
    shown = [values] if colour_range == "step" else [values, *_spread(run, stream)]
    slices = group_slices(run.feature_groups, variable, full_shape[0])
    bands = [GroupBand(str(name), s.start, s.stop) for name, s in slices.items()]
    return WeightHeatmapInfo(
        run=run.name,
        variable=variable,
        step=int(snapshot.steps[-1]),
        values=picture.astype(np.float32, copy=False),
        block_shape=(stored_block[0] * merged[0], stored_block[1] * merged[1]),
        full_shape=full_shape,
        groups=tuple(sorted(bands, key=lambda band: band.start)),
        colour_limits=colour_limits(shown),
        non_finite=int(np.count_nonzero(~np.isfinite(picture))),
    )


def colour_limits(matrices: list[npt.NDArray[np.float32]]) -> tuple[float, float]:
    """Limits of a logarithmic colour scale on which a band of huge weights stands out.

    The upper limit is the largest finite value, so nothing is clipped at the interesting end. The
    lower one is half the median of the positive values, so that ordinary weights stay pale, moved
    so that the scale spans at least one decade (else noise would look dramatic) and at most four.

    Args:
        matrices: Non-negative values; zeros, NaN and infinities do not count.

    Returns:
        ``(low, high)``, both > 0; ``(0.1, 1.0)`` if nothing counts.
    """
    counted = [m[np.isfinite(m) & (m > 0)] for m in matrices]
    positive = np.concatenate(counted).astype(np.float64)
    if not positive.size:
        return 0.1, 1.0
    high = float(positive.max())
    low = float(np.median(positive)) / 2
    return min(max(low, high / 10**MOST_DECADES), high / 10**LEAST_DECADES), high


def plot_weight_heatmap(info: WeightHeatmapInfo) -> go.Figure:
    """Draw the snapshot, with one labelled band per feature group on the left."""
    title = f"|w| of {info.variable}"
    if info.values is None:
        return empty_figure(title, info.reason)
    figure = new_figure(
        f"{title} at step {info.step:,}",
        subtitle=_subtitle(info),
        x_title="Column of the variable (index)",
        height=_HEIGHT,
        revision=f"{info.run}/{info.variable}",
    )
    figure.add_trace(_picture(info, info.values))
    if info.non_finite:
        figure.add_trace(_non_finite_blocks(info, info.values))
        figure.add_trace(_non_finite_rings(info, info.values))
    figure.update_layout(
        dragmode="zoom",
        showlegend=False,
        margin={"t": 84, "b": 56},
        yaxis={
            "title": {"text": "Row of the variable (index)"},
            "range": [info.full_shape[0] - 0.5, -0.5],
            "showgrid": False,
        },
        xaxis={"range": [-0.5, info.full_shape[1] - 0.5], "showgrid": False},
    )
    if info.groups:
        _mark_groups(figure, info)
    return figure


def _as_matrix(value: npt.ArrayLike) -> npt.NDArray[np.float32]:
    matrix = np.abs(np.asarray(value, np.float32))
    return matrix.reshape(matrix.shape[0] if matrix.ndim else 1, -1)


def _layout_of(
    run: Run, stream: str, shape: tuple[int, ...]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """The stored block shape and the variable's full shape, both as (rows, columns)."""
    details = run.stream(stream).details
    block = [int(n) for n in details.get("block_shape", (1, 1))]
    full = [int(n) for n in details.get("full_shape", ())]
    block_rows, block_columns = [*block, 1, 1][:2]
    if not full:
        return (block_rows, block_columns), (shape[0] * block_rows, shape[1] * block_columns)
    return (block_rows, block_columns), (full[0], int(np.prod(full[1:])) if full[1:] else 1)


def _spread(run: Run, stream: str) -> list[npt.NDArray[np.float32]]:
    steps = np.unique(run.steps(stream))
    picks = np.unique(np.linspace(0, steps.size - 1, _SNAPSHOTS_FOR_RANGE).astype(int))
    return [_as_matrix(run.row(stream, int(steps[i])).values[-1]) for i in picks]


def _no_tiles(variable: str) -> str:
    if not variable:
        return (
            "This run holds no weights. Record them with the Weights probe "
            "(deepinsight.probes.Weights), which the hooks use by default."
        )
    return (
        f"This run holds no tiles of {variable}. Choose another variable, "
        "or record this one with the Weights probe."
    )


def _subtitle(info: WeightHeatmapInfo) -> str:
    rows, columns = info.full_shape
    text = f"{rows:,} {TIMES} {columns:,} weights"
    if info.block_shape != (1, 1):
        height, width = info.block_shape
        text += f", largest |w| of each block of {height} {TIMES} {width}"
    if info.non_finite:
        blocks = "block holds" if info.non_finite == 1 else "blocks hold"
        text += f" · {info.non_finite:,} {blocks} NaN or infinity (blue)"
    return text


def _edges(info: WeightHeatmapInfo) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    return (
        block_edges(info.full_shape[1], info.block_shape[1]),
        block_edges(info.full_shape[0], info.block_shape[0]),
    )


def quantise(values: npt.NDArray[np.float32], low: float, high: float) -> npt.NDArray[np.uint8]:
    """Levels 0 to 254 on a logarithmic scale from ``low`` to ``high``; what is not finite is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.log(values / low) / np.log(high / low)
    share = np.nan_to_num(share, nan=0.0, posinf=0.0, neginf=0.0)
    levels: npt.NDArray[np.uint8] = (np.clip(share, 0, 1) * _LEVELS + 0.5).astype(np.uint8)
    return levels


def _picture(info: WeightHeatmapInfo, values: npt.NDArray[np.float32]) -> go.Heatmap:
    x, y = _edges(info)
    levels = quantise(values, *info.colour_limits)
    ticks, texts = _colour_ticks(*info.colour_limits)
    return go.Heatmap(
        z=levels,
        x=x,
        y=y,
        customdata=values,
        zmin=0,
        zmax=_LEVELS,
        colorscale=list(COLOUR_SCALE),
        hovertemplate="row %{y:.0f}, column %{x:.0f}<br>|w| ≤ %{customdata:.4g}<extra></extra>"
        if info.block_shape != (1, 1)
        else "row %{y:.0f}, column %{x:.0f}<br>|w| = %{customdata:.4g}<extra></extra>",
        colorbar={
            "title": {"text": "|w|<br>(log scale)", "font": {"size": 12, "color": MUTED}},
            "tickvals": ticks,
            "ticktext": texts,
            "thickness": 14,
            "outlinewidth": 0,
        },
    )


def _colour_ticks(low: float, high: float) -> tuple[list[float], list[str]]:
    """Levels and texts at 1, 2 and 5 of each decade (only at 1 where there are many decades)."""
    decades = np.log10(high / low)
    mantissas = (1, 2, 5) if decades <= 2 else (1,)
    first, last = int(np.floor(np.log10(low))), int(np.ceil(np.log10(high)))
    marks = [m * 10.0**e for e in range(first, last + 1) for m in mantissas]
    # A tick at the very top would touch the title of the scale.
    inside = [mark for mark in marks if low <= mark <= high * (low / high) ** 0.04]
    levels = [float(np.log(mark / low) / np.log(high / low) * _LEVELS) for mark in inside]
    return levels, [f"{mark:.4g}" for mark in inside]


def _non_finite_blocks(info: WeightHeatmapInfo, values: npt.NDArray[np.float32]) -> go.Heatmap:
    x, y = _edges(info)
    bad = np.where(np.isfinite(values), np.nan, 1.0).astype(np.float32)
    return go.Heatmap(
        z=bad,
        x=x,
        y=y,
        customdata=values,
        showscale=False,
        colorscale=[NON_FINITE_COLOUR, NON_FINITE_COLOUR],
        hovertemplate="row %{y:.0f}, column %{x:.0f}<br>|w| is %{customdata}<extra></extra>",
    )


def _non_finite_rings(info: WeightHeatmapInfo, values: npt.NDArray[np.float32]) -> go.Scatter:
    """Rings around the first few, since one block may be smaller than a pixel."""
    x, y = _edges(info)
    rows, columns = np.nonzero(~np.isfinite(values))
    rows, columns = rows[:_MOST_RINGS], columns[:_MOST_RINGS]
    return go.Scatter(
        x=(x[columns] + x[columns + 1]) / 2,
        y=(y[rows] + y[rows + 1]) / 2,
        mode="markers",
        marker={
            "symbol": "circle-open",
            "size": 11,
            "line": {"width": 2},
            "color": NON_FINITE_COLOUR,
        },
        hoverinfo="skip",
    )


def _mark_groups(figure: go.Figure, info: WeightHeatmapInfo) -> None:
    """A strip between row axis and picture: one labelled band per group, lines across."""
    middles = [(band.start + band.stop - 1) / 2 for band in info.groups]
    shades = [_BAND_SHADES[i % len(_BAND_SHADES)] for i in range(len(info.groups))]
    figure.add_trace(
        go.Bar(
            x=[1.0] * len(info.groups),
            y=middles,
            width=[band.stop - band.start for band in info.groups],
            orientation="h",
            xaxis="x2",
            yaxis="y2",
            marker={"color": shades, "line": {"width": 0}},
            text=[escape(short(band.name, 18)) for band in info.groups],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            insidetextfont={"color": INK, "size": 12},
            customdata=[[escape(b.name), b.start, b.stop - 1] for b in info.groups],
            hovertemplate="feature group %{customdata[0]}<br>rows %{customdata[1]} to "
            "%{customdata[2]}<extra></extra>",
        )
    )
    for band in info.groups:
        if band.start > 0:
            figure.add_shape(type="line", x0=0, x1=1, **_boundary(band.start - 0.5))
    rows_axis = figure.layout.yaxis.to_plotly_json()
    figure.update_layout(
        bargap=0,
        uniformtext={"minsize": 9, "mode": "hide"},
        xaxis={"domain": [_STRIP_WIDTH + 0.004, 1]},
        xaxis2={"domain": [0, _STRIP_WIDTH], "visible": False, "fixedrange": True},
        yaxis={"showticklabels": False, "ticks": "", "title": {"text": ""}, "matches": "y2"},
        yaxis2={**rows_axis, "anchor": "x2"},
    )


def _boundary(row: float) -> dict[str, Any]:
    return {
        "xref": "x domain",
        "y0": row,
        "y1": row,
        "line": {"color": INK, "width": 1},
        "opacity": 0.45,
    }
