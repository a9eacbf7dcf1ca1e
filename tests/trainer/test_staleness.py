"""Staleness and dropped gradients against scripted interleavings, on a real server."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from deepinsight.trainer.dropped import DroppedGradients
from deepinsight.trainer.optimizers import UpdateCounts, push_async, push_sync
from deepinsight.trainer.sessions import create_session

v1 = tf.compat.v1
TIMEOUT_S = 60
SERVERS = []  # TensorFlow cannot end a server, so none may be collected


@pytest.fixture
def server():
    """A server of its own; all sessions on it share variables, queues and accumulators."""
    made = v1.train.Server.create_local_server()
    SERVERS.append(made)
    return made


class Scripted:
    """A worker whose step stops between the pull and the push, until the script says go on."""

    def __init__(self, server, index, make_push):
        self._index, self._graph = index, tf.Graph()
        with self._graph.as_default():
            step = v1.train.get_or_create_global_step()
            weights = {
                name: v1.get_variable(
                    name, [2], initializer=v1.zeros_initializer(), use_resource=True
                )
                for name in ("w", "v")
            }
            counts = UpdateCounts(weights, step)
            pulled_queue, gate = (
                tf.queue.FIFOQueue(100, [tf.int64], shapes=[()], shared_name=f"{name}{index}")
                for name in ("pulled", "gate")
            )
            versions = counts.read()
            with tf.control_dependencies(versions.tensors()):
                values = [w.read_value() for w in weights.values()]
            with tf.control_dependencies(values):
                tell = pulled_queue.enqueue(tf.constant(1, tf.int64))
            with tf.control_dependencies([tell]):
                go = gate.dequeue()
            gradients = []
            with tf.control_dependencies([go]):
                for value, weight in zip(values, weights.values(), strict=True):
                    gradients.append((tf.ones_like(value), weight))
            self.push = make_push(gradients, counts, versions, index)
            self._wait, self._go = pulled_queue.dequeue(), gate.enqueue(tf.constant(1, tf.int64))
            self.fetches = {
                "op": self.push.op,
                "step": self.push.step,
                "staleness": self.push.staleness.overall,
                "variables": tf.concat(list(self.push.staleness.variables.values()), axis=0),
            }
            if self.push.decided is not None:
                self.fetches |= {"token": self.push.token, "decided": self.push.decided}
            self.weight = weights["w"]
            self._open(server)

    def _open(self, server):
        if self.push.sync is None:
            self.session = v1.Session(server.target)
            if self._index == 0:
                self.session.run(v1.global_variables_initializer())
            self.raw = self.session
            return
        self.session, _ = create_session(
            SimpleNamespace(push=self.push), target=server.target, config=None,
            is_chief=self._index == 0, checkpoint_dir=None,
            hooks=[self.push.sync.hook(self._index == 0)],
        )  # fmt: skip
        self.raw = self.session.run_step_fn(lambda step_context: step_context.session)

    def pull(self):
        """Begin a step; returns when the weights have been read."""
        self._result = {}

        def step():
            self._result.update(self.raw.run(self.fetches))

        self._thread = threading.Thread(target=step, daemon=True)
        self._thread.start()
        self.raw.run(self._wait)

    def apply(self):
        """Let the step go on, and wait for its end."""
        self.raw.run(self._go)
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), "the step did not end"
        return self._result


def asynchronous(gradients, counts, versions, index):
    return push_async(v1.train.GradientDescentOptimizer(1.0), gradients, counts, versions)


def backed_up(gradients, counts, versions, index):
    """Two workers, one gradient per round."""
    return push_sync(
        v1.train.GradientDescentOptimizer(1.0), gradients, counts, versions,
        worker=index, workers=2, replicas_to_aggregate=1,
    )  # fmt: skip


@pytest.mark.timeout(120)
def test_one_worker_is_never_stale(server):
    worker = Scripted(server, 0, asynchronous)
    for expected in range(5):
        worker.pull()
        result = worker.apply()
        assert (result["step"], result["staleness"]) == (expected, 0)
        assert result["variables"].tolist() == [0, 0]
    worker.session.close()


@pytest.mark.timeout(120)
def test_two_workers_in_strict_alternation_are_one_update_stale(server):
    workers = [Scripted(server, i, asynchronous) for i in (0, 1)]
    for worker in workers:
        worker.pull()
    seen = []
    for turn in range(8):
        worker = workers[turn % 2]
        result = worker.apply()
        seen.append((int(result["step"]), int(result["staleness"]), result["variables"].tolist()))
        worker.pull()
    assert seen[0] == (0, 0, [0, 0])  # nobody had pushed before
    assert seen[1:] == [(step, 1, [1, 1]) for step in range(1, 8)]
    for worker in workers:
        worker.apply()
        worker.session.close()


@pytest.mark.timeout(120)
def test_staleness_counts_every_update_in_between(server):
    slow, fast = (Scripted(server, i, asynchronous) for i in (0, 1))
    slow.pull()
    for _ in range(4):
        fast.pull()
        assert fast.apply()["staleness"] == 0
    result = slow.apply()
    assert (result["step"], result["staleness"]) == (4, 4)
    for worker in (slow, fast):
        worker.session.close()


@pytest.mark.timeout(120)
def test_pushes_at_the_same_time_have_numbers_of_their_own(server):
    def free(gradients, counts, versions, index):
        return asynchronous([(tf.ones([2]), w) for _, w in gradients], counts, versions, index)

    workers = [Scripted(server, i, free) for i in (0, 1)]
    steps = [[], []]

    def run(i):
        fetches = {k: workers[i].fetches[k] for k in ("op", "step")}
        steps[i] = [int(workers[i].raw.run(fetches)["step"]) for _ in range(150)]

    threads = [threading.Thread(target=run, args=(i,)) for i in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert sorted(steps[0] + steps[1]) == list(range(300))
    for worker in workers:
        assert worker.raw.run(worker.weight).tolist() == [-300.0, -300.0]
        worker.session.close()


@pytest.mark.timeout(120)
def test_dropped_gradients_are_counted_as_scripted(server):
    """Backups: one gradient per round counts, the other worker's is late and dropped."""
    workers = [Scripted(server, i, backed_up) for i in (0, 1)]
    counts = [DroppedGradients(i, 0) for i in (0, 1)]
    script = [0, 1, 1, 1, 0]  # who is first in each round
    expected = np.zeros(2, int)
    for turn, first in enumerate(script):
        for worker in workers:
            worker.pull()
        results = {i: workers[i].apply() for i in (first, 1 - first)}
        expected[1 - first] += 1
        assert results[first]["staleness"] == 0
        assert results[1 - first]["staleness"] == 1
        assert results[1 - first]["variables"].tolist() == [1, 1]
        for i in (0, 1):
            assert results[i]["step"] == turn
            assert results[i]["token"] == turn + 1
            counts[i].update(int(results[i]["step"]), results[i]["decided"])
        assert [c.count for c in counts] == expected.tolist()
        assert [c.round for c in counts] == [turn + 1, turn + 1]
    accepted = workers[0].raw.run(workers[0].push.sync.accepted)
    assert accepted.tolist() == [2, 3, 5]
    # Each round applied one gradient of ones at rate 1, whatever was dropped.
    assert workers[0].raw.run(workers[0].weight).tolist() == [-5.0, -5.0]
    for worker in reversed(workers):
        worker.session.close()


@pytest.mark.timeout(120)
def test_a_worker_that_leaves_frees_the_others(server):
    def both(gradients, counts, versions, index):
        return push_sync(
            v1.train.GradientDescentOptimizer(1.0), gradients, counts, versions,
            worker=index, workers=2, replicas_to_aggregate=2,
        )  # fmt: skip

    chief, other = (Scripted(server, i, both) for i in (0, 1))
    chief.pull()
    chief.raw.run(chief._go)  # pushed, and waits for the other's gradient
    other.raw.run(other.push.sync.leave_op)
    chief._thread.join(TIMEOUT_S)
    assert not chief._thread.is_alive()
    assert chief._result["decided"].tolist() == [0, 0, 0, 1]
    other.session.close()
    chief.session.close()


def test_an_update_that_cannot_be_counted_is_refused():
    with tf.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        weight = v1.get_variable("w", [2], use_resource=True)
        other = v1.get_variable("v", [2], use_resource=True)
        counts = UpdateCounts({"w": weight}, step)
        update = other.assign_add([1.0, 1.0]).op
        with pytest.raises(ValueError, match="none for 'w:0' among 1 ops"):
            counts.raise_after([update], update)


def test_undecided_pushes_are_not_counted_as_dropped():
    count = DroppedGradients(0, accepted_before=7)
    count.update(5, np.array([7, 0, 5, 0]))  # round 5 is still open
    assert count.count == 0
    count.update(5, np.array([8, 0, 6, 0]))  # it took one of the two
    assert count.count == 1
    count.update(6, np.array([8, 0, 6, 0]))
    assert count.count == 1
    count.update(6, np.array([9, 0, 8, 0]))
    assert (count.count, count.accepted) == (2, 2)
