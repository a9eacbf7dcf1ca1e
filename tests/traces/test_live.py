import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from deepinsight.traces import open_run

ROOT = Path(__file__).parents[2]
WRITER = """
import json, sys, time
import numpy as np
from deepinsight.traces import TraceWriter
run_dir, process, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
log = open(f"{run_dir}/../log-{process}", "w")
begin, step = time.monotonic(), 0
with TraceWriter(run_dir, f"w{process}", flush_interval_s=0.01, segment_bytes=1 << 20) as writer:
    while time.monotonic() - begin < seconds:
        for stream in range(5):
            writer.record(f"s{stream}", process * 1e9 + stream * 1e6 + step, step=step)
        writer.record("array", np.full((50, 40), process * 1e6 + step), step=step)
        if step > 200:
            writer.record("late", -step, step=step)
        step += 1
        time.sleep(0.001)
json.dump({"steps": step, "errors": writer.write_errors, "dropped": writer.dropped_rows}, log)
"""


def check(run):
    """Whatever is there is whole, right and without a gap; return the number of rows."""
    rows = 0
    for process in run.processes:
        number = int(process.name[1:])
        names = {n for s in run._segments().get(process.name, []) for n in s.stream_names()}
        for name in names & {"s0", "s4", "array", "late"}:
            steps, times, values = run.array(name, process.name)
            begin = 201 if name == "late" else 0
            np.testing.assert_array_equal(steps, begin + np.arange(len(steps)))
            assert (np.abs(times - time.time()) < 600).all()
            if name == "late":
                expected = -steps
            elif name == "array":
                expected = np.broadcast_to((number * 1e6 + steps)[:, None, None], values.shape)
            else:
                expected = number * 1e9 + int(name[1]) * 1e6 + steps
            np.testing.assert_array_equal(values, expected)
            rows += len(steps)
    return rows


@pytest.mark.parametrize("keep_open", [True, False], ids=["refreshed", "opened anew"])
def test_a_reader_follows_three_live_writers(tmp_path, keep_open):
    run_dir = tmp_path / "run"
    command = [sys.executable, "-c", WRITER, str(run_dir)]
    run_dir.mkdir()
    writers = [
        subprocess.Popen([*command, str(i), "4"], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for i in range(3)
    ]
    deadline = time.monotonic() + 30
    while not (run_dir / "run.json").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    kept, polls, rows = open_run(run_dir), 0, 0
    while any(writer.poll() is None for writer in writers):
        if keep_open:
            kept.refresh()
            now = check(kept)
            check(kept)  # without looking again
            assert kept.warnings == ()
        else:
            with open_run(run_dir) as run:
                now = check(run)
                assert run.warnings == ()
        assert now >= rows
        rows, polls = now, polls + 1
    for writer in writers:
        assert (writer.communicate()[1], writer.returncode) == ("", 0)
    assert polls >= 3
    kept.refresh()
    check(kept)
    for i in range(3):
        log = json.loads((tmp_path / f"log-{i}").read_text())
        assert (log["errors"], log["dropped"]) == (0, 0)
        assert len(kept.steps("array", f"w{i}")) == log["steps"]
    assert kept.status == "finished"
