"""Threads that update the same variables: nothing is lost, no row is torn, nobody waits for ever.

All values are small whole numbers, so that sums are exact in any order.
"""

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from deepinsight.trainer import kernels

THREADS = 8
ROWS, WIDTH = 100, 16
PATIENCE_S = 60.0

Update = Callable[..., Any]


@pytest.fixture(scope="module")
def ops() -> ModuleType:
    return kernels.ops()


def in_threads(*works: Callable[[], None]) -> None:
    """Run the works at once; fail if one raises or does not end."""
    start, errors = threading.Barrier(len(works)), []

    def run(work: Callable[[], None]) -> None:
        try:
            start.wait()
            work()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads), "threads wait for each other"
    if errors:
        raise errors[0]


def zeros(*shape: int) -> Any:
    return tf.Variable(tf.zeros(shape))


def boosted_scalars() -> tuple[Any, ...]:
    return 0.0, tf.constant(3, tf.int64), 10.0, 0.9, 1e-12


# Name -> number of slots, and an update that subtracts the gradient: learning rate 1, neither
# compensation nor boost, so that all updates commute.
def updates(ops: ModuleType, sparse: bool) -> dict[str, tuple[int, Update]]:
    kind = "resource_sparse_apply" if sparse else "resource_apply"
    dc = getattr(ops, f"{kind}_delay_compensated_gradient_descent")
    adaptive = getattr(ops, f"{kind}_adaptive_delay_compensated_gradient_descent")
    boosted = getattr(ops, f"{kind}_boosted_gradient_descent")
    momentum = getattr(ops, f"{kind}_boosted_momentum")
    locked = {"use_locking": True}

    def apply_dc(v: list[Any], *grad: Any) -> Any:
        return dc(v[0].handle, v[1].handle, 1.0, 0.0, *grad, **locked)

    def apply_adaptive(v: list[Any], *grad: Any) -> Any:
        return adaptive(*(x.handle for x in v), 1.0, 0.0, 0.95, 1e-7, *grad, **locked)

    def apply_boosted(v: list[Any], *grad: Any) -> Any:
        return boosted(*(x.handle for x in v), 1.0, *boosted_scalars(), *grad, **locked)

    def apply_momentum(v: list[Any], *grad: Any) -> Any:
        scalars = (1.0, 0.0, *boosted_scalars())
        return momentum(*(x.handle for x in v), *scalars, *grad, **locked)

    return {
        "dc": (1, apply_dc),
        "dc_adaptive": (2, apply_adaptive),
        "boosted": (4, apply_boosted),
        "boosted_momentum": (5, apply_momentum),
    }


NAMES = ["dc", "dc_adaptive", "boosted", "boosted_momentum"]


@pytest.mark.parametrize("name", NAMES)
def test_no_dense_update_is_lost(ops: ModuleType, name: str) -> None:
    slots, update = updates(ops, sparse=False)[name]
    variables = [zeros(40_000) for _ in range(1 + slots)]
    grad = tf.ones([40_000])
    each = 40

    def work() -> None:
        for _ in range(each):
            update(variables, grad)

    in_threads(*[work] * THREADS)
    np.testing.assert_array_equal(variables[0].numpy(), -float(THREADS * each))


def draw(seed: int, calls: int, rows: int) -> list[tuple[Any, Any]]:
    """Row numbers, many of them twice, and gradients whose rows are one number throughout."""
    rng = np.random.default_rng(seed)
    drawn = []
    for _ in range(calls):
        indices = rng.integers(0, ROWS, rows)
        values = rng.integers(1, 4, (rows, 1)).astype(np.float32)
        drawn.append((indices, np.tile(values, WIDTH)))
    return drawn


def total(draws: list[list[tuple[Any, Any]]]) -> Any:
    """The sum of all gradients, per row of the variable."""
    sums = np.zeros((ROWS, WIDTH))
    for one in draws:
        for indices, grad in one:
            np.add.at(sums, indices, grad)
    assert sums.max() < 2**24  # exact in float32
    return sums


@pytest.mark.parametrize("name", NAMES)
def test_no_sparse_update_is_lost(ops: ModuleType, name: str) -> None:
    slots, update = updates(ops, sparse=True)[name]
    variables = [zeros(ROWS, WIDTH) for _ in range(1 + slots)]
    draws = [draw(seed, 40, 600) for seed in range(THREADS)]

    def work(mine: list[tuple[Any, Any]]) -> Callable[[], None]:
        given = [(tf.constant(grad), tf.constant(indices)) for indices, grad in mine]

        def run() -> None:
            for grad, indices in given:
                update(variables, grad, indices)

        return run

    in_threads(*map(work, draws))
    np.testing.assert_array_equal(variables[0].numpy(), -total(draws))


@pytest.mark.parametrize("name", ["dc", "boosted"])
def test_a_million_row_updates_tear_no_row(ops: ModuleType, name: str) -> None:
    calls, per_call = 125, 1000
    slots, update = updates(ops, sparse=True)[name]
    variables = [zeros(ROWS, WIDTH) for _ in range(1 + slots)]
    draws = [draw(seed, calls, per_call) for seed in range(THREADS)]
    assert THREADS * calls * per_call == 10**6
    ended, reads, torn = [], [0, 0], []

    def work(mine: list[tuple[Any, Any]]) -> Callable[[], None]:
        given = [(tf.constant(grad), tf.constant(indices)) for indices, grad in mine]

        def run() -> None:
            try:
                for grad, indices in given:
                    update(variables, grad, indices)
            finally:
                ended.append(True)

        return run

    def read(reader: int, look: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            while len(ended) < THREADS:
                seen = look().numpy()
                reads[reader] += 1
                torn.extend(seen[(seen != seen[:, :1]).any(axis=1)])

        return run

    everything = tf.tile(tf.range(ROWS), [20])
    readers = [
        read(0, lambda: tf.gather(variables[0], everything)),
        read(1, variables[0].read_value),
    ]
    in_threads(*map(work, draws), *readers)
    assert not torn, f"{len(torn)} torn rows, the first: {torn[0]}"
    assert min(reads) > 0
    np.testing.assert_array_equal(variables[0].numpy(), -total(draws))


def test_no_received_gradient_is_lost(ops: ModuleType) -> None:
    variable = zeros(ROWS, WIDTH)
    size, each = 1000, 40
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, ROWS * WIDTH, (THREADS, each, size))

    def work(mine: Any) -> Callable[[], None]:
        given, ones = [tf.constant(one) for one in mine], tf.ones([size])

        def run() -> None:
            for indices in given:
                ops.resource_scatter_apply_gradient_descent(
                    variable.handle, 1.0, indices, ones, use_locking=True
                )

        return run

    in_threads(*map(work, drawn))
    expected = -np.bincount(drawn.ravel(), minlength=ROWS * WIDTH)
    np.testing.assert_array_equal(variable.numpy().ravel(), expected)


@pytest.mark.parametrize("sparse", [False, True])
def test_exchanges_conserve_what_locals_and_center_hold(ops: ModuleType, sparse: bool) -> None:
    # With a moving rate of 1 the two sides swap their values: exact, and a lost exchange shows.
    rng = np.random.default_rng(0)
    start = rng.integers(0, 1000, (THREADS + 1, ROWS, WIDTH)).astype(np.float32)
    center, *locals_ = (tf.Variable(one) for one in start)

    def work(mine: Any, seed: int) -> Callable[[], None]:
        indices = tf.constant(np.random.default_rng(seed).permutation(ROWS)[: ROWS // 2])

        def run() -> None:
            for _ in range(150):
                if sparse:
                    ops.resource_sparse_elastic_exchange(
                        mine.handle, center.handle, 1.0, indices, T=tf.float32, use_locking=True
                    )
                else:
                    ops.resource_elastic_exchange(mine.handle, center.handle, 1.0, T=tf.float32)

        return run

    in_threads(*(work(mine, seed) for seed, mine in enumerate(locals_)))
    after = np.stack([variable.numpy() for variable in (center, *locals_)])
    np.testing.assert_array_equal(np.sort(after, axis=0), np.sort(start, axis=0))


def test_exchanges_from_elsewhere_conserve_what_locals_and_center_hold(ops: ModuleType) -> None:
    rng = np.random.default_rng(0)
    start = rng.integers(0, 1000, (THREADS + 1, ROWS, WIDTH)).astype(np.float32)
    center, locals_ = tf.Variable(start[0]), [tf.constant(one) for one in start[1:]]

    def work(worker: int) -> Callable[[], None]:
        def run() -> None:
            for _ in range(150):
                locals_[worker], _ = ops.resource_apply_elastic_pull(
                    center.handle, 1.0, locals_[worker]
                )

        return run

    in_threads(*(work(worker) for worker in range(THREADS)))
    after = np.stack([value.numpy() for value in (center, *locals_)])
    np.testing.assert_array_equal(np.sort(after, axis=0), np.sort(start, axis=0))


@pytest.mark.parametrize("sparse", [False, True])
def test_opposite_orders_of_variables_do_not_deadlock(ops: ModuleType, sparse: bool) -> None:
    a, b = zeros(ROWS, WIDTH), zeros(ROWS, WIDTH)
    grad, indices = tf.ones([ROWS, WIDTH]), tf.range(ROWS)

    def exchange(x: Any, y: Any) -> Callable[[], None]:
        def run() -> None:
            for _ in range(500):
                if sparse:
                    ops.resource_sparse_elastic_exchange(
                        x.handle, y.handle, 0.25, indices, T=tf.float32, use_locking=True
                    )
                else:
                    ops.resource_elastic_exchange(x.handle, y.handle, 0.25, T=tf.float32)

        return run

    def apply(x: Any, y: Any) -> Callable[[], None]:
        _, update = updates(ops, sparse)["dc"]
        given = (grad, indices) if sparse else (grad,)

        def run() -> None:
            for _ in range(500):
                update([x, y], *given)

        return run

    in_threads(exchange(a, b), exchange(b, a), apply(a, b), apply(b, a))
    assert np.isfinite(a.numpy()).all()
