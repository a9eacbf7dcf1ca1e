"""Model averaging and block momentum, step by step against NumPy, between real sessions."""

import time

import numpy as np
import pytest
import tensorflow as tf

import deepinsight as di
from deepinsight.collectors.collection import traced_tensors
from deepinsight.collectors.graph import closure
from deepinsight.trainer.optimizers.averaging.model_average import (
    ModelAverageCustomGetter,
    ModelAverageOptimizer,
    usual_block_momentum,
)
from deepinsight.trainer.optimizers.averaging.rounds_hook import FACTS
from deepinsight.trainer.rules import block_momentum_step

from .averaging_workers import Averaging, Place, random_gradients, start_cluster, together

v1 = tf.compat.v1
RATE = 0.125
# float32: a mean of two or three, and a handful of fused multiply-adds per step.
TOLERANCE = {"rtol": 3e-6, "atol": 3e-6}

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def cluster():
    """Two parameter servers and three workers in this process."""
    return start_cluster(2, 3)


def sgd():
    return v1.train.GradientDescentOptimizer(RATE)


def momentum():
    return v1.train.MomentumOptimizer(RATE, 0.5)


def adagrad():
    return v1.train.AdagradOptimizer(RATE, 0.25)


class Rule:
    """One worker's steps in NumPy; the state of the rule is the worker's own."""

    def __init__(self, base):
        self._base, self._state = base, {}

    def step(self, values, gradients):
        dense, rows, indices = gradients
        self._apply("bias", values[0], slice(None), dense.astype(float))
        touched = np.unique(indices)
        summed = np.stack([rows[indices == row].astype(float).sum(axis=0) for row in touched])
        self._apply("table", values[1], touched, summed)

    def _apply(self, name, value, at, gradient):
        if self._base is sgd:
            value[at] -= RATE * gradient
            return
        begin = 0.25 if self._base is adagrad else 0.0
        state = self._state.setdefault(name, np.full_like(value, begin))
        if self._base is adagrad:
            state[at] += gradient**2
            value[at] -= RATE * gradient / np.sqrt(state[at])
        else:
            state[at] = 0.5 * state[at] + gradient
            value[at] -= RATE * state[at]


class Oracle:
    """All workers and the servers in NumPy."""

    def __init__(self, base, workers, block):
        self.copies = [np.arange(3.0), np.zeros((4, 2))]
        self.locals = [self._fresh() for _ in range(workers)]
        self.rules = [Rule(base) for _ in range(workers)]
        self.delta = [np.zeros_like(value) for value in self.copies]
        self.block = block

    def _fresh(self):
        return [value.copy() for value in self.copies]

    def step(self, worker, gradients):
        self.rules[worker].step(self.locals[worker], gradients)

    def round(self, present):
        for place, value in enumerate(self.copies):
            mean = np.mean([self.locals[worker][place] for worker in present], axis=0)
            self.copies[place] = mean
            if self.block:
                self.copies[place], self.delta[place] = block_momentum_step(
                    value, self.delta[place], mean, **self.block
                )
        self.pull(*present)

    def pull(self, *workers):
        for worker in workers:
            self.locals[worker] = self._fresh()


def options(block):
    """The optimizer's names of the rule's options."""
    names = {"use_nesterov": "block_nesterov"}
    return {names.get(name, name): value for name, value in block.items()}


def check(workers, oracle):
    """Compare the copies of the workers and of the servers."""
    for worker in workers:
        found = worker.read(*worker.variables)
        for value, expected in zip(found, oracle.locals[worker.index], strict=True):
            np.testing.assert_allclose(value, expected, **TOLERANCE)
    for value, expected in zip(workers[0].read(*workers[0].copies), oracle.copies, strict=True):
        np.testing.assert_allclose(value, expected, **TOLERANCE)


def train(workers, oracle, steps, generator, *, absent=()):
    """Let all workers take steps, at the same time; `absent` ones are in no mean."""
    interval = workers[0].optimizer._interval
    for _ in range(steps):
        gradients = [random_gradients(generator) for _ in workers]
        for worker, gradient in zip(workers, gradients, strict=True):
            oracle.step(worker.index, gradient)
        together(*(lambda w=w, g=g: w.push(g) for w, g in zip(workers, gradients, strict=True)))
        (own,) = workers[0].read(workers[0].optimizer.local_step)
        if own % interval == 0:
            oracle.round([w.index for w in workers if w.index not in absent])
            oracle.pull(*absent)
        check(workers, oracle)


BLOCKS = {
    "average": {},
    "block": {"block_momentum": 0.5},
    "nesterov": {"block_momentum": 0.75, "block_learning_rate": 0.5, "use_nesterov": True},
}


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("base", [sgd, momentum, adagrad])
def test_rounds_are_those_of_the_rule(cluster, base, block):
    place, generator = Place(cluster), np.random.default_rng(1)
    workers = [Averaging(place, i, base, **options(BLOCKS[block])).open() for i in (0, 1)]
    oracle = Oracle(base, 2, BLOCKS[block])
    check(workers, oracle)
    train(workers, oracle, 8, generator)
    assert workers[1].read(workers[1].step) == [4]
    if block != "average":
        slots = [workers[0].optimizer.get_slot(c, "block_update") for c in workers[0].copies]
        for found, expected in zip(workers[0].read(*slots), oracle.delta, strict=True):
            np.testing.assert_allclose(found, expected, **TOLERANCE)
    for worker in workers:
        worker.close()


def test_three_workers_go_on_with_two_when_one_has_left(cluster):
    place, generator = Place(cluster, 3), np.random.default_rng(2)
    # Nobody is given up: should a worker not leave, the others would wait for it.
    workers = [Averaging(place, i, momentum, timeout_s=1000).open() for i in range(3)]
    oracle = Oracle(momentum, 3, {})
    train(workers, oracle, 3, generator)
    before = list(oracle.copies)
    workers[1].close()  # in the middle of an interval: its last step is in no mean
    train([workers[0], workers[2]], oracle, 5, generator)
    assert workers[0].read(workers[0].step) == [4]
    assert not np.allclose(before[0], oracle.copies[0])
    assert workers[0].read(workers[0].optimizer.members.live)[0].tolist() == [1, 0, 1]
    for worker in (workers[0], workers[2]):
        worker.close()


def test_a_worker_that_never_comes_is_left_behind(cluster):
    place, generator = Place(cluster), np.random.default_rng(3)
    alone = Averaging(place, 0, sgd, timeout_s=0.5).open()
    oracle = Oracle(sgd, 2, {})
    began_s = time.monotonic()
    train([alone], oracle, 2, generator)
    assert time.monotonic() - began_s >= 0.5
    began_s = time.monotonic()
    train([alone], oracle, 2, generator)
    assert alone.read(alone.step) == [2]
    assert time.monotonic() - began_s < 0.5  # nobody waits twice for the same worker
    alone.close()


def test_a_late_worker_is_in_no_mean_and_goes_on_from_the_global_value(cluster):
    place, generator = Place(cluster), np.random.default_rng(4)
    quick, slow = (Averaging(place, i, sgd, timeout_s=0.5).open() for i in (0, 1))
    oracle = Oracle(sgd, 2, {})
    late = random_gradients(generator)
    slow.push(late)
    train([quick], oracle, 4, generator)  # two rounds without the other
    copies = quick.read(*quick.copies)
    slow.push(late)  # its interval is over: too late
    oracle.pull(1)
    check([quick, slow], oracle)
    for before, after in zip(copies, quick.read(*quick.copies), strict=True):
        np.testing.assert_array_equal(before, after)
    train([quick, slow], oracle, 4, generator)  # a member again
    assert quick.read(quick.step) == [4]
    for worker in (quick, slow):
        worker.close()


def test_after_a_restart_everybody_begins_at_the_checkpoint(cluster, tmp_path):
    generator, block = np.random.default_rng(5), BLOCKS["block"]
    oracle = Oracle(momentum, 2, block)

    def open_all(place):
        made = [Averaging(place, i, momentum, **options(block)) for i in (0, 1)]
        made[0].open(
            checkpoint_dir=str(tmp_path), save_checkpoint_steps=2, save_checkpoint_secs=None
        )
        made[1].open()
        return made

    workers = open_all(Place(cluster))
    train(workers, oracle, 4, generator)
    saved, delta = oracle.copies, oracle.delta
    for worker in reversed(workers):
        worker.close()
    for place in (Place(cluster), workers[0].place):  # on new servers, and on the old ones
        oracle = Oracle(momentum, 2, block)  # slots of the workers are fresh
        oracle.copies, oracle.delta = list(saved), list(delta)
        oracle.pull(0, 1)
        workers = open_all(place)
        assert workers[1].read(workers[1].step) == [2]
        check(workers, oracle)
        train(workers, oracle, 1, generator)
        for worker in reversed(workers):
            worker.close()


def known(worker):
    """The worker's traced tensors of the rounds, by the last part of their names."""
    traced = traced_tensors(worker.graph)
    tensors = {t.stream.name: t.tensor for t in traced if t.stream.name.startswith("sync/")}
    return dict(zip(tensors, worker.read(*tensors.values()), strict=True))


@pytest.mark.parametrize("block", ["average", "nesterov"])
def test_the_trace_knows_the_last_round(cluster, block):
    place, generator = Place(cluster), np.random.default_rng(6)
    workers = [Averaging(place, i, sgd, **options(BLOCKS[block])).open() for i in (0, 1)]
    oracle = Oracle(sgd, 2, BLOCKS[block])
    assert all(np.isnan(value) for value in known(workers[1]).values())
    train(workers, oracle, 3, generator)
    gradients = [random_gradients(generator) for _ in workers]
    for worker, gradient in zip(workers, gradients, strict=True):
        oracle.step(worker.index, gradient)
    means = [np.mean([mine[i] for mine in oracle.locals], axis=0) for i in (0, 1)]
    away = [norm(np.subtract, oracle.locals[i], means) for i in (0, 1)]
    moved = norm(np.subtract, means, oracle.copies)
    oracle.round([0, 1])
    together(*(lambda w=w, g=g: w.push(g) for w, g in zip(workers, gradients, strict=True)))
    check(workers, oracle)
    for worker, distance in zip(workers, away, strict=True):
        found = known(worker)
        assert found["sync/rounds"] == 2
        assert found["sync/live_workers"] == 2
        assert 0 <= found["sync/wait_time"] < 60
        assert found["sync/distance_to_mean"] == pytest.approx(distance, rel=1e-5)
        expected = moved if block == "average" else norm(np.add, oracle.delta, [0, 0])
        assert found["sync/block_update"] == pytest.approx(expected, rel=1e-5)
    for worker in workers:
        worker.close()


def norm(combine, these, those):
    """Euclidean norm over several arrays."""
    parts = [combine(one, other).ravel() for one, other in zip(these, those, strict=True)]
    return np.linalg.norm(np.concatenate(parts))


def test_the_session_hook_records_it(cluster, tmp_path):
    worker = Averaging(Place(cluster, 1), 0, sgd, interval=1)
    worker.open([di.TraceHook(tmp_path, every_n_steps=1)])
    for gradients in [random_gradients(np.random.default_rng(7))] * 3:
        worker.push(gradients)
    worker.close()
    with di.open_run(tmp_path) as run:
        names = {name for name in run.stream_names() if name.startswith("sync/")}
        assert names == {f"sync/{fact.name}" for fact in FACTS}
        assert run.stream("sync/wait_time").unit == "s"
        assert run.stream("sync/rounds").details == {"optimizer": "ModelAverageOptimizer"}
        rounds = run.array("sync/rounds").values
    assert np.isnan(rounds[0])
    assert rounds[-1] >= 1


def test_two_optimizers_in_one_graph_report_under_their_names(cluster):
    place = Place(cluster)
    graph = tf.Graph()
    with graph.as_default():
        step = v1.train.get_or_create_global_step()
        for name in ("one", "other"):
            getter = ModelAverageCustomGetter("/job:worker/task:0")
            with v1.variable_scope(name, custom_getter=getter):
                w = v1.get_variable("w", [2])
            optimizer = ModelAverageOptimizer(sgd(), place.workers, True, getter, name=name)
            optimizer.apply_gradients([(tf.ones([2]), w)], step)
        names = [t.stream.name for t in traced_tensors(graph)]
    assert names == [f"{prefix}/{fact.name}" for prefix in ("sync", "sync/other") for fact in FACTS]


# Rounding to 11 and 8 bits of the copies, after each of three rounds.
DTYPES = {tf.float64: 1e-12, tf.float16: 4e-3, tf.bfloat16: 3e-2}


@pytest.mark.parametrize("block", ["average", "block"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_other_dtypes_are_averaged_in_at_least_float32(cluster, dtype, block):
    place, generator = Place(cluster), np.random.default_rng(8)
    workers = [
        Averaging(place, i, sgd, interval=1, dtype=dtype, **options(BLOCKS[block])).open()
        for i in (0, 1)
    ]
    oracle = Oracle(sgd, 2, BLOCKS[block])
    for _ in range(3):
        gradients = [random_gradients(generator, dtype.as_numpy_dtype) for _ in workers]
        for index, gradient in enumerate(gradients):
            oracle.step(index, [gradient[0].astype(float), gradient[1].astype(float), gradient[2]])
        together(*(lambda w=w, g=g: w.push(g) for w, g in zip(workers, gradients, strict=True)))
        oracle.round([0, 1])
    for value, expected in zip(workers[0].read(*workers[0].copies), oracle.copies, strict=True):
        np.testing.assert_allclose(
            value.astype(float), expected, rtol=DTYPES[dtype], atol=DTYPES[dtype]
        )
    for worker in workers:
        worker.close()


def test_a_step_of_its_own_sends_nothing_and_its_state_is_local(cluster):
    worker = Averaging(Place(cluster), 1, lambda: v1.train.AdamOptimizer(0.1))
    ops = [op for op in closure([worker.train]) if op.device]
    assert {tf.DeviceSpec.from_string(op.device).job for op in ops} == {"worker"}
    with worker.graph.as_default():
        shared = {v.name for v in v1.global_variables()}
        local = {v.name for v in v1.local_variables()}
        trainable = v1.trainable_variables()
    assert [v.name for v in trainable] == ["bias:0", "net/table:0"]
    own = worker.optimizer.local_variables
    assert {v.name for v in own} <= local
    assert {v.name for v in worker.optimizer._base.variables()} <= {v.name for v in own}
    assert len(own) == 2 + 4 + 2  # copies, Adam's slots and powers
    assert not local & shared
    copies = {"global_center_variable/bias:0", "global_center_variable/net/table:0"}
    assert shared == {"global_step:0"} | copies
    assert {v.device for v in own} == {"/job:worker/task:1"}
    assert {v.device for v in worker.copies} == {"/job:ps/task:0", "/job:ps/task:1"}


def test_only_runs_that_train_are_counted(cluster):
    worker = Averaging(Place(cluster, 1), 0, sgd, interval=2).open()
    gradients = random_gradients(np.random.default_rng(9))
    worker.push(gradients)
    for _ in range(3):
        worker.session.run(worker.variables)
    assert worker.read(worker.step, worker.optimizer.local_step) == [0, 1]
    worker.push(gradients)
    assert worker.read(worker.step, worker.optimizer.local_step) == [1, 2]
    worker.optimizer.set_local_step(worker.raw(), 7)
    worker.push(gradients)
    assert worker.read(worker.step, worker.optimizer.local_step) == [2, 8]
    worker.close()


def test_two_train_ops_count_together(cluster):
    worker = Averaging(Place(cluster, 1), 0, sgd, interval=3)
    with worker.graph.as_default(), worker.graph.container(worker.place.container):
        bias = worker.variables[0]
        other = worker.optimizer.apply_gradients([(tf.ones([3]), bias)], worker.step)
    worker.open()
    feed = dict(zip(worker.feeds, random_gradients(np.random.default_rng(10)), strict=True))
    worker.session.run([worker.train, other], feed)
    assert worker.read(worker.step) == [0]
    worker.session.run([worker.train, other], feed)  # from 2 to 4: over 3
    assert worker.read(worker.step, worker.optimizer.local_step) == [1, 4]
    worker.close()


def test_get_init_op_takes_the_global_values(cluster):
    worker = Averaging(Place(cluster, 1), 0, sgd)
    with worker.graph.as_default(), worker.graph.container(worker.place.container):
        init = worker.optimizer.get_init_op()
        session = v1.Session(worker.place.targets[0])
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        session.run(worker.copies[0].assign([4.0, 5.0, 6.0]))
        session.run(init)
        assert session.run(worker.variables[0]).tolist() == [4, 5, 6]
        session.close()


def test_the_averaged_model_is_exported_under_plain_names(cluster, tmp_path):
    worker = Averaging(Place(cluster, 1), 0, sgd, interval=1)
    with worker.graph.as_default():
        saver = v1.train.Saver(worker.optimizer.exported)
    worker.open()
    worker.push(random_gradients(np.random.default_rng(11)))
    copies = worker.read(*worker.copies)
    with worker.graph.as_default():
        path = saver.save(worker.raw(), str(tmp_path / "model"))
    worker.close()
    with tf.Graph().as_default(), v1.Session() as session:
        bias = v1.get_variable("bias", [3])
        with v1.variable_scope("net"):
            table = v1.get_variable("table", [4, 2])
        v1.train.Saver().restore(session, path)
        for found, expected in zip(session.run([bias, table]), copies, strict=True):
            np.testing.assert_array_equal(found, expected)


def test_variables_are_found_again_and_named_alike_in_any_scope():
    getter = ModelAverageCustomGetter("/job:worker/task:0")
    with tf.Graph().as_default():
        for reuse in (False, True):
            with v1.variable_scope("net", custom_getter=getter, reuse=reuse):
                w = v1.get_variable("w", [2])
                still = v1.get_variable("still", [2], trainable=False)
        (copy,) = getter.global_variables.values()
        assert getter.global_variables[w] is copy
        assert w in getter.global_variables
        assert still not in getter.global_variables
        assert (w.name, copy.name) == ("net/w:0", "global_center_variable/net/w:0")
        assert still in v1.global_variables()
        assert [v.name for v in v1.global_variables()] == [copy.name, still.name]


def test_partitioned_variables_are_refused():
    getter = ModelAverageCustomGetter("/job:worker/task:0")
    partitioner = v1.fixed_size_partitioner(2)
    with (
        tf.Graph().as_default(),
        v1.variable_scope("", custom_getter=getter),
        pytest.raises(ValueError, match=r"`partitioner` must be None.*for 'w'"),
    ):
        v1.get_variable("w", [4], partitioner=partitioner)


def make(*arguments, device="/job:worker/task:0", shape=(2,), dtype=tf.float32, **more):
    """An optimizer with one variable, in the default graph; arguments replace the first ones."""
    getter = ModelAverageCustomGetter(device)
    with v1.variable_scope("", custom_getter=getter):
        v1.get_variable("w", shape, dtype, v1.zeros_initializer())
    given = (*arguments, *(sgd(), 2, True, getter)[len(arguments) :])
    return ModelAverageOptimizer(*given, **more)


REFUSED = {
    r"`opt` must be a tf\.compat\.v1\.train\.Optimizer\. Received: builtins\.int": lambda: make(1),
    r"`num_worker` must be >= 1\. Received: num_worker=0": lambda: make(sgd(), 0),
    r"`num_worker` must be an int\. Received: num_worker=1\.5": lambda: make(sgd(), 1.5),
    r"`ma_custom_getter` must be.*Received: None": lambda: make(sgd(), 2, True, None),
    r"`interval_steps` must be >= 1\. Received: interval_steps=0": lambda: make(interval_steps=0),
    r"`worker_index` must be in \[0, 2\)\. Received: worker_index=2": lambda: make(worker_index=2),
    r"`block_momentum` must be in \[0, 1\)\. Received: block_momentum=1": lambda: make(
        block_momentum=1
    ),
    r"`block_momentum` must be in \[0, 1\)\. Received: block_momentum=nan": lambda: make(
        block_momentum=float("nan")
    ),
    r"`block_momentum` must be a number": lambda: make(block_momentum=lambda: 0.5),
    r"`block_learning_rate` must be finite and > 0": lambda: make(
        block_momentum=0.5, block_learning_rate=0
    ),
    r"belong to block momentum.*usually to 0\.5": lambda: make(block_nesterov=True),
    r"belong to block momentum.*block_learning_rate=2": lambda: make(block_learning_rate=2),
    r"by its task number.*'/job:worker', is_chief=True; pass worker_index": lambda: make(
        device="/job:worker"
    ),
    r"by its task number.*task:2'": lambda: make(device="/job:worker/task:2"),
    r"by its task number.*'/job:chief": lambda: make(device="/job:chief/task:0"),
    r"by its task number.*is_chief=False": lambda: make(sgd(), 2, False),
}


@pytest.mark.parametrize("message", REFUSED)
def test_arguments_that_make_no_sense_are_refused(message):
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        REFUSED[message]()


def test_a_single_worker_needs_no_task_number():
    with tf.Graph().as_default():
        assert make(sgd(), 1, True, device="/cpu:0")._worker == 0


def test_gradients_that_make_no_sense_are_refused():
    with tf.Graph().as_default():
        optimizer = make()
        (w,) = optimizer.global_variables
        step = v1.train.get_or_create_global_step()
        foreign = v1.get_variable("foreign", [2], use_resource=True)
        with pytest.raises(ValueError, match=r"Must supply at least one variable"):
            optimizer.apply_gradients([], step)
        with pytest.raises(ValueError, match=r"Global step is required.*global_step=None"):
            optimizer.apply_gradients([(tf.ones([2]), w)])
        with pytest.raises(ValueError, match=r"must have a global copy\. Received: 'foreign:0'"):
            optimizer.apply_gradients([(tf.ones([2]), foreign)], step)
        with pytest.raises(ValueError, match=r"`apply_gradients` or `minimize` must come first"):
            optimizer.make_session_run_hook().begin()
        with pytest.raises(ValueError, match=r"No gradients provided for any variable"):
            optimizer.apply_gradients([(None, w)], step)


@pytest.mark.parametrize(("dtype", "shape"), [(tf.int32, (2,))])
def test_variables_that_cannot_be_averaged_are_refused(dtype, shape):
    with tf.Graph().as_default():
        optimizer = make(dtype=dtype, shape=shape)
        step = v1.train.get_or_create_global_step()
        getter = ModelAverageCustomGetter("/job:worker/task:0")
        with v1.variable_scope("more", custom_getter=getter):
            v = v1.get_variable("v", [2])
        optimizer.global_variables.add(v, v)
        with pytest.raises(ValueError, match=r"floating dtype and a fixed shape.*int32 \(2,\)"):
            optimizer.apply_gradients([(tf.ones([2]), v)], step)


def test_the_usual_block_momentum():
    assert usual_block_momentum(1) == 0
    assert usual_block_momentum(4) == 0.75
    with pytest.raises(ValueError, match=r"`workers` must be >= 1\. Received: workers=0"):
        usual_block_momentum(0)


def test_block_momentum_of_one_worker_is_averaging(cluster):
    """With momentum 0 the block model is the worker's, whatever it did."""
    place = Place(cluster, 1)
    eta = usual_block_momentum(1)
    worker = Averaging(place, 0, sgd, interval=1, block_momentum=eta).open()
    for gradients in [random_gradients(np.random.default_rng(12))] * 2:
        before = worker.read(*worker.variables)
        worker.push(gradients)
        expected = before[0] - RATE * gradients[0]
        np.testing.assert_allclose(worker.read(worker.copies[0])[0], expected, **TOLERANCE)
        np.testing.assert_array_equal(*worker.read(worker.copies[0], worker.variables[0]))
    worker.close()
