"""How lost processes are noticed."""

import socket
import threading
import time

import pytest

from deepinsight.trainer.cluster import watch as watching
from deepinsight.trainer.cluster.watch import Watch, answers, appear, watch_others


@pytest.fixture
def listening():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server


def address(server):
    return f"127.0.0.1:{server.getsockname()[1]}"


def test_a_process_that_never_answered_is_not_lost(listening):
    name = address(listening)
    assert answers(name)
    listening.close()
    assert not answers(name)
    watch = Watch({"ps-0": name}, lost_after_s=0.0)
    watch.look()
    assert not watch.seen("ps-0")
    assert watch.lost == []
    assert watch.silent() == ["ps-0"]
    watch.expect_all()  # unless it is known to have been there
    time.sleep(0.01)
    assert watch.lost == ["ps-0"]


def test_a_process_that_answered_and_is_silent_is_lost(listening):
    watch = Watch({"ps-0": address(listening)}, lost_after_s=0.2)
    watch.look()
    assert (watch.lost, watch.silent()) == ([], [])
    name = address(listening)
    listening.close()
    time.sleep(0.25)
    watch.look()
    assert watch.lost == ["ps-0"]
    assert watch.describe(watch.lost) == f"ps-0 ({name})"


def test_who_answers_is_not_lost_while_others_keep_the_watch_waiting(monkeypatch):
    def asked(address, timeout_s=2.0):
        time.sleep(0.0 if address == "here" else 0.1)
        return address == "here"

    monkeypatch.setattr(watching, "answers", asked)
    addresses = {"worker-1": "here", "worker-2": "a", "worker-3": "b"}
    watch = Watch(addresses, lost_after_s=0.15)
    watch.expect_all()
    watch.look()
    assert watch.lost == ["worker-2", "worker-3"]


def test_a_loss_is_told_once(listening):
    told, stop, name = threading.Event(), threading.Event(), address(listening)
    said = []

    def on_loss(message):
        said.append(message)
        told.set()

    watch = Watch({"ps-0": name}, lost_after_s=0.5)
    watch.look()
    watch_others(watch, stop, on_loss)
    listening.close()
    assert told.wait(20)
    stop.set()
    assert said == [f"ps-0 ({name}) is gone"]


def test_a_chief_that_refuses_is_seen_to_come_and_go(listening):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        own = address(free)
    others = Watch({"ps-0": address(listening)})
    thread = threading.Thread(target=appear, args=(own, others, ["ps-0"]), daemon=True)
    thread.start()
    watch = Watch({"chief": own}, lost_after_s=0.5)
    end = time.monotonic() + 20
    while not watch.lost and time.monotonic() < end:
        watch.look()
        time.sleep(0.1)
    thread.join(20)
    assert watch.lost == ["chief"]
