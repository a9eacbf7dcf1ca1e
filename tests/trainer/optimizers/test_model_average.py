"""Model averaging and block momentum, step by step against NumPy, between real sessions."""

import time

import numpy as np
import pytest
import tensorflow as tf

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
    workers = [Averaging(place, i, momentum).open() for i in range(3)]
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
