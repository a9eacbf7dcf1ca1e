"""``deepinsight inspect`` and ``deepinsight repair``."""

import argparse
import json
import math
import sys
import time
from collections.abc import Hashable, Sequence
from typing import Any

import pandas as pd

from deepinsight.traces.reader import Run, open_run
from deepinsight.traces.repair import repair_run


def inspect(argv: Sequence[str]) -> int:
    """Print what is in a trace.

    Args:
        argv: Command-line arguments.

    Returns:
        Exit status.
    """
    parser = argparse.ArgumentParser(
        prog="deepinsight inspect", description="Say what is in a trace."
    )
    parser.add_argument("run", help="folder of the run")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    with open_run(options.run) as run:
        summary = _summary(run)
    if options.json:
        print(json.dumps(_finite(summary), indent=1, allow_nan=False))
    else:
        print(_text(summary))
    return 0


def _summary(run: Run) -> dict[str, Any]:
    streams = [_stream_summary(run, row) for row in run.streams().to_dict("records")]
    return {
        "path": str(run.path),
        "run_id": run.run_id,
        "status": run.status,
        "created_time_s": run.created_time_s,
        "config": run.config,
        "feature_groups": run.feature_groups,
        "variables": run.variables,
        "processes": [dict(vars(process)) for process in run.processes],
        "streams": streams,
        "warnings": list(run.warnings),
    }


def _stream_summary(run: Run, row: dict[Hashable, Any]) -> dict[str, Any]:
    """Return a row of `Run.streams` and the newest value of a scalar stream."""
    summary = {str(key): value for key, value in row.items()}
    summary["shape"] = list(summary["shape"])
    for key in ("first_step", "last_step"):
        summary[key] = None if pd.isna(summary[key]) else int(summary[key])
    summary["last_value"] = None
    if summary["rows"] and not summary["shape"]:
        newest = run.array(summary["name"], summary["process"], last=1)
        summary["last_value"] = float(newest.values[0])
    return summary


def _finite(value: Any) -> Any:
    """Turn NaN and infinity, which JSON lacks, into text."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _text(summary: dict[str, Any]) -> str:
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(summary["created_time_s"]))
    lines = [f"{summary['path']}: {summary['status']}, begun {began}"]
    if summary["config"]:
        settings = ", ".join(f"{key}={value}" for key, value in summary["config"].items())
        lines.append(f"config: {settings}")
    if summary["feature_groups"]:
        lines.append(f"feature groups: {', '.join(summary['feature_groups'])}")
    for process in summary["processes"]:
        count = process["segments"]
        lines.append(
            f"process {process['name']}: {process['status']}, {count} "
            f"segment{'' if count == 1 else 's'}, pid {process['pid']} on {process['host']}"
        )
    header = ("stream", "process", "rows", "steps", "shape", "dtype", "unit", "latest")
    table = [header] + [_text_row(stream) for stream in summary["streams"]]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    lines.append("")
    for row in table:
        lines.append(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )
    lines += ["", *(f"warning: {warning}" for warning in summary["warnings"])]
    return "\n".join(lines).rstrip()


def _text_row(stream: dict[str, Any]) -> tuple[str, ...]:
    steps = f"{stream['first_step']}-{stream['last_step']}" if stream["rows"] else "-"
    latest = stream["last_value"]
    return (
        stream["name"],
        stream["process"],
        f"{stream['rows']}",
        steps,
        " x ".join(map(str, stream["shape"])) or "scalar",
        stream["dtype"],
        stream["unit"],
        "" if latest is None else f"{latest:.6g}",
    )


def repair(argv: Sequence[str]) -> int:
    """Rewrite the damaged segments of a run and print what was saved and lost.

    Args:
        argv: Command-line arguments.

    Returns:
        Exit status; 0 also if something was lost, because it is told.
    """
    parser = argparse.ArgumentParser(
        prog="deepinsight repair",
        description="Rewrite what can be read of the damaged segments of a run, and say what was "
        "lost. Damaged files are kept beside the new ones as *.h5.damaged.",
    )
    parser.add_argument("run", help="folder of the run")
    options = parser.parse_args(argv)
    report = repair_run(options.run)
    for segment in report:
        print(f"{segment.path}: {segment.outcome}. {segment.detail}".rstrip(), file=sys.stdout)
    changed = sum(segment.outcome not in {"intact", "left alone"} for segment in report)
    print(f"{len(report)} segments looked at, {changed} changed.")
    return 0
