"""Which figures a report holds, in which order, under which headings."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import plotly.graph_objects as go

from deepinsight.figures import (
    compute_auc_history_info,
    compute_comparison_info,
    compute_gradient_norms_info,
    compute_group_energy_info,
    compute_staleness_distribution_info,
    compute_staleness_timeline_info,
    compute_staleness_variables_info,
    compute_throughput_info,
    compute_weight_distribution_info,
    compute_weight_heatmap_info,
    heatmap_variables,
    plot_auc_history,
    plot_comparison,
    plot_gradient_norms,
    plot_group_energy,
    plot_staleness_distribution,
    plot_staleness_timeline,
    plot_staleness_variables,
    plot_throughput,
    plot_weight_distribution,
    plot_weight_heatmap,
)
from deepinsight.traces import Run

#: Rows and columns of a heatmap in a report: one file holds many of them.
HEATMAP_PIXELS = 256


@dataclass(frozen=True, eq=False)
class Section:
    """Figures under one heading.

    Attributes:
        heading: Plain text.
        figures: As the dashboard draws them; empty ones say why.
        note: What the section leaves out, plain text.
    """

    heading: str
    figures: tuple[go.Figure, ...]
    note: str = ""


def comparison_section(runs: Mapping[str, Run]) -> Section:
    """The runs against each other: evaluation per step, sample and second, then losses.

    Args:
        runs: Open runs by the name they have in the report.
    """
    figures = [
        plot_comparison(compute_comparison_info(runs, "eval/auc", against=axis))
        for axis in ("step", "samples", "seconds")
    ]
    figures += [
        plot_comparison(compute_comparison_info(runs, stream))
        for stream in ("eval/loss", "train/loss")
    ]
    return Section("Comparison", tuple(figures))


def run_sections(run: Run, most_variables: int) -> Iterator[Section]:
    """Everything about one run.

    Args:
        run: An open run.
        most_variables: Variables that get their own figures; the largest come first.
    """
    yield Section(
        "Quality",
        (
            plot_auc_history(compute_auc_history_info(run)),
            plot_comparison(compute_comparison_info({run.name: run}, "train/loss")),
            plot_comparison(compute_comparison_info({run.name: run}, "eval/loss")),
        ),
    )
    variables = heatmap_variables(run)
    for variable in variables[:most_variables] or ("",):
        yield _variable_section(run, variable)
    left_out = len(variables) - most_variables
    note = f"{left_out} smaller variables are left out (--variables shows more)."
    yield Section(
        "Gradients",
        (plot_gradient_norms(compute_gradient_norms_info(run)),),
        note if left_out > 0 else "",
    )
    yield Section(
        "Staleness and speed",
        (
            plot_staleness_distribution(compute_staleness_distribution_info(run)),
            plot_staleness_timeline(compute_staleness_timeline_info(run)),
            plot_staleness_variables(compute_staleness_variables_info(run)),
            plot_throughput(compute_throughput_info(run)),
        ),
    )


def _variable_section(run: Run, variable: str) -> Section:
    heatmap = compute_weight_heatmap_info(
        run, variable, max_rows=HEATMAP_PIXELS, max_columns=HEATMAP_PIXELS
    )
    if not variable:
        return Section("Weights", (plot_weight_heatmap(heatmap),))
    return Section(
        f"Weights: {variable}",
        (
            plot_weight_heatmap(heatmap),
            plot_group_energy(compute_group_energy_info(run, variable)),
            plot_group_energy(compute_group_energy_info(run, variable, statistic="max")),
            plot_weight_distribution(compute_weight_distribution_info(run, variable)),
        ),
    )
