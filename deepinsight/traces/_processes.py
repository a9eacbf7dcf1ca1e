"""What is known of a process of a run without opening its segments."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deepinsight.traces._run_files import PROCESS_FILE, is_held, read_json, segment_paths
from deepinsight.traces.errors import TraceError


@dataclass(frozen=True)
class ProcessInfo:
    """One process of a run.

    Attributes:
        name: Its name, ``"worker-0"``.
        status: ``"live"`` while a writer holds its folder, ``"finished"`` once it has closed,
            ``"crashed"`` if it ended without closing.
        segments: How many segment files it has.
        started_time_s: Unix time at which its latest writer began; NaN if unknown.
        ended_time_s: Unix time at which it closed, or None.
        host: Where it ran.
        pid: Its process id there.
    """

    name: str
    status: str
    segments: int
    started_time_s: float
    ended_time_s: float | None
    host: str
    pid: int


def process_info(folder: Path) -> ProcessInfo:
    """Read what a process folder says of its process."""
    # Asked again in the end: a writer may have begun or ended between the first two looks.
    held = is_held(folder)
    try:
        record = read_json(folder / PROCESS_FILE)
    except (FileNotFoundError, TraceError):
        record = {}
    if held or (record.get("ended_time_s") is None and is_held(folder)):
        status = "live"
    else:
        status = "finished" if record.get("ended_time_s") is not None else "crashed"
    return ProcessInfo(
        name=folder.name,
        status=status,
        segments=len(segment_paths(folder)),
        started_time_s=float(record.get("started_time_s", np.nan)),
        ended_time_s=record.get("ended_time_s"),
        host=str(record.get("host", "")),
        pid=int(record.get("pid", 0)),
    )
