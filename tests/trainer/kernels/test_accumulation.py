"""The staleness-weighted accumulator, against the rules that it computes."""

import itertools
import threading
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinsight.trainer import kernels, rules
from deepinsight.trainer.rules.accumulation import accumulated_mean

DTYPES = [tf.float32, tf.float64, tf.half, tf.bfloat16]
few = settings(max_examples=6, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)
F = tf.float32
names = (f"test_accumulation_{n}" for n in itertools.count())


@pytest.fixture(scope="module")
def ops() -> ModuleType:
    return kernels.ops()


def compute(dtype: tf.DType) -> tf.DType:
    return tf.float64 if dtype == tf.float64 else tf.float32


class Accumulator:
    """The ops, on an accumulator of its own."""

    def __init__(self, ops: ModuleType, dtype: tf.DType, shape: Any, name: str = "") -> None:
        self.ops, self.dtype, self.c = ops, dtype, compute(dtype)
        self.handle = ops.staleness_weighted_accumulator_handle(
            dtype=dtype, shape=shape, shared_name=name or next(names)
        )

    def add(
        self, gradient: Any, indices: Any = None, weight: float = 1.0, staleness: int = 0
    ) -> int:
        how = (tf.constant(weight, self.c), tf.constant(staleness, tf.int64))
        if indices is None:
            return int(self.ops.staleness_weighted_accumulator_add(self.handle, gradient, *how))
        add = self.ops.staleness_weighted_accumulator_add_sparse
        return int(add(self.handle, gradient, indices, *how))

    def count(self) -> int:
        return int(self.ops.staleness_weighted_accumulator_count(self.handle))

    def take(self) -> Any:
        return self.ops.staleness_weighted_accumulator_take(self.handle, T=self.dtype)

    def take_sparse(self) -> Any:
        return self.ops.staleness_weighted_accumulator_take_sparse(self.handle, T=self.dtype)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@few
@given(seed=seeds)
def test_means_are_those_of_the_rules(
    ops: ModuleType, dtype: tf.DType, sparse: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    shape = (40, 3, 30)
    # Without a number of rows, sparse gradients may come from any.
    known = not sparse or seed % 2
    accumulator = Accumulator(ops, dtype, shape if known else (None, *shape[1:]))
    for _ in range(4):
        total = np.zeros(shape, accumulator.c.as_numpy_dtype)
        stale, touched = [], np.zeros(shape[0], bool)
        for count in range(1, rng.integers(4, 8)):
            stale.append(int(rng.integers(0, 9)))
            weight = rules.staleness_weight(stale[-1], alpha=0.7)
            indices = rng.integers(0, 40, 11).astype(rng.choice([np.int32, np.int64]))
            grad = rng.standard_normal((11, 3, 30) if sparse else shape)
            grad = grad.astype(dtype.as_numpy_dtype)
            if sparse:
                touched[indices] = True
                assert accumulator.add(grad, indices, weight, stale[-1]) == count
                (total,) = rules.sparse_weighted_accumulation(
                    total, grad.astype(total.dtype), indices, weight=weight
                )
            else:
                assert accumulator.add(grad, None, weight, stale[-1]) == count
                grad = grad.astype(total.dtype)
                (total,) = rules.weighted_accumulation(total, grad, weight=weight)
            assert accumulator.count() == count
        (expected,) = accumulated_mean(total, count=count)
        expected = expected.astype(dtype.as_numpy_dtype)
        if sparse:
            indices, mean, taken, statistics = accumulator.take_sparse()
            np.testing.assert_array_equal(indices, np.flatnonzero(touched))
            expected = expected[touched]
        else:
            mean, taken, statistics = accumulator.take()
        np.testing.assert_array_equal(mean.numpy(), expected)
        assert taken == count
        np.testing.assert_allclose(statistics, [np.mean(stale), max(stale)], rtol=1e-15)
        assert accumulator.count() == 0


def test_many_rows_are_kept_apart(ops: ModuleType) -> None:
    accumulator = Accumulator(ops, F, (None, 4))
    rows = np.random.default_rng(0).permutation(5000) * (2**50 // 5000)
    for part in np.split(rows, 10):
        accumulator.add(np.repeat(part[:, None] % 8191, 4, axis=1).astype(np.float32), part)
    indices, values, count, _ = accumulator.take_sparse()
    np.testing.assert_array_equal(indices, np.sort(rows))
    expected = (np.sort(rows) % 8191).astype(np.float32) / np.float32(10)
    np.testing.assert_array_equal(values[:, 3], expected)
    assert count == 10


@pytest.mark.parametrize("sparse", [False, True])
def test_eight_threads_lose_nothing_and_each_count_is_seen_once(
    ops: ModuleType, sparse: bool
) -> None:
    accumulator = Accumulator(ops, F, (30, 700))
    rows, seen = np.arange(0, 30, 3) if sparse else None, []
    grad = np.ones((10 if sparse else 30, 700), np.float32)

    def push() -> None:
        seen.extend([accumulator.add(grad, rows, 0.5, 2) for _ in range(40)])

    threads = [threading.Thread(target=push) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(1, 321))
    *_, mean, count, statistics = accumulator.take_sparse() if sparse else accumulator.take()
    np.testing.assert_array_equal(mean, 0.5 * grad)
    assert count == 320
    assert statistics.numpy().tolist() == [2, 2]


def test_pushers_and_takers_at_once_lose_nothing(ops: ModuleType) -> None:
    accumulator, taken = Accumulator(ops, tf.float64, (100,)), []

    def push() -> None:
        for _ in range(100):
            if accumulator.add(np.ones(100)) == 3:  # exactly one pusher sees it
                mean, count, _ = accumulator.take()
                taken.append(mean.numpy() * int(count))

    threads = [threading.Thread(target=push) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rest = accumulator.count()
    assert rest < 3
    np.testing.assert_allclose(np.sum(taken, axis=0) + rest, 800, rtol=1e-12)


def test_what_is_not_finite_is_seen_and_gone_with_the_take(ops: ModuleType) -> None:
    accumulator = Accumulator(ops, F, (2,))
    accumulator.add([np.nan, np.inf])
    accumulator.add([1.0, 1.0])
    np.testing.assert_array_equal(accumulator.take()[0], [np.nan, np.inf])
    accumulator.add([1.0, 2.0])
    np.testing.assert_array_equal(accumulator.take()[0], [1, 2])


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_is_fine(ops: ModuleType, dtype: tf.DType) -> None:
    nothing = np.zeros((0, 3), dtype.as_numpy_dtype)
    dense, sparse = Accumulator(ops, dtype, (0, 3)), Accumulator(ops, dtype, (5, 3))
    assert dense.add(nothing) == 1
    assert dense.take()[0].shape == (0, 3)
    assert sparse.add(nothing, np.int32([])) == 1
    indices, values, count, _ = sparse.take_sparse()
    assert (indices.shape, values.shape, int(count)) == ((0,), (0, 3), 1)
    assert dense.add(nothing) == 1
    assert dense.take()[1] == 1


ONES = np.ones((3, 2), np.float32)
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"weight": -1.0}, "`weight` must be finite and >= 0. Received: -1"),
    ({"weight": np.nan}, "`weight` must be finite and >= 0. Received: nan"),
    ({"staleness": -1}, "`staleness` must be >= 0. Received: -1"),
    ({"gradient": ONES[:2]}, r"`gradient` must have the shape of the accumulator, \[3,2\]"),
    ({"gradient": ONES.astype(np.float16)}, "must be float|must have the dtype of the accum"),
    ({"indices": [0, 3, 1]}, r"\[0, 3\), the rows of the accumulator.*\[1\] = 3"),
    ({"indices": [0, 1, -1]}, r"\[0, 3\), the rows of the accumulator.*\[2\] = -1"),
    (
        {"indices": [0, 1]},
        r"one row of the accumulator, \[3,2\], for each of the 2 indices. Received: \[3,2\]",
    ),
    ({"indices": [[0, 1, 2]]}, "`indices` must be a vector"),
    ({"indices": [0, 1, 2]}, "holds 1 dense gradients; they must be .*AccumulatorTake first"),
]


@pytest.mark.parametrize(("wrong", "match"), REFUSED)
def test_what_is_refused_changes_nothing(
    ops: ModuleType, wrong: dict[str, Any], match: str
) -> None:
    accumulator = Accumulator(ops, F, (3, 2))
    accumulator.add(ONES, staleness=4)
    kinds = (tf.errors.InvalidArgumentError, tf.errors.FailedPreconditionError)
    with pytest.raises(kinds, match=match):
        accumulator.add(**{"gradient": ONES} | wrong)
    mean, count, statistics = accumulator.take()
    np.testing.assert_array_equal(mean, ONES)
    assert (int(count), statistics.numpy().tolist()) == (1, [4, 4])


def test_an_empty_accumulator_or_one_of_the_other_kind_is_not_taken_from(ops: ModuleType) -> None:
    accumulator = Accumulator(ops, F, (3, 2))
    for take in (accumulator.take, accumulator.take_sparse):
        with pytest.raises(tf.errors.FailedPreconditionError, match="The accumulator is empty"):
            take()
    accumulator.add(ONES, [0, 1, 1])
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"1 sparse .*TakeSparse first"):
        accumulator.take()
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"1 sparse .*TakeSparse first"):
        accumulator.add(ONES)
    np.testing.assert_array_equal(accumulator.take_sparse()[1], [[1, 1], [2, 2]])
    other = Accumulator(ops, tf.float64, (3, 2))
    other.dtype = F
    with pytest.raises(tf.errors.InvalidArgumentError, match="the dtype of the accumulator, doub"):
        other.take()


def test_shapes_that_do_not_fit_are_refused(ops: ModuleType) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"`shape` must be known, .* <unknown"):
        Accumulator(ops, F, None)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"`shape` must be known, .* \[3,\?\]"):
        Accumulator(ops, F, (3, None))
    with pytest.raises(tf.errors.InvalidArgumentError, match="must have a known shape"):
        Accumulator(ops, F, (None, 2)).add(ONES)
    with pytest.raises(tf.errors.InvalidArgumentError, match="must have rows"):
        Accumulator(ops, F, ()).add(ONES[:0, 0], np.int32([]))
    name = next(names)
    Accumulator(ops, F, (3, 2), name)
    with pytest.raises(tf.errors.InvalidArgumentError, match="one dtype and one shape"):
        Accumulator(ops, F, (2, 3), name)


def test_one_name_is_one_accumulator_in_sessions_of_a_server(ops: ModuleType) -> None:
    server = tf.compat.v1.train.Server.create_local_server()

    def build() -> tuple[Any, Any, Any]:
        with tf.device("/job:localhost/task:0"):
            handle = ops.staleness_weighted_accumulator_handle(
                dtype=F, shape=(3, 2), shared_name="weights"
            )
        zero = tf.constant(0, tf.int64)
        add = ops.staleness_weighted_accumulator_add(handle, 2 * ONES, 0.5, zero)
        mean, count, statistics = ops.staleness_weighted_accumulator_take(handle, T=F)
        assert mean.shape == (3, 2)
        assert (count.shape, statistics.shape) == ((), (2,))
        with pytest.raises(ValueError, match="`gradient` must have the shape of the accumulator"):
            ops.staleness_weighted_accumulator_add(handle, ONES[:2], 0.5, zero)
        return add, mean, count

    for expected in (1, 2):  # a worker each
        with tf.Graph().as_default():
            add, mean, count = build()
            with tf.compat.v1.Session(server.target) as session:
                assert session.run(add) == expected
                if expected == 2:
                    got, taken = session.run([mean, count])
                    np.testing.assert_array_equal(got, ONES)
                    assert taken == 2


def test_functions_and_unnamed_accumulators_of_one_graph(ops: ModuleType) -> None:
    name = next(names)

    @tf.function
    def push(gradient: tf.Tensor) -> tf.Tensor:
        handle = ops.staleness_weighted_accumulator_handle(dtype=F, shape=(3, 2), shared_name=name)
        return ops.staleness_weighted_accumulator_add(
            handle, gradient, 1.0, tf.constant(1, tf.int64)
        )

    assert [int(push(ONES)), int(push(3 * ONES))] == [1, 2]
    np.testing.assert_array_equal(Accumulator(ops, F, (3, 2), name).take()[0], 2 * ONES)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        one, other = (
            ops.staleness_weighted_accumulator_handle(dtype=F, shape=(3, 2)) for _ in range(2)
        )
        zero = tf.constant(0, tf.int64)
        session.run(ops.staleness_weighted_accumulator_add(one, ONES, 1.0, zero))
        counts = [ops.staleness_weighted_accumulator_count(handle) for handle in (one, other)]
        assert session.run(counts) == [1, 0]
