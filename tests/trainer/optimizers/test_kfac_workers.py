"""K-FAC shared out among workers: against its oracle in scripted orders, and when some are gone."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import deepinsight as di
from deepinsight.trainer.cluster.members import Patience
from deepinsight.trainer.data import FeatureGroup
from deepinsight.trainer.models import Dense, LayerTensors, WideDeep
from deepinsight.trainer.optimizers import LeastLoaded, UpdateCounts
from deepinsight.trainer.optimizers.kfac.optimizer import DenseLayer, KFACOptimizer
from deepinsight.trainer.optimizers.kfac.workers import (
    KFACPaceHook,
    dense_layers,
    kfac_roles,
    push_kfac,
)

from .kfac_cases import (
    MOMENTUM,
    RATE,
    Network,
    Oracle,
    assert_state,
    batch,
    fetches,
    first_values,
)
from .kfac_process import OPTIONS

v1 = tf.compat.v1
TIMEOUT_S = 60
NO_PATIENCE_GIVEN = Patience()
SERVERS = []  # TensorFlow cannot end a server, so none may be collected
TOLERANCE = 1e-4  # float32: 24 bits, some lost in inverses and 40 steps


def start_cluster(ps, workers):
    """Servers in this process; returns the workers' targets."""
    sockets = [socket.socket() for _ in range(ps + workers)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    spec = tf.train.ClusterSpec({"ps": addresses[:ps], "worker": addresses[ps:]})
    made = [
        v1.train.Server(spec, job_name=job, task_index=index)
        for job, number in (("ps", ps), ("worker", workers))
        for index in range(number)
    ]
    SERVERS.extend(made)
    return [server.target for server in made[ps:]]


def local_target():
    SERVERS.append(v1.train.Server.create_local_server())
    return SERVERS[-1].target


class Worker:
    """A worker in its role, whose pulls and pushes are runs of their own.

    Args:
        target: Its server.
        index: Its index.
        workers: Number of workers.
        ps: Number of parameter servers; 0: everything is on the one server.
        hooked: Whether to open a monitored session with the push's hooks.
        patience: For the hooks.
        hooks: More of them.
        **options: Of K-FAC.
    """

    def __init__(
        self,
        target,
        index,
        workers,
        *,
        ps=0,
        hooked=False,
        patience=NO_PATIENCE_GIVEN,
        hooks=(),
        **options,
    ):
        self.role, self._seed = kfac_roles(workers)[index], 1000 * index
        device = None
        if ps:
            device = v1.train.replica_device_setter(
                ps_tasks=ps, worker_device=f"/job:worker/task:{index}", ps_strategy=LeastLoaded(ps)
            )
        with tf.Graph().as_default(), v1.device(device):
            step = v1.train.get_or_create_global_step()
            network = self.network = Network(pulled=True)
            counts = UpdateCounts(network.variables, step)
            self._pulled = counts.read()
            gradients = None
            base = v1.train.MomentumOptimizer(RATE, MOMENTUM)
            computes = self.role in ("all", "gradient")
            if computes:
                gradients = network.gradients()
            statistics = self.role == "all" or "statistics" in self.role
            self.rule = KFACOptimizer(
                base, network.layers if statistics else network.bare,
                fisher_loss=network.fisher_loss, role=self.role, **options,
            )  # fmt: skip
            self.push = push_kfac(
                self.rule, gradients, counts, self._pulled,
                worker=index, workers=workers, patience=patience,
            )  # fmt: skip
            self.told = {
                t.stream.name: t.tensor
                for t in di.collectors.collection.traced_tensors(v1.get_default_graph())
            }
            self._read = fetches(self.rule, network)
            self._fetches = {
                "op": self.push.op, "step": self.push.step,
                "staleness": self.push.staleness.overall,
            }  # fmt: skip
            if hooked:
                self.session = v1.train.SingularMonitoredSession(
                    [*self.push.hooks, *hooks], master=target,
                    scaffold=v1.train.Scaffold(
                        init_op=v1.global_variables_initializer() if index == 0 else tf.no_op(),
                        ready_op=tf.constant([], tf.string),
                    ),
                )  # fmt: skip
                self.plain = self.session.raw_session()
            else:
                self.session = self.plain = v1.Session(target)
                if index == 0:
                    self.plain.run([v1.global_variables_initializer()])
                    self.plain.run(self.push.start_op)

    def feeds(self):
        """The next batch."""
        self._seed += 1
        return batch(self._seed)

    def pull(self):
        """Read counts and weights."""
        self.versions = self.plain.run(self._pulled)
        self.values = self.plain.run(self.network.variables)

    def run(self, feeds):
        """Make the step with what was pulled."""
        fed = dict(zip(self.network.feeds, feeds, strict=True))
        fed |= {p: self.values[name] for name, p in self.network.pulled.items()}
        fed[self._pulled.overall] = self.versions.overall
        for device, counts in self._pulled.variables.items():
            fed[counts] = self.versions.variables[device]
        return self.session.run(self._fetches, fed)

    def state(self):
        return self.plain.run(self._read)


SETTINGS = {"damping": 0.5, "burn_in": 3, "inverse_every": 4, "norm_constraint": 1e-3}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("ps", [0, 2])
def test_in_any_order_the_roles_do_what_the_oracle_does(ps):
    """Two gradient workers that push stale gradients, and a worker for each other role."""
    targets = start_cluster(ps, 4) if ps else [local_target()] * 4
    workers = [Worker(targets[i], i, 4, ps=ps, **SETTINGS) for i in range(4)]
    roles = ("gradient", "gradient", "statistics", "inverse")
    assert tuple(worker.role for worker in workers) == roles
    oracle = Oracle(first_values(), damping=0.5, burn_in=3, inverse_every=4, cap=1e-3)
    order, pulled = np.random.default_rng(8), {}
    stale, ages = [], []
    for index in range(4):
        workers[index].pull()
        pulled[index] = ({name: v.copy() for name, v in oracle.values.items()}, 0)
    for turn in range(60):
        index = int(order.choice(4, p=[0.4, 0.2, 0.25, 0.15]))
        worker, (values, at), feeds = workers[index], pulled[index], workers[index].feeds()
        steps = oracle.steps
        told = worker.run(feeds)
        if index < 2:
            assert (told["step"], told["staleness"]) == (steps, steps - at)
            stale.append(steps - at)
            if oracle.inverted >= 0:
                ages.append(steps - oracle.inverted)
            oracle.apply(oracle.gradients(feeds[0], feeds[1], values))
        elif index == 2:
            oracle.take_batch(*feeds, values)
        else:
            oracle.invert_when_due()
        if index > 1:
            assert told["staleness"] == steps - at  # as it is, but it counts for nothing
        assert_state(workers[turn % 4].state(), oracle, TOLERANCE)
        worker.pull()
        pulled[index] = ({name: v.copy() for name, v in oracle.values.items()}, oracle.steps)
    assert max(stale) > 1  # the script is about something
    assert max(ages) > 4
    assert 0 < oracle.updates < 60
    for worker in workers:
        worker.session.close()


@pytest.mark.timeout(120)
def test_everything_of_a_layer_is_where_its_kernel_is():
    targets = start_cluster(2, 4)
    worker = Worker(targets[0], 0, 4, ps=2)
    devices = {}
    for layer in worker.network.layers:
        slots = [
            worker.rule.get_slot(layer.kernel, name).device
            for name in ("input_covariance", "output_covariance", "input_inverse", "output_inverse")
        ]
        assert set(slots) == {layer.kernel.device}
        devices[layer.kernel.name] = layer.kernel.device
    assert len(set(devices.values())) == 2
    worker.session.close()


@pytest.mark.timeout(120)
def test_one_worker_alone_is_the_single_process():
    worker = Worker(local_target(), 0, 1, **SETTINGS)
    oracle = Oracle(first_values(), damping=0.5, burn_in=3, inverse_every=4, cap=1e-3)
    for _ in range(8):
        worker.pull()
        feeds = worker.feeds()
        worker.run(feeds)
        oracle.step(*feeds)
        assert_state(worker.state(), oracle, TOLERANCE)
    worker.session.close()


@pytest.mark.timeout(120)
def test_with_two_workers_the_second_one_does_the_rest():
    target = local_target()
    gradient, rest = (Worker(target, i, 2, **SETTINGS) for i in range(2))
    oracle = Oracle(first_values(), damping=0.5, burn_in=3, inverse_every=4, cap=1e-3)
    for turn in range(12):
        rest.pull()
        feeds = rest.feeds()
        rest.run(feeds)
        oracle.take_batch(*feeds)
        oracle.invert_when_due()
        for _ in range(1 + turn % 2):
            gradient.pull()
            feeds = gradient.feeds()
            gradient.run(feeds)
            oracle.apply(oracle.gradients(*feeds[:2]))
        assert_state(rest.state(), oracle, TOLERANCE)
    assert oracle.inverted > 10
    for worker in (gradient, rest):
        worker.session.close()


@pytest.mark.timeout(120)
def test_without_the_others_gradient_workers_go_on_and_the_inverses_grow_old():
    target = local_target()
    workers = [Worker(target, i, 3, **SETTINGS) for i in range(3)]
    for _ in range(3):
        workers[1].pull()
        workers[1].run(workers[1].feeds())
    workers[2].pull()
    workers[2].run(workers[2].feeds())
    for worker in workers[1:]:
        worker.session.close()
    chief, seen = workers[0], []
    before = chief.state()
    for _ in range(10):
        chief.pull()
        fed = chief.feeds()
        chief.run(fed)
        seen.append(chief.plain.run(chief.told["sync/inverse_age"], {
            **dict(zip(chief.network.feeds, fed, strict=True)),
            **{p: chief.values[name] for name, p in chief.network.pulled.items()},
        }))  # fmt: skip
    after = chief.state()
    assert seen == list(range(1, 11))
    assert (before["values"]["out/kernel"] != after["values"]["out/kernel"]).all()
    for name, value in before["slots"].items():
        np.testing.assert_array_equal(after["slots"][name], value)
    assert np.isfinite(after["values"]["out/kernel"]).all()
    # They come back: with another session, on the same variables.
    statistics, inverse = (Worker(target, i, 3, **SETTINGS) for i in (1, 2))
    statistics.pull()
    statistics.run(statistics.feeds())
    inverse.pull()
    inverse.run(inverse.feeds())
    assert tuple(inverse.state()["counters"]) == (4, 10, 10)
    for worker in (chief, statistics, inverse):
        worker.session.close()


class Threaded:
    """A call in a thread."""

    def __init__(self, call):
        self.result = None

        def run():
            self.result = call()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def ended(self, within_s=TIMEOUT_S):
        self._thread.join(within_s)
        return not self._thread.is_alive()


def hooked(target, index, workers, **options):
    worker = Worker(target, index, workers, hooked=True, **options)
    worker.pull()
    return worker


@pytest.mark.timeout(120)
def test_a_statistics_worker_keeps_pace_with_the_gradient_workers():
    target = local_target()
    chief = Worker(target, 0, 3, covariance_every=2, **SETTINGS)
    statistics = hooked(target, 1, 3, covariance_every=2, **SETTINGS)
    chief.pull()
    statistics.run(statistics.feeds())  # at once
    second = Threaded(lambda: statistics.run(statistics.feeds()))
    assert not second.ended(0.3)
    chief.run(chief.feeds())
    assert not second.ended(0.3)
    assert chief.state()["counters"].updates == 1
    chief.run(chief.feeds())
    assert second.ended()
    assert tuple(chief.state()["counters"]) == (2, 2, -1)
    # What is no step is not held back.
    assert statistics.session.run(statistics.rule.state.steps) == 2
    for worker in (statistics, chief):
        worker.session.close()


@pytest.mark.timeout(120)
def test_workers_without_gradients_are_recorded_at_the_global_steps_they_saw(tmp_path):
    target, options = local_target(), {"burn_in": 1, "inverse_every": 2}
    chief = Worker(target, 0, 2, **options)
    chief.pull()
    trace = di.TraceHook(tmp_path, every_n_steps=1)
    rest = hooked(target, 1, 2, hooks=[trace], **options)
    with rest.session:
        for _ in range(5):
            rest.run(rest.feeds())
            chief.run(chief.feeds())
    chief.session.close()
    with di.open_run(tmp_path) as run:
        updates = run.array("sync/covariance_updates")
        assert updates.steps.tolist() == [0, 1, 2, 3, 4]
        assert updates.values.tolist() == [1, 2, 3, 4, 5]
        assert run.array("sync/wait_time").values.max() < TIMEOUT_S
        assert run.array("sync/inverse_age").values.tolist() == [0, 1, 0, 1, 0]


@pytest.mark.timeout(120)
def test_an_inverse_worker_waits_for_the_burn_in_and_then_for_steps():
    target = local_target()
    chief, statistics = (Worker(target, i, 3, **SETTINGS) for i in range(2))
    inverse = hooked(target, 2, 3, **SETTINGS)
    chief.pull()
    statistics.pull()
    first = Threaded(lambda: inverse.run(inverse.feeds()))
    for _ in range(3):
        assert not first.ended(0.1)
        statistics.run(statistics.feeds())
    assert first.ended()
    assert chief.state()["counters"].inverted == 0
    second = Threaded(lambda: inverse.run(inverse.feeds()))
    for _ in range(4):
        assert not second.ended(0.1)
        chief.run(chief.feeds())
    assert second.ended()
    assert chief.state()["counters"].inverted == 4
    for worker in (inverse, statistics, chief):
        worker.session.close()


@pytest.mark.timeout(120)
def test_when_the_last_gradient_worker_has_left_the_others_are_asked_to_stop():
    target = local_target()
    chief, second = (Worker(target, i, 4, **SETTINGS) for i in range(2))
    statistics, inverse = (hooked(target, i, 4, **SETTINGS) for i in (2, 3))
    statistics.run(statistics.feeds())
    waiting = [Threaded(lambda w=w: w.run(w.feeds())) for w in (statistics, inverse)]
    chief.plain.run(chief.push.leave_op)
    assert not any(thread.ended(0.2) for thread in waiting)
    second.plain.run(second.push.leave_op)
    for thread, worker in zip(waiting, (statistics, inverse), strict=True):
        assert thread.ended()
        assert worker.session.should_stop()
        worker.session.close()
    assert chief.state()["counters"].inverted == -1  # an inverse that is not due is not made
    # One that comes back is a member again.
    (arrive,) = second.push.hooks
    arrive.after_create_session(second.plain, None)
    assert second.plain.run(second.push.members.live)[:2].tolist() == [0, 1]
    for worker in (chief, second):
        worker.session.close()


@pytest.mark.timeout(120)
def test_a_wait_ends_with_the_time_out_and_with_the_process():
    target, stop = local_target(), threading.Event()
    chief = Worker(target, 0, 3, **SETTINGS)
    patience = Patience(timeout_s=0.3, poll_s=0.01)
    statistics = hooked(target, 1, 3, patience=patience, **SETTINGS)
    for expected in (1, 2, 3):  # no step is made, but the work is done once more
        statistics.run(statistics.feeds())
        assert chief.state()["counters"].updates == expected
    assert not statistics.session.should_stop()
    inverse = hooked(target, 2, 3, patience=Patience(stop=stop), **SETTINGS)
    inverse.run(inverse.feeds())
    thread = Threaded(lambda: inverse.run(inverse.feeds()))
    assert not thread.ended(0.3)
    stop.set()
    assert thread.ended(5)
    for worker in (inverse, statistics, chief):
        worker.session.close()


def test_a_wait_follows_steps_that_go_back_to_a_checkpoint():
    with tf.Graph().as_default(), v1.Session() as session:
        network = Network()
        rule = KFACOptimizer(0.1, network.layers, role="statistics")
        hook = KFACPaceHook(rule, rule.statistics_op(network.fisher_loss),
                            patience=Patience(timeout_s=30.0))  # fmt: skip
        session.run(v1.global_variables_initializer())
        for steps in (7, 8, 3):
            rule.state.steps.load(steps, session)
            thread = Threaded(lambda: hook._wait(session))
            assert thread.ended(5)
            assert thread.result is True


@pytest.mark.timeout(180)
def test_a_killed_worker_is_missed_by_nobody():
    """A statistics and inverse worker in a process of its own, killed with SIGKILL."""
    target = local_target()
    with tf.Graph().as_default():
        network = Network()
        base = v1.train.GradientDescentOptimizer(0.01)
        options = {key: value for key, value in OPTIONS.items() if key != "momentum"}
        rule = KFACOptimizer(base, network.bare, role="gradient", **options)
        train = rule.apply_gradients(network.gradients())
        counters = rule.state.read_counters()
        # The other process knows nothing of initialisation.
        session = v1.Session(target)
        session.run(v1.global_variables_initializer())

    def step(number):
        fed = dict(zip(network.feeds, batch(number), strict=True))
        return session.run([train, network.loss], fed)[1]

    def launch():
        return subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("kfac_process.py")), target],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
        )  # fmt: skip

    def until(condition, process):
        deadline_s = time.monotonic() + TIMEOUT_S
        while not condition(session.run(counters)):
            assert process.poll() is None, "the other worker has ended"
            assert time.monotonic() < deadline_s, "the other worker does nothing"
            step(0)
            time.sleep(0.01)

    process, before = launch(), session.run(counters)
    try:
        until(lambda now: now.inverted > before.inverted + 5, process)
        process.send_signal(signal.SIGKILL)
        assert process.wait(TIMEOUT_S) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait(TIMEOUT_S)
        process.stdout.close()
    gone = session.run(counters)
    losses = [step(number) for number in range(20)]
    after = session.run(counters)
    assert np.isfinite(losses).all()
    assert (after.updates, after.inverted) == (gone.updates, gone.inverted)
    assert after.steps == gone.steps + 20
    session.close()


# At the end TensorFlow's thread for rounds is cancelled while it waits for gradients.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.timeout(120)
def test_under_sync_replicas_the_mean_gradient_is_preconditioned(tmp_path):
    """TensorFlow's SyncReplicas around the gradient role, the other work in the same step."""
    network, target = None, local_target()
    with tf.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        network = Network()
        helper = KFACOptimizer(
            0.1, network.layers, fisher_loss=network.fisher_loss, role="statistics+inverse",
            damping=0.5, burn_in=2, inverse_every=3,
        )  # fmt: skip
        rule = KFACOptimizer(
            v1.train.GradientDescentOptimizer(RATE), network.bare, role="gradient",
            damping=0.5, burn_in=2, inverse_every=3, norm_constraint=1e-6,
        )  # fmt: skip
        sync = v1.train.SyncReplicasOptimizer(rule, 1, 1)
        train = sync.apply_gradients(network.gradients(), step)
        statistics, inverse = _share(helper, rule)
        read = fetches(rule, network)
        oracle = Oracle(
            first_values(), damping=0.5, burn_in=2, inverse_every=3, cap=1e-6, momentum=0.0
        )
        with v1.train.SingularMonitoredSession(
            [sync.make_session_run_hook(True, num_tokens=0),
             di.TraceHook(tmp_path, every_n_steps=1)],
            master=target, stop_grace_period_secs=0.1,
        ) as session:  # fmt: skip
            plain, scales = session.raw_session(), []
            for number in range(8):
                feeds = batch(number)
                fed = dict(zip(network.feeds, feeds, strict=True))
                plain.run(statistics, fed)
                oracle.take_batch(*feeds)
                plain.run(inverse)
                oracle.invert_when_due()
                session.run(train, fed)
                oracle.apply(oracle.gradients(*feeds[:2]))
                scales.append(oracle.scale)
                assert_state(plain.run(read), oracle, TOLERANCE)
    with di.open_run(tmp_path) as run:
        told = run.array("sync/step_scale").values
    # What is told beside a step is of that round, or still of the one before.
    assert all(min(abs(told[i] - scales[j]) for j in (i - 1, i)) < 1e-4 for i in range(1, 8))
    assert min(scales) < 1


def _share(helper, rule):
    """Ops of the helper on the variables of the rule: one graph, as in one process."""
    helper._made = rule.state
    return helper.statistics_op(), helper.inverse_op()


def test_a_single_process_records_what_it_knows(tmp_path):
    with tf.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        network = Network()
        train = KFACOptimizer(
            RATE, network.layers, fisher_loss=network.fisher_loss,
            damping=0.5, burn_in=3, inverse_every=4, norm_constraint=1e-5,
        ).minimize(network.loss, step)  # fmt: skip
        with v1.train.MonitoredTrainingSession(
            hooks=[di.TraceHook(tmp_path, every_n_steps=1)]
        ) as session:
            for number in range(12):
                session.run(train, dict(zip(network.feeds, batch(number), strict=True)))
    with di.open_run(tmp_path) as run:
        told = {
            name: run.array(f"sync/{name}").values
            for name in (
                "inverse_age", "covariance_updates", "damping", "fisher_norm", "step_scale"
            )
        }  # fmt: skip
    ages = [np.nan, np.nan, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    np.testing.assert_array_equal(told["inverse_age"], ages)
    np.testing.assert_array_equal(told["covariance_updates"], range(1, 13))
    np.testing.assert_array_equal(told["damping"], [0.5] * 12)
    assert np.isfinite(told["fisher_norm"]).tolist() == [False] * 2 + [True] * 10
    assert (told["step_scale"] <= 1).all()


GROUPS = [FeatureGroup("a", 1, 5), FeatureGroup("b", 2, 9)]


@pytest.mark.parametrize("kind", ["dense", "wide-deep"])
def test_the_models_tell_what_goes_through_their_layers(kind):
    with tf.Graph().as_default(), v1.Session() as session:
        model = Dense(GROUPS, 20, [4, 3], 1) if kind == "dense" else WideDeep(GROUPS, 2, [4, 3], 1)
        ids = tf.constant(np.random.default_rng(1).integers(0, 5, size=(6, 3)), tf.int32)
        dense = {name: variable.read_value() for name, variable in model.dense.items()}
        tensors: dict[str, LayerTensors] = {}
        logits = model.logits(ids, dense, layers=tensors)
        layers = dense_layers(model.variables, tensors)
        session.run(v1.global_variables_initializer())
        assert [layer.kernel.op.name for layer in layers] == [
            "fc1/kernel", "fc2/kernel", "logits/kernel",
        ]  # fmt: skip
        last = None
        for layer in layers:
            x, k, b, y = session.run([layer.inputs, layer.kernel, layer.bias, layer.outputs])
            np.testing.assert_allclose(y, x @ k + b, rtol=1e-5, atol=1e-6)
            if last is not None:
                np.testing.assert_array_equal(x, np.maximum(last, 0))
            last = y
        gradients = v1.gradients(logits, [layer.outputs for layer in layers])
        assert all(g is not None for g in gradients)
        assert session.run(gradients[-1]).tolist() == [[1.0]] * 6
        bare = dense_layers(model.variables)
        assert all(layer.inputs is None and layer.outputs is None for layer in bare)
        with pytest.raises(ValueError, match=r"every layer\. Received: those of 'fc1', and the k"):
            dense_layers(model.variables, {"fc1": tensors["fc1"]})


def test_who_does_what():
    assert kfac_roles(1) == ("all",)
    assert kfac_roles(2) == ("gradient", "statistics+inverse")
    assert kfac_roles(3) == ("gradient", "statistics", "inverse")
    assert kfac_roles(5) == ("gradient",) * 3 + ("statistics", "inverse")
    with pytest.raises(ValueError, match=r"`workers` must be >= 1\. Received: workers=0"):
        kfac_roles(0)


def test_a_role_that_does_not_fit_is_refused():
    with tf.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        network = Network()
        counts = UpdateCounts(network.variables, step)
        pulled, gradients = counts.read(), network.gradients()
        rule = KFACOptimizer(0.1, network.bare, role="inverse")
        for worker in (0, 1, 3, -1):
            with pytest.raises(ValueError, match=r"these are gradient, statistics, inverse\. Rec"):
                push_kfac(rule, None, counts, pulled, worker=worker, workers=3)
        with pytest.raises(ValueError, match=r"Received: gradients for the role 'inverse'"):
            push_kfac(rule, gradients, counts, pulled, worker=2, workers=3)
        rule = KFACOptimizer(0.1, network.bare, role="gradient")
        with pytest.raises(ValueError, match=r"Received: None for the role 'gradient'"):
            push_kfac(rule, None, counts, pulled, worker=0, workers=3)


def test_a_mean_of_several_workers_gradients_has_no_batch():
    with tf.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        network = Network()
        rule = KFACOptimizer(0.1, network.layers, fisher_loss=network.fisher_loss)
        sync = v1.train.SyncReplicasOptimizer(rule, 1, 1)
        with pytest.raises(ValueError, match=r"belongs to no batch.*role='all'; use role='grad"):
            sync.apply_gradients(network.gradients(), step)


def test_eager_execution_is_refused():
    kernel = tf.Variable(tf.ones([2, 2]))
    optimizer = KFACOptimizer(0.1, [DenseLayer(kernel)], role="gradient")
    with pytest.raises(ValueError, match="needs a graph, whose tensors its layers are"):
        optimizer.apply_gradients([(tf.ones([2, 2]), kernel)])
