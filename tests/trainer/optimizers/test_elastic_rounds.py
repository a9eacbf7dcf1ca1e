"""Elastic averaging in rounds, on real servers: beside the rule, and with workers that fail."""

import time
from functools import partial

import numpy as np
import pytest
import tensorflow as tf

from deepinsight.collectors.collection import traced_tensors
from deepinsight.trainer import rules
from deepinsight.trainer.cluster.members import Patience
from deepinsight.trainer.optimizers.averaging.elastic_average import (
    ElasticAverageCustomGetter,
    ElasticAverageOptimizer,
)

from .elastic import START, Cluster, Worker, descend, random_gradients, together

v1 = tf.compat.v1
pytestmark = pytest.mark.timeout(120)
RATE = 0.25
NOTHING = (np.zeros((3, 2)), np.zeros((0, 2)), np.zeros(0))
CLOSE = {"rtol": 1e-5, "atol": 1e-5}  # sums of float32 in the order in which workers arrive


def make_team(workers, ps=1, patience=Patience(), **options):  # noqa: B008
    cluster = Cluster(workers, ps)
    options = {"communication_period": 2, "moving_rate": RATE, "rho": 0.0} | options
    make = partial(Worker, cluster, synchronous=True, patience=patience, **options)
    return [make(i) for i in range(workers)], make


class Oracle:
    """Workers and their centre in NumPy."""

    def __init__(self, workers):
        self.center = dict(START)
        self.locals = [dict(START) for _ in range(workers)]

    def step(self, worker, gradients):
        self.locals[worker] = descend(self.locals[worker], gradients, 0.5)

    def round(self, *workers):
        for name in START:
            moved, self.center[name] = rules.elastic_round(
                np.stack([self.locals[w][name] for w in workers]),
                self.center[name],
                moving_rate=RATE,
            )
            for w, value in zip(workers, moved, strict=True):
                self.locals[w][name] = value

    def check(self, team):
        for worker, expected in zip(team, self.locals, strict=False):
            for name, value in worker.read(worker.locals).items():
                np.testing.assert_allclose(value, expected[name], **CLOSE)
        for name, value in team[0].read(team[0].centers).items():
            np.testing.assert_allclose(value, self.center[name], **CLOSE)


def train(team, oracle, generator):
    """A step of each worker at once."""
    gradients = [random_gradients(generator) for _ in team]
    together(*(partial(w.train, *g) for w, g in zip(team, gradients, strict=True)))
    for worker, gradient in zip(team, gradients, strict=True):
        oracle.step(worker.index, gradient)


def facts(worker):
    """Distance, rounds, wait and live workers."""
    return worker.read(worker.optimizer._state.facts)


def test_rounds_follow_the_rule():
    workers = 3
    team, _ = make_team(workers, ps=2)
    oracle, generator = Oracle(workers), np.random.default_rng(0)
    for step in range(1, 9):
        train(team, oracle, generator)
        distances = [
            np.sqrt(sum(np.sum((mine[n] - oracle.center[n]) ** 2.0) for n in START))
            for mine in oracle.locals
        ]
        if step % 2 == 0:
            oracle.round(*range(workers))
            for worker, distance in zip(team, distances, strict=True):
                np.testing.assert_allclose(facts(worker)[0], distance, rtol=1e-4)
        oracle.check(team)
        assert team[0].read(team[0].step) == step // 2
    assert facts(team[0])[1:].tolist() == pytest.approx([4, facts(team[0])[2], workers])
    for worker in team:
        worker.close()


def test_a_round_waits_for_all():
    team, _ = make_team(2, communication_period=1)
    began = time.monotonic()
    together(
        partial(team[0].train, *NOTHING),
        lambda: (time.sleep(0.5), team[1].train(*NOTHING)),
    )
    assert time.monotonic() - began >= 0.5
    assert 0.3 < facts(team[0])[2] < 30
    for worker in team:
        worker.close()


def test_the_others_go_on_when_a_worker_leaves_and_it_comes_again_at_the_center():
    team, make = make_team(3)
    oracle, generator = Oracle(3), np.random.default_rng(1)
    for _ in range(2):
        train(team, oracle, generator)
    oracle.round(0, 1, 2)
    oracle.check(team)
    team.pop().close()
    for _ in range(2):
        train(team, oracle, generator)
    oracle.round(0, 1)
    oracle.check(team)
    assert facts(team[0])[3] == 2
    team.append(make(2))
    oracle.locals[2] = dict(oracle.center)
    oracle.check(team)
    for _ in range(2):
        train(team, oracle, generator)
    oracle.round(0, 1, 2)
    oracle.check(team)
    for worker in team:
        worker.close()


def test_a_worker_that_never_arrives_is_left_behind_and_may_come_late():
    team, _ = make_team(3, patience=Patience(timeout_s=1.0))
    oracle, generator = Oracle(3), np.random.default_rng(2)
    for _ in range(2):  # the third one stands still
        train(team[:2], oracle, generator)
    oracle.round(0, 1)
    oracle.check(team)
    assert facts(team[0])[2] >= 0.9
    # Too late for the round: it keeps its weights, and knows the centre now.
    for _ in range(2):
        train(team[2:], oracle, generator)
    oracle.check(team)
    known = team[2].optimizer._known[team[2].locals["w"]]
    np.testing.assert_allclose(team[2].read(known), oracle.center["w"], **CLOSE)
    assert team[0].read(team[0].step) == 1
    # From now on rounds wait for it again.
    for _ in range(2):
        train(team, oracle, generator)
    oracle.round(0, 1, 2)
    oracle.check(team)
    assert facts(team[0])[3] == 3
    for worker in team:
        worker.close()


@pytest.mark.parametrize("rho", [0.125, None])
def test_the_penalty_pulls_every_step(rho):
    """Of a loss, not of given gradients; 1.15's default is moving_rate / learning_rate."""
    weights = np.float32([1.0, -2.0, 4.0])
    graph = tf.Graph()
    with graph.as_default():
        getter = ElasticAverageCustomGetter(worker_device="/device:CPU:0")
        with v1.variable_scope("", custom_getter=getter):
            w = v1.get_variable("w", initializer=tf.zeros([3]))
            table = v1.get_variable("table", initializer=tf.ones([4, 2]))
            v1.get_variable("unused", initializer=tf.zeros([2]))
        step = v1.train.get_or_create_global_step()
        loss = tf.reduce_sum((w - weights) ** 2) + 3 * tf.reduce_sum(tf.gather(table, [2, 0, 2]))
        optimizer = ElasticAverageOptimizer(
            v1.train.GradientDescentOptimizer(0.25),
            1,
            getter,
            communication_period=3,
            moving_rate=0.125,
            rho=rho,
            synchronous=True,
        )
        op = optimizer.minimize(loss, step)
        hook = optimizer.make_session_run_hook(True, 0)
        with v1.train.MonitoredSession(hooks=[hook]) as session:
            rho = 0.5 if rho is None else rho
            x, c = np.zeros(3), np.zeros(3)
            rows, center = np.ones((4, 2)), np.ones((4, 2))
            slope = 3 * np.array([[1.0], [0.0], [2.0], [0.0]])
            for k in range(1, 8):
                session.run(op)
                x = x - 0.25 * (2 * (x - weights) + rho * (x - c))
                rows = rows - 0.25 * (slope + rho * (rows - center))
                if k % 3 == 0:
                    x, c = rules.elastic_exchange(x, c, moving_rate=0.125)
                    rows, center = rules.elastic_exchange(rows, center, moving_rate=0.125)
                read = session.run(
                    [w, table, optimizer.global_variables[w], optimizer.global_variables[table]]
                )
                for value, expected in zip(read, (x, rows, c, center), strict=True):
                    np.testing.assert_allclose(value, expected, **CLOSE)


def test_what_rounds_know_is_offered_to_the_trace():
    team, _ = make_team(1)
    names = {traced.stream.name for traced in traced_tensors(team[0].graph)}
    assert names == {
        "sync/distance_to_center", "sync/rounds", "sync/wait_time", "sync/live_workers"
    }  # fmt: skip
    assert np.isnan(facts(team[0])).all()
    team[0].close()
