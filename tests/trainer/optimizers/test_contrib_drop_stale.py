"""The script for tf.contrib.opt runs, with resource variables and with mutable tensors."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import tensorflow as tf

from . import contrib_drop_stale_script as script
from .scripted import free_addresses

TIMEOUT_S = 120
MUTABLE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
from optimizers.test_contrib_drop_stale import run_all
print(json.dumps(run_all(sys.argv[2])))
"""


def run_all(folder):
    """A parameter server, the chief, and the slow worker once the chief is ready."""
    addresses = free_addresses(3)
    cluster = json.dumps({"ps": addresses[:1], "worker": addresses[1:]})
    ready = [threading.Event(), threading.Event()]
    results = {}

    def wait(index):
        ready[index].set()
        assert ready[1].wait(TIMEOUT_S)

    def work(index):
        results[index] = script.main("worker", index, folder, cluster, wait=lambda: wait(index))

    start(lambda: script.main("ps", 0, folder, cluster))
    chief = start(lambda: work(0))
    assert ready[0].wait(TIMEOUT_S)
    for thread in (start(lambda: work(1)), chief):
        thread.join(TIMEOUT_S)
    return [results[0], results[1]]


def start(target):
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread


def in_this_process(folder):
    return run_all(folder)


def with_mutable_tensors(folder):
    """After disable_v2_behavior, which lasts as long as a process."""
    tests = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", MUTABLE, str(tests), folder],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.timeout(180)
@pytest.mark.parametrize("run", [in_this_process, with_mutable_tensors])
def test_the_slow_workers_gradients_are_dropped_and_training_succeeds(tmp_path, run):
    chief, slow = run(str(tmp_path))
    assert chief["slot"] == slow["slot"] == "kernel/Momentum:0"
    dropped = max(chief["dropped"], slow["dropped"])
    assert 0 < dropped <= len(slow["losses"])  # the chief is never late
    pushes = len(chief["losses"]) + len(slow["losses"])
    assert script.STEPS <= pushes - dropped <= script.STEPS + 1  # both may be under way at the end
    assert chief["losses"][-1] < 0.01 * chief["losses"][0]
    reader = tf.train.load_checkpoint(str(tmp_path))
    kept = reader.get_variable_to_shape_map()
    assert {"kernel", "kernel/Momentum", "stale_counter", "global_step"} <= set(kept)
    assert reader.get_tensor("global_step") >= script.STEPS
