"""Probes: one quantity per file, the same in a session, in Keras and in an own loop."""

from deepinsight.collectors.probes.auc import AUC
from deepinsight.collectors.probes.base import (
    Part,
    Predictions,
    Probe,
    StepReport,
    Stream,
    Variable,
)
from deepinsight.collectors.probes.gradients import Gradients
from deepinsight.collectors.probes.scalars import Scalars
from deepinsight.collectors.probes.staleness import Staleness
from deepinsight.collectors.probes.throughput import Throughput
from deepinsight.collectors.probes.weights import Weights

__all__ = [
    "AUC",
    "Gradients",
    "Part",
    "Predictions",
    "Probe",
    "Scalars",
    "Staleness",
    "StepReport",
    "Stream",
    "Throughput",
    "Variable",
    "Weights",
]
