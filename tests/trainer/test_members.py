"""The list of the workers that rounds wait for, and the chief's part in it."""

import socket
import threading
import time
from types import SimpleNamespace

import pytest
import tensorflow as tf

from deepinsight.trainer.cluster import attendance
from deepinsight.trainer.cluster.attendance import Attendance
from deepinsight.trainer.cluster.members import Members
from deepinsight.trainer.cluster.topology import Topology

v1 = tf.compat.v1


@pytest.fixture
def session():
    with tf.Graph().as_default(), v1.Session() as session:
        yield session


def test_everybody_is_expected_at_the_start_of_a_launch(session):
    members = Members(3)
    count = members.count()
    leave, arrive = members.leave(1), members.arrive(0)
    session.run([v.initializer for v in members.variables])
    session.run([leave, arrive])
    assert session.run([members.live, members.progress, count])[0].tolist() == [1, 0, 1]
    session.run(members.start_op)
    live, progress, number = session.run([members.live, members.progress, count])
    assert (live.tolist(), progress.tolist(), number) == ([1, 1, 1], [0, 0, 0], 3)


def test_whoever_is_lost_is_a_member_again_with_the_next_arrival(session):
    members = Members(2)
    arrive, count = members.arrive(1), members.count()
    session.run(members.start_op)
    members.lose(session, [1])
    members.lose(session, [1])
    assert session.run(count) == 1
    session.run(arrive)
    assert session.run(members.live).tolist() == [1, 1]
    assert session.run(members.progress).tolist() == [0, 1]


def test_rounds_always_wait_for_somebody(session):
    members = Members(2)
    count = members.count()
    session.run(members.start_op)
    members.lose(session, [0, 1])
    assert session.run(members.live).tolist() == [0, 0]
    assert session.run(count) == 1


def test_whoever_waits_is_woken_after_the_list_has_become_shorter(session):
    woken = tf.queue.FIFOQueue(10, [tf.int64], shapes=[()])

    def wake():
        with v1.variable_scope("", reuse=True):
            live = v1.get_variable("members/live", [3], tf.int64, use_resource=True)
        return woken.enqueue(tf.reduce_sum(live.read_value()))

    members = Members(3, wake=wake)
    leave, taken = members.leave(2), woken.dequeue()
    session.run(members.start_op)
    session.run(leave)
    assert session.run(taken) == 2
    members.lose(session, [0])
    assert session.run(taken) == 1


@pytest.mark.parametrize("workers", [0, -1, float("nan")])
def test_a_run_has_a_worker(workers):
    with tf.Graph().as_default(), pytest.raises(ValueError, match=r"`workers` must be >= 1"):
        Members(workers)


class Said:
    """Stands in for the queue in which workers say that they are done."""

    def __init__(self):
        self.done = set()

    def take_done(self, session):
        done, self.done = self.done, set()
        return done


@pytest.fixture
def others():
    """The addresses of two workers that answer."""
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    yield servers
    for server in servers:
        server.close()


@pytest.fixture
def watching(others, monkeypatch):
    """An attendance that looks often, what it was told, and the workers that were lost."""
    monkeypatch.setattr(attendance, "POLL_S", 0.02)
    said, lost, members = Said(), [], SimpleNamespace(gone=[])
    members.lose = lambda session, workers: members.gone.extend(workers)
    workers = ("127.0.0.1:1", *(f"127.0.0.1:{s.getsockname()[1]}" for s in others))
    watching = Attendance(Topology((), workers, "worker", 0), said, members, lost.append)
    watching._watch._lost_after_s = 0.3
    return SimpleNamespace(attendance=watching, said=said, lost=lost, members=members)


def wait_for(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_worker_that_does_not_answer_any_more_is_lost_once(watching, others):
    stop = threading.Event()
    watching.attendance.begin(None, stop, everyone=True)
    others[0].close()
    wait_for(lambda: watching.lost)
    time.sleep(0.2)
    stop.set()
    assert watching.lost == ["worker-1"]
    assert watching.members.gone == [1]
    assert not watching.attendance.look(None)  # the other one is at work


def test_a_worker_that_is_done_may_go(watching, others):
    watching.attendance.look(None)
    watching.said.done = {1}
    assert not watching.attendance.look(None)
    others[0].close()
    time.sleep(0.5)
    assert not watching.attendance.look(None)
    assert watching.lost == watching.members.gone == []
    watching.said.done = {2}
    assert watching.attendance.look(None)


@pytest.mark.parametrize("done", [True, False])
def test_a_worker_that_was_started_again_is_at_work(watching, others, done):
    look = watching.attendance.look
    look(None)
    place = others[0].getsockname()
    watching.said.done = {1} if done else set()
    others[0].close()
    wait_for(lambda: not look(None) and watching.attendance._watch.lost)
    others[0] = socket.create_server(place)
    wait_for(lambda: not look(None) and not watching.attendance._watch.lost)
    watching.said.done = {2}
    assert not look(None)  # the chief waits for it
    others[0].close()
    wait_for(lambda: look(None))
    assert watching.lost == (["worker-1"] if done else ["worker-1", "worker-1"])
    assert watching.members.gone == ([1] if done else [1, 1])


def test_the_chief_waits_as_long_as_somebody_moves(watching, caplog):
    steps = iter(range(1000))
    session = SimpleNamespace(run=lambda progress: next(steps, 1000) // 10)
    began = time.monotonic()
    watching.attendance.wait_for_others(session, None, threading.Event(), 0.2)
    assert time.monotonic() - began > 0.5
    assert "2 of 2 other workers did not finish" in caplog.text


def test_a_stop_ends_the_chief_s_wait(watching):
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    began = time.monotonic()
    watching.attendance.wait_for_others(SimpleNamespace(run=lambda p: 0), None, stop, 60.0)
    assert time.monotonic() - began < 20
