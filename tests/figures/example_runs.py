"""Runs as the trainer and the hooks write them, small and seeded, for the viewers' tests."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from deepinsight.traces import Axis, TraceWriter

GROUPS = ("user", "ad", "query", "context", "history", "device", "time", "position")
FULL_SHAPE = (1130, 256)
BLOCK = (3, 1)
PERCENTILES = ("p1", "p5", "p25", "p50", "p75", "p95", "p99")
MOMENTS = ("mean", "std", "min", "max", "share_of_zeros")
VARIABLES = {
    "fc1/kernel": {"shape": list(FULL_SHAPE), "dtype": "float32", "device": "/job:ps/task:0"},
    "fc2/kernel": {"shape": [256, 128], "dtype": "float32", "device": "/job:ps/task:0"},
    "fc2/bias": {"shape": [128], "dtype": "float32", "device": "/job:ps/task:0"},
}
BAND = slice(400, 430)  # rows that overfit: in the group "context"


def feature_groups() -> dict[str, tuple[int, int]]:
    bounds = [0, 60, 200, 380, 500, 760, 900, 1000, 1130]
    return {name: (bounds[i], bounds[i + 1]) for i, name in enumerate(GROUPS)}


def config(synchronization: str) -> dict[str, object]:
    return {
        "model": "wide-deep",
        "data": "digits",
        "optimizer": "adagrad",
        "synchronization": synchronization,
        "workers": 2,
        "ps": 1,
        "batch_size": 100,
        "learning_rate": 0.05,
        "seed": 1,
    }


def write_cluster_run(
    path: Path, *, synchronization: str = "async", steps: int = 400, nan: bool = False
) -> Path:
    """A finished run of two workers: losses, AUC, staleness, weights, gradients, throughput."""
    rng = np.random.default_rng(7)
    start = time.time() - 0.05 * steps
    for worker in range(2):
        with TraceWriter(
            path,
            f"worker-{worker}",
            config=config(synchronization),
            feature_groups=feature_groups(),
            variables=VARIABLES,
            flush_interval_s=0.05,
        ) as writer:
            own = np.arange(worker, steps, 2)
            times = start + 0.05 * own
            _write_training(writer, own, times, rng, nan=nan, slowness=1 + worker)
            _write_optimizer(writer, own, times, nan=nan, worker=worker)
            if synchronization == "async":
                _write_staleness(writer, own, times, rng)
            if worker == 0:
                _write_evaluation(writer, steps, start, rng)
                for step in range(0, steps, max(steps // 8, 1)):
                    write_weights(writer, step, steps, start + 0.05 * step, rng=rng, nan=nan)
    return path


def _write_training(writer, own, times, rng, *, nan, slowness):
    loss = 0.69 * np.exp(-own / 200) + 0.1 + 0.02 * rng.standard_normal(own.size)
    if nan:
        loss[5:8] = np.nan
        loss[20] = np.inf
    writer.record_block("train/loss", loss, steps=own, wall_times_s=times, unit="nat")
    for kind, lag in (("decayed", 60), ("windowed", 80), ("cumulative", 200)):
        auc = 0.95 - 0.45 * np.exp(-own / lag) + 0.004 * rng.standard_normal(own.size)
        auc[:3] = np.nan
        writer.record_block(f"auc/{kind}", auc, steps=own, wall_times_s=times, unit="1")
    step_time = 0.01 * np.exp(0.2 * rng.standard_normal(own.size)) * slowness
    step_time[0] = 3.0
    writer.record_block("throughput/step_time", step_time, steps=own, wall_times_s=times, unit="s")
    rate = 100 / step_time
    writer.record_block(
        "throughput/samples_per_second", rate, steps=own, wall_times_s=times, unit="samples/s"
    )
    samples = 100.0 * np.arange(1, own.size + 1)
    writer.record_block(
        "throughput/samples", samples, steps=own, wall_times_s=times, unit="samples"
    )


def _write_staleness(writer, own, times, rng):
    staleness = rng.poisson(1.2, own.size)
    writer.record_block(
        "staleness/global", staleness, steps=own, wall_times_s=times, unit="updates"
    )
    per_variable = np.minimum(staleness[:, None], np.array([9, 4, 2]))
    writer.record_block(
        "staleness/variables",
        per_variable,
        steps=own,
        wall_times_s=times,
        unit="updates",
        axes=(Axis("variable", tuple(VARIABLES)),),
    )


def _write_optimizer(writer, own, times, *, nan, worker):
    """What a synchronization and an update rule tell of themselves, as trace_tensor records it."""
    counts = np.arange(1, own.size + 1)
    dropped = counts // 10
    for name, values, unit in (
        ("sync/live_workers", np.where(own < own[-1] // 2, 2, 1), "workers"),
        ("sync/wait_time", np.full(own.size, 0.002 * (1 + worker)), "s"),
        ("sync/accepted_gradients", counts - dropped, "gradients"),
        ("sync/dropped_gradients", dropped, "gradients"),
        ("sync/total_bytes_sent", 1000.0 * counts, "bytes"),
        ("sync/total_dense_bytes", 400_000.0 * counts, "bytes"),
    ):
        words = f"The {name.split('/')[1].replace('_', ' ')} of this worker."
        writer.record_block(
            name, values, steps=own, wall_times_s=times, unit=unit, description=words
        )
    ratio = 0.1 * np.outer(1 + np.sin(own / 30), np.arange(1, 4))
    if nan:
        ratio[:4] = np.nan
        ratio[9, 0] = np.inf
    writer.record_block(
        "optimizer/trust_ratio",
        ratio,
        steps=own,
        wall_times_s=times,
        unit="1",
        description="What the learning rate was scaled by.",
        axes=(Axis("variable", tuple(VARIABLES)),),
    )


def _write_evaluation(writer, steps, start, rng):
    for step in range(0, steps, max(steps // 10, 1)):
        at = {"step": step, "wall_time_s": start + 0.05 * step}
        auc = 0.92 - 0.4 * np.exp(-step / 120) + 0.003 * rng.standard_normal()
        writer.record("eval/auc", auc, unit="1", **at)
        writer.record("train/auc", auc + 0.03, unit="1", **at)
        writer.record("eval/loss", 0.2 + 0.5 * np.exp(-step / 150), unit="nat", **at)


def weights_at(step: int, steps: int, rng: np.random.Generator, nan: bool = False) -> np.ndarray:
    """The first layer, of which one band of rows grows far beyond the rest."""
    weights = 0.05 * rng.standard_normal(FULL_SHAPE)
    weights[BAND] *= 1 + 30 * step / steps
    if nan:
        weights[700:703, 100] = np.nan
        weights[30, 20] = np.inf
    return weights.astype(np.float32)


def block_max(weights: np.ndarray, rows: int) -> np.ndarray:
    return np.maximum.reduceat(np.abs(weights), np.arange(0, weights.shape[0], rows), axis=0)


def write_weights(writer, step, steps, wall_time_s, *, rng, nan=False):
    weights = weights_at(step, steps, rng, nan)
    at = {"step": step, "wall_time_s": wall_time_s}
    writer.record(
        "weights/fc1/kernel/tiles",
        block_max(weights, BLOCK[0]),
        unit="1",
        axes=(Axis("row block"), Axis("column block")),
        reduction="maximum of |w| over blocks of 3 x 1",
        details={"block_shape": list(BLOCK), "full_shape": list(FULL_SHAPE)},
        **at,
    )
    second = (0.1 * rng.standard_normal((256, 128))).astype(np.float32)
    details = {"block_shape": [1, 1], "full_shape": [256, 128]}
    writer.record("weights/fc2/kernel/tiles", np.abs(second), unit="1", details=details, **at)
    writer.record("weights/fc2/bias/raw", second[0], unit="1", **at)
    for name, value in (("fc1/kernel", weights), ("fc2/kernel", second)):
        spread = np.percentile(value[np.isfinite(value)], (1, 5, 25, 50, 75, 95, 99))
        writer.record(
            f"weights/{name}/percentiles", spread, axes=(Axis("percentile", PERCENTILES),), **at
        )
        with np.errstate(invalid="ignore"):
            moments = [value.mean(), value.std(), value.min(), value.max(), np.mean(value == 0)]
        writer.record(
            f"weights/{name}/moments", np.array(moments), axes=(Axis("moment", MOMENTS),), **at
        )
        ratio = 1e-3 * np.exp(0.3 * rng.standard_normal())
        writer.record(f"gradients/{name}/norm", 0.5 + 2 / (1 + step), unit="1", **at)
        writer.record(f"gradients/{name}/update_ratio", ratio, unit="1", **at)
    bands = [weights[start:stop] for start, stop in feature_groups().values()]
    axes = (Axis("feature group", GROUPS),)
    rms = np.array([np.sqrt(np.mean(np.square(band))) for band in bands])
    largest = np.array([np.abs(band).max() for band in bands])
    writer.record("weights/fc1/kernel/group_rms", rms, unit="1", axes=axes, **at)
    writer.record("weights/fc1/kernel/group_max", largest, unit="1", axes=axes, **at)


def write_keras_run(path: Path, steps: int = 200) -> Path:
    """A run of one process that knows nothing of the trainer: no staleness, no groups."""
    rng = np.random.default_rng(3)
    with TraceWriter(path, "main", config={"model": "sequential"}) as writer:
        for step in range(0, steps, 5):
            writer.record("train/loss", 0.7 - 0.001 * step, step=step, unit="nat")
            writer.record("train/accuracy", 0.5 + 0.002 * step, step=step)
            writer.record(
                "weights/dense/kernel/tiles",
                np.abs(rng.standard_normal((64, 32))).astype(np.float32),
                step=step,
                details={"block_shape": [1, 1], "full_shape": [64, 32]},
            )
    return path


def write_hostile_run(folder: Path) -> Path:
    """A run whose every name and setting tries to become markup."""
    path = folder / "<img src=x onerror=alert(1)>"
    evil = "</script><script>alert(1)</script>"
    with TraceWriter(
        path,
        "worker-<b>",
        config={"model": evil, evil: "<b>x</b>", "synchronization": "%{x}<br>"},
        feature_groups={evil: (0, 4), "plain": (4, 8)},
    ) as writer:
        for step in range(5):
            writer.record("train/loss", 1.0 / (step + 1), step=step, unit="<i>nat</i>")
            writer.record("eval/auc", 0.5 + 0.1 * step, step=step, unit="1")
            writer.record(
                "weights/w/tiles",
                np.ones((8, 4), np.float32),
                step=step,
                details={"block_shape": [1, 1], "full_shape": [8, 4]},
            )
            writer.record(
                "weights/w/group_rms",
                np.ones(2),
                step=step,
                axes=(Axis("feature group", (evil, "plain")),),
            )
    return path


def write_damaged_runs(folder: Path) -> None:
    """A run whose run.json is no JSON, and one with half a segment."""
    broken = folder / "broken-json"
    broken.mkdir(parents=True)
    (broken / "run.json").write_text("{")
    cut = write_keras_run(folder / "cut-segment")
    segment = next(cut.glob("main/*.h5"))
    segment.write_bytes(segment.read_bytes()[: segment.stat().st_size // 2])


LIVE_WRITER = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import numpy as np
from deepinsight.traces import TraceWriter
from example_runs import config, feature_groups, VARIABLES, write_weights
rng = np.random.default_rng(5)
with TraceWriter(sys.argv[1], "worker-0", config=config("async"), feature_groups=feature_groups(),
                 variables=VARIABLES, flush_interval_s=0.1) as writer:
    for step in range(100000):
        writer.record("train/loss", 1 / (1 + 0.01 * step), step=step, unit="nat")
        writer.record("auc/decayed", 1 - 0.5 / (1 + 0.02 * step), step=step, unit="1")
        writer.record("staleness/global", step % 3, step=step, unit="updates")
        if step % 20 == 0:
            write_weights(writer, step, 1000, time.time(), rng=rng)
            print(step, flush=True)
        time.sleep(float(sys.argv[3]))
"""


def start_live_run(path: Path, seconds_per_step: float = 0.02) -> subprocess.Popen[str]:
    """A process that writes until it is ended; it has written its first rows on return."""
    here = str(Path(__file__).parent)
    process = subprocess.Popen(
        [sys.executable, "-c", LIVE_WRITER, str(path), here, str(seconds_per_step)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    deadline = time.monotonic() + 20
    while not list(path.glob("*/*.h5")) and time.monotonic() < deadline:
        time.sleep(0.05)
    return process


def write_crashed_run(path: Path) -> Path:
    """A run whose only process was killed."""
    process = start_live_run(path, 0.005)
    time.sleep(1.0)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()
    return path


def write_everything(folder: Path) -> Path:
    """One folder with a run of each kind."""
    write_cluster_run(folder / "ctr-async")
    write_cluster_run(folder / "ctr-sync", synchronization="sync", steps=300)
    write_cluster_run(folder / "experiments" / "diverged", nan=True)
    write_keras_run(folder / "keras")
    write_hostile_run(folder)
    write_damaged_runs(folder)
    write_crashed_run(folder / "killed")
    with TraceWriter(folder / "nothing-yet", "main"):
        pass
    (folder / "not-a-run").mkdir()
    (folder / "notes.json").write_text(json.dumps({}))
    return folder


if __name__ == "__main__":
    write_everything(Path(sys.argv[1]))
