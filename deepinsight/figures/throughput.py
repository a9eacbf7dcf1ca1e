"""How long each worker's steps take."""

from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from deepinsight.figures._series import Series, make_series, read_rows
from deepinsight.figures._theme import colour, empty_figure, escape, new_figure, short
from deepinsight.traces import Run


@dataclass(frozen=True, eq=False)
class ThroughputInfo:
    """One line per process.

    Attributes:
        run: The run's name.
        series: Wall time of one step against the step, in milliseconds.
        median_ms: Median of each line's rows, NaN where none is finite.
        p95_ms: 95th percentile of each line's rows.
        samples_per_second: Newest rate of each process, NaN where it is not recorded.
        reason: Why there is nothing to show; empty if there is.
    """

    run: str
    series: tuple[Series, ...] = ()
    median_ms: tuple[float, ...] = ()
    p95_ms: tuple[float, ...] = ()
    samples_per_second: tuple[float, ...] = ()
    reason: str = ""


def compute_throughput_info(run: Run) -> ThroughputInfo:
    """Read ``throughput/step_time`` and the newest ``throughput/samples_per_second``.

    Args:
        run: An open run.
    """
    found = read_rows(run, "throughput/step_time")
    if not found:
        return ThroughputInfo(run.name, reason=_NOT_RECORDED)
    rates = {
        rows.process: float(rows.values[-1])
        for rows in read_rows(run, "throughput/samples_per_second")
    }
    finite = [rows.values[np.isfinite(rows.values)] * 1e3 for rows in found]
    return ThroughputInfo(
        run.name,
        tuple(make_series(rows.process, rows.steps, rows.values * 1e3) for rows in found),
        tuple(float(np.median(ms)) if ms.size else float("nan") for ms in finite),
        tuple(float(np.percentile(ms, 95)) if ms.size else float("nan") for ms in finite),
        tuple(rates.get(rows.process, float("nan")) for rows in found),
    )


def plot_throughput(info: ThroughputInfo) -> go.Figure:
    """Draw step times on a logarithmic axis, so that a slow first step hides nothing."""
    title = "Step time per worker"
    if not info.series:
        return empty_figure(title, info.reason)
    total = float(np.nansum(info.samples_per_second))
    figure = new_figure(
        title,
        subtitle=f"Together {total:,.0f} samples/s at last" if total > 0 else "",
        x_title="Step (updates)",
        y_title="Wall time of one step (ms, log scale)",
        revision=f"{info.run}/throughput",
    )
    numbers = zip(info.series, info.median_ms, info.p95_ms, strict=True)
    for number, (line, median, p95) in enumerate(numbers):
        figure.add_trace(
            go.Scatter(
                x=line.x,
                y=line.y,
                name=f"{escape(short(line.name, 24))}<br>median {median:.3g} ms, p95 {p95:.3g} ms",
                mode="lines" if line.x.size > 1 else "markers",
                line={"color": colour(number), "width": 1.5},
                hovertemplate="%{y:.4g} ms",
            )
        )
    figure.update_layout(hovermode="x unified", showlegend=True)
    figure.update_yaxes(type="log", dtick="D2")
    return figure


_NOT_RECORDED = (
    "This run records no step times. The hooks record them with the Throughput probe, which is "
    "on unless probes= leaves it out."
)
