"""The trace format: its specification (`schema`), writer, reader and repair."""

from deepinsight.traces._processes import ProcessInfo
from deepinsight.traces.errors import (
    ProcessNameInUseError,
    RunNotFoundError,
    SegmentError,
    StreamNotFoundError,
    TraceError,
    TraceNotFoundError,
    TraceWriteError,
)
from deepinsight.traces.reader import Run, TraceArray, open_run, open_runs
from deepinsight.traces.repair import SegmentRepair, repair_run
from deepinsight.traces.schema import Axis, StreamInfo, group_slices, stream_name
from deepinsight.traces.writer import TraceWarning, TraceWriter

__all__ = [
    "Axis",
    "ProcessInfo",
    "ProcessNameInUseError",
    "Run",
    "RunNotFoundError",
    "SegmentError",
    "SegmentRepair",
    "StreamInfo",
    "StreamNotFoundError",
    "TraceArray",
    "TraceError",
    "TraceNotFoundError",
    "TraceWarning",
    "TraceWriteError",
    "TraceWriter",
    "group_slices",
    "open_run",
    "open_runs",
    "repair_run",
    "stream_name",
]
