"""Which figures a report holds, in which order, under which headings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import plotly.graph_objects as go

from deepinsight.figures import (
    OptimizerPanel,
    Table,
    compute_auc_history_info,
    compute_comparison_info,
    compute_gradient_norms_info,
    compute_group_energy_info,
    compute_optimizer_info,
    compute_optimizer_totals,
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
    plot_optimizer,
    plot_staleness_distribution,
    plot_staleness_timeline,
    plot_staleness_variables,
    plot_throughput,
    plot_weight_distribution,
    plot_weight_heatmap,
    tabulate_optimizer_totals,
)
from deepinsight.traces import Run

#: Rows and columns of a heatmap in a report: one file holds many of them.
HEATMAP_PIXELS = 256

#: Panels of a figure about the optimizer: a taller figure would be cut when it is printed.
PANELS_PER_PAGE = 6


@dataclass(frozen=True, eq=False)
class Section:
    """Figures under one heading.

    Attributes:
        heading: Plain text.
        figures: As the dashboard draws them; empty ones say why.
        note: What the section leaves out, plain text.
        table: Numbers above the figures.
    """

    heading: str
    figures: tuple[go.Figure, ...]
    note: str = ""
    table: Table | None = None


def comparison_section(runs: Mapping[str, Run]) -> Section:
    """The runs against each other: evaluation per step, sample and second, losses, optimizers.

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
    optimizers = _optimizer_section(runs)
    if optimizers is None:
        return Section("Comparison", tuple(figures))
    return Section("Comparison", (*figures, *optimizers.figures), table=optimizers.table)


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
    optimizer = _optimizer_section({run.name: run})
    if optimizer is not None:
        yield optimizer


def _optimizer_section(runs: Mapping[str, Run]) -> Section | None:
    """What the optimizers recorded of themselves, or None if they recorded nothing."""
    info = compute_optimizer_info(runs)
    if not info.panels:
        return None
    totals = tabulate_optimizer_totals(compute_optimizer_totals(runs))
    figures = [plot_optimizer(replace(info, panels=panels)) for panels in _pages(info.panels)]
    return Section("Optimizer", tuple(figures), table=totals)


def _pages(panels: Sequence[OptimizerPanel]) -> Iterator[tuple[OptimizerPanel, ...]]:
    """Panels that fit on a sheet of paper together, those of one heading at a time."""
    for _, group in groupby(panels, lambda panel: panel.stream.split("/")[0]):
        own = tuple(group)
        for first in range(0, len(own), PANELS_PER_PAGE):
            yield own[first : first + PANELS_PER_PAGE]


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
