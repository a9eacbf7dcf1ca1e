"""DeepInsight shows what happens inside a model while it trains.

Everything a user types first is here. Names load on first use, so that ``import deepinsight``
costs neither TensorFlow nor Dash.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deepinsight.collectors import (
        Recorder,
        TraceCallback,
        TraceHook,
        probes,
        trace_tensor,
    )
    from deepinsight.diagnostics import CumulativeAUC, DecayedAUC, WindowedAUC
    from deepinsight.errors import DeepInsightError
    from deepinsight.traces import Axis, Run, open_run, open_runs, repair_run

_HOMES = {
    "Axis": "deepinsight.traces",
    "CumulativeAUC": "deepinsight.diagnostics",
    "DecayedAUC": "deepinsight.diagnostics",
    "DeepInsightError": "deepinsight.errors",
    "Recorder": "deepinsight.collectors.recorder",
    "Run": "deepinsight.traces",
    "TraceCallback": "deepinsight.collectors.keras",
    "TraceHook": "deepinsight.collectors.session",
    "WindowedAUC": "deepinsight.diagnostics",
    "open_run": "deepinsight.traces",
    "open_runs": "deepinsight.traces",
    "probes": "deepinsight.collectors",
    "repair_run": "deepinsight.traces",
    "trace_tensor": "deepinsight.collectors.collection",
}

__all__ = [
    "Axis",
    "CumulativeAUC",
    "DecayedAUC",
    "DeepInsightError",
    "Recorder",
    "Run",
    "TraceCallback",
    "TraceHook",
    "WindowedAUC",
    "open_run",
    "open_runs",
    "probes",
    "repair_run",
    "trace_tensor",
]


def __getattr__(name: str) -> Any:
    """Import the public name from its home on first use."""
    if name == "__version__":
        from importlib.metadata import version

        return version("deepinsight")
    if name not in _HOMES:
        raise AttributeError(f"module 'deepinsight' has no attribute {name!r}")
    home = _HOMES[name]
    if name == "probes":
        return importlib.import_module(f"{home}.probes")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
