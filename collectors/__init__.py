"""What attaches to training: a session hook, a Keras callback, a recorder for own loops, probes.

TensorFlow is imported only by the modules that need it, and only when they are used.
"""

import importlib
from typing import Any

_HOMES = {
    "Recorder": "deepinsight.collectors.recorder",
    "TraceCallback": "deepinsight.collectors.keras",
    "TraceHook": "deepinsight.collectors.session",
    "probes": "deepinsight.collectors.probes",
    "trace_tensor": "deepinsight.collectors.collection",
}

__all__ = ["Recorder", "TraceCallback", "TraceHook", "probes", "trace_tensor"]


def __getattr__(name: str) -> Any:
    """Import the public name from its home on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'deepinsight.collectors' has no attribute {name!r}")
    home = importlib.import_module(_HOMES[name])
    return home if name == "probes" else getattr(home, name)


def __dir__() -> list[str]:
    return sorted(__all__)
