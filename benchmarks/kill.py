"""Kill recording processes at random moments and compare what is left with what they recorded.

``python -m benchmarks.kill`` makes 100 kills (``--kills``) with SIGKILL, a quarter of them of a
process that was restarted in the run of one killed before it. It prints a table and, as its last
line, ``RESULT `` and a flat JSON object:

==================  ==============================================================================
``kills``           Kills made.
``opened``          Traces that opened without a warning.
``wrong_values``    Rows whose value or place in the sequence of steps is not what was recorded.
``lost_flushed``    Rows missing although ``flush()`` had returned True after them.
``max_missing_s``   Longest time before a kill of which nothing is in the trace: the flush window,
                    and the time of a write, or of beginning a segment of 200 streams, under way.
``flush_window_s``  The recorders' ``flush_interval_s``.
==================  ==============================================================================

Every value is a function of stream and step. Half of the processes begin a new segment at 256 KiB,
so that kills meet the change of segments, too.
"""

import argparse
import json
import os
import random
import signal
import struct
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deepinsight.traces import TraceWriter, open_run

FLUSH_WINDOW_S = 0.2
FLUSH_EVERY = 23
LATE_AFTER = 40
# Name -> (scalar streams, shape of the array or None, pause after a step and longest life in s).
MODES: dict[str, tuple[int, tuple[int, ...] | None, float, float]] = {
    "scalars": (3, None, 0.0002, 0.6),
    "arrays": (1, (256, 256), 0.002, 0.8),
    "200 streams": (200, (40, 25), 0.002, 2.5),
}


@dataclass
class Tally:
    """What the kills of one kind came to."""

    kills: int = 0
    opened: int = 0
    rows: int = 0
    wrong_values: int = 0
    lost_flushed: int = 0
    max_missing_s: float = 0.0

    def add(self, other: "Tally") -> None:
        """Take in the tally of further kills."""
        for name, value in vars(other).items():
            join = max if name == "max_missing_s" else lambda a, b: a + b
            setattr(self, name, join(getattr(self, name), value))


def scalar_values(stream: int, steps: np.ndarray) -> np.ndarray:
    return stream * 1e6 + steps + 0.5


def array_values(steps: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    first = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return first + steps.astype(np.float32).reshape(-1, *(1,) * len(shape))


def record_until_killed(
    run_dir: str, mode: str, first_step: int, segment_bytes: int, log: int
) -> None:
    """Record forever; each explicit flush writes the last step before it to ``log``."""
    streams, shape, pause_s, _ = MODES[mode]
    writer = TraceWriter(
        run_dir, "worker-0", flush_interval_s=FLUSH_WINDOW_S, segment_bytes=segment_bytes
    )
    os.write(log, struct.pack("<q", first_step - 1))
    step = first_step
    while True:
        for stream in range(streams):
            writer.record(f"scalars/s{stream}", stream * 1e6 + step + 0.5, step=step)
        if shape:
            writer.record("array", array_values(np.array([step]), shape)[0], step=step)
        if step >= first_step + LATE_AFTER:
            writer.record("late", -1e6 + step + 0.5, step=step)
        if step % FLUSH_EVERY == 0 and writer.flush():
            os.write(log, struct.pack("<q", step))
        step += 1
        time.sleep(pause_s)


def kill_one(
    run_dir: str, mode: str, first_step: int, segment_bytes: int, life_s: float
) -> tuple[int, float]:
    """Start a recording process, kill it, return the last flushed step and the time of death."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(read_end)
            record_until_killed(run_dir, mode, first_step, segment_bytes, write_end)
        finally:
            os._exit(1)
    os.close(write_end)
    log = os.read(read_end, 8)  # the recorder is there
    time.sleep(life_s)
    killed_at_s = time.time()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while more := os.read(read_end, 1 << 16):
        log += more
    os.close(read_end)
    return struct.unpack("<q", log[-8:])[0], killed_at_s


def check(
    run_dir: str,
    mode: str,
    *,
    first_step: int,
    flushed_step: int,
    began_s: float,
    killed_at_s: float,
) -> Tally:
    """Compare the rows of the last life, which began at ``first_step``, with what it recorded."""
    streams, shape, *_ = MODES[mode]
    tally = Tally(kills=1)
    newest_s = began_s
    with open_run(run_dir) as run:
        there = set(run.stream_names())
        expected = {f"scalars/s{i}": (i, first_step) for i in range(streams)}
        expected["late"] = (-1, first_step + LATE_AFTER)
        if shape:
            expected["array"] = (None, first_step)
        for name, (stream, begin) in expected.items():
            if name not in there:
                tally.lost_flushed += max(flushed_step - begin + 1, 0)
                continue
            steps, times, values = run.array(name)
            right = array_values(steps, shape) if stream is None else scalar_values(stream, steps)
            tally.rows += len(steps)
            tally.wrong_values += sum(bool(np.any(row)) for row in values != right)
            mine = steps[times >= began_s]
            tally.wrong_values += int((mine != np.arange(begin, begin + len(mine))).sum())
            last = mine[-1] if len(mine) else begin - 1
            tally.lost_flushed += max(flushed_step - max(int(last), begin - 1), 0)
            newest_s = max(newest_s, times.max(initial=0.0))
        tally.opened = int(not run.warnings and run.status == "crashed")
    tally.max_missing_s = killed_at_s - newest_s
    return tally


def kill_many(kills: int, seed: int, folder: Path) -> dict[str, Tally]:
    chance = random.Random(seed)
    tallies = {mode: Tally() for mode in MODES}
    run_dir, mode, first_step = "", "", 0
    for number in range(kills):
        restarted = number % 4 == 3
        if not restarted:
            run_dir, first_step = str(folder / f"run-{number}"), 0
            mode = chance.choice(list(MODES))
        segment_bytes = chance.choice([256 << 10, 1 << 30])
        began_s = time.time()
        flushed_step, killed_at_s = kill_one(
            run_dir, mode, first_step, segment_bytes, chance.uniform(0, MODES[mode][3])
        )
        tallies[mode].add(
            check(
                run_dir,
                mode,
                first_step=first_step,
                flushed_step=flushed_step,
                began_s=began_s,
                killed_at_s=killed_at_s,
            )
        )
        first_step = flushed_step + 1  # where a restart from a checkpoint would go on
    return tallies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="deepinsight-kill-") as folder:
        tallies = kill_many(options.kills, options.seed, Path(folder))
    total = Tally()
    print(f"{'':12}  kills  opened       rows  wrong  flushed, lost  longest missing")
    for mode, tally in [*tallies.items(), ("all", total)]:
        print(
            f"{mode:12}  {tally.kills:5}  {tally.opened:6}  {tally.rows:9}  {tally.wrong_values:5}"
            f"  {tally.lost_flushed:13}  {tally.max_missing_s:13.3f} s"
        )
        if tally is not total:
            total.add(tally)
    result = {**vars(total), "flush_window_s": FLUSH_WINDOW_S, "seed": options.seed}
    print("RESULT " + json.dumps(result))


if __name__ == "__main__":
    main()
