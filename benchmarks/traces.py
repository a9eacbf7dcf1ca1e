"""Writing and reading traces beside plain h5py that does the same, in one run.

``python -m benchmarks.traces`` prints a table and, as its last line, ``RESULT `` and a flat JSON
object. ``--quick`` takes a twentieth of the rows.

The two contenders take turns. What the training thread pays is timed call by call; what is
sustained is timed from the first row to the closed file. h5py writes as its users would:
``libver="latest"``, SWMR, chunks of 4,096 rows, step, wall time and value as three datasets, a
flush a second where rows come one by one (after each array), and on the training thread.
"""

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd

import deepinsight as di

BLOCK = 4096
ARRAY = np.random.default_rng(0).normal(size=332_801).astype(np.float32)  # 1.3 MB
PROCESSES = 3


class PlainFile:
    """One stream in one file through h5py's own interface."""

    def __init__(self, path: Path, shape: Sequence[int] = (), dtype: str = "f8") -> None:
        self.file = h5py.File(path, "w", libver="latest")
        rows = BLOCK if not shape else 1
        create = self.file.create_dataset
        self.datasets = [
            create("step", (0,), "i8", maxshape=(None,), chunks=(BLOCK,)),
            create("wall_time_s", (0,), "f8", maxshape=(None,), chunks=(BLOCK,)),
            create("values", (0, *shape), dtype, maxshape=(None, *shape), chunks=(rows, *shape)),
        ]
        self.file.swmr_mode = True
        self.flushed = time.monotonic()

    def append(self, *columns: Any, rows: int = 1) -> None:
        for dataset, column in zip(self.datasets, columns, strict=True):
            dataset.resize(len(dataset) + rows, axis=0)
            dataset[-rows:] = column

    def flush_each_second(self) -> None:
        if time.monotonic() - self.flushed > 1.0:
            self.file.flush()
            self.flushed = time.monotonic()


def per_call(call: Callable[[int], None], calls: int, pause_s: float = 0.0) -> float:
    """Return the median seconds of a call."""
    seconds = np.empty(calls)
    for i in range(calls):
        begin = time.perf_counter()
        call(i)
        seconds[i] = time.perf_counter() - begin
        if pause_s:
            time.sleep(pause_s)
    return float(np.median(seconds))


def scalar_cost(folder: Path, calls: int) -> tuple[float, float]:
    """Return seconds per scalar on the training thread: ours, h5py."""
    with di.Recorder(folder / "ours") as recorder:
        ours = per_call(lambda i: recorder.record("loss", 0.5, step=i), calls)
    plain = PlainFile(folder / "plain.h5")

    def write(i: int) -> None:
        plain.append(i, time.time(), 0.5)
        plain.flush_each_second()

    theirs = per_call(write, calls // 10)
    plain.file.close()
    return ours, theirs


def array_cost(folder: Path, calls: int) -> tuple[float, float]:
    """Return seconds per 1.3 MB array on the training thread: ours, h5py."""
    with di.Recorder(folder / "ours") as recorder:
        ours = per_call(lambda i: recorder.record("weights", ARRAY, step=i), calls, 0.02)
    plain = PlainFile(folder / "plain.h5", ARRAY.shape, "f4")

    def write(i: int) -> None:
        plain.append(i, time.time(), ARRAY)
        plain.file.flush()

    theirs = per_call(write, calls, 0.02)
    plain.file.close()
    return ours, theirs


def sustained(folder: Path, rows: int) -> tuple[float, float]:
    """Return rows per second from the first block to the closed file: ours, h5py."""
    values, times = np.random.default_rng(1).normal(size=BLOCK), np.full(BLOCK, time.time())
    blocks = rows // BLOCK
    begin = time.perf_counter()
    with di.Recorder(folder / "ours") as recorder:
        for i in range(blocks):
            steps = np.arange(i * BLOCK, (i + 1) * BLOCK)
            recorder.record_block("loss", values, steps=steps, wall_times_s=times)
    ours = blocks * BLOCK / (time.perf_counter() - begin)
    assert recorder.dropped_rows == 0
    begin = time.perf_counter()
    plain = PlainFile(folder / "plain.h5")
    for i in range(blocks):
        plain.append(np.arange(i * BLOCK, (i + 1) * BLOCK), times, values, rows=BLOCK)
        plain.flush_each_second()
    plain.file.close()
    return ours, blocks * BLOCK / (time.perf_counter() - begin)


def write_large_run(folder: Path, process: int, rows: int) -> None:
    """Record a process's share of a large run as a training would: a row a step, over time."""
    rng = np.random.default_rng(process)
    plain = PlainFile(folder / f"plain-{process}.h5")
    with di.Recorder(folder / "run", process=f"worker-{process}") as recorder:
        for start in range(0, rows, BLOCK):
            steps = np.arange(start, min(start + BLOCK, rows))
            block = (steps, 1.7e9 + steps * 1e-3, rng.normal(size=len(steps)))
            recorder.record_block("loss", block[2], steps=steps, wall_times_s=block[1], unit="nat")
            plain.append(*block, rows=len(steps))
            if start % (64 * BLOCK) == 0:
                recorder.flush()
    plain.file.close()


def reading(folder: Path, rows: int, repetitions: int) -> dict[str, float]:
    """Return seconds to open a run of ``rows`` in 3 processes and to make it a DataFrame."""
    writers = [
        multiprocessing.get_context("fork").Process(
            target=write_large_run, args=(folder, i, rows // PROCESSES)
        )
        for i in range(PROCESSES)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    found: dict[str, list[float]] = {"open_s": [], "frame_s": [], "h5py_frame_s": []}
    for _ in range(repetitions):
        begin = time.perf_counter()
        run = di.open_run(folder / "run")
        assert run.stream_names()
        found["open_s"].append(time.perf_counter() - begin)
        begin = time.perf_counter()
        frame = run.frame("loss")
        found["frame_s"].append(time.perf_counter() - begin)
        run.close()
        begin = time.perf_counter()
        plain = plain_frame(folder)
        found["h5py_frame_s"].append(time.perf_counter() - begin)
        assert np.array_equal(frame["value"], plain["value"])
        assert len(frame) == rows // PROCESSES * PROCESSES
    return {key: float(np.median(seconds)) for key, seconds in found.items()}


def plain_frame(folder: Path) -> pd.DataFrame:
    frames = []
    for i in range(PROCESSES):
        with h5py.File(folder / f"plain-{i}.h5") as file:
            frames.append(
                pd.DataFrame(
                    {
                        "step": file["step"][:],
                        "wall_time_s": file["wall_time_s"][:],
                        "process": f"worker-{i}",
                        "value": file["values"][:],
                    }
                )
            )
    return pd.concat(frames, ignore_index=True)


def repeated(
    measure: Callable[[Path, int], tuple[float, float]], size: int, repetitions: int
) -> np.ndarray:
    """Return [repetitions, 2]: ours and h5py's, in turn, each in a fresh folder."""
    found = []
    for _ in range(repetitions):
        with tempfile.TemporaryDirectory() as folder:
            found.append(measure(Path(folder), size))
    return np.array(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a twentieth of the rows")
    quick = parser.parse_args().quick
    scale, repetitions = (20, 3) if quick else (1, 5)
    rows = 10_000_000 // scale
    scalar = repeated(scalar_cost, 100_000 // scale, repetitions) * 1e6
    array = repeated(array_cost, 100 // (5 if quick else 1), repetitions) * 1e3
    rate = repeated(sustained, rows, repetitions)
    with tempfile.TemporaryDirectory() as folder:
        read = reading(Path(folder), rows, repetitions)

    print(f"{'':<52}{'DeepInsight':>14}{'plain h5py':>14}{'spread of ours':>24}")
    for label, pairs, digits in (
        ("scalar on the training thread, us", scalar, 2),
        ("1.3 MB array on the training thread, ms", array, 3),
        ("blocks of 4,096 scalars, million rows/s", rate / 1e6, 1),
    ):
        ours, theirs = np.median(pairs, axis=0)
        spread = f"{pairs[:, 0].min():.{digits}f} - {pairs[:, 0].max():.{digits}f}"
        print(f"{label:<52}{ours:>14.{digits}f}{theirs:>14.{digits}f}{spread:>24}")
    print(f"{f'open a run of {rows:,} rows in 3 processes, s':<52}{read['open_s']:>14.4f}{'-':>14}")
    print(
        f"{'the same as a DataFrame, s':<52}{read['frame_s']:>14.3f}{read['h5py_frame_s']:>14.3f}"
    )
    result = {
        "record_us": np.median(scalar[:, 0]),
        "h5py_record_us": np.median(scalar[:, 1]),
        "array_ms": np.median(array[:, 0]),
        "h5py_array_ms": np.median(array[:, 1]),
        "record_block_rows_per_s": np.median(rate[:, 0]),
        "h5py_record_block_rows_per_s": np.median(rate[:, 1]),
        **read,
        "rows": rows,
    }
    print("RESULT " + json.dumps({key: float(f"{value:.6g}") for key, value in result.items()}))


if __name__ == "__main__":
    main()
