"""Gradient compression over restarts: what waits on a worker is not lost."""

import itertools
import logging

import numpy as np
import pytest
import tensorflow as tf

from deepinsight.trainer.optimizers.compression.optimizer import GradientCompressionOptimizer

from .compression_workers import start_cluster

v1 = tf.compat.v1
pytestmark = pytest.mark.timeout(120)
SIZE = 60
CONTAINERS = (f"restarts{i}" for i in itertools.count())


@pytest.fixture(scope="module")
def cluster():
    """Two parameter servers and two workers in this process."""
    return start_cluster()


class KilledError(Exception):
    """Ends a session as a crash does: no hook hears of it."""


class Worker:
    """A worker with a monitored session, whose gradients are whole numbers."""

    def __init__(self, directory, every, cluster=None, container="", index=0):
        self.index, self._directory, self._cluster = index, directory, cluster
        self.graph = tf.Graph()
        setter = None
        if cluster:
            place = f"/job:worker/task:{index}"
            setter = v1.train.replica_device_setter(cluster=cluster.spec, worker_device=place)
        with self.graph.as_default(), self.graph.container(container), v1.device(setter):
            self.step = v1.train.get_or_create_global_step()
            self.w = v1.get_variable(
                "w", [SIZE], tf.float32, v1.zeros_initializer(), use_resource=True
            )
            self.gradient = v1.placeholder(tf.float32, [SIZE])
            optimizer = GradientCompressionOptimizer(1.0, 0.0, num_workers=2, sparsity=0.9)
            self.train = optimizer.apply_gradients([(self.gradient, self.w)], self.step)
            (self.waits,) = [v for v in optimizer.own if "residual" in v.name]
            self.steps = optimizer.own[0]
            self.hook = optimizer.make_session_run_hook(directory, index, every)

    def session(self):
        """A monitored session; the chief saves the model every five steps."""
        return v1.train.MonitoredTrainingSession(
            master=self._cluster.targets[self.index] if self._cluster else "",
            is_chief=self.index == 0,
            checkpoint_dir=str(self._directory) if self.index == 0 else None,
            save_checkpoint_steps=5,
            save_checkpoint_secs=None,
            save_summaries_steps=None,
            save_summaries_secs=None,
            log_step_count_steps=None,
            hooks=[self.hook],
        )


def gradients(seed, number):
    """Whole numbers, so that all sums are exact."""
    return list(np.random.default_rng(seed).integers(-9, 10, (number, SIZE)))


def train(worker, session, some):
    for gradient in some:
        session.run(worker.train, {worker.gradient: gradient})


def kill(worker, some):
    """Train, then crash; what waited then."""
    waits = []

    def crash():
        with worker.graph.as_default(), worker.session() as session:
            train(worker, session, some)
            waits.append(session.run(worker.waits))
            raise KilledError("crashed")

    with pytest.raises(KilledError, match=r"^crashed$"):
        crash()
    return waits[0]


def test_a_restarted_run_neither_loses_nor_repeats_what_had_not_been_sent(tmp_path, caplog):
    first, lost, last = gradients(0, 5), gradients(1, 3), gradients(2, 4)
    assert np.count_nonzero(kill(Worker(tmp_path, 5), first + lost))
    worker = Worker(tmp_path, 5)
    with worker.graph.as_default(), worker.session() as session:
        assert session.run(worker.step) == session.run(worker.steps) == 5
        w, waits = session.run([worker.w, worker.waits])
        np.testing.assert_array_equal(waits - w, sum(first))
        assert np.count_nonzero(waits)
        train(worker, session, last)
        w, waits = session.run([worker.w, worker.waits])
        np.testing.assert_array_equal(waits - w, sum(first + last))
    # The end of the session saves once more.
    worker = Worker(tmp_path, None)
    with worker.graph.as_default(), worker.session() as session:
        np.testing.assert_array_equal(session.run(worker.waits), waits)
    assert not [m for m in caplog.messages if m.startswith("Worker")]


def test_without_the_state_the_loss_is_told(tmp_path, caplog):
    kill(Worker(tmp_path, None), gradients(0, 5))
    worker = Worker(tmp_path, None)
    with (
        caplog.at_level(logging.WARNING),
        worker.graph.as_default(),
        worker.session() as session,
    ):
        assert not session.run(worker.waits).any()
    (message,) = [m for m in caplog.messages if m.startswith("Worker")]
    assert "no own state" in message
    assert "at step 5" in message


def test_a_worker_that_comes_back_goes_on_with_what_it_had(cluster, tmp_path, caplog):
    container = next(CONTAINERS)
    mine, others = gradients(3, 6), gradients(4, 8)

    def make(index):
        return Worker(tmp_path, 3, cluster, container, index)

    chief = make(0)
    with chief.graph.as_default(), chief.session() as session:
        train(chief, session, others[:4])
        before = kill(make(1), mine[:3])
        train(chief, session, others[4:])
        again = make(1)
        with again.graph.as_default(), again.session() as other:
            np.testing.assert_array_equal(other.run(again.waits), before)
            train(again, other, mine[3:])
            waits = other.run(again.waits)
        w, own, step = session.run([chief.w, chief.waits, chief.step])
    assert step == 14
    np.testing.assert_array_equal(own + waits - w, sum(mine + others))
    (message,) = [m for m in caplog.messages if m.startswith("Worker")]
    assert "Worker 1 continues with its own state of step 7, while the model is at step 11" in (
        message
    )
