"""Runs whose steps are timed: of ``deepinsight train``, and on TensorFlow's own path."""

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from deepinsight.traces import open_run

TIMEOUT_S = 300
WARM_UP = 0.2  # share of the common time that is not counted, at most WARM_UP_S
WARM_UP_S = 1.0
BATCH_SIZE = 100


@dataclass(frozen=True)
class Timing:
    """What a run was like while all its workers were at work.

    Attributes:
        steps_per_s: Global steps per second; where workers step alone, steps of one worker.
        samples_per_s: Examples per second of all workers.
        train_auc: AUC on the training sample at the end.
        eval_auc: AUC on the held-out part at the end.
        staleness: Mean staleness in updates; NaN where it is not known.
    """

    steps_per_s: float
    samples_per_s: float
    train_auc: float
    eval_auc: float
    staleness: float


def own(folder: Path, arguments: list[str]) -> Timing:
    """A run of ``deepinsight train``."""
    command = [
        sys.executable, "-m", "deepinsight.trainer.command", "--run-dir", str(folder),
        "--eval-every", "0", "--checkpoint-every", "0", "--trace-every", "0", *arguments,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
    with open_run(folder) as run:
        frame = run.frame("train/batch_loss")
        workers = [rows[["wall_time_s", "step"]].to_numpy() for _, rows in frame.groupby("process")]
        known = "staleness/global" in run.stream_names()
        staleness = run.frame("staleness/global")["value"].mean() if known else float("nan")
        train, held_out = (run.frame(f"{p}/auc")["value"].iloc[-1] for p in ("train", "eval"))
        samples = int(run.config["samples_per_step"])
    return Timing(*_rates(workers, samples), float(train), float(held_out), float(staleness))


def tensorflow(folder: Path, kind: str, steps: int, workers: int = 2) -> Timing:
    """A run on TensorFlow's own path, ``async`` or ``sync``."""
    folder.mkdir(parents=True)
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(workers + 1)]
    addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for held in sockets:
        held.close()
    module = "benchmarks.synchronization.tensorflow_path"
    tasks = [("ps", 0), *(("worker", k) for k in range(workers))]
    children = []
    try:
        for job, index in tasks:
            command = [sys.executable, "-m", module, job, str(index), str(folder), str(steps), kind]
            children.append(
                subprocess.Popen(
                    [*command, *addresses],
                    stdout=subprocess.DEVNULL,
                    stderr=(folder / f"{job}-{index}.log").open("wb"),
                    env={k: v for k, v in os.environ.items() if k != "TF_CONFIG"},
                )
            )
        _wait(folder, children[1])
    finally:
        for child in children:
            child.kill()
            child.wait()
    train, held_out = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
    logs = [_log(folder / f"worker-{k}.txt") for k in range(workers)]
    samples = BATCH_SIZE * (workers if kind == "sync" else 1)
    return Timing(*_rates(logs, samples), train, held_out, float("nan"))


def _wait(folder: Path, chief: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + TIMEOUT_S
    while not (folder / "evaluation.json").exists():
        if chief.poll() not in (None, 0) or time.monotonic() > end:
            log = (folder / "worker-0.log").read_text(errors="replace")
            raise SystemExit(f"The run on TensorFlow's own path failed:\n{log[-2000:]}")
        time.sleep(0.1)
    chief.wait(10)


def _log(path: Path) -> NDArray[np.float64]:
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return np.array([line.split() for line in lines], np.float64)


def _rates(workers: list[NDArray[np.float64]], samples: int) -> tuple[float, float]:
    """Steps and samples per second while all workers were at work.

    Args:
        workers: Per worker its steps' Unix times and numbers, ``[n, 2]``.
        samples: Examples per step, of all workers.
    """
    began = max(rows[0, 0] for rows in workers)
    ended = min(rows[-1, 0] for rows in workers)
    began += min(WARM_UP_S, WARM_UP * max(ended - began, 0.0))
    inside = [rows[(rows[:, 0] >= began) & (rows[:, 0] <= ended)] for rows in workers]
    if not ended > began or any(len(rows) < 2 for rows in inside):
        raise SystemExit("The run is too short to be timed: give more --steps.")
    numbers = np.concatenate([rows[:, 1] for rows in inside])
    rate = float(np.ptp(numbers) / (ended - began))
    return rate, rate * samples
