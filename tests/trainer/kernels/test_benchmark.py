"""The benchmark of the kernels runs and prints what it says it prints; its speed is not judged."""

import json
import math
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_quick_benchmark_prints_tables_and_a_result_line() -> None:
    command = ["--quick", "--ops", "dc,elastic", "--sizes", "1000,30000,sparse"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.kernels", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *table, last = done.stdout.strip().splitlines()
    assert sum(line.startswith("dc ") for line in table) == 3
    assert sum(line.startswith("elastic ") for line in table) == 2  # it has no sparse rival
    assert last.startswith("RESULT ")
    result = json.loads(last.removeprefix("RESULT "))
    ratios = {
        "dc_1000_vs_tf",
        "dc_30000_bandwidth_share",
        "dc_30000_vs_composed",
        "dc_30000_vs_xla",
        "dc_sparse_mrows_per_s",
        "dc_sparse_vs_tf",
        "elastic_30000_vs_xla",
    }
    assert ratios <= result.keys()
    assert {f"{key}_iqr" for key in ratios} <= result.keys()
    assert all(math.isfinite(value) and value >= 0 for value in result.values())
    assert all(result[key] > 0 for key in ratios)
