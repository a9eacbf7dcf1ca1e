"""Save what a damaged trace still holds."""

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepinsight.traces._run_files import (
    RUN_FILE,
    check_run_file,
    is_held,
    process_folders,
    read_json,
    segment_paths,
    update_run_file,
)
from deepinsight.traces._segment_reader import SegmentReader
from deepinsight.traces._superblock import is_unclosed
from deepinsight.traces.errors import SegmentError, TraceError, TraceNotFoundError
from deepinsight.traces.schema import RUN_FORMAT

# Reading a broken HDF5 file can hang or crash the process that does it.
_SALVAGE_TIMEOUT_S = 600
_BLOCK_BYTES = 64 << 20


@dataclass(frozen=True)
class SegmentRepair:
    """What became of one segment.

    Attributes:
        path: The segment file.
        outcome: ``"intact"``, ``"closed"`` (its writer had died; all rows are there),
            ``"salvaged"`` (rewritten, some rows lost), ``"lost"`` (nothing could be read) or
            ``"left alone"`` (foreign or of a newer version).
        rows: Rows of all streams that the new segment holds; 0 unless it was rewritten.
        lost_rows: Rows known to be lost.
        detail: What was lost and where the damaged file is, in words.
    """

    path: Path
    outcome: str
    rows: int = 0
    lost_rows: int = 0
    detail: str = ""


def repair_run(path: str | os.PathLike[str]) -> tuple[SegmentRepair, ...]:
    """Rewrite the damaged segments of a run.

    A segment whose writer was killed is rewritten as a closed file. Of a cut or corrupt segment,
    the rows that lie whole in the file are rewritten, and the damaged file is kept as
    ``*.h5.damaged``. A missing or damaged ``run.json`` is made anew; its configuration is
    then lost.

    Args:
        path: Folder of the run.

    Returns:
        One entry per segment, in order.

    Raises:
        TraceNotFoundError: If there is no run at ``path``.
        TraceError: If a process of the run is still writing, or run.json is of a newer version.
    """
    run_dir = Path(path)
    folders = list(process_folders(run_dir)) if run_dir.is_dir() else []
    if not folders and not (run_dir / RUN_FILE).is_file():
        raise TraceNotFoundError(f"{str(run_dir)!r} holds neither {RUN_FILE} nor segments.")
    if live := [folder.name for folder in folders if is_held(folder)]:
        raise TraceError(
            f"Run {str(run_dir)!r} is still being written by {', '.join(live)}. Repair it when the "
            "training has ended."
        )
    _restore_run_file(run_dir)
    return tuple(_repair(segment) for folder in folders for segment in segment_paths(folder))


def _restore_run_file(run_dir: Path) -> None:
    path = run_dir / RUN_FILE
    try:
        content = read_json(path)
    except FileNotFoundError:
        update_run_file(run_dir)
        return
    except TraceError:
        content = {}
    if content.get("format") == RUN_FORMAT:
        check_run_file(path, content)  # a newer version is no damage
        return
    os.replace(path, path.with_name(f"{RUN_FILE}.damaged"))
    update_run_file(run_dir)


def _repair(path: Path) -> SegmentRepair:
    try:
        reader = SegmentReader(path)
    except SegmentError as error:
        if not error.damaged:
            return SegmentRepair(path, "left alone", detail=str(error))
    else:
        with contextlib.closing(reader):
            if not is_unclosed(path) and _is_whole(reader):
                return SegmentRepair(path, "intact")
    return _salvage(path)


def _is_whole(reader: SegmentReader) -> bool:
    """Read everything once; of damage, salvage finds out what is readable."""
    try:
        for name in reader.stream_names():
            info = reader.info(name)
            at_once = max(1, _BLOCK_BYTES // info.row_bytes)
            for start in range(0, len(reader.steps(name)), at_once):
                reader.read(name, start, start + at_once)
    except SegmentError:
        return False
    return True


def _salvage(path: Path) -> SegmentRepair:
    target = path.with_name(f".{path.name}.salvaged")
    report = _run_salvage(path, target)
    aside = path.with_name(f"{path.name}.damaged")
    if report is None:
        os.replace(path, aside)
        return SegmentRepair(path, "lost", detail=f"Nothing could be read; kept as {aside.name}.")
    rows, lost_rows, unreadable = report["rows"], report["lost_rows"], report["unreadable"]
    if not lost_rows and not unreadable:
        os.replace(target, path)
        return SegmentRepair(path, "closed", rows, detail=f"All {rows} rows are there.")
    os.replace(path, aside)
    os.replace(target, path)
    detail = f"{rows} rows saved, {lost_rows} lost"
    if unreadable:
        detail += f"; unreadable streams: {', '.join(unreadable)}"
    return SegmentRepair(path, "salvaged", rows, lost_rows, f"{detail}. Kept as {aside.name}.")


def _run_salvage(path: Path, target: Path) -> dict[str, Any] | None:
    """Copy what is readable in a process of its own; None if there is nothing."""
    command = [sys.executable, "-m", "deepinsight.traces._salvage", str(path), str(target)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SALVAGE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    finally:
        target.with_suffix(".extended").unlink(missing_ok=True)
    if done.returncode:
        target.unlink(missing_ok=True)
        return None
    report: dict[str, Any] = json.loads(done.stdout)
    return report
