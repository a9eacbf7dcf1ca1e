"""Whose death ends a run of local processes, whose does not, and in which order they are ended."""

import signal

import pytest

from deepinsight.trainer.cluster import launcher
from deepinsight.trainer.cluster.launcher import Interrupted, launch
from deepinsight.trainer.errors import ClusterError

# What a process does before its own part: it says that it is there, and when it is told to end.
PROCESS = """
import json, os, signal, sys, time
task = json.loads(os.environ["TF_CONFIG"])["task"]
name = f"{task['type']}-{task['index']}"
def end(*_):
    time.sleep(0.5 if name == "worker-0" else 0.0)  # it saves
    with open(sys.argv[1], "a") as ended:
        ended.write(name + " ")
    os._exit(0)
signal.signal(signal.SIGTERM, end)
os.write(
    int(os.environ["DEEPINSIGHT_EVENTS_FD"]),
    json.dumps({"kind": "started", "process": name}).encode() + b"\\n",
)
time.sleep(0.5)
"""
LATE = "time.sleep(1.0 if name == 'worker-1' else 0.0)\nsys.exit(name == 'worker-1')"
EARLY = "time.sleep(0.0 if name == 'worker-1' else 30.0)\nsys.exit(name == 'worker-1')"
TOLD = "time.sleep(0.0 if name == 'worker-1' else 1.0)\nsys.exit(143 * (name == 'worker-1'))"
LONG = "time.sleep(30.0)"


def run(tmp_path, script, report=lambda event: None, **settings):
    """Run a server and two workers; returns what was reported lost."""
    lost = {}

    def listen(event):
        if event["kind"] == "lost":
            lost[event["process"]] = event["how"]
        report(event)

    arguments = ["-c", PROCESS + script, str(tmp_path / "ended")]
    launch(arguments, str(tmp_path), ps=1, workers=2, report=listen, **settings)
    return lost


@pytest.mark.parametrize("expendable", [True, False])
def test_a_worker_that_fails_once_the_chief_has_ended_well_spoils_nothing(tmp_path, expendable):
    lost = run(tmp_path, LATE, expendable=expendable)
    assert lost == {"worker-1": f"ended with status 1 (see {tmp_path}/logs/worker-1.log)"}


def test_a_worker_that_is_told_to_end_leaves_the_others_at_work(tmp_path):
    lost = run(tmp_path, TOLD)
    assert lost == {"worker-1": "was told to end by SIGTERM"}


def test_a_chief_that_is_told_to_end_ends_the_run(tmp_path):
    with pytest.raises(ClusterError, match=r"worker-0 was told to end by SIGTERM, so the run was"):
        run(tmp_path, TOLD.replace("worker-1", "worker-0"))


def test_a_worker_that_fails_before_ends_the_run(tmp_path):
    with pytest.raises(ClusterError, match=r"worker-1 ended with status 1, so the run was ended"):
        run(tmp_path, EARLY)


def test_a_worker_that_stands_still_at_the_end_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(launcher, "END_TIMEOUT_S", 1.0)
    lost = run(tmp_path, "time.sleep(30.0 if name == 'worker-1' else 0.0)")
    assert lost == {"worker-1": "did not end within 1 s after the others"}


@pytest.mark.parametrize(("expendable", "last"), [(True, {"ps-0"}), (False, {"ps-0", "worker-1"})])
def test_who_serves_the_chief_is_ended_after_it(tmp_path, expendable, last):
    started = set()

    def interrupt(event):
        started.add(event["process"])
        if len(started) == 3:
            raise Interrupted(signal.SIGINT)

    with pytest.raises(Interrupted, match="SIGINT"):
        run(tmp_path, LONG, interrupt, expendable=expendable)
    ended = (tmp_path / "ended").read_text().split()
    assert set(ended) == {"ps-0", "worker-0", "worker-1"}
    assert set(ended[ended.index("worker-0") + 1 :]) == last
