"""One figure per file: ``compute_…_info`` reads the evidence, ``plot_…`` draws it."""

from deepinsight.figures._clock import AXIS_TITLES, Against
from deepinsight.figures._optimizer_drawing import plot_optimizer
from deepinsight.figures._theme import GRAPH_CONFIG, empty_figure, is_empty_figure
from deepinsight.figures.auc_history import (
    AucHistoryInfo,
    compute_auc_history_info,
    plot_auc_history,
)
from deepinsight.figures.comparison import (
    ComparisonInfo,
    compute_comparison_info,
    plot_comparison,
    scalar_streams,
)
from deepinsight.figures.gradient_norms import (
    GradientNormsInfo,
    compute_gradient_norms_info,
    plot_gradient_norms,
)
from deepinsight.figures.group_energy import (
    GroupEnergyInfo,
    compute_group_energy_info,
    plot_group_energy,
)
from deepinsight.figures.optimizer import (
    OptimizerInfo,
    OptimizerPanel,
    compute_optimizer_info,
    optimizer_streams,
)
from deepinsight.figures.optimizer_totals import (
    OptimizerTotals,
    Table,
    WorkerTotals,
    compute_optimizer_totals,
    tabulate_optimizer_totals,
)
from deepinsight.figures.staleness_distribution import (
    StalenessDistributionInfo,
    compute_staleness_distribution_info,
    plot_staleness_distribution,
)
from deepinsight.figures.staleness_timeline import (
    StalenessTimelineInfo,
    compute_staleness_timeline_info,
    plot_staleness_timeline,
)
from deepinsight.figures.staleness_variables import (
    StalenessVariablesInfo,
    compute_staleness_variables_info,
    plot_staleness_variables,
)
from deepinsight.figures.throughput import (
    ThroughputInfo,
    compute_throughput_info,
    plot_throughput,
)
from deepinsight.figures.weight_distribution import (
    WeightDistributionInfo,
    compute_weight_distribution_info,
    plot_weight_distribution,
)
from deepinsight.figures.weight_heatmap import (
    WeightHeatmapInfo,
    compute_weight_heatmap_info,
    heatmap_stream,
    heatmap_variables,
    plot_weight_heatmap,
)

__all__ = [
    "AXIS_TITLES",
    "GRAPH_CONFIG",
    "Against",
    "AucHistoryInfo",
    "ComparisonInfo",
    "GradientNormsInfo",
    "GroupEnergyInfo",
    "OptimizerInfo",
    "OptimizerPanel",
    "OptimizerTotals",
    "StalenessDistributionInfo",
    "StalenessTimelineInfo",
    "StalenessVariablesInfo",
    "Table",
    "ThroughputInfo",
    "WeightDistributionInfo",
    "WeightHeatmapInfo",
    "WorkerTotals",
    "compute_auc_history_info",
    "compute_comparison_info",
    "compute_gradient_norms_info",
    "compute_group_energy_info",
    "compute_optimizer_info",
    "compute_optimizer_totals",
    "compute_staleness_distribution_info",
    "compute_staleness_timeline_info",
    "compute_staleness_variables_info",
    "compute_throughput_info",
    "compute_weight_distribution_info",
    "compute_weight_heatmap_info",
    "empty_figure",
    "heatmap_stream",
    "heatmap_variables",
    "is_empty_figure",
    "optimizer_streams",
    "plot_auc_history",
    "plot_comparison",
    "plot_gradient_norms",
    "plot_group_energy",
    "plot_optimizer",
    "plot_staleness_distribution",
    "plot_staleness_timeline",
    "plot_staleness_variables",
    "plot_throughput",
    "plot_weight_distribution",
    "plot_weight_heatmap",
    "scalar_streams",
    "tabulate_optimizer_totals",
]
