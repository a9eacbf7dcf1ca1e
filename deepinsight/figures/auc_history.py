"""The AUC of the training predictions as it goes, beside the AUC on held-out data."""

from dataclasses import dataclass

import plotly.graph_objects as go

from deepinsight.figures._series import Series, make_series, process_suffix, read_rows
from deepinsight.figures._theme import (
    colour,
    dash,
    empty_figure,
    escape,
    new_figure,
    short,
)
from deepinsight.traces import Run

#: Stream, what the legend calls it, in the order of the legend.
KINDS = (
    ("auc/decayed", "decayed"),
    ("auc/windowed", "windowed"),
    ("auc/cumulative", "cumulative"),
    ("eval/auc", "held-out (eval)"),
    ("train/auc", "training part"),
)


@dataclass(frozen=True, eq=False)
class AucHistoryInfo:
    """One line per kind of AUC and process.

    Attributes:
        run: The run's name.
        series: Lines against the step; AUC in [0, 1], NaN (a gap) where it is undefined.
        kinds: Position in :data:`KINDS` of each line.
        processes: Which of the recording processes each line comes from, counted from 0.
        reason: Why there is nothing to show; empty if there is.
    """

    run: str
    series: tuple[Series, ...] = ()
    kinds: tuple[int, ...] = ()
    processes: tuple[int, ...] = ()
    reason: str = ""


def compute_auc_history_info(run: Run) -> AucHistoryInfo:
    """Read every stream of :data:`KINDS` that the run holds.

    Args:
        run: An open run.
    """
    found = [
        (kind, label, rows, process_suffix(rows.process, len(all_rows)))
        for kind, (stream, label) in enumerate(KINDS)
        for all_rows in [read_rows(run, stream)]
        for rows in all_rows
    ]
    if not found:
        return AucHistoryInfo(run.name, reason=_NOT_RECORDED)
    names = sorted({rows.process for _, _, rows, suffix in found if suffix})
    return AucHistoryInfo(
        run.name,
        tuple(make_series(label + end, rows.steps, rows.values) for _, label, rows, end in found),
        tuple(kind for kind, _, _, _ in found),
        tuple(names.index(rows.process) if suffix else 0 for _, _, rows, suffix in found),
    )


def plot_auc_history(info: AucHistoryInfo) -> go.Figure:
    """Draw the lines: a colour per kind, a dash per process, and chance at 0.5."""
    title = "AUC history"
    if not info.series:
        return empty_figure(title, info.reason)
    undefined = sum(line.non_finite for line in info.series)
    subtitle = "Live AUC of the training predictions, and AUC on held-out data where evaluated"
    if undefined:
        subtitle += f" · undefined in {undefined:,} rows (gaps)"
    figure = new_figure(
        title,
        subtitle=subtitle,
        x_title="Step (updates)",
        y_title="Area under the ROC curve (dimensionless; chance is 0.5)",
        height=480,
        revision=f"{info.run}/auc",
    )
    for line, kind, process in zip(info.series, info.kinds, info.processes, strict=True):
        evaluated = not KINDS[kind][0].startswith("auc/")
        figure.add_trace(
            go.Scatter(
                x=line.x,
                y=line.y,
                name=escape(short(line.name)),
                mode="lines+markers" if evaluated and line.x.size <= 60 else "lines",
                line={"color": colour(kind), "dash": dash(process), "width": 2},
                marker={"size": 6},
                connectgaps=False,
                hovertemplate="%{y:.4f}",
            )
        )
    figure.update_layout(hovermode="x unified", showlegend=True)
    return figure


_NOT_RECORDED = (
    "This run records no AUC. Add deepinsight.probes.AUC to the probes of the hook, or record "
    "eval/auc from your own evaluation."
)
