"""Whether gradients vanish or explode, and how far an update moves each variable."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from deepinsight.figures._series import Series, make_series, process_suffix, read_rows
from deepinsight.figures._theme import (
    TEMPLATE,
    colour,
    dash,
    empty_figure,
    escape,
    new_figure,
    short,
)
from deepinsight.traces import Run

#: Updates of about a thousandth of the weights are a common rule of thumb for health.
HEALTHY_UPDATE_RATIO = 1e-3

#: Lines beyond this many cannot be told apart; the largest variables are kept.
MOST_VARIABLES = 12


@dataclass(frozen=True, eq=False)
class GradientNormsInfo:
    """Lines of the norms and of the update ratios, one per variable and process.

    Attributes:
        run: The run's name.
        norms: L2 norm of the gradient against the step, dimensionless.
        norm_variables: The variable of each line in ``norms``, as an index into ``variables``.
        ratios: Norm of the update over the norm of the weights before it.
        ratio_variables: The variable of each line in ``ratios``.
        variables: The variables shown, the largest first.
        left_out: How many more variables are recorded.
        reason: Why there is nothing to show; empty if there is.
    """

    run: str
    norms: tuple[Series, ...] = ()
    norm_variables: tuple[int, ...] = ()
    ratios: tuple[Series, ...] = ()
    ratio_variables: tuple[int, ...] = ()
    variables: tuple[str, ...] = ()
    left_out: int = 0
    reason: str = ""


def compute_gradient_norms_info(run: Run) -> GradientNormsInfo:
    """Read ``gradients/<variable>/norm`` and ``…/update_ratio``.

    Args:
        run: An open run.
    """
    recorded = sorted(_gradient_variables(run), key=lambda name: (-_size(run, name), name))
    variables = tuple(recorded[:MOST_VARIABLES])
    norms, norm_variables = _lines(run, variables, "norm")
    ratios, ratio_variables = _lines(run, variables, "update_ratio")
    return GradientNormsInfo(
        run=run.name,
        norms=norms,
        norm_variables=norm_variables,
        ratios=ratios,
        ratio_variables=ratio_variables,
        variables=variables,
        left_out=len(recorded) - len(variables),
        reason="" if norms or ratios else _NOT_RECORDED,
    )


def _gradient_variables(run: Run) -> set[str]:
    parts = [name.split("/") for name in run.stream_names()]
    return {
        "/".join(part[1:-1])
        for part in parts
        if len(part) > 2 and part[0] == "gradients" and part[-1] in ("norm", "update_ratio")
    }


def _size(run: Run, variable: str) -> int:
    size = 1
    for length in run.variables.get(variable, {}).get("shape", ()):
        size *= int(length)
    return size


def _lines(
    run: Run, variables: tuple[str, ...], ending: str
) -> tuple[tuple[Series, ...], tuple[int, ...]]:
    lines, owners = [], []
    for number, variable in enumerate(variables):
        found = read_rows(run, f"gradients/{variable}/{ending}")
        for rows in found:
            name = variable + process_suffix(rows.process, len(found))
            lines.append(make_series(name, rows.steps, rows.values))
            owners.append(number)
    return tuple(lines), tuple(owners)


def plot_gradient_norms(info: GradientNormsInfo) -> go.Figure:
    """Draw the norms above the update ratios, both on logarithmic axes."""
    title = "Gradients and updates"
    if not info.norms and not info.ratios:
        return empty_figure(title, info.reason)
    subtitle = "L2 norm of each variable's gradient; below, how far one update moves the variable"
    if info.left_out:
        subtitle += f" · {info.left_out} smaller variables not shown"
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08)
    frame = new_figure(title, subtitle=subtitle, height=620, revision=f"{info.run}/gradients")
    figure.update_layout(frame.layout.to_plotly_json() | {"template": TEMPLATE})
    _add(figure, info.norms, info.norm_variables, row=1, shown=set())
    _add(figure, info.ratios, info.ratio_variables, row=2, shown=set(info.norm_variables))
    if info.ratios:
        figure.add_hline(
            HEALTHY_UPDATE_RATIO, row=2, col=1, line={"color": "#64748b", "dash": "dot", "width": 1}
        )
    figure.update_xaxes(title_text="Step (updates)", row=2, col=1)
    figure.update_xaxes(title_text="", row=1, col=1)
    figure.update_yaxes(title_text="Gradient norm (dimensionless)", type="log", row=1, col=1)
    figure.update_yaxes(title_text="Update ÷ weights (dimensionless)", type="log", row=2, col=1)
    figure.update_yaxes(exponentformat="power")
    for axis, lines in (("yaxis", info.norms), ("yaxis2", info.ratios)):
        figure.layout[axis].update(_decades(lines))
    figure.update_layout(showlegend=True)
    return figure


def _decades(lines: tuple[Series, ...]) -> dict[str, Any]:
    """Ticks at powers of ten where there are several, else at 1, 2 and 5: labels keep apart."""
    values = np.concatenate([line.y[line.y > 0] for line in lines]) if lines else np.empty(0)
    wide = values.size > 0 and float(values.max()) > 30 * float(values.min())
    return {"tickmode": "linear", "dtick": 1 if wide else "D2"}


def _add(
    figure: go.Figure,
    lines: tuple[Series, ...],
    owners: tuple[int, ...],
    *,
    row: int,
    shown: set[int],
) -> None:
    seen: dict[int, int] = {}
    for line, owner in zip(lines, owners, strict=True):
        seen[owner] = seen.get(owner, -1) + 1
        figure.add_trace(
            go.Scatter(
                x=line.x,
                y=line.y,
                name=escape(short(line.name)),
                legendgroup=escape(line.name),
                showlegend=owner not in shown,
                mode="lines" if line.x.size > 1 else "markers",
                line={"color": colour(owner), "dash": dash(seen[owner] + owner // 10)},
                hovertemplate="step %{x:,}: %{y:.4g}",
            ),
            row=row,
            col=1,
        )


_NOT_RECORDED = (
    "This run records no gradients. The hooks record them with the Gradients probe, which is on "
    "unless probes= leaves it out; an own loop hands them to Recorder."
)
