"""Two or more runs on one picture: per step, per sample or per second."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from deepinsight.figures._clock import AXIS_TITLES, NO_SAMPLES, Against, make_clock
from deepinsight.figures._series import Floats, Series, make_series, process_suffix, read_rows
from deepinsight.figures._theme import (
    colour,
    dash,
    empty_figure,
    escape,
    new_figure,
    short,
    unit_words,
)
from deepinsight.traces import Run


@dataclass(frozen=True, eq=False)
class ComparisonInfo:
    """One line per run and process.

    Attributes:
        stream: The quantity compared.
        against: What the horizontal axis counts.
        unit: The stream's unit, of the first run that has it.
        series: The lines.
        runs: Key of the run of each line.
        smallest: Smallest finite value of each line, NaN if there is none.
        largest: Largest finite value of each line.
        left_out: Key and reason of every run that cannot be shown.
        reason: Why there is nothing to show; empty if there is.
    """

    stream: str
    against: Against
    unit: str = ""
    series: tuple[Series, ...] = ()
    runs: tuple[str, ...] = ()
    smallest: tuple[float, ...] = ()
    largest: tuple[float, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    reason: str = ""


def scalar_streams(runs: Mapping[str, Run]) -> tuple[str, ...]:
    """Scalar streams that at least one of the runs holds: evaluation first, then by name."""
    names: set[str] = set()
    for run in runs.values():
        names.update(name for name in run.stream_names() if not run.stream(name).shape)
    order = {prefix: place for place, prefix in enumerate(("eval", "train", "auc"))}
    return tuple(sorted(names, key=lambda name: (order.get(name.split("/")[0], 9), name)))


def compute_comparison_info(
    runs: Mapping[str, Run], stream: str, *, against: Against = "step"
) -> ComparisonInfo:
    """Read one scalar stream of several runs and place it on a common axis.

    Samples are those that all processes of a run had consumed by the row's wall time, linearly
    between the recorded counts (``throughput/samples``); of a run that records none, they are its
    steps times the ``samples_per_step`` of its configuration. Seconds count from the run's start.

    Args:
        runs: Open runs by the key that names them in the figure.
        stream: Name of a scalar stream, such as ``"eval/auc"``.
        against: ``"step"``, ``"samples"`` or ``"seconds"``.
    """
    lines: list[Series] = []
    owners: list[str] = []
    values: list[Floats] = []
    left_out: list[tuple[str, str]] = []
    unit = ""
    for key, run in runs.items():
        found = [rows for rows in read_rows(run, stream) if not rows.labels]
        if not found:
            left_out.append((key, f"does not record {stream}"))
            continue
        unit = unit or run.stream(stream).unit
        clock = make_clock(run, found, against)
        if clock is None:
            left_out.append((key, NO_SAMPLES))
            continue
        for rows in found:
            name = key + process_suffix(rows.process, len(found))
            lines.append(make_series(name, clock.place(rows), rows.values))
            owners.append(key)
            values.append(rows.values[np.isfinite(rows.values)])
    return ComparisonInfo(
        stream=stream,
        against=against,
        unit=unit,
        series=tuple(lines),
        runs=tuple(owners),
        smallest=tuple(float(v.min()) if v.size else float("nan") for v in values),
        largest=tuple(float(v.max()) if v.size else float("nan") for v in values),
        left_out=tuple(left_out),
        reason="" if lines else _reason(stream, left_out),
    )


def plot_comparison(info: ComparisonInfo) -> go.Figure:
    """Draw the lines: a colour per run and a dash per process; of one run, a colour per process."""
    title = f"{info.stream} by {info.against}" if info.stream else "Comparison"
    if not info.series:
        return empty_figure(title, info.reason)
    missing = "; ".join(f"{short(key)} {why}" for key, why in info.left_out)
    figure = new_figure(
        title,
        subtitle=f"Not shown: {missing}" if missing else "",
        x_title=AXIS_TITLES[info.against],
        y_title=f"{info.stream} ({unit_words(info.unit)})",
        height=520,
        revision=f"{info.stream}/{info.against}",
    )
    order = list(dict.fromkeys(info.runs))
    seen: dict[str, int] = {}
    for line, key in zip(info.series, info.runs, strict=True):
        seen[key] = seen.get(key, -1) + 1
        shade = order.index(key) if len(order) > 1 else seen[key]
        style = seen[key] if len(order) > 1 else 0
        figure.add_trace(
            go.Scatter(
                x=line.x,
                y=line.y,
                name=escape(short(line.name)),
                mode="lines+markers" if line.x.size <= 60 else "lines",
                marker={"size": 6},
                line={"color": colour(shade), "dash": dash(style), "width": 2},
                hovertemplate="%{x:,.4~f}: %{y:.5g}",
            )
        )
    figure.update_layout(showlegend=True)
    return figure


def _reason(stream: str, left_out: list[tuple[str, str]]) -> str:
    if not left_out:
        return "Choose one run or more."
    if not stream:
        return "These runs record no scalar stream."
    return "; ".join(f"{short(key)} {why}" for key, why in left_out) + "."
