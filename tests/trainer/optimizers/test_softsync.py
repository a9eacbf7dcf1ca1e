"""Softsync on two real parameter servers, against the rules, under scripted interleavings."""

import itertools
import socket
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from deepinsight.collectors.collection import traced_tensors
from deepinsight.trainer import rules
from deepinsight.trainer.cluster.members import Patience
from deepinsight.trainer.optimizers import (
    AccumulatedGradients,
    BoostedMomentumOptimizer,
    DelayCompensatedGradientDescentOptimizer,
    LARSOptimizer,
    UpdateCounts,
    Versions,
    push_async,
)
from deepinsight.trainer.optimizers.softsync.optimizer import SoftsyncOptimizer, push_softsync
from deepinsight.trainer.optimizers.softsync.watch import Silence

v1 = tf.compat.v1
TIMEOUT_S = 60
SERVERS = []  # TensorFlow cannot end a server, so none may be collected
RATE = 0.125
SHAPES = {"kernel": (3, 2), "table": (6, 2), "bias": (2,)}
# Relative to the largest: float64 sums in another order than NumPy's; float32 likewise.
TOLERANCE = {tf.float64: 1e-12, tf.float32: 2e-6}
names = (f"softsync_{n}" for n in itertools.count())

BASES = {
    "sgd": (
        lambda: v1.train.GradientDescentOptimizer(RATE),
        ("gradient_descent_step", [], {"learning_rate": RATE}),
    ),
    "momentum": (
        lambda: v1.train.MomentumOptimizer(RATE, 0.5),
        ("momentum_step", [0.0], {"learning_rate": RATE, "momentum": 0.5}),
    ),
    "adagrad": (
        lambda: v1.train.AdagradOptimizer(RATE, 0.25),
        ("adagrad_step", [0.25], {"learning_rate": RATE, "accum_epsilon": 0.0}),
    ),
    "lars": (
        lambda: LARSOptimizer(RATE, 0.5, 0.01, 0.1),
        (
            "lars_step",
            [0.0],
            {"learning_rate": RATE, "momentum": 0.5, "weight_decay": 0.01, "eeta": 0.1},
        ),
    ),
}


@pytest.fixture(scope="module")
def target():
    """Two parameter servers and a worker in this process; the worker's target."""
    sockets = [socket.socket() for _ in range(3)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    spec = tf.train.ClusterSpec(
        {
            "ps": [f"127.0.0.1:{p}" for p in ports[:2]],
            "worker": [f"127.0.0.1:{ports[2]}"],
        }
    )
    made = [
        v1.train.Server(spec, job_name=job, task_index=index)
        for job, index in (("ps", 0), ("ps", 1), ("worker", 0))
    ]
    SERVERS.extend(made)
    return made[2].target


def on_two_servers():
    return v1.device(v1.train.replica_device_setter(ps_tasks=2, worker_device="/job:worker/task:0"))


def initial(dtype):
    rng = np.random.default_rng(7)
    return {k: rng.standard_normal(s).astype(dtype.as_numpy_dtype) for k, s in SHAPES.items()}


class Worker:
    """A worker whose pulls and pushes are separate steps of the script, in a graph of its own."""

    def __init__(self, target, index, push, dtype=tf.float64):
        self.index, self.graph = index, tf.Graph()
        with self.graph.as_default(), on_two_servers(), v1.variable_scope(dtype.name):
            self.global_step = v1.train.get_or_create_global_step()
            self.variables = {
                name: v1.get_variable(name, initializer=value, use_resource=True)
                for name, value in initial(dtype).items()
            }
            self.feeds = {
                "kernel": v1.placeholder(dtype, SHAPES["kernel"]),
                "table": v1.placeholder(dtype, [None, 2]),
                "bias": v1.placeholder(dtype, SHAPES["bias"]),
            }
            self.rows = v1.placeholder(tf.int32, [None])
            gradients = dict(self.feeds)
            gradients["table"] = tf.IndexedSlices(gradients["table"], self.rows)
            push(self, [(gradients[name], v) for name, v in self.variables.items()])
            self.initializer = v1.global_variables_initializer()
        self.session = v1.Session(target, graph=self.graph)

    def pull(self):
        self.pulled = self.session.run(self.read)

    def push(self, gradients, rows):
        feeds = {self.feeds[name]: value for name, value in gradients.items()}
        return self.session.run(
            self.fetches, feeds | {self.rows: rows} | self.feed_of_pull(self.pulled)
        )

    def values(self):
        return self.session.run(self.variables)


def softsync(make_base, workers, splits, weighting, name):
    """Build the wrapper alone."""

    def push(worker, pairs):
        pulled = v1.placeholder(tf.int64, [])
        optimizer = SoftsyncOptimizer(
            make_base(), workers, splits, worker_index=worker.index,
            staleness_weighting=weighting, name=name,
        )  # fmt: skip
        op = optimizer.apply_gradients(pairs, pulled=pulled)
        worker.optimizer = optimizer
        worker.read = worker.global_step.read_value()
        worker.feed_of_pull = lambda value: {pulled: value}
        streams = {t.stream.name: t.tensor for t in traced_tensors(worker.graph)}
        worker.fetches = {
            "op": op,
            "step": optimizer.step,
            "reached": optimizer.reached,
            "staleness": optimizer.staleness,
            **{k: v for k, v in streams.items() if k.startswith("sync/")},
        }

    return push


def team(target, make_base, workers, splits=1, weighting="inverse", dtype=tf.float64):
    push = softsync(make_base, workers, splits, weighting, next(names))
    made = [Worker(target, index, push, dtype) for index in range(workers)]
    made[0].session.run(made[0].initializer)
    made[0].session.run(made[0].optimizer.start_op)
    return made


class Oracle:
    """The same in NumPy."""

    def __init__(self, base, workers, splits, weighting, dtype):
        self.rule, first, self.hyper = BASES[base][1]
        self.values = initial(dtype)
        self.state = {k: [np.full_like(v, f) for f in first] for k, v in self.values.items()}
        self.live, self.splits, self.weighting = workers, splits, weighting
        self.step, self.pulled = 0, [0] * workers
        self.empty()

    def empty(self):
        self.sums = {name: np.zeros_like(value) for name, value in self.values.items()}
        self.touched, self.ages = set(), []

    def pull(self, worker):
        self.pulled[worker] = self.step

    def push(self, worker, gradients, rows):
        """What the worker is told."""
        age, before = self.step - self.pulled[worker], self.step
        weight = rules.staleness_weight(age) if self.weighting == "inverse" else 1.0
        for name, gradient in gradients.items():
            if name == "table":
                (self.sums[name],) = rules.accumulation.sparse_weighted_accumulation(
                    self.sums[name], gradient, rows, weight=weight
                )
            else:
                (self.sums[name],) = rules.weighted_accumulation(
                    self.sums[name], gradient, weight=weight
                )
        self.touched |= set(rows.tolist())
        self.ages.append(age)
        told = {"sync/staleness_weight": weight, "sync/live_workers": self.live}
        if len(self.ages) >= max(self.live // self.splits, 1):
            told |= {
                "sync/gradients_per_update": len(self.ages),
                "sync/round_staleness": np.mean(self.ages),
                "sync/largest_round_staleness": max(self.ages),
            }
            self.update()
        told |= {"sync/pending_gradients": len(self.ages)}
        return told | {"step": before, "reached": self.step, "staleness": age}

    def update(self):
        for name, total in self.sums.items():
            (mean,) = rules.accumulated_mean(total, count=len(self.ages))
            where, rule = (), self.rule
            if name == "table":
                where, rule = (np.array(sorted(self.touched)),), f"sparse_{rule}"
                mean = mean[where[0]]
            self.values[name], *state = getattr(rules, rule)(
                self.values[name], *self.state[name], mean, *where, **self.hyper
            )
            self.state[name] = state[: len(self.state[name])]  # the rest are statistics
        self.step += 1
        self.empty()


def some_gradients(rng, dtype=tf.float64, unique=False):
    """Gradients of a batch; rows of the table come twice, or are sorted and unique."""
    rows = np.sort(rng.permutation(6)[:5]) if unique else rng.integers(0, 6, 5)
    rows = rows.astype(np.int32)
    shapes = SHAPES | {"table": (5, 2)}
    kind = dtype.as_numpy_dtype
    return {k: rng.standard_normal(s).astype(kind) for k, s in shapes.items()}, rows


def check(told, expected):
    for name, value in expected.items():
        np.testing.assert_allclose(told[name], value, rtol=1e-12, err_msg=name)


def run_script(script, workers, oracle, dtype=tf.float64, seed=3):
    """Let workers and oracle go through a script of ``(worker, "pull" or "push")``."""
    rng, updates = np.random.default_rng(seed), []
    for worker, what in script:
        if what == "pull":
            workers[worker].pull()
            oracle.pull(worker)
            continue
        gradients, rows = some_gradients(rng, dtype)
        told = workers[worker].push(gradients, rows)
        expected = oracle.push(worker, gradients, rows)
        check(told, expected)
        updates.append(expected["reached"] - expected["step"])
        if not updates[-1]:
            continue
        for name, value in workers[worker].values().items():
            np.testing.assert_allclose(
                value, oracle.values[name], rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype],
                err_msg=name,
            )  # fmt: skip
    return updates


def any_order(workers, pushes, seed):
    """Each worker pulls before each of its pushes, and others come in between."""
    rng, pulled = np.random.default_rng(seed), set()
    script = []
    while pushes:
        worker = int(rng.integers(workers))
        script.append((worker, "push" if worker in pulled else "pull"))
        pushes -= worker in pulled
        pulled ^= {worker}
    return script


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("base", "workers", "splits", "weighting"),
    [
        ("sgd", 3, 2, "inverse"),
        ("momentum", 3, 1, "inverse"),
        ("adagrad", 4, 2, "none"),
        ("lars", 4, 2, "inverse"),
    ],
)
def test_every_push_is_that_of_the_rules(target, base, workers, splits, weighting):
    made = team(target, BASES[base][0], workers, splits, weighting)
    oracle = Oracle(base, workers, splits, weighting, tf.float64)
    updates = run_script(any_order(workers, 12, seed=splits), made, oracle)
    assert sum(updates) == 12 // (workers // splits)
    assert oracle.step == sum(updates)


@pytest.mark.timeout(120)
def test_single_precision(target):
    workers = team(target, BASES["momentum"][0], 2, dtype=tf.float32)
    oracle = Oracle("momentum", 2, 1, "inverse", tf.float32)
    run_script(any_order(2, 8, seed=9), workers, oracle, dtype=tf.float32)


@pytest.mark.timeout(120)
def test_a_gradient_is_weighted_by_the_updates_that_it_missed(target):
    """The slow one pulls first and pushes last: four updates, weight a quarter."""
    workers = team(target, BASES["sgd"][0], 2, splits=2)
    slow = workers[0]
    oracle = Oracle("sgd", 2, 2, "inverse", tf.float64)
    run_script([(0, "pull"), *[(1, "pull"), (1, "push")] * 4], workers, oracle)
    gradients, rows = some_gradients(np.random.default_rng(1))
    before = slow.values()
    told = slow.push(gradients, rows)
    assert (told["staleness"], told["sync/staleness_weight"]) == (4, 0.25)
    np.testing.assert_allclose(
        slow.values()["kernel"], before["kernel"] - RATE / 4 * gradients["kernel"], rtol=1e-12
    )


def downpour(make_base):
    """Build a plain asynchronous push, with counters."""

    def push(worker, pairs):
        _with_counts(worker, pairs, lambda *given: push_async(make_base(), *given))

    return push


def counted_softsync(make_base, workers, splits, weighting):
    def push(worker, pairs):
        def make(*given):
            worker.push_made = push_softsync(
                make_base(), *given, worker=worker.index, workers=workers,
                is_chief=worker.index == 0, splits=splits, weighting=weighting,
                patience=Patience(timeout_s=30),
            )  # fmt: skip
            return worker.push_made

        _with_counts(worker, pairs, make)

    return push


def _with_counts(worker, pairs, make):
    counts = UpdateCounts(worker.variables, worker.global_step)
    worker.read = counts.read()
    fed = Versions(
        _placeholder_like(worker.read.overall),
        {device: _placeholder_like(t) for device, t in worker.read.variables.items()},
    )
    made = make(pairs, counts, fed)
    worker.feed_of_pull = lambda read: dict(
        zip(fed.tensors(), [read.overall, *read.variables.values()], strict=True)
    )
    worker.fetches = {
        "op": made.op,
        "step": made.step,
        "staleness": made.staleness.overall,
        "variables": list(made.staleness.variables.values()),
    }
    if made.reached is not None:
        worker.fetches["reached"] = made.reached


def _placeholder_like(tensor):
    with tf.device(tensor.device):
        return v1.placeholder(tensor.dtype, tensor.shape)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("base", ["sgd", "lars"])
def test_as_many_splits_as_workers_is_downpour_bit_for_bit(target, base):
    script = any_order(2, 10, seed=4)
    told, values = [], []
    for push in (
        downpour(BASES[base][0]),
        counted_softsync(BASES[base][0], workers=2, splits=2, weighting="none"),
    ):
        workers = [Worker(target, index, push) for index in range(2)]
        workers[0].session.run(workers[0].initializer)
        rng = np.random.default_rng(2)
        told.append([])
        for worker, what in script:
            if what == "pull":
                workers[worker].pull()
            else:
                # Plain SGD adds rows that come twice one after the other, not their sum; norms
                # are sums in the order of the rows.
                out = workers[worker].push(*some_gradients(rng, unique=True))
                out["variables"] = np.concatenate(out["variables"]).tolist()
                told[-1].append(out)
        values.append(workers[1].values())
    for one, other in zip(*told, strict=True):
        assert other.pop("reached") == one["step"] + 1
        assert one == other
    for name in SHAPES:
        np.testing.assert_array_equal(values[0][name], values[1][name])


@pytest.mark.timeout(120)
def test_counters_rise_once_per_update_and_staleness_is_known_per_variable(target):
    push = counted_softsync(BASES["sgd"][0], workers=2, splits=1, weighting="inverse")
    workers = [Worker(target, index, push, tf.float32) for index in range(2)]
    workers[0].session.run(workers[0].initializer)
    workers[0].session.run(workers[0].push_made.start_op)
    rng = np.random.default_rng(0)
    for worker in workers:
        worker.pull()
    seen = []
    for turn in (0, 0, 1, 0, 1):
        out = workers[turn].push(*some_gradients(rng, tf.float32))
        ages = np.concatenate(out["variables"]).tolist()
        seen.append((int(out["step"]), int(out["reached"]), int(out["staleness"]), ages))
    # Nobody pulls again, so staleness grows with every update.
    assert seen == [
        (0, 0, 0, [0, 0, 0]),
        (0, 1, 0, [0, 0, 0]),
        (1, 1, 1, [1, 1, 1]),
        (1, 2, 1, [1, 1, 1]),
        (2, 2, 2, [2, 2, 2]),
    ]
    read = workers[0].session.run(workers[0].read)
    assert np.concatenate(list(read.variables.values())).tolist() == [2, 2, 2]
    assert len(read.variables) == 2  # servers


def rounds(workers, oracle, turns, rng):
    """Pull and push in turn; True for each push that made an update."""
    updates = []
    for turn in turns:
        workers[turn].pull()
        oracle.pull(turn)
        gradients, rows = some_gradients(rng)
        told = workers[turn].push(gradients, rows)
        check(told, oracle.push(turn, gradients, rows))
        updates.append(bool(told["reached"] > told["step"]))
    for name, value in workers[0].values().items():
        np.testing.assert_allclose(value, oracle.values[name], rtol=1e-12, atol=1e-12)
    return updates


@pytest.mark.timeout(120)
def test_rounds_follow_the_live_workers(target):
    workers = team(target, BASES["momentum"][0], 3)
    oracle, rng = Oracle("momentum", 3, 1, "inverse", tf.float64), np.random.default_rng(5)
    members, session = workers[0].optimizer.members, workers[0].session
    assert rounds(workers, oracle, [0, 1, 2, 0, 1], rng) == [False, False, True, False, False]
    members.lose(session, [2])
    oracle.live = 2  # what has been collected is more than enough: the next push takes all
    assert rounds(workers, oracle, [0, 1, 0], rng) == [True, False, True]
    workers[1].session.run(workers[1].optimizer.leave_op)
    oracle.live = 1
    assert rounds(workers, oracle, [0, 0], rng) == [True, True]
    oracle.live = 2  # with its next push the lost one is a member again
    assert rounds(workers, oracle, [2, 0], rng) == [False, True]
    assert session.run(members.live).tolist() == [1, 0, 1]
    assert session.run(members.progress).tolist() == [7, 3, 2]


@pytest.mark.timeout(120)
def test_a_worker_that_begins_again_finds_the_accumulators(target):
    name = next(names)
    push = softsync(BASES["adagrad"][0], 2, 1, "inverse", name)
    workers = [Worker(target, index, push) for index in range(2)]
    workers[0].session.run([workers[0].initializer])
    workers[0].session.run(workers[0].optimizer.start_op)
    oracle, rng = Oracle("adagrad", 2, 1, "inverse", tf.float64), np.random.default_rng(8)
    assert rounds(workers, oracle, [0, 1, 1], rng) == [False, True, False]
    workers[1].session.close()
    workers[1] = Worker(target, 1, push)
    assert workers[1].session.run(workers[1].optimizer.pending) == 1
    assert rounds(workers, oracle, [1, 0], rng) == [True, False]


@pytest.mark.timeout(120)
def test_a_launch_begins_with_empty_accumulators_and_everybody_expected(target):
    workers = team(target, BASES["sgd"][0], 3)
    oracle, rng = Oracle("sgd", 3, 1, "inverse", tf.float64), np.random.default_rng(6)
    optimizer, session = workers[0].optimizer, workers[0].session
    rounds(workers, oracle, [0, 1, 2, 0, 1], rng)
    optimizer.members.lose(session, [1, 2])
    session.run(optimizer.start_op)
    oracle.empty()
    assert session.run(optimizer.pending) == 0
    assert session.run(optimizer.members.live).tolist() == [1, 1, 1]
    assert session.run(optimizer.launch_variables)[-1].tolist()[0] == 0
    assert rounds(workers, oracle, [0, 1, 2], rng) == [False, False, True]


@pytest.mark.timeout(120)
def test_a_push_that_fails_holds_nobody_up(target):
    workers = team(target, BASES["sgd"][0], 2)
    gradients, rows = some_gradients(np.random.default_rng(0))
    for worker in workers:
        worker.pull()
    for _ in range(3):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[0, 6\), the rows"):
            workers[0].push(gradients, rows + 6)
    assert workers[1].push(gradients, rows)["sync/pending_gradients"] == 1
    assert workers[0].push(gradients, rows)["reached"] == 1


def at_once(functions):
    """Call them in threads; what they return."""
    results = [None] * len(functions)

    def call(place):
        results[place] = functions[place]()

    threads = [threading.Thread(target=call, args=(i,), daemon=True) for i in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive(), "the pushes did not end"
    return results


def one_everywhere():
    ones = {name: np.ones(shape) for name, shape in SHAPES.items()}
    return ones, np.arange(6, dtype=np.int32)


def steady(worker, times, fetched=()):
    """Push ones `times` times, without pulling again."""
    worker.pull()
    worker.fetches = {k: worker.fetches[k] for k in ("op", "step", "reached", *fetched)}
    return lambda: [worker.push(*one_everywhere()) for _ in range(times)]


def moved(worker):
    """How far all elements have come, the same way for all."""
    first, now = initial(tf.float64), worker.values()
    ways = np.concatenate([((now[k] - first[k]) / -RATE).ravel() for k in SHAPES])
    assert np.ptp(ways) < 1e-9
    return ways[0]


@pytest.mark.timeout(120)
def test_pushes_at_the_same_moment_are_all_applied_as_by_downpour(target):
    workers = team(target, BASES["sgd"][0], 3, splits=3, weighting="none")
    told = list(itertools.chain(*at_once([steady(worker, 40) for worker in workers])))
    assert sorted(int(out["step"]) for out in told) == list(range(120))
    assert all(out["reached"] == out["step"] + 1 for out in told)
    assert moved(workers[0]) == pytest.approx(120, abs=1e-9)


@pytest.mark.timeout(120)
def test_no_gradient_is_lost_or_counted_twice_while_members_come_and_go(target):
    workers = team(target, BASES["sgd"][0], 3, weighting="none")
    taken = "sync/gradients_per_update"
    steps = [steady(worker, 40, [taken]) for worker in workers]
    members, chief = workers[0].optimizer.members, workers[0].session
    over = threading.Event()

    def come_and_go():
        rng = np.random.default_rng(1)
        while not over.wait(0.003):
            members.lose(chief, rng.choice(3, 2, replace=False))

    restless = threading.Thread(target=come_and_go, daemon=True)
    restless.start()
    told = list(itertools.chain(*at_once(steps)))
    over.set()
    restless.join(TIMEOUT_S)
    takers = [out for out in told if out["reached"] > out["step"]]
    # One taker per round, and all gradients but those still pending were in some round.
    assert sorted(int(out["step"]) for out in takers) == list(range(len(takers)))
    sizes = [int(out[taken]) for out in takers]
    pending = int(chief.run(workers[0].optimizer.pending))
    assert sum(sizes) + pending == 120
    assert pending < 3
    assert set(sizes) <= {1, 2, 3}
    assert len(set(sizes)) > 1
    # The mean of ones is one, so every round has moved all variables by one.
    assert moved(workers[0]) == pytest.approx(len(takers), abs=1e-9)


def test_silence_counts_while_others_move_and_while_it_is_watched():
    clock = [0.0]
    silence = Silence(8.0, lambda: clock[0])
    live, progress = np.array([1, 1, 0]), np.array([0, 0, 0])

    def look(after_s, *moved):
        clock[0] += after_s
        assert silence.is_due
        for worker in moved:
            progress[worker] += 1
        return silence.look(live, progress.copy())

    clock[0] += 0.9
    assert not silence.is_due
    assert [look(1.0, 0) for _ in range(7)] == [[]] * 7
    assert look(1.0) == []  # nobody has moved: all may have been held up together
    assert look(60.0) == []
    assert look(60.0, 0) == [1]  # 7 s, and of the long pause as much as two looks
    live[1] = 0
    assert look(1.0, 0) == []
    live[1] = 1
    assert look(1.0, 0, 1) == []
    assert [look(1.0, 0) for _ in range(7)] == [[]] * 7
    assert look(1.0, 0) == [1]


@pytest.mark.timeout(120)
def test_the_chief_goes_on_without_a_worker_that_is_silent(target):
    chief, other, lost = workers = team(target, BASES["sgd"][0], 3)
    with chief.graph.as_default():
        hook = chief.optimizer.make_session_run_hook(True, Patience(timeout_s=0.4))
    hook.after_create_session(chief.session, None)
    context = v1.train.SessionRunContext(None, chief.session)
    for worker in workers:
        worker.pull()
        worker.push(*one_everywhere())
    deadline = time.monotonic() + TIMEOUT_S
    while chief.push(*one_everywhere())["sync/live_workers"] == 3:
        other.push(*one_everywhere())
        hook.after_run(context, None)
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert chief.session.run(chief.optimizer.members.live).tolist() == [1, 1, 0]
    assert lost.push(*one_everywhere())["sync/live_workers"] == 3


def regression(index, workers=2, **options):
    """A linear model on two servers, in the default graph."""
    with on_two_servers():
        step = v1.train.get_or_create_global_step()
        weights = v1.get_variable("weights", initializer=np.zeros(4, "f"), use_resource=True)
        table = v1.get_variable("rows", initializer=np.zeros((5, 1), "f"), use_resource=True)
        features = v1.placeholder(tf.float32, [None, 4])
        ids = v1.placeholder(tf.int64, [None])
        labels = v1.placeholder(tf.float32, [None])
        scores = tf.linalg.matvec(features, weights) + tf.gather(table, ids)[:, 0]
        loss = tf.reduce_mean((scores - labels) ** 2)
        optimizer = SoftsyncOptimizer(
            v1.train.MomentumOptimizer(0.05, 0.5), workers, worker_index=index, **options
        )
        return SimpleNamespace(
            optimizer=optimizer, loss=loss, step=step, weights=weights, table=table,
            op=optimizer.minimize(loss), feeds=(features, ids, labels),
        )  # fmt: skip


def batch(rng):
    features, ids = rng.standard_normal((16, 4)).astype("f"), rng.integers(0, 5, 16)
    return features, ids, features @ np.array([1.0, -2.0, 0.5, 0.0], "f") + 0.5 * ids


def train(target, index, name, steps, folder=None, begun=None, over=None):
    """One worker, as in anyone's script; the chief goes on until the other is over."""
    with tf.Graph().as_default():
        model = regression(index, name=name)
        hooks = [model.optimizer.make_session_run_hook(is_chief=index == 0)]
        if index == 0:
            creator = v1.train.ChiefSessionCreator(master=target, checkpoint_dir=folder)
            hooks.append(v1.train.CheckpointSaverHook(folder, save_steps=10**6))
        else:
            creator = v1.train.WorkerSessionCreator(master=target)
            begun.wait(TIMEOUT_S)  # it would look for the chief's variables every 30 s
        rng, losses, deadline = np.random.default_rng(index), [], time.monotonic() + TIMEOUT_S
        with v1.train.MonitoredSession(creator, hooks) as session:
            plain = session.run_step_fn(lambda step_context: step_context.session)
            first = int(plain.run(model.step))
            begun.set()
            while len(losses) < steps or not over.is_set():
                assert time.monotonic() < deadline
                feeds = dict(zip(model.feeds, batch(rng), strict=True))
                told = session.run([model.op, model.loss, model.optimizer.reached], feeds)
                losses.append(float(told[1]))
                if index and len(losses) == steps:
                    break
            live = plain.run(model.optimizer.members.live).tolist()
    over.set()
    return SimpleNamespace(losses=losses, first=first, reached=int(told[2]), live=live)


@pytest.mark.timeout(180)
def test_two_scripts_train_together_and_one_goes_on_alone_and_again(target, tmp_path):
    name, folder = next(names), str(tmp_path)
    begun, over = threading.Event(), threading.Event()
    chief, other = at_once(
        [
            lambda: train(target, 0, name, 100, folder, begun, over),
            lambda: train(target, 1, name, 30, None, begun, over),
        ]
    )
    assert np.mean(chief.losses[-5:]) < 0.02 * np.mean(chief.losses[:5])
    assert chief.live == [1, 0]  # the other has left
    # Two gradients per update as long as there are two workers, then one.
    pushes = len(chief.losses) + len(other.losses)
    assert (pushes - 1) // 2 <= chief.reached <= pushes - len(other.losses) // 2
    again = train(target, 0, name, 20, folder, begun, over)  # the chief, from the checkpoint
    assert again.first == chief.reached
    assert again.live == [1, 1]  # everybody is expected again
    assert again.reached == again.first + 10
    assert np.mean(again.losses) < 0.05 * np.mean(chief.losses[:5])


def test_the_global_step_is_read_before_the_variables():
    with tf.Graph().as_default():
        model = regression(0, name=next(names), splits=2)
        variables = (model.weights, model.table)
        readers = [
            op
            for op in v1.get_default_graph().get_operations()
            if op.type in ("ReadVariableOp", "ResourceGather")
            and "gradients" not in op.name
            and any(op.inputs[0] is v.handle for v in variables)
        ]
        in_forward_pass = [op for op in readers if op.control_inputs]
        assert {op.inputs[0].op.name for op in in_forward_pass} == {v.op.name for v in variables}
        for op in in_forward_pass:
            (before,) = op.control_inputs
            assert before.type == "Identity"
            (read,) = (t.op for t in before.inputs)
            assert read.type == "ReadVariableOp"
            assert read.inputs[0] is model.step.handle
            assert not read.control_inputs


def test_streams_of_several_optimizers_have_names_of_their_own():
    with tf.Graph().as_default() as graph:
        model = regression(0, name="first")
        loss = tf.reduce_sum(model.weights)
        for _ in range(2):
            optimizer = SoftsyncOptimizer(LARSOptimizer(0.1), 2, worker_index=1, name=next(names))
            optimizer.minimize(loss)
        streams = {t.stream.name: t.stream for t in traced_tensors(graph)}
        for part in ("sync", f"sync/{optimizer.get_name()}"):
            assert streams[f"{part}/round_staleness"].unit == "updates"
        assert streams["sync/staleness_weight"].details["worker_index"] == 0
        assert "optimizer/trust_ratio" in streams
        train_ops = graph.get_collection(v1.GraphKeys.TRAIN_OP)
        assert len(train_ops) == 3
        assert all(op.graph is graph for op in train_ops)


@pytest.mark.timeout(120)
def test_what_the_base_reports_is_nan_in_pushes_without_update(target):
    workers = team(target, BASES["lars"][0], 2)
    with workers[0].graph.as_default():
        traced = {t.stream.name: t.tensor for t in traced_tensors(workers[0].graph)}
    workers[0].fetches = {"ratio": traced["optimizer/trust_ratio"], "op": workers[0].fetches["op"]}
    workers[0].pull()
    first, second = (workers[0].push(*one_everywhere())["ratio"] for _ in range(2))
    assert np.isnan(first).all()
    assert (second > 0).all()
    assert second.shape == (3,)


REFUSED = [
    ({"opt": "sgd"}, r"`opt` must be a tf\.compat\.v1\.train\.Optimizer\. Received: builtins\.str"),
    ({"num_workers": 0}, r"`num_workers` must be >= 1\. Received: num_workers=0"),
    ({"num_workers": 2.0}, r"`num_workers` must be an int\. Received: num_workers=2\.0"),
    ({"splits": 0}, r"`splits` must be in \[1, 2\]\. Received: splits=0"),
    ({"splits": 3}, r"`splits` must be in \[1, 2\]\. Received: splits=3"),
    ({"worker_index": 2}, r"`worker_index` must be in \[0, 1\]\. Received: worker_index=2"),
    ({"worker_index": -1}, r"`worker_index` must be in \[0, 1\]"),
    ({"staleness_weighting": "linear"}, r"must be 'inverse' or 'none'\. Received: .*'linear'"),
]


@pytest.mark.parametrize(("wrong", "match"), REFUSED)
def test_arguments_out_of_range_are_refused(wrong, match):
    good = {
        "opt": v1.train.GradientDescentOptimizer(1.0),
        "num_workers": 2,
        "splits": 1,
        "worker_index": 0,
    }
    with pytest.raises(ValueError, match=match):
        SoftsyncOptimizer(**(good | wrong))


def test_bases_that_need_one_workers_gradient_are_refused():
    dc = DelayCompensatedGradientDescentOptimizer(0.1, num_workers=2)
    boosted = BoostedMomentumOptimizer(0.1, 0.9, num_workers=2)
    for base in (dc, boosted, AccumulatedGradients(dc, 2)):
        with pytest.raises(
            ValueError, match=r"must not compensate for staleness: .*Received: .*Op"
        ):
            SoftsyncOptimizer(base, 2, worker_index=0)
    sgd = v1.train.GradientDescentOptimizer(1.0)
    for base in (
        v1.train.SyncReplicasOptimizer(sgd, 2),
        SoftsyncOptimizer(sgd, 2, worker_index=0),
    ):
        with pytest.raises(ValueError, match=r"meet in one place.*give the optimizer within it"):
            SoftsyncOptimizer(base, 2, worker_index=0)


def test_graphs_that_cannot_count_staleness_are_refused():
    def make():
        return SoftsyncOptimizer(v1.train.GradientDescentOptimizer(1.0), 2, worker_index=0)

    with pytest.raises(RuntimeError, match=r"must be used in a tf\.compat\.v1 graph"):
        make().apply_gradients([])
    with tf.Graph().as_default():
        weight = v1.get_variable("w", [2], use_resource=True)
        pair = (tf.ones([2]), weight)
        with pytest.raises(ValueError, match=r"`global_step` must be an int64 .*Received: none"):
            make().apply_gradients([pair])
        step = v1.train.get_or_create_global_step()
        with pytest.raises(ValueError, match="`pulled` must be the global step that was read"):
            make().apply_gradients([pair])
        with pytest.raises(ValueError, match="No gradients provided"):
            make().apply_gradients([(None, weight)])
        with pytest.raises(ValueError, match="`grad` must have the shape"):
            make().apply_gradients([(tf.ones([3]), weight)])
        with pytest.raises(ValueError, match=r"must be an int64 .*Received: 'w:0', float32"):
            make().apply_gradients([pair], weight)
        optimizer = make()
        with pytest.raises(RuntimeError, match="`make_session_run_hook` must be called after"):
            optimizer.make_session_run_hook(True)
        optimizer.apply_gradients([pair], pulled=step)
        with pytest.raises(RuntimeError, match="must be called once per SoftsyncOptimizer"):
            optimizer.apply_gradients([pair], pulled=step)


@pytest.mark.timeout(120)
def test_the_base_may_itself_apply_every_few_updates_only(target):
    with tf.Graph().as_default():
        with on_two_servers(), v1.variable_scope("accumulated"):
            step = v1.train.get_or_create_global_step()
            weight = v1.get_variable("w", initializer=[1.0, 2.0], use_resource=True)
            base = AccumulatedGradients(v1.train.MomentumOptimizer(0.5, 0.5), 2)
            optimizer = SoftsyncOptimizer(base, 1, worker_index=0, name=next(names))
            op = optimizer.apply_gradients([(tf.ones([2]), weight)], pulled=step.read_value())
        with v1.Session(target) as session:
            session.run(v1.global_variables_initializer())
            seen = [(session.run(op), session.run(weight).tolist())[1] for _ in range(4)]
            assert session.run(step) == 4
            assert optimizer.get_slot_names() == base.get_slot_names()
            assert optimizer.variables() == base.variables()
    assert seen == [[1.0, 2.0], [0.5, 1.5], [0.5, 1.5], [-0.25, 0.75]]
