"""``deepinsight demo``: the whole product in one command.

Trains `wide-deep` on `digits` twice on a real local cluster, asynchronously and synchronously,
writes the report and serves the dashboard. It types what a user would type, one command after the
other.
"""

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from deepinsight.errors import DeepInsightError

_TRAINING = (
    *("--model", "wide-deep", "--embedding-dim", "8", "--data", "digits"),
    *("--ps", "1", "--workers", "2"),
)


class DemoError(DeepInsightError, RuntimeError):
    """A command of the demo failed."""


def main(argv: Sequence[str]) -> int:
    """Run the demo.

    Args:
        argv: Command-line arguments.

    Returns:
        Exit status.

    Raises:
        DemoError: If one of its commands fails.
    """
    parser = argparse.ArgumentParser(
        prog="deepinsight demo",
        description="Train wide-deep on digits twice on a local cluster (1 parameter server, 2 "
        "workers; async, then sync), write the report, serve the dashboard.",
    )
    parser.add_argument("--runs-dir", default="runs", help="where the runs go (default: runs)")
    parser.add_argument("--steps", type=int, default=800, help="global steps (default: 800)")
    parser.add_argument("--trace-every", type=int, default=50, help="steps between snapshots")
    parser.add_argument("--port", type=int, default=8050, help="of the dashboard (default: 8050)")
    parser.add_argument(
        "--headless",
        action="store_true",
        default=os.environ.get("HEADLESS", "") not in {"", "0"},
        help="stop after the report; also with HEADLESS=1 in the environment",
    )
    options = parser.parse_args(argv)
    runs_dir = Path(options.runs_dir)
    folder = _fresh_folder(runs_dir)
    runs = {name: str(folder / name) for name in ("async", "sync")}
    for name, run in runs.items():
        schedule = ["--steps", str(options.steps), "--trace-every", str(options.trace_every)]
        schedule += ["--eval-every", "50"]
        _run("train", "--run-dir", run, *_TRAINING, "--synchronization", name, *schedule)
    report = str(folder / "report.html")
    _run("report", *runs.values(), "-o", report)
    print(f"\nThe report is in {report}; it opens in any browser, without network.")
    if options.headless:
        print(f"The runs are in {folder}: deepinsight dashboard {runs_dir}")
        return 0
    return _serve("dashboard", str(runs_dir), "--port", str(options.port))


def _fresh_folder(runs_dir: Path) -> Path:
    """Return the first of demo, demo-2, demo-3, ... that does not exist yet."""
    names = ("demo" if i == 1 else f"demo-{i}" for i in range(1, 10_000))
    return next(runs_dir / name for name in names if not (runs_dir / name).exists())


def _command(arguments: Sequence[str]) -> list[str]:
    print(f"\n$ deepinsight {shlex.join(arguments)}", flush=True)
    return [sys.executable, "-m", "deepinsight", *arguments]


def _run(*arguments: str) -> None:
    done = subprocess.run(_command(arguments), check=False)
    if done.returncode:
        raise DemoError(f"'deepinsight {arguments[0]}' ended with status {done.returncode}.")


def _serve(*arguments: str) -> int:
    """Serve until Ctrl-C, which reaches the dashboard, too, and is a proper end."""
    server = subprocess.Popen(_command(arguments))
    try:
        return server.wait()
    except KeyboardInterrupt:
        return server.wait(timeout=10)
