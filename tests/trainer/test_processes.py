"""``deepinsight train`` with real processes and sockets; every wait is bounded."""

import json
import os
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from deepinsight.traces import open_run
from deepinsight.trainer.cluster.launcher import NOTES

from .conftest import COMMAND, SMALL, clean_environment

START_S = 90  # three processes import TensorFlow on a busy machine
END_S = 5  # what is promised
ENDLESS = ["--steps", "1000000", "--eval-every", "0", "--trace-every", "0", *SMALL]

pytestmark = pytest.mark.timeout(180)


def value(run, stream):
    return run.frame(stream)["value"]


@pytest.fixture(scope="module")
def asynchronous(train, tmp_path_factory):
    """A run of 1 server and 2 workers that ended well."""
    path = tmp_path_factory.mktemp("runs") / "async"
    done = train(
        "--run-dir", path, "--steps", 60, "--eval-every", 25, "--trace-every", 20, *SMALL
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return path, done


def test_an_asynchronous_run_leaves_a_full_trace(asynchronous):
    path, _ = asynchronous
    run = open_run(path)
    assert run.status == "finished"
    assert not run.warnings
    assert {p.name for p in run.processes} == {"worker-0", "worker-1"}
    assert run.config["model"] == "wide-deep"
    assert run.config["workers"] == 2
    pushes = run.frame("staleness/global")
    assert sorted(pushes["step"]) == list(range(1, len(pushes) + 1))  # every push, once
    assert len(pushes) >= 60
    assert (pushes["value"] >= 0).all()
    assert set(pushes["process"]) == {"worker-0", "worker-1"}
    names = {
        "train/batch_loss", "eval/loss", "eval/auc", "train/loss", "train/auc", "auc/decayed",
        "auc/windowed", "auc/cumulative", "throughput/step_time", "throughput/samples_per_second",
        "staleness/variables", "startup/first_step", "weights/fc1/kernel/tiles",
        "weights/embedding/row_0/group_rms", "gradients/fc1/kernel/norm",
        "gradients/wide/row_3/update_ratio",
    }  # fmt: skip
    assert names <= set(run.stream_names())
    assert run.stream("staleness/variables").axes[0].labels[0] in run.variables


def test_an_asynchronous_run_says_what_it_reached_and_what_to_type_next(asynchronous):
    path, done = asynchronous
    assert done.stdout.count("at the end: step 6") == 1
    assert done.stdout.count("step 6") < 3  # the last evaluation is not shown twice
    assert "1 ps, 2 workers; logs in" in done.stdout
    assert "starting 3 processes" in done.stdout
    assert "samples/s), mean staleness" in done.stdout
    assert f"the run is in {path}" in done.stdout
    assert "deepinsight dashboard" in done.stdout
    assert "worker-1: first step" in done.stdout
    assert "\x1b" not in done.stdout


def test_workers_start_without_long_waits(asynchronous):
    run = open_run(asynchronous[0])
    waits = value(run, "startup/first_step").to_numpy() - value(run, "startup/imports").to_numpy()
    # 15 s is promised on a quiet machine, TensorFlow's own wait would be 30 s.
    assert waits.max() < 25


def test_a_new_run_does_not_write_over_an_old_one(asynchronous, train):
    done = train("--run-dir", asynchronous[0], "--steps", 5)
    assert done.returncode == 2
    assert "already holds a run" in done.stderr


def test_resume_refuses_another_model_by_name(asynchronous, train):
    done = train("--run-dir", asynchronous[0], "--resume", "--model", "dense")
    assert done.returncode == 2
    assert "--model was wide-deep" in done.stderr


def test_resume_continues_steps_and_trace(asynchronous, train):
    path, _ = asynchronous
    before = open_run(path)
    last = int(before.frame("eval/auc")["step"].max())
    again = train("--run-dir", path, "--resume")
    assert again.returncode == 2
    assert f"is already at step {last}; give a larger --steps. Received: 60" in again.stderr
    done = train(
        "--run-dir", path, "--resume", "--steps", last + 20, "--synchronization", "sync",
        "--ps", 2,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "--resume: --ps was 1, is 2 now" in done.stdout
    assert before.config["batch_size"] == 50
    after = open_run(path)
    assert after.run_id == before.run_id
    assert after.config["batch_size"] == 50  # taken over
    assert (value(after, "sync/accepted_gradients") >= 10).any()
    assert after.status == "finished"
    steps = after.frame("staleness/global")["step"]
    assert set(range(last + 1, last + 21)) <= set(steps)
    assert int(after.frame("eval/auc")["step"].max()) == last + 20
    assert after.frame("eval/auc")["value"].iloc[-1] > 0.6  # it did not begin anew


def test_a_synchronous_run_is_evaluated_against_the_truth_that_it_trains_on(train, tmp_path):
    done = train(
        "--run-dir", tmp_path / "run", "--data", "ctr", "--ctr-drift", 80_000, "--ctr-groups", 2,
        "--ctr-vocabulary", 20, "--synchronization", "sync", "--steps", 400, "--eval-every", 100,
        "--trace-every", 0, "--optimizer", "sgd", "--learning-rate", 0.3,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # The best is 0.85. Half a turn off, the opposite is true: 0.2.
    assert value(open_run(tmp_path / "run"), "eval/auc").min() > 0.6


def test_data_running_out_on_one_worker_leaves_the_others_at_work(train, tmp_path):
    rng = np.random.default_rng(1)
    lines = [
        "\t".join([str(i % 2), *map(str, rng.integers(0, 9, 13)), *["1f"] * 26])
        for i in range(58)  # 53 to train on: one worker has 27, the other 26
    ]
    (tmp_path / "day.tsv").write_text("\n".join(lines) + "\n")
    done = train(
        "--run-dir", tmp_path / "run", "--data", "criteo", "--data-path", tmp_path / "day.tsv",
        "--model", "dense", "--input-width", 100, "--hidden", "8", "--epochs", 1,
        "--batch-size", 1, "--synchronization", "sync", "--trace-every", 0,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "data ran out on worker-0, worker-1" in done.stdout
    run = open_run(tmp_path / "run")
    assert run.status == "finished"
    counts = run.frame("staleness/global").groupby("process").size()
    assert (counts["worker-0"], counts["worker-1"]) == (27, 26)
    assert value(run, "sync/dropped_gradients").max() == 0


def test_a_single_process_needs_no_cluster(train, tmp_path):
    done = train(
        "--run-dir", tmp_path / "run", "--ps", 0, "--workers", 1, "--steps", 20, "--data", "ctr",
        "--ctr-leak", 0.5, "--eval-every", 10, *SMALL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "the best possible auc on this data is 0.8" in done.stdout
    run = open_run(tmp_path / "run")
    assert [p.name for p in run.processes] == ["main"]
    assert value(run, "staleness/global").tolist() == [0] * 20
    assert run.frame("eval/auc")["step"].tolist() == [10, 20]
    assert list(run.feature_groups)[-1] == "leak"
    assert run.config["data_facts"]["bayes_auc"] > 0.8


class Endless:
    """A run that would never end, and the means to disturb it."""

    def __init__(self, path: Path, *arguments: str) -> None:
        self.path = path
        self.process = subprocess.Popen(
            [*COMMAND, "--run-dir", str(path), *ENDLESS, *arguments],
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_until_training(self) -> None:
        started = 0
        for line in self.process.stdout:
            started += "first step" in line
            if started == 2:
                return
        pytest.fail(f"training did not begin: {self.process.stderr.read()}")

    def children(self) -> list[int]:
        """Process ids below the launcher."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == self.process.pid and fields[0] != "Z":
                found.append(int(stat.parent.name))
        return found

    def pid_of(self, name: str) -> int:
        return int(json.loads((self.path / name / "process.json").read_text())["pid"])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for_end(pids: list[int], limit_s: float) -> float:
    """Wait until no process is left; returns how long it took."""
    began = time.monotonic()
    while any(alive(pid) for pid in pids):
        assert time.monotonic() - began < limit_s, "a process is left"
        time.sleep(0.05)
    return time.monotonic() - began


@pytest.fixture
def endless(tmp_path):
    with ExitStack() as stack:

        def start(*arguments):
            run = Endless(tmp_path / "run", *arguments)
            stack.callback(run.process.stdout.close)
            stack.callback(run.process.stderr.close)
            stack.callback(run.process.wait, 20)
            stack.callback(run.process.kill)
            run.wait_until_training()
            return run

        yield start


def test_a_killed_chief_ends_a_run_and_is_named(endless):
    run = endless("--synchronization", "sync")
    children = run.children()
    assert len(children) == 3
    os.kill(run.pid_of("worker-0"), signal.SIGKILL)
    began = time.monotonic()
    assert run.process.wait(END_S * 2) == 1
    assert time.monotonic() - began < END_S
    wait_for_end(children, 1)
    message = run.process.stderr.read()
    assert "worker-0 was killed by SIGKILL (by someone, or by the system for want of" in message
    assert "worker-0.log says nothing of it" in message
    trace = open_run(run.path)
    assert trace.status == "crashed"
    assert {p.name: p.status for p in trace.processes}["worker-1"] == "crashed"


def test_ctrl_c_ends_everything_and_the_run_can_be_resumed(endless):
    run = endless()
    children = run.children()
    assert len(children) == 3
    run.process.send_signal(signal.SIGINT)
    began = time.monotonic()
    assert run.process.wait(END_S * 2) == 130
    assert time.monotonic() - began < END_S
    wait_for_end(children, 1)
    assert "ended by SIGINT" in run.process.stdout.read()
    assert open_run(run.path).status == "finished"
    assert (run.path / "checkpoints" / "checkpoint").exists()


def test_ctrl_c_ends_a_single_process_too(tmp_path):
    process = subprocess.Popen(
        [*COMMAND, "--run-dir", str(tmp_path / "run"), *ENDLESS, "--ps", "0", "--workers", "1"],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        try:
            for line in process.stdout:
                if "first step" in line:
                    break
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=2 * END_S)
        finally:
            process.kill()
    assert process.returncode == 130
    assert f"ended by a signal; the run is in {tmp_path / 'run'}. --run-dir" in output
    assert "--resume continues it from step" in output
    assert "Traceback" not in output
    assert (tmp_path / "run" / "checkpoints" / "checkpoint").exists()


def test_a_killed_launcher_leaves_no_orphan(endless):
    run = endless()
    children = run.children()
    assert len(children) == 3
    run.process.kill()
    run.process.wait(5)
    assert wait_for_end(children, 2 * END_S) < END_S
    deadline = time.monotonic() + END_S  # a process that has ended may hold its lock a moment more
    while open_run(run.path).status == "live" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert open_run(run.path).status == "crashed"


def test_tf_config_makes_each_process_take_its_place(cluster, tmp_path):
    processes = cluster.start(tmp_path / "run", "--steps", "20", *SMALL)
    output = {job: p.communicate(timeout=START_S)[0] for job, p in processes.items()}
    assert {job: p.returncode for job, p in processes.items()} == dict.fromkeys(processes, 0), (
        output
    )
    assert "at the end: step 2" in output["worker-0"]
    assert "pushes of this worker" in output["worker-0"]
    assert "worker-1: first step" in output["worker-1"]
    run = open_run(tmp_path / "run")
    assert {p.name for p in run.processes} == {"worker-0", "worker-1"}
    assert run.status == "finished"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch-size", "0"], "--batch-size must be >= 1"),
        (["--resume"], "--resume needs --run-dir"),
        (["--run-dir", "nowhere", "--resume"], "there is no run in --run-dir nowhere"),
        (["--data", "criteo"], "--data criteo needs --data-path"),
        (["--ps", "0"], "--workers 2 needs --ps >= 1"),
        (["--hidden", "a,b"], "must be whole numbers with commas between them, such as 64,32"),
    ],
)
def test_wrong_options_end_with_status_2_and_a_message(train, arguments, message):
    done = train(*arguments, timeout_s=30)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_data_file_is_refused_before_anything_starts(train, tmp_path):
    given = ["--run-dir", tmp_path / "run", "--data", "criteo", "--data-path"]
    done = train(*given, tmp_path / "no.tsv", timeout_s=10)
    assert done.returncode == 2
    assert "no.tsv: the Criteo file cannot be read ([Errno 2]" in done.stderr
    (tmp_path / "day.tsv").write_text("1\t2\n")
    done = train(*given, tmp_path / "day.tsv", timeout_s=10)
    assert done.returncode == 2
    assert "day.tsv, line 1: a line must have 40 tab-separated fields" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_line_that_cannot_be_trained_on_ends_the_run_as_crashed(train, tmp_path):
    good = "\t".join(["1", *["3"] * 13, *["1f"] * 26])
    (tmp_path / "day.tsv").write_text(f"{good}\n" * 30 + "1\t2\n")
    done = train(
        "--run-dir", tmp_path / "run", "--data", "criteo", "--data-path", tmp_path / "day.tsv",
        "--ps", 0, "--workers", 1, "--held-out", 2, *SMALL,
    )  # fmt: skip
    assert done.returncode == 1
    assert "day.tsv, line 31: a line must have 40 tab-separated fields" in done.stderr
    assert open_run(tmp_path / "run").status == "crashed"


def test_the_kernels_of_a_rule_bring_no_notes_of_tensorflow(train, tmp_path):
    arguments = ["--ps", 0, "--workers", 1, "--steps", 2, "--optimizer", "lars", *SMALL]
    done = train("--run-dir", tmp_path / "run", *arguments)
    assert done.returncode == 0, done.stderr
    assert not [line for line in done.stderr.splitlines() if NOTES.match(line)]


def test_help_needs_no_tensorflow(train):
    code = "import sys, deepinsight.trainer.command as c; print('tensorflow' in sys.modules)"
    done = subprocess.run(
        [COMMAND[0], "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.strip() == "False"
    assert "--replicas-to-aggregate" in train("--help", timeout_s=30).stdout
