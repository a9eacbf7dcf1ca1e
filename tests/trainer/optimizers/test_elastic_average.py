"""Elastic averaging on real servers, step by step beside the rules."""

import doctest
from functools import partial

import numpy as np
import pytest
import tensorflow as tf

from deepinsight.trainer import rules
from deepinsight.trainer.optimizers.averaging import elastic_average, elastic_getter

from .elastic import START, Cluster, Worker, descend, random_gradients, together

v1 = tf.compat.v1
pytestmark = pytest.mark.timeout(120)
# Both sides make the same float32 operations in the same order; only TensorFlow's own descent may
# fuse a multiplication and a subtraction, or sum duplicate rows in another order.
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def assert_state(read, expected):
    for name, value in expected.items():
        np.testing.assert_allclose(read[name], value, **CLOSE)


@pytest.mark.parametrize(("workers", "ps", "kernel"), [(2, 1, False), (3, 2, True)])
def test_interleaved_exchanges_follow_the_rule(workers, ps, kernel):
    period, rate = 3, 0.25
    cluster = Cluster(workers, ps)
    team = [
        Worker(cluster, i, communication_period=period, moving_rate=rate, kernel=kernel)
        for i in range(workers)
    ]
    generator = np.random.default_rng(0)
    center, mine = dict(START), [dict(START) for _ in team]
    steps, rounds = [0] * workers, 0
    for _ in range(24):
        w = generator.integers(workers)
        gradients = random_gradients(generator)
        team[w].train(*gradients)
        mine[w], steps[w] = descend(mine[w], gradients, 0.5), steps[w] + 1
        distance = None
        if steps[w] % period == 0:
            distance = np.sqrt(sum(np.sum((mine[w][n] - center[n]) ** 2.0) for n in center))
            for name in START:
                mine[w][name], center[name] = rules.elastic_exchange(
                    mine[w][name], center[name], moving_rate=rate
                )
            rounds += 1
        assert_state(team[w].read(team[w].locals), mine[w])
        assert_state(team[w].read(team[w].centers), center)
        assert team[w].read(team[w].step) == rounds
        if distance is not None:
            np.testing.assert_allclose(
                team[w].read(team[w].optimizer._state.facts)[0], distance, rtol=1e-5
            )
    assert rounds > 3
    assert [worker.read(worker.optimizer.local_step) for worker in team] == steps
    for worker in team:
        worker.close()


def test_variables_and_centers_lie_where_they_belong():
    cluster = Cluster(2, ps=2)
    worker = Worker(cluster, 0)
    devices = {name: local.device for name, local in worker.locals.items()}
    assert set(devices.values()) == {"/job:worker/task:0"}
    assert [c.device for c in worker.centers.values()] == ["/job:ps/task:1", "/job:ps/task:0"]
    assert worker.optimizer.local_step.device == "/job:worker/task:0"
    with worker.graph.as_default():
        shared = {v.op.name for v in v1.global_variables()}
        assert shared == {
            "global_step", "global_center_variable/w", "global_center_variable/table"
        }  # fmt: skip
    worker.close()


def test_a_local_step_sends_nothing():
    """Everything that the train op runs lies on the worker."""
    worker = Worker(Cluster(1), 0, lambda: v1.train.AdamOptimizer(0.1), communication_period=2)
    seen, todo = set(), [worker.train_op]
    while todo:
        op = todo.pop()
        if op not in seen:
            seen.add(op)
            todo += [*op.control_inputs, *(tensor.op for tensor in op.inputs)]
    assert len(seen) > 10
    assert {op.device for op in seen} - {""} == {"/job:worker/task:0"}
    worker.close()


@pytest.mark.parametrize("kernel", [True, False])
def test_exchanges_at_the_same_time_conserve_what_all_hold(kernel):
    # With a moving rate of 1 the two sides swap their values: a lost exchange would show.
    cluster = Cluster(3, ps=2)
    team = [
        Worker(cluster, i, communication_period=1, moving_rate=1.0, kernel=kernel) for i in range(3)
    ]
    generator = np.random.default_rng(1)
    values = [
        {name: generator.integers(0, 1000, value.shape) for name, value in START.items()}
        for _ in team
    ]
    nothing = (np.zeros((3, 2)), np.zeros((0, 2)), np.zeros(0))
    for worker, value in zip(team, values, strict=True):
        worker.set_locals(value)

    def work(worker):
        for _ in range(60):
            worker.train(*nothing)

    together(*(partial(work, worker) for worker in team))
    assert team[0].read(team[0].step) == 180
    for name in START:
        before = np.stack([START[name], *(value[name] for value in values)])
        after = [team[0].read(team[0].centers[name])]
        after += [worker.read(worker.locals[name]) for worker in team]
        np.testing.assert_array_equal(np.sort(np.stack(after), 0), np.sort(before, 0))
    for worker in team:
        worker.close()


def test_a_worker_begins_at_the_center_also_after_a_restart():
    cluster = Cluster(2)
    chief = Worker(cluster, 0, communication_period=1, moving_rate=0.5)
    generator = np.random.default_rng(2)
    for _ in range(3):
        chief.train(*random_gradients(generator))
    center = chief.read(chief.centers)
    assert not np.allclose(center["w"], START["w"])
    for _ in range(2):  # it comes late, and comes again
        other = Worker(cluster, 1, lambda: v1.train.MomentumOptimizer(0.5, 0.5))
        assert_state(other.read(other.locals), center)
        assert other.read(other.optimizer.local_step) == 0
        slot = other.optimizer.get_slot(other.locals["w"], "momentum")
        np.testing.assert_array_equal(other.read(slot), 0)
        other.train(*random_gradients(generator))
        assert not np.allclose(other.read(slot), 0)
        other.close()
    chief.close()


def test_a_restarted_chief_begins_at_the_checkpoint(tmp_path):
    def monitored(**options):
        return v1.train.MonitoredTrainingSession(
            checkpoint_dir=str(tmp_path), save_checkpoint_steps=1, **options
        )

    chief = Worker(Cluster(1), 0, communication_period=1, moving_rate=0.5, session=monitored)
    for seed in range(3):
        chief.train(*random_gradients(np.random.default_rng(seed)))
    center, step = chief.read(chief.centers), chief.read(chief.step)
    chief.close()
    again = Worker(Cluster(1), 0, communication_period=1, moving_rate=0.5, session=monitored)
    assert again.read(again.step) == step == 3
    assert_state(again.read(again.centers), center)
    assert_state(again.read(again.locals), center)
    again.close()


def test_own_steps_go_on_from_where_they_are_set():
    worker = Worker(Cluster(1), 0, communication_period=5)
    worker.session.run_step_fn(
        lambda step_context: worker.optimizer.set_local_step(step_context.session, 13)
    )
    generator, counted = np.random.default_rng(3), []
    for _ in range(8):
        worker.train(*random_gradients(generator))
        counted.append((worker.read(worker.optimizer.local_step), worker.read(worker.step)))
    assert counted == [
        (14, 0), (15, 1), (16, 1), (17, 1), (18, 1), (19, 1), (20, 2), (21, 2)
    ]  # fmt: skip
    worker.close()


def test_only_runs_that_train_count():
    worker = Worker(Cluster(1), 0, communication_period=1)
    for _ in range(3):
        worker.session.run(worker.step)
        worker.session.run([worker.locals, {"c": worker.centers["w"]}, "global_step:0"])
    assert worker.read([worker.step, worker.optimizer.local_step]) == [0, 0]
    feed = dict(zip(worker._feeds, random_gradients(np.random.default_rng(4)), strict=True))
    result = worker.session.run({"both": (worker.train_op, worker.locals["w"].name)}, feed)
    assert result["both"][0] is None
    assert worker.read([worker.step, worker.optimizer.local_step]) == [1, 1]
    worker.close()


def test_doctests():
    for module in (elastic_average, elastic_getter):
        result = doctest.testmod(module)
        assert (result.failed, result.attempted > 0) == (0, True)
