import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Asked for is a tenth of Keras' cost; beside other tests on a busy machine half of that must show.
LEAST_RATIO = 5.0


def test_quick_benchmark_prints_tables_and_a_result_line():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.auc", "--quick"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *table, last = done.stdout.strip().splitlines()
    assert any(line.startswith("collapsed") for line in table)
    assert any(line.startswith("keras in a tf.function") for line in table)
    assert last.startswith("RESULT ")
    result = json.loads(last.removeprefix("RESULT "))
    assert all(isinstance(value, float) for value in result.values())
    assert result["max_abs_error"] <= 1e-4
    assert result["keras_max_abs_error"] > 1e-2  # else the comparison is broken
    assert result["keras_cost_ratio"] >= LEAST_RATIO
    assert {"update_ms", "keras_update_ms", "result_ms"} <= result.keys()
