import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_killed_recorders_leave_traces_that_open_and_are_right():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.kill", "--kills", "12", "--seed", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *table, last = done.stdout.strip().splitlines()
    assert any(line.startswith("200 streams") for line in table)
    result = json.loads(last.removeprefix("RESULT "))
    assert (result["kills"], result["opened"]) == (12, 12)
    assert result["rows"] > 1000
    assert (result["wrong_values"], result["lost_flushed"]) == (0, 0)
    # The window, and a write or the beginning of a segment beside whatever else the machine does.
    assert result["max_missing_s"] < result["flush_window_s"] + 3.0
