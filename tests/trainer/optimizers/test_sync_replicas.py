"""Synchronous rounds against their oracle, with workers that are late, leave, stall and return."""

import doctest
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
import tensorflow as tf

from deepinsight.collectors import TraceHook
from deepinsight.traces import open_run
from deepinsight.trainer.optimizers.sync_replicas.optimizer import SyncReplicasOptimizer
from deepinsight.trainer.optimizers.versions import UpdateCounts
from tests.trainer.optimizers.sync_workers import (
    ROWS,
    TIMEOUT_S,
    WIDTH,
    Oracle,
    SyncWorker,
    cluster,
    local_server,
)

v1 = tf.compat.v1
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def start():
    """Start workers on one server, the chief first; their sessions end with the test."""
    server, opened = local_server(), []

    def make(workers, aggregate, indices=None, **options):
        made = [
            SyncWorker(server, k, workers, aggregate, **options)
            for k in (range(workers) if indices is None else indices)
        ]
        opened.extend(made)
        return made

    yield make
    for worker in opened:
        worker.stop.set()
    for worker in reversed(opened):
        worker.close()


def in_threads(work, count):
    """Call a function for each index at the same time."""
    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(work, index) for index in range(count)]:
            done.result(TIMEOUT_S)


def some_gradients(rng):
    count = int(rng.integers(1, 6))  # of rows, some of them twice
    return {
        "dense": rng.normal(size=3),
        "rows": rng.normal(size=(count, WIDTH)),
        "indices": rng.integers(0, ROWS, count),
    }


def test_every_round_applies_the_mean_of_what_was_in_time(start):
    """Three workers, two gradients per round: who is third is late, and is dropped."""
    workers, oracle, rng = start(3, 2), Oracle(), np.random.default_rng(7)
    dropped, accepted = np.zeros(3, int), np.zeros(3, int)
    for turn in range(8):
        order = rng.permutation(3)
        for worker in workers:
            worker.pull(**some_gradients(rng))
        in_time, late = order[:2], order[2]
        for k in in_time:
            workers[k].push()
        results = {k: workers[k].end() for k in in_time}
        oracle.apply([workers[k].gradients for k in in_time])
        oracle.check(workers[0])
        workers[late].push()
        results[late] = workers[late].end()
        oracle.check(workers[0])  # nothing of it was applied
        dropped[late] += 1
        accepted[in_time] += 1
        for k in range(3):
            assert results[k] | {"live": 3} == {
                "for": turn, "reached": turn + 1, "live": 3,
                "dropped": dropped[k], "accepted": accepted[k],
            }  # fmt: skip


def test_a_round_waits_for_every_worker(start):
    first, second = start(2, 2)
    first.pull(dense=[1, 2, 3])
    first.push()
    second.pull(dense=[3, 2, 1])
    time.sleep(0.3)
    assert first.waits
    second.push()
    assert first.end()["accepted"] == second.end()["accepted"] == 1
    np.testing.assert_allclose(first.values()[0], [-1, -1, -1])


def test_who_was_late_goes_on_with_the_newest_round(start):
    """Of the rounds that went on without it nothing is left that it could mistake for its own."""
    slow, a, b = start(3, 2)
    slow.pull()
    for turn in range(5):
        for worker in (a, b):
            worker.pull()
            worker.push()
        assert [w.end()["reached"] for w in (a, b)] == [turn + 1] * 2
    slow.push()
    assert slow.end() == {"for": 0, "reached": 5, "dropped": 1, "accepted": 0, "live": 3}
    for turn in range(5, 9):
        for worker in (slow, a):
            worker.pull()
            worker.push()
        assert slow.end() == {
            "for": turn, "reached": turn + 1, "dropped": 1, "accepted": turn - 4, "live": 3
        }  # fmt: skip
        assert a.end()["dropped"] == 0


def test_workers_in_step_never_drop_a_gradient(start):
    workers = start(3, 3)
    results = [[] for _ in workers]

    def run(k):
        results[k] = [workers[k].train() for _ in range(40)]

    in_threads(run, 3)
    for mine in results:
        assert [r["reached"] for r in mine] == list(range(1, 41))
        assert mine[-1]["dropped"] == 0
        assert mine[-1]["accepted"] == 40


def test_a_worker_that_leaves_is_no_longer_waited_for(start):
    chief, other = start(2, 2)
    chief.pull(dense=[1, 0, 0])
    chief.push()
    other.leave()
    assert chief.end() == {"for": 0, "reached": 1, "dropped": 0, "accepted": 1, "live": 1}
    assert chief.train()["reached"] == 2
    np.testing.assert_allclose(chief.values()[0], [-0.5 - 0.5 * 1.9, -0.5, -0.5])


def test_what_a_worker_has_pushed_before_it_left_counts(start):
    chief, other, third = start(3, 3)
    oracle = Oracle()
    for worker, dense in ((chief, [1, 0, 0]), (other, [0, 1, 0]), (third, [0, 0, 1])):
        worker.pull(dense=dense)
    other.push()
    while other.raw.run(other.sync.members.progress)[1] == 0:
        time.sleep(0.01)
    other.leave()
    chief.push()
    time.sleep(0.3)
    assert chief.waits  # for the third
    third.push()
    assert all(w.end()["accepted"] == 1 for w in (chief, other, third))
    oracle.apply([w.gradients for w in (chief, other, third)])
    oracle.check(chief)


def test_a_worker_that_never_pushes_is_left_behind(start):
    chief, silent = start(2, 2, timeout_s=0.5)
    result = chief.train()
    assert (result["reached"], result["live"]) == (1, 1)
    begin_s = time.monotonic()
    assert [chief.train()["reached"] for _ in range(5)] == [2, 3, 4, 5, 6]
    assert time.monotonic() - begin_s < 5 * 0.5  # it was waited for once, not in each round
    for worker in (silent, chief):
        worker.pull()
        worker.push()
    assert silent.end() == {"for": 6, "reached": 7, "dropped": 0, "accepted": 1, "live": 2}


def test_a_worker_that_stalled_returns(start):
    chief, stalled = start(2, 2, timeout_s=0.5)
    chief.train()
    stalled.pull()  # in round 1
    for _ in range(3):
        chief.train()
    stalled.push()
    assert stalled.end() == {"for": 1, "reached": 4, "dropped": 1, "accepted": 0, "live": 2}
    stalled.pull(dense=[4, 4, 4])
    chief.pull(dense=[2, 2, 2])
    chief.push()
    stalled.push()
    assert [w.end()["live"] for w in (chief, stalled)] == [2, 2]
    assert stalled.end() == {"for": 4, "reached": 5, "dropped": 1, "accepted": 1, "live": 2}


def test_rounds_go_on_when_the_chief_has_left(start):
    chief, other = start(2, 2)
    chief.leave()
    assert [other.train()["reached"] for _ in range(4)] == [1, 2, 3, 4]
    assert other.end()["live"] == 1


def test_the_chiefs_session_ends_when_nobody_needs_it_any_more(start):
    chief, other = start(2, 2)
    chief.pull()
    chief.push()
    other.train()
    chief.end()
    closing = threading.Thread(target=chief.close, daemon=True)
    closing.start()
    assert [other.train()["reached"] for _ in range(3)] == [2, 3, 4]
    assert closing.is_alive()
    other.close()
    closing.join(20)
    assert not closing.is_alive()


def test_the_chiefs_session_does_not_wait_for_the_dead(start):
    chief, _ = start(2, 2, timeout_s=0.5)
    chief.train()
    begin_s = time.monotonic()
    chief.close()
    assert time.monotonic() - begin_s < 20


def test_a_chief_that_restarts_begins_with_the_checkpoint(start, tmp_path):
    """What was pushed before the restart is gone, and who has pushed it goes on by itself."""
    chief, other = start(2, 2)
    oracle, rng = Oracle(), np.random.default_rng(3)

    def together(first):
        for worker in (first, other):
            worker.pull(**some_gradients(rng))
            worker.push()
        results = [worker.end() for worker in (first, other)]
        return results, [worker.gradients for worker in (first, other)]

    for _ in range(2):
        oracle.apply(together(chief)[1])
    assert chief.save(tmp_path) == {
        "dense", "table", "dense/Momentum", "table/Momentum", "global_step"
    }  # fmt: skip
    together(chief)  # is lost
    other.pull(dense=[9, 9, 9])
    other.push()
    while other.raw.run(other.sync.members.progress)[1] < 4:
        time.sleep(0.01)
    assert other.waits
    chief.crash()
    time.sleep(0.3)
    assert other.waits
    (again,) = start(2, 2, indices=[0], checkpoint_dir=str(tmp_path))
    assert other.end()["reached"] == 2
    for turn in range(2, 5):
        results, gradients = together(again)
        oracle.apply(gradients)
        oracle.check(other)
        for result in results:
            assert result == {
                "for": turn, "reached": turn + 1, "dropped": 0, "accepted": turn - 1, "live": 2
            }  # fmt: skip


def test_what_was_computed_before_the_chief_restarted_is_dropped(start, tmp_path):
    """Also if it is pushed after that, for a round of the same number."""
    chief, other = start(2, 2)
    chief.save(tmp_path)
    other.pull(dense=[9, 9, 9])
    chief.crash()
    (again,) = start(2, 2, indices=[0], checkpoint_dir=str(tmp_path))
    other.push()
    assert other.end() == {"for": 0, "reached": 0, "dropped": 1, "accepted": 0, "live": 2}
    for worker, dense in ((other, [1, 0, 0]), (again, [0, 1, 0])):
        worker.pull(dense=dense)
        worker.push()
    assert other.end() == {"for": 0, "reached": 1, "dropped": 1, "accepted": 1, "live": 2}
    assert again.end()["dropped"] == 0
    np.testing.assert_allclose(again.values()[0], [-0.25, -0.25, 0])


def test_a_run_resumes_with_more_workers(start, tmp_path):
    first = SyncWorker(local_server(), 0, 1, 1)
    first.train()
    first.save(tmp_path)
    first.close()
    workers = start(3, 3, checkpoint_dir=str(tmp_path))
    for worker in workers:
        worker.pull(dense=[0, 0, 0])
        worker.push()
    assert [w.end()["reached"] for w in workers] == [2, 2, 2]
    np.testing.assert_allclose(workers[2].values()[0], [-0.5 - 0.45] * 3)


def test_a_worker_that_restarts_takes_part_again(start):
    """What it has pushed before it ended counts, and it does not push for that round twice."""
    chief, other = start(2, 2)
    oracle = Oracle()
    other.pull(dense=[4, 0, 0])
    other.push()
    while other.raw.run(other.sync.members.progress)[1] < 1:
        time.sleep(0.01)
    other.crash()
    begun = threading.Event()

    def begin():
        (again,) = start(2, 2, indices=[1])
        begun.set()
        return again

    with ThreadPoolExecutor(1) as pool:
        beginning = pool.submit(begin)
        assert not begun.wait(1.0)
        chief.train(dense=[0, 4, 0])
        again = beginning.result(TIMEOUT_S)
    oracle.apply([chief.gradients, other.gradients])
    oracle.check(chief)
    for worker in (again, chief):
        worker.pull(dense=[0, 2, 0])
        worker.push()
    assert chief.end()["reached"] == 2
    assert again.end() == {"for": 1, "reached": 2, "dropped": 0, "accepted": 2, "live": 2}
    oracle.apply([chief.gradients, again.gradients])
    oracle.check(chief)


def test_rounds_over_two_parameter_servers():
    """Placed by `replica_device_setter`; nothing but numbers and gradients crosses processes."""
    servers = cluster(ps=2, workers=2)
    finals, is_open = [None, None], threading.Event()

    def work(index):
        if index:
            is_open.wait(TIMEOUT_S)  # TensorFlow looks for the chief's variables every 30 s
        with tf.Graph().as_default():
            setter = v1.train.replica_device_setter(
                ps_tasks=2, worker_device=f"/job:worker/task:{index}"
            )
            with v1.device(setter):
                step = v1.train.get_or_create_global_step()
                dense = v1.get_variable("dense", [2], initializer=v1.zeros_initializer())
                table = v1.get_variable("table", [4, 2], initializer=v1.zeros_initializer())
                other = v1.get_variable("other", [2], initializer=v1.zeros_initializer())
                rows = tf.gather(table, tf.constant([1, 3, 1] if index else [1, 2, 1]))
                loss = (
                    tf.reduce_sum(rows) + tf.reduce_sum(dense * [1.0, 1.0 + 2 * index])
                    + tf.reduce_sum(other)
                )  # fmt: skip
                sync = SyncReplicasOptimizer(
                    v1.train.GradientDescentOptimizer(1.0), 2, worker_index=index
                )
                train = sync.minimize(loss, step)
                local = sync.local_step_init_op.inputs[0].op
                assert v1.DeviceSpec.from_string(local.device).job == "worker"
            devices = {v.device for v in (step, dense, table, other)}
            assert devices == {"/job:ps/task:0", "/job:ps/task:1"}
            hook = sync.make_session_run_hook(index == 0)
            with v1.train.MonitoredTrainingSession(
                servers[index].target, index == 0, hooks=[hook],
                save_summaries_steps=None, log_step_count_steps=None,
            ) as session:  # fmt: skip
                is_open.set()
                for _ in range(10):
                    _, dropped = session.run([train, sync.decided.dropped])
                finals[index] = [*session.run([dense, table, other, step]), dropped]

    in_threads(work, 2)
    for dense, table, other, step, dropped in finals:
        assert (step, dropped) == (10, 0)
        np.testing.assert_allclose(dense, [-10, -20])
        np.testing.assert_allclose(table, [[0, 0], [-20, -20], [-10, -10], [-10, -10]])
        np.testing.assert_allclose(other, [-10, -10])


def test_an_error_in_a_round_ends_the_chiefs_session(start):
    def failing():
        rate = v1.train.get_global_step() * 0 - 1
        with tf.control_dependencies([tf.debugging.assert_non_negative(rate, "a rate of -1")]):
            return v1.train.GradientDescentOptimizer(tf.constant(1.0))

    chief, _ = start(2, 1, make_rule=failing)
    chief.train()  # ends, and
    begin_s = time.monotonic()
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"a rate of -1"):
        chief.close()
    assert time.monotonic() - begin_s < TIMEOUT_S / 2  # no round will end, so nobody is waited for


def test_a_chief_that_is_to_end_waits_for_nobody(start):
    chief, _ = start(2, 2)
    chief.pull()
    chief.push()
    time.sleep(0.3)
    assert chief.waits
    chief.stop.set()
    assert chief.end()["live"] == 1


@contextmanager
def alone(sync, **options):
    """A session of the only worker."""
    with v1.train.MonitoredTrainingSession(
        hooks=[sync.make_session_run_hook(is_chief=True), *options.pop("hooks", ())],
        save_summaries_steps=None, log_step_count_steps=None, **options,
    ) as session:  # fmt: skip
        yield session


def test_minimize_pushes_for_the_round_whose_variables_it_read():
    """The step at the end of the last step is not asked: another worker may have ended rounds."""
    server, results = local_server(), []
    sessions = []
    for index in (0, 1):
        with tf.Graph().as_default():
            step = v1.train.get_or_create_global_step()
            weight = v1.get_variable("w", initializer=[8.0], use_resource=True)
            sync = SyncReplicasOptimizer(
                v1.train.GradientDescentOptimizer(0.25), 1, 2, worker_index=index
            )
            train = sync.minimize(tf.reduce_sum(weight**2), step)
            hook = sync.make_session_run_hook(index == 0)
            session = v1.train.MonitoredTrainingSession(
                server.target, index == 0, hooks=[hook],
                save_summaries_steps=None, log_step_count_steps=None,
            )  # fmt: skip
        sessions.append((session, [train, sync.decided]))
    for _ in range(3):  # in turn: each round has one gradient
        for session, fetches in sessions:
            results.append(session.run(fetches)[1])
    assert [int(r.reached) for r in results] == [1, 2, 3, 4, 5, 6]
    assert [int(r.dropped) for r in results] == [0] * 6
    assert sessions[1][0].run(weight) == 8 * 0.5**6
    for session, _ in reversed(sessions):
        session.close()


def test_what_is_known_is_recorded_at_the_step_that_was_reached(tmp_path):
    with tf.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        weight = v1.get_variable("w", initializer=[8.0], use_resource=True)
        sync = SyncReplicasOptimizer(v1.train.GradientDescentOptimizer(0.25), 1, worker_index=0)
        train = sync.minimize(tf.reduce_sum(weight**2), step)
        with alone(sync, hooks=[TraceHook(tmp_path, [], every_n_steps=1)]) as session:
            for _ in range(3):
                session.run(train)
    with open_run(tmp_path) as run:
        accepted = run.frame("sync/accepted_gradients")
        assert accepted["step"].tolist() == [1, 2, 3]
        assert accepted["value"].tolist() == [1, 2, 3]
        assert run.frame("sync/dropped_gradients")["value"].tolist() == [0, 0, 0]
        assert run.frame("sync/live_workers")["value"].tolist() == [1, 1, 1]
        waits = run.frame("sync/wait_time")["value"]
        assert ((waits > 0) & (waits < TIMEOUT_S)).all()


def test_update_counts_and_averages_follow_the_rounds():
    with tf.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        weight = v1.get_variable("w", initializer=[8.0], use_resource=True)
        counts = UpdateCounts({"w": weight}, step)
        average = tf.train.ExponentialMovingAverage(0.5)
        sync = SyncReplicasOptimizer(
            v1.train.GradientDescentOptimizer(1.0), 1, variable_averages=average,
            variables_to_average=[weight], worker_index=0, counts=counts,
        )  # fmt: skip
        train = sync.apply_gradients([(tf.constant([2.0]), weight)], step)
        values = [weight, average.average(weight), counts.read()]
        with alone(sync) as session:
            for _ in range(3):
                session.run(train)
            now, averaged, versions = session.run(values)
    assert (now, versions.overall) == (2, 3)
    assert [v.tolist() for v in versions.variables.values()] == [[3]]
    assert averaged == ((8 + 6) / 2 + 4) / 4 + 2 / 2


def test_a_variable_without_a_gradient_is_left_alone():
    with tf.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        first, second = (
            v1.get_variable(name, initializer=[1.0], use_resource=True) for name in "ab"
        )
        sync = SyncReplicasOptimizer(v1.train.AdamOptimizer(0.5), 1, worker_index=0)
        train = sync.apply_gradients([(None, first), (tf.constant([1.0]), second)], step)
        with alone(sync) as session:
            session.run(train)
            np.testing.assert_allclose(session.run([first, second]), [[1], [0.5]], rtol=1e-5)
    assert isinstance(sync, v1.train.SyncReplicasOptimizer)
    assert sync.get_slot(second, "m") is not None


def test_a_queue_runner_ends_rounds_without_the_hook():
    """As scripts for TensorFlow's supervisor do."""
    with tf.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        weight = v1.get_variable("w", initializer=[8.0], use_resource=True)
        sync = SyncReplicasOptimizer(v1.train.GradientDescentOptimizer(0.25), 1, worker_index=0)
        train = sync.minimize(tf.reduce_sum(weight**2), step)
        runner = sync.get_chief_queue_runner()
        ops = [v1.global_variables_initializer(), sync.chief_init_op, sync.get_init_tokens_op()]
        with v1.Session() as session:
            for op in ops:
                session.run(op)
            coord = tf.train.Coordinator()
            threads = runner.create_threads(session, coord, daemon=True, start=True)
            for _ in range(4):  # the first is pushed before the worker has joined
                session.run(train)
            assert session.run([step, weight]) == [3, 1]
            coord.request_stop()
            coord.join(threads, stop_grace_period_secs=TIMEOUT_S)


def test_what_makes_no_sense_is_refused():
    rule = v1.train.GradientDescentOptimizer(1.0)
    for arguments, message in (
        (
            {"replicas_to_aggregate": 3, "total_num_replicas": 2},
            r"one gradient per round\. Rec",
        ),
        ({"replicas_to_aggregate": 0}, r"`replicas_to_aggregate` must be >= 1"),
        (
            {"replicas_to_aggregate": 1.5},
            r"`replicas_to_aggregate` must be an int\. Received: .*1\.5",
        ),
        ({"worker_index": 2}, r"`worker_index` must be in \[0, 1\]\."),
        ({"worker_index": -1}, r"Received: worker_index=-1"),
        ({"opt": "sgd"}, r"`opt` must be a tf\.compat\.v1\.train\.Optimizer\. Received: builtins"),
    ):
        given = {"opt": rule, "replicas_to_aggregate": 2, "worker_index": 0} | arguments
        with pytest.raises(ValueError, match=message):
            SyncReplicasOptimizer(**given)


def test_a_step_that_cannot_be_built_is_refused():
    with tf.Graph().as_default():
        weight = v1.get_variable("w", [2], use_resource=True)
        sync = SyncReplicasOptimizer(v1.train.GradientDescentOptimizer(1.0), 1, worker_index=0)
        with pytest.raises(ValueError, match=r"No gradients provided for any variable"):
            sync.apply_gradients([(None, weight)], v1.train.get_or_create_global_step())
        with pytest.raises(ValueError, match=r"`global_step` must be a resource variable.*None"):
            sync.apply_gradients([(tf.ones([2]), weight)])
        hook = sync.make_session_run_hook(is_chief=True)
        for needs_gradients in (hook.begin, sync.get_chief_queue_runner):
            with pytest.raises(ValueError, match=r"`apply_gradients` must be called before"):
                needs_gradients()


def test_the_example_prints_what_it_says():
    (found,) = doctest.DocTestFinder(recurse=False).find(
        SyncReplicasOptimizer,
        "SyncReplicasOptimizer",
        globs={"tf": tf, "SyncReplicasOptimizer": SyncReplicasOptimizer},
    )
    assert found.examples
    assert doctest.DocTestRunner().run(found).failed == 0
