"""Every synchronization with workers that finish early or die, and a chief that comes back."""

import signal
import time

import pytest

from deepinsight.errors import DeepInsightError
from deepinsight.traces import open_run
from deepinsight.trainer.options import checkpoint_step

from .conftest import SMALL

START_S = 240  # four processes import TensorFlow on a busy machine
GO_ON_S = 90
SETTINGS = [
    *SMALL, "--eval-every", 0, "--trace-every", 0, "--checkpoint-every", 20,
    "--barrier-timeout", 10,
]  # fmt: skip
KINDS = {
    "async": [],
    "sync": ["--synchronization", "sync"],
    "sync-with-backup": ["--synchronization", "sync", "--replicas-to-aggregate", 2],
    "drop-stale": ["--synchronization", "drop-stale"],
    "bounded": ["--synchronization", "bounded", "--staleness-bound", 1],
    "softsync": ["--synchronization", "softsync"],
    "model-average": ["--synchronization", "model-average", "--communication-period", 5],
    "block-momentum": ["--synchronization", "block-momentum", "--communication-period", 5],
    "elastic-average": ["--synchronization", "elastic-average"],
    "elastic-average-together": [
        "--synchronization", "elastic-average", "--synchronous-exchange",
    ],
    "gradient-compression": [
        "--synchronization", "gradient-compression", "--optimizer", "sgd",
    ],
    # worker-1 has the covariances, worker-2 the inverses; in the resumed run worker-1 has both
    "kfac": ["--synchronization", "kfac", "--optimizer", "sgd"],
}  # fmt: skip

pytestmark = pytest.mark.timeout(400)


def newest_step(path, process):
    """The last step that a process has recorded; -1 if there is none."""
    try:
        with open_run(path) as run:
            frame = run.frame("train/batch_loss")
            steps = frame["step"][frame["process"] == process]
    except (DeepInsightError, KeyError):
        return -1
    return int(steps.max()) if len(steps) else -1


def wait_until(condition, processes, limit_s):
    end = time.monotonic() + limit_s
    while not condition():
        for name, process in processes.items():
            assert process.poll() in (None, 0, -signal.SIGKILL), (name, process.stdout.read())
        assert time.monotonic() < end, "nothing happens"
        time.sleep(0.2)


def end_of(process, limit_s):
    output, _ = process.communicate(timeout=limit_s)
    return process.returncode, output


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_goes_on_without_those_who_finish_or_die_and_can_be_resumed(kind, cluster, tmp_path):
    path = tmp_path / "run"
    endless = ["--steps", 1_000_000, *SETTINGS, *KINDS[kind]]
    short = {"worker-2": ["--epochs", 1]}
    processes = cluster.start(path, *endless, workers=2, more=short)

    status, output = end_of(processes["worker-2"], START_S)  # an early end
    assert status == 0, output
    wait_until(lambda: newest_step(path, "worker-1") >= 0, processes, START_S)

    processes["worker-1"].send_signal(signal.SIGKILL)
    processes["worker-1"].wait(10)
    alone = newest_step(path, "worker-0")
    wait_until(lambda: newest_step(path, "worker-0") > alone + 40, processes, GO_ON_S)

    processes["worker-0"].kill()  # the run cannot go on without its chief
    status, output = end_of(processes["ps-0"], 30)
    assert status == 1
    assert "worker-0" in output
    assert "is gone" in output
    saved = checkpoint_step(str(path))
    assert saved >= 20

    resumed = ["--steps", saved + 40, "--resume", *SETTINGS, *KINDS[kind]]
    processes = cluster.start(path, *resumed, workers=1)  # one fewer than before
    for name, process in processes.items():
        status, output = end_of(process, START_S)
        assert status == 0, (name, output)
    with open_run(path) as run:
        frame = run.frame("train/batch_loss")
        assert frame["step"].max() >= saved + 40
    assert checkpoint_step(str(path)) >= saved + 40


def test_a_stalled_worker_is_left_behind_and_taken_in_again(cluster, tmp_path):
    path = tmp_path / "run"
    processes = cluster.start(
        path, "--steps", 1_000_000, *SETTINGS, "--barrier-timeout", 3, "--synchronization", "sync"
    )
    wait_until(lambda: newest_step(path, "worker-1") >= 10, processes, START_S)
    processes["worker-1"].send_signal(signal.SIGSTOP)
    stalled = newest_step(path, "worker-1")
    wait_until(lambda: newest_step(path, "worker-0") > stalled + 40, processes, GO_ON_S)
    processes["worker-1"].send_signal(signal.SIGCONT)
    back = newest_step(path, "worker-0")
    wait_until(lambda: newest_step(path, "worker-1") > back, processes, GO_ON_S)


def test_an_in_graph_run_ends_with_a_message_when_a_tower_dies(cluster, tmp_path):
    path = tmp_path / "run"
    processes = cluster.start(
        path, "--steps", 1_000_000, *SETTINGS, "--synchronization", "sync",
        "--replication", "in-graph",
    )  # fmt: skip
    wait_until(lambda: newest_step(path, "worker-0") >= 30, processes, START_S)
    processes["worker-1"].kill()
    status, output = end_of(processes["worker-0"], 40)
    assert status == 1
    assert "worker-1" in output
    assert "--resume to continue from the newest checkpoint" in output
    assert checkpoint_step(str(path)) >= 20


def test_a_dead_server_is_named(cluster, tmp_path):
    path = tmp_path / "run"
    processes = cluster.start(path, "--steps", 1_000_000, *SETTINGS)
    wait_until(lambda: newest_step(path, "worker-1") >= 0, processes, START_S)
    processes["ps-0"].kill()
    for name in ("worker-0", "worker-1"):
        status, output = end_of(processes[name], 40)
        assert status == 1
        assert "ps-0" in output, output
        assert "is gone" in output, output
