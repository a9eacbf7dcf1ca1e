"""No worker runs far ahead: clocks against the oracle, and real threads that wait."""

import threading
import time

import numpy as np
import pytest
import tensorflow as tf

import deepinsight as di
from deepinsight.trainer import rules
from deepinsight.trainer.cluster.members import Patience
from deepinsight.trainer.errors import ClusterError
from deepinsight.trainer.optimizers import (
    DelayCompensatedGradientDescentOptimizer,
    UpdateCounts,
)
from deepinsight.trainer.optimizers.staleness import clocks as clocks_module
from deepinsight.trainer.optimizers.staleness.bounded import BoundedStalenessOptimizer, push_bounded

from .scripted import (
    ROWS,
    TIMEOUT_S,
    Scripted,
    fresh,
    gradients_of,
    initial_values,
    loss_of,
    make_variables,
    start_cluster,
)

v1 = tf.compat.v1
RATE, WORKERS = 0.25, 3
CLOSE = {"rtol": 2e-6, "atol": 2e-6}  # float32, some tens of updates


@pytest.fixture(scope="module")
def clusters():
    return {ps: start_cluster(ps) for ps in (1, 2)}


@pytest.fixture(params=[1, 2], ids=["one server", "two servers"])
def cluster(request, clusters):
    return fresh(clusters[request.param])


@pytest.fixture
def two_servers(clusters):
    return fresh(clusters[2])


def descent():
    return v1.train.GradientDescentOptimizer(RATE)


def wrapped(bound=1, workers=WORKERS, patience=None):
    """A worker as users write it."""

    def build(worker, gate):
        step, variables = make_variables()
        dense, table, bias = variables
        loss = loss_of([dense * 1.0, bias * 1.0], tf.gather(table, ROWS), worker.index)
        worker.optimizer = BoundedStalenessOptimizer(
            descent(), bound, worker_index=worker.index, num_workers=workers,
            patience=patience or Patience(),
        )  # fmt: skip
        gradients, found = zip(*worker.optimizer.compute_gradients(loss), strict=True)
        if gate is not None:
            gradients = gate.hold(gradients)
        op = worker.optimizer.apply_gradients(zip(gradients, found, strict=True), step)
        worker.clocks = worker.optimizer._clocks
        worker.hook = worker.optimizer.make_session_run_hook(is_chief=worker.index == 0)
        worker.state = {"step": step.read_value(), "values": [v.read_value() for v in variables]}
        clocks = worker.clocks
        return {"op": op, "lead": clocks.lead, "live": clocks.live_workers}

    return build


def pushed(bound=1, workers=WORKERS, patience=None):
    """A worker as the trainer builds it."""

    def build(worker, gate):
        step, variables = make_variables()
        named = dict(zip(("dense", "table", "bias"), variables, strict=True))
        counts = UpdateCounts(named, step)
        pulled = counts.read()
        with tf.control_dependencies(pulled.tensors()):
            read = [named["dense"].read_value(), named["bias"].read_value()]
            rows = tf.gather(named["table"], ROWS)
        loss = loss_of(read, rows, worker.index)
        gradients = v1.gradients(loss, [*read, rows])
        dense, bias, table = gate.hold(gradients) if gate is not None else gradients
        pairs = [
            (dense, named["dense"]),
            (tf.IndexedSlices(table, tf.constant(ROWS)), named["table"]),
            (bias, named["bias"]),
        ]
        push = push_bounded(
            descent(), pairs, counts, pulled,
            worker=worker.index, workers=workers, is_chief=worker.index == 0,
            bound=bound, patience=patience or Patience(),
        )  # fmt: skip
        worker.push_built, (worker.hook,) = push, push.hooks
        worker.clocks, _ = worker.hook._built()
        worker.state = {"step": step.read_value(), "values": [v.read_value() for v in variables]}
        return {
            "op": push.op, "lead": worker.clocks.lead, "live": worker.clocks.live_workers,
            "step": push.step, "reached": push.reached, "staleness": push.staleness.overall,
        }  # fmt: skip

    return build


@pytest.mark.timeout(120)
@pytest.mark.parametrize("build", [wrapped, pushed])
def test_updates_and_clocks_are_the_oracle_under_random_interleavings(cluster, build):
    workers = [Scripted(cluster, i, build()) for i in range(WORKERS)]
    workers[0].run(workers[0].clocks.start_op)
    generator = np.random.default_rng(4)
    values, step, read = initial_values(), 0, {}
    clocks, live = [0] * WORKERS, [True] * WORKERS
    joined = 0
    for turn in range(60):
        who = int(generator.integers(WORKERS))
        worker = workers[who]
        if who not in read:
            worker.pull()
            read[who] = step, gradients_of(values, who)
            continue
        if turn % 9 == 8:  # somebody is given up on
            lost = (who + 1) % WORKERS
            worker.clocks.members.lose(worker.session, [lost])
            live[lost] = False
        result = worker.push()
        pulled_at, grads = read.pop(who)
        for i, grad in enumerate(grads):
            rows = (np.array(ROWS),) if i == 1 else ()
            rule = rules.sparse_gradient_descent_step if rows else rules.gradient_descent_step
            (values[i],) = rule(values[i], grad, *rows, learning_rate=RATE)
        clocks[who] += 1
        if not live[who]:
            clocks[who] = rules.joined_clock(clocks, live, who)
            live[who] = True
            joined += 1
        assert result["lead"] == rules.clock_lead(clocks, live, who)
        assert result["live"] == sum(live)
        if "staleness" in result:
            assert (result["step"], result["reached"]) == (step, step + 1)
            assert result["staleness"] == step - pulled_at
        step += 1
        seen = worker.clocks.look(worker.session)
        assert seen.clocks.tolist() == clocks
        assert seen.lead(who) == result["lead"]
        state = worker.run(worker.state)
        assert state["step"] == step
        for one, other in zip(state["values"], values, strict=True):
            np.testing.assert_allclose(one, other, **CLOSE)
    assert joined
    for worker in workers:
        if worker.index in read:
            worker.push()
        worker.session.close()


class _Creator(v1.train.SessionCreator):
    def __init__(self, session):
        self._session = session

    def create_session(self):
        return self._session


class Runner(threading.Thread):
    """A worker in a monitored session, in a thread of its own; steps `steps` times."""

    def __init__(self, cluster, index, build, *, steps, pause_s=0.0, before=None):
        super().__init__(daemon=True)
        self.worker = Scripted(cluster, index, lambda worker, gate: build(worker, None))
        self._steps, self._pause_s, self._before = steps, pause_s, before
        if build_is_the_trainers(self.worker) and index == 0:
            self.worker.run(self.worker.push_built.start_op)  # its sessions do so
        self.leads, self.error, self.steps = [], None, 0

    def run(self):
        try:
            with (
                self.worker.graph.as_default(),
                v1.train.MonitoredSession(
                    _Creator(self.worker.session), hooks=[self.worker.hook]
                ) as session,
            ):
                for number in range(self._steps):
                    if self._before is not None:
                        self._before(number)
                    time.sleep(self._pause_s)
                    self.leads.append(int(session.run(self.worker.fetches)["lead"]))
                    self.steps += 1
        except Exception as error:
            self.error = error

    def finish(self):
        self.join(TIMEOUT_S)
        assert not self.is_alive(), "the worker hangs"
        assert self.error is None, self.error


def build_is_the_trainers(worker):
    return hasattr(worker, "push_built")


def until(holds):
    end = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("bound", "build"), [(0, wrapped), (1, pushed), (3, wrapped)])
def test_nobody_is_ever_more_than_a_step_beyond_the_bound(two_servers, bound, build):
    pauses = (0.0, 0.0, 0.01)
    runners = [
        Runner(two_servers, i, build(bound), steps=40, pause_s=p) for i, p in enumerate(pauses)
    ]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.finish()
    assert [runner.steps for runner in runners] == [40, 40, 40]
    assert max(max(runner.leads) for runner in runners) == bound + 1


@pytest.mark.timeout(60)
def test_a_worker_within_the_bound_asks_for_nothing(two_servers, monkeypatch):
    looks, look = [], clocks_module.Clocks.look

    def counted(self, session):
        looks.append(session)
        return look(self, session)

    monkeypatch.setattr(clocks_module.Clocks, "look", counted)
    runner = Runner(two_servers, 0, wrapped(5, workers=1), steps=30)
    runner.start()
    runner.finish()
    assert len(looks) == 1  # at the first step
    assert runner.leads == [0] * 30


def held_back(cluster, other_steps, *, patience=None, build=wrapped, before=None):
    """Worker 0 wants 8 steps; worker 1 makes some of its own and then `before` holds it."""
    fast = Runner(cluster, 0, build(1, 2, patience), steps=8)
    slow = Runner(cluster, 1, build(1, 2, patience), steps=other_steps, before=before)
    fast.start()
    slow.start()
    return fast, slow


@pytest.mark.timeout(60)
def test_a_worker_that_has_finished_holds_up_nobody(two_servers):
    fast, slow = held_back(two_servers, 2)
    slow.finish()
    fast.finish()
    assert fast.steps == 8


@pytest.mark.timeout(60)
def test_a_worker_that_stands_still_is_left_behind_and_comes_in_again_at_the_front(two_servers):
    go, stay = threading.Event(), threading.Event()
    patience = Patience(timeout_s=0.5, stop=threading.Event(), poll_s=0.01)
    build = wrapped(1, 2, patience)

    def stand_still(number):
        if number == 2:
            assert go.wait(TIMEOUT_S)

    def stay_awhile(number):
        if number == 8:
            assert stay.wait(TIMEOUT_S)

    fast = Runner(two_servers, 0, build, steps=9, before=stay_awhile)
    slow = Runner(two_servers, 1, build, steps=4, before=stand_still)
    fast.start()
    slow.start()
    until(lambda: fast.steps == 8)  # it would wait for ever otherwise
    clocks, session = other_view(two_servers, build)
    seen = clocks.look(session)
    assert (seen.live.tolist(), slow.steps) == ([1, 0], 2)
    go.set()
    slow.finish()
    # Its third step brought it to the front, its fourth counted.
    assert clocks.look(session).clocks.tolist() == [8, 9]
    stay.set()
    fast.finish()
    session.close()


def other_view(cluster, build):
    """The clocks, in a graph and session of their own."""
    viewer = Scripted(cluster, 1, lambda worker, gate: build(worker, None))
    return viewer.clocks, viewer.session


@pytest.mark.timeout(60)
def test_a_worker_that_starts_late_begins_at_the_front(two_servers):
    stay = threading.Event()
    patience = Patience(timeout_s=0.3, stop=threading.Event(), poll_s=0.01)
    build = wrapped(0, 2, patience)

    def stay_awhile(number):
        if number == 5:
            assert stay.wait(TIMEOUT_S)

    first = Runner(two_servers, 0, build, steps=6, before=stay_awhile)
    late = Runner(two_servers, 1, build, steps=1)
    first.start()
    until(lambda: first.steps == 5)
    clocks, session = other_view(two_servers, build)
    assert clocks.look(session).live.tolist() == [1, 0]
    late.start()
    late.finish()
    assert clocks.look(session).clocks.tolist() == [5, 6]
    stay.set()
    first.finish()
    session.close()


@pytest.mark.timeout(60)
def test_the_stop_event_ends_the_wait(two_servers):
    hold, stop = threading.Event(), threading.Event()

    def before(number):
        if number == 1:
            hold.wait(TIMEOUT_S)

    patience = Patience(timeout_s=TIMEOUT_S, stop=stop, poll_s=5.0)
    fast, slow = held_back(two_servers, 2, patience=patience, before=before)
    until(lambda: fast.steps == 3)  # 3 - 1 > bound
    time.sleep(0.2)
    assert fast.steps == 3
    stop.set()
    fast.finish()
    hold.set()
    slow.finish()


@pytest.mark.timeout(60)
def test_a_chief_that_starts_again_sets_all_clocks_to_0(two_servers):
    runner = Runner(two_servers, 0, wrapped(2, 2, Patience(0.2)), steps=5)
    runner.start()
    runner.finish()
    clocks, session = other_view(two_servers, wrapped(2, 2))
    seen = clocks.look(session)
    assert (seen.clocks.tolist(), seen.live.tolist()) == ([5, 0], [0, 0])
    again = Runner(two_servers, 0, wrapped(2, 2), steps=1)
    again.start()
    again.finish()
    seen = clocks.look(session)
    assert (seen.clocks.tolist(), seen.live.tolist()) == ([1, 0], [0, 1])
    session.close()


@pytest.mark.timeout(60)
def test_workers_wait_for_the_chief_and_say_so_if_it_never_comes(two_servers, monkeypatch):
    monkeypatch.setattr(clocks_module, "START_TIMEOUT_S", 0.2)
    Scripted(two_servers, 0, lambda worker, gate: wrapped()(worker, None))  # variables, no hook
    early = Runner(two_servers, 1, wrapped(1, patience=Patience(0.2)), steps=1)
    early.start()
    early.join(TIMEOUT_S)
    assert isinstance(early.error, ClusterError)
    with pytest.raises(ClusterError, match=r"The chief must set the workers' clocks"):
        raise early.error


@pytest.mark.timeout(60)
def test_runs_that_are_no_step_neither_wait_nor_count(two_servers):
    worker = Scripted(two_servers, 0, lambda worker, gate: wrapped(0, 1)(worker, None))
    with (
        worker.graph.as_default(),
        v1.train.MonitoredSession(_Creator(worker.session), hooks=[worker.hook]) as session,
    ):
        session.run(worker.fetches)
        worker.hook._lead = 10  # as if it were far ahead
        session.run(worker.state)
        assert worker.hook._lead == 10
        session.run(worker.fetches)
        assert worker.hook._lead == 0
        seen = worker.clocks.look(worker.session)
    assert seen.clocks.tolist() == [2]


@pytest.mark.timeout(60)
def test_the_hook_records_lead_wait_and_live_workers(two_servers, tmp_path):
    patience = Patience(timeout_s=0.4, stop=threading.Event(), poll_s=0.01)
    worker = Scripted(two_servers, 0, lambda worker, gate: wrapped(1, 2, patience)(worker, None))
    with (
        worker.graph.as_default(),
        v1.train.MonitoredSession(
            _Creator(worker.session),
            hooks=[worker.hook, di.TraceHook(tmp_path, every_n_steps=1)],
        ) as session,
    ):
        for _ in range(4):  # the other worker never comes
            session.run(worker.fetches)
    with di.open_run(tmp_path) as run:
        assert run.array("sync/clock_lead").values.tolist() == [1, 2, 0, 0]
        assert run.array("sync/live_workers").values.tolist() == [2, 2, 1, 1]
        waited = run.array("sync/wait_time").values
        assert (waited[[0, 1, 3]] < 0.3).all()
        assert waited[2] > 0.4
        assert run.stream("sync/wait_time").unit == "s"


def test_slots_are_the_optimizers_own_and_clocks_are_in_no_checkpoint():
    with tf.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        w = v1.get_variable("w", initializer=[1.0], use_resource=True)
        rule = DelayCompensatedGradientDescentOptimizer(0.25, num_workers=2)
        optimizer = BoundedStalenessOptimizer(rule, 1, worker_index=1, num_workers=2)
        pairs = optimizer.compute_gradients(tf.reduce_sum(w**2))
        optimizer.apply_gradients(pairs, step, worker_index=1)
        assert optimizer.get_slot_names() == ["backup_0", "backup_1"]
        assert optimizer.get_slot(w, "backup_1") is rule.get_slot(w, "backup_1")
        assert optimizer.variables() == rule.variables()
        known = {v.name for v in v1.global_variables()}
        assert "bounded/clocks:0" not in known  # in no checkpoint


def test_bad_arguments_are_refused():
    base = descent()

    def make(bound=1, index=0, workers=2, opt=base):
        return BoundedStalenessOptimizer(opt, bound, worker_index=index, num_workers=workers)

    with pytest.raises(ValueError, match=r"`opt` must be a tf.compat.v1.train.Optimizer"):
        make(opt=tf.keras.optimizers.SGD())
    with pytest.raises(ValueError, match=r"`bound` must be >= 0\. Received: bound=-1"):
        make(bound=-1)
    with pytest.raises(ValueError, match=r"`bound` must be an int\. Received: bound=0\.5"):
        make(bound=0.5)
    with pytest.raises(ValueError, match=r"`num_workers` must be >= 1"):
        make(workers=0)
    with pytest.raises(ValueError, match=r"`worker_index` must be in \[0, 1\]"):
        make(index=2)
    with tf.Graph().as_default():
        w = v1.get_variable("w", initializer=[1.0], use_resource=True)
        optimizer = make()
        pairs = optimizer.compute_gradients(tf.reduce_sum(w))
        with pytest.raises(ValueError, match=r"`apply_gradients` or `minimize` must be called"):
            optimizer.make_session_run_hook(is_chief=True).begin()
        with pytest.raises(ValueError, match=r"must have a global step, beside which the clocks"):
            optimizer.apply_gradients(pairs)
        step = v1.train.create_global_step()
        optimizer.apply_gradients(pairs, step)
        with pytest.raises(ValueError, match=r"must be called once.*Received: a second call"):
            optimizer.apply_gradients(pairs, step)
        counts = UpdateCounts({"w": w}, step)
        for worker, bound, message in ((5, 1, r"index must be in \[0, 2\)"), (0, -1, r"`bound`")):
            with pytest.raises(ValueError, match=message):
                push_bounded(
                    base, pairs, counts, counts.read(),
                    worker=worker, workers=2, is_chief=False, bound=bound, patience=Patience(),
                )  # fmt: skip
