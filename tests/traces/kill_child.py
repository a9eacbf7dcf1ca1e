"""A process that records until it is killed; run by test_kill.py and by benchmarks/kill.py.

Every value is a function of stream and step, so that whoever reads the trace knows what must be there. After
each explicit flush one line with the last flushed step goes to standard output.
"""

import os
import sys

import numpy as np

import deepinsight as di

SCALARS = 200
ARRAY_SHAPE = (40, 25)
FLUSH_EVERY = 37


def scalar_value(stream: int, step: int) -> float:
    return stream * 1e6 + step + 0.5


def array_value(step: int) -> np.ndarray:
    return np.arange(1000, dtype="float32").reshape(ARRAY_SHAPE) + step


def main(run_dir: str, first_step: int) -> None:
    recorder = di.Recorder(run_dir, process="worker-0", flush_interval_s=0.05)
    for step in range(first_step, 10**9):
        for stream in range(SCALARS):
            recorder.record(f"scalars/s{stream}", scalar_value(stream, step), step=step)
        recorder.record("array", array_value(step), step=step)
        if step > first_step + 3 * FLUSH_EVERY:
            recorder.record("late", scalar_value(-1, step), step=step)
        if step % FLUSH_EVERY == 0 and recorder.flush():
            os.write(1, f"{step}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
