"""Staleness and dropped gradients against scripted interleavings, on a real server."""

import threading

import pytest
import tensorflow as tf

from deepinsight.trainer.cluster.members import Patience
from deepinsight.trainer.optimizers import UpdateCounts, push_async, push_sync

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
        self._graph = tf.Graph()
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
            if self.push.dropped is not None:
                self.fetches |= {"reached": self.push.reached, "dropped": self.push.dropped}
            self.weight = weights["w"]
            self._open(server, index)

    def _open(self, server, index):
        if self.push.hooks:
            monitored = v1.train.MonitoredTrainingSession(
                server.target, index == 0, hooks=self.push.hooks,
                save_summaries_steps=None, log_step_count_steps=None,
            )  # fmt: skip
            self.session = monitored.run_step_fn(lambda step_context: step_context.session)
            return
        self.session = v1.Session(server.target)
        if index == 0:
            self.session.run(v1.global_variables_initializer())

    def pull(self):
        """Begin a step; returns when the weights have been read."""
        self._result = {}

        def step():
            self._result.update(self.session.run(self.fetches))

        self._thread = threading.Thread(target=step, daemon=True)
        self._thread.start()
        self.session.run(self._wait)

    def apply(self):
        """Let the step go on, and wait for its end."""
        self.session.run(self._go)
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), "the step did not end"
        return self._result


def asynchronous(gradients, counts, versions, index):
    return push_async(v1.train.GradientDescentOptimizer(1.0), gradients, counts, versions)


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
        steps[i] = [int(workers[i].session.run(fetches)["step"]) for _ in range(150)]

    threads = [threading.Thread(target=run, args=(i,)) for i in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert sorted(steps[0] + steps[1]) == list(range(300))
    for worker in workers:
        assert worker.session.run(worker.weight).tolist() == [-300.0, -300.0]
        worker.session.close()


@pytest.mark.timeout(120)
def test_a_gradient_that_missed_its_round_is_stale_and_dropped(server):
    """Backups: one gradient per round counts, the other worker's is late."""

    def backed_up(gradients, counts, versions, index):
        return push_sync(
            v1.train.GradientDescentOptimizer(1.0), gradients, counts, versions,
            worker=index, workers=2, is_chief=index == 0, replicas_to_aggregate=1,
            patience=Patience(),
        )  # fmt: skip

    workers = [Scripted(server, i, backed_up) for i in (0, 1)]
    dropped = [0, 0]
    for turn, first in enumerate([0, 1, 1, 1, 0]):
        for worker in workers:
            worker.pull()
        results = {i: workers[i].apply() for i in (first, 1 - first)}
        dropped[1 - first] += 1
        for i, late in ((first, 0), (1 - first, 1)):
            assert results[i]["staleness"] == late
            assert results[i]["variables"].tolist() == [late, late]
            assert (results[i]["step"], results[i]["reached"]) == (turn, turn + 1)
            assert results[i]["dropped"] == dropped[i]
    # Each round applied one gradient of ones at rate 1, whatever was dropped.
    assert workers[0].session.run(workers[0].weight).tolist() == [-5.0, -5.0]
    for worker in reversed(workers):
        worker.session.close()


def test_an_update_that_cannot_be_counted_is_refused():
    with tf.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        weight = v1.get_variable("w", [2], use_resource=True)
        other = v1.get_variable("v", [2], use_resource=True)
        counts = UpdateCounts({"w": weight}, step)
        update = other.assign_add([1.0, 1.0]).op
        with pytest.raises(ValueError, match="none for 'w:0' among 1 ops"):
            counts.raise_after([update], update)
