"""How the values of one variable are spread, and how the spread moves."""

from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from deepinsight.figures._series import Floats, Rows, Series, make_series, read_rows
from deepinsight.figures._theme import colour, empty_figure, new_figure, translucent
from deepinsight.traces import Run

_BANDS = (("p1", "p99", 0.12), ("p5", "p95", 0.18), ("p25", "p75", 0.28))


@dataclass(frozen=True, eq=False)
class WeightDistributionInfo:
    """Percentiles and moments of one variable against the step.

    Attributes:
        run: The run's name.
        variable: The variable's name.
        percentiles: Lines by label (``"p1"`` … ``"p99"``), unit of the weights.
        moments: Lines by label (``"mean"``, ``"std"``, ``"min"``, ``"max"``,
            ``"share_of_zeros"``; the last is a share in [0, 1]).
        last_share_of_zeros: Newest share of exact zeros, NaN if not recorded.
        reason: Why there is nothing to show; empty if there is.
    """

    run: str
    variable: str
    percentiles: tuple[Series, ...] = ()
    moments: tuple[Series, ...] = ()
    last_share_of_zeros: float = float("nan")
    reason: str = ""


def compute_weight_distribution_info(run: Run, variable: str) -> WeightDistributionInfo:
    """Read ``weights/<variable>/percentiles`` and ``moments``.

    Where several processes record the variable, the one with the most rows is shown.

    Args:
        run: An open run.
        variable: Name of a variable.
    """
    percentiles = _lines(read_rows(run, f"weights/{variable}/percentiles"))
    moments = _lines(read_rows(run, f"weights/{variable}/moments"))
    if not percentiles and not moments:
        return WeightDistributionInfo(run.name, variable, reason=_NOT_RECORDED)
    zeros = [line.last for line in moments if line.name == "share_of_zeros"]
    return WeightDistributionInfo(
        run.name, variable, percentiles, moments, zeros[0] if zeros else float("nan")
    )


def _lines(found: tuple[Rows, ...]) -> tuple[Series, ...]:
    if not found:
        return ()
    rows = max(found, key=lambda rows: rows.steps.size)
    return tuple(
        make_series(label, rows.steps, rows.values[:, column])
        for column, label in enumerate(rows.labels)
    )


def plot_weight_distribution(info: WeightDistributionInfo) -> go.Figure:
    """Draw nested bands of percentiles, the median, and the extremes as dots."""
    title = f"Distribution of w, {info.variable}"
    if not info.percentiles and not info.moments:
        return empty_figure(title, info.reason)
    figure = new_figure(
        title,
        subtitle=_subtitle(info),
        x_title="Step (updates)",
        y_title="Weight (dimensionless)",
        revision=f"{info.run}/{info.variable}/distribution",
    )
    lines = {line.name: line for line in info.percentiles}
    moments = {line.name: line for line in info.moments}
    for low, high, opacity in _BANDS:
        if low in lines and high in lines:
            figure.add_trace(_band(lines[low], lines[high], opacity, f"{low} to {high}"))
    if not lines and {"mean", "std"} <= moments.keys():
        figure.add_trace(_deviation(moments["mean"], moments["std"]))
    if "p50" in lines:
        figure.add_trace(_line(lines["p50"], "median", "solid", colour(0)))
    for name in ("mean", "min", "max"):
        if name in moments:
            style = "dash" if name == "mean" else "dot"
            shade = colour(1) if name == "mean" else colour(8)
            figure.add_trace(_line(moments[name], name, style, shade))
    figure.update_layout(hovermode="x unified", showlegend=True)
    return figure


def _subtitle(info: WeightDistributionInfo) -> str:
    parts = []
    if info.last_share_of_zeros >= 0:
        parts.append(f"{100 * info.last_share_of_zeros:.3g} % of the weights are exactly 0 at last")
    if bad := max((line.non_finite for line in info.moments), default=0):
        parts.append(f"not finite in {bad:,} of {info.moments[0].rows:,} snapshots (gaps)")
    return " · ".join(parts)


def _band(low: Series, high: Series, opacity: float, name: str) -> go.Scatter:
    x: Floats = np.concatenate([low.x, high.x[::-1]])
    y: Floats = np.concatenate([low.y, high.y[::-1]])
    drawn = np.isfinite(y)
    return go.Scatter(
        x=x[drawn],
        y=y[drawn],
        fill="toself",
        fillcolor=translucent(colour(0), opacity),
        line={"width": 0},
        mode="lines",
        name=name,
        hoverinfo="skip",
    )


def _deviation(mean: Series, std: Series) -> go.Scatter:
    steps = np.intersect1d(mean.x, std.x)
    middle, spread = mean.y[np.isin(mean.x, steps)], std.y[np.isin(std.x, steps)]
    low = Series("low", steps, middle - spread, rows=mean.rows)
    high = Series("high", steps, middle + spread, rows=mean.rows)
    return _band(low, high, 0.2, "mean ± std")


def _line(line: Series, name: str, style: str, shade: str) -> go.Scatter:
    return go.Scatter(
        x=line.x,
        y=line.y,
        name=name,
        mode="lines" if line.x.size > 1 else "markers",
        line={"color": shade, "dash": style, "width": 1.5},
        hovertemplate="%{y:.4g}",
    )


_NOT_RECORDED = (
    "Neither percentiles nor moments of this variable are recorded. The Weights probe records "
    "both for every variable it is given."
)
