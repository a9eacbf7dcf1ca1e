"""Deep Gradient Compression: the ops against the rules, bit for bit."""

import subprocess
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinsight.trainer import kernels, rules
from deepinsight.trainer.kernels.sources import SOURCES

DTYPES = [tf.float32, tf.float64, tf.half, tf.bfloat16]
WARM_UP = [0.75, 0.9375, 0.984375, 0.996, 0.999]
few = settings(max_examples=6, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)


@pytest.fixture(scope="module")
def ops() -> ModuleType:
    return kernels.ops()


def compute(dtype: tf.DType) -> tf.DType:
    return tf.float64 if dtype == tf.float64 else tf.float32


def wide(values: Any, dtype: tf.DType) -> np.ndarray:
    """In the dtype of the arithmetic."""
    return np.asarray(values).astype(compute(dtype).as_numpy_dtype)


def gradient(rng: np.random.Generator, shape: Any, dtype: tf.DType) -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype.as_numpy_dtype)


class Worker:
    """A worker's state in variables, and the same by the rules."""

    def __init__(self, ops: ModuleType, shape: tuple[int, ...], dtype: tf.DType) -> None:
        self.ops, self.dtype, self.c = ops, dtype, compute(dtype)
        zeros = np.zeros(shape, self.c.as_numpy_dtype)
        self.velocity, self.residual = tf.Variable(zeros), tf.Variable(zeros)
        self.u, self.v = zeros, zeros

    def accumulate(
        self, grad: Any, indices: Any = None, momentum: float = 0.9, clip: float = 0.0, **how: Any
    ) -> np.ndarray:
        state = (self.velocity.handle, self.residual.handle)
        scalars = (tf.constant(momentum, self.c), tf.constant(clip, self.c))
        if indices is None:
            return self.ops.resource_dgc_accumulate(*state, *scalars, grad, **how).numpy()
        sparse = self.ops.resource_sparse_dgc_accumulate
        return sparse(*state, *scalars, grad, indices, **how).numpy()

    def accumulate_by_rule(self, grad: Any, indices: Any, momentum: float) -> None:
        grad = wide(grad, self.dtype)
        if indices is None:
            accumulated = rules.accumulate_for_compression(self.u, self.v, grad, momentum=momentum)
        else:
            accumulated = rules.sparse_accumulate_for_compression(
                self.u, self.v, grad, indices, momentum=momentum
            )
        self.u, self.v = accumulated

    def select(self, sparsity: float, **how: Any) -> Any:
        return self.ops.resource_dgc_select(
            self.velocity.handle,
            self.residual.handle,
            tf.constant(sparsity, self.c),
            T=self.dtype,
            **how,
        )

    def select_by_rule(self, sparsity: float) -> tuple[np.ndarray, np.ndarray]:
        indices, values, self.u, self.v = rules.select_top_k(
            self.u,
            self.v,
            sparsity=float(self.c.as_numpy_dtype(sparsity)),
            dtype=self.dtype.as_numpy_dtype,
        )
        return indices, values

    def check(self) -> None:
        np.testing.assert_array_equal(self.velocity.numpy(), self.u)
        np.testing.assert_array_equal(self.residual.numpy(), self.v)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@few
@given(seed=seeds)
def test_workers_in_any_order_have_the_bits_of_the_rules(
    ops: ModuleType, dtype: tf.DType, sparse: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    shape = (12, 5)
    param = gradient(rng, shape, dtype)
    var, rate = tf.Variable(param), tf.constant(0.1, compute(dtype))
    workers = [Worker(ops, shape, dtype) for _ in range(3)]
    index = rng.choice([np.int32, np.int64])
    for step in range(24):
        worker = workers[rng.integers(3)]
        indices = rng.integers(0, 12, 7).astype(index) if sparse else None
        grad = gradient(rng, (7, 5) if sparse else shape, dtype)
        worker.accumulate(grad, indices, use_locking=bool(step % 2))
        worker.accumulate_by_rule(grad, indices, 0.9)
        worker.check()
        at, values, _ = worker.select(0.9, exact=bool(step % 3))
        expected_at, expected = worker.select_by_rule(0.9)
        np.testing.assert_array_equal(at, expected_at)
        np.testing.assert_array_equal(values, expected)
        worker.check()
        # As it is received from two workers at once: every index twice.
        twice, both = tf.concat([at, at], 0), tf.concat([values, -0.25 * values], 0)
        ops.resource_scatter_apply_gradient_descent(var.handle, rate, tf.cast(twice, index), both)
        (updated,) = rules.scatter_gradient_descent_step(
            wide(param, dtype), twice.numpy(), wide(both, dtype), learning_rate=rate.numpy()
        )
        param = updated.astype(dtype.as_numpy_dtype)
        np.testing.assert_array_equal(var.numpy(), param)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@few
@given(seed=seeds)
def test_without_momentum_what_was_sent_and_what_waits_is_the_sum_of_the_gradients(
    ops: ModuleType, dtype: tf.DType, sparse: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    shape = (60, 20)
    for worker in [Worker(ops, shape, dtype) for _ in range(2)]:
        sent, total = np.zeros(shape), np.zeros(shape)
        for step in range(20):
            indices = rng.integers(0, 60, 30)
            # Multiples of 2^-12, so that all sums are exact, and too fine for the half types.
            size = (30, 20) if sparse else shape
            grad = rng.integers(-40, 41, size) * 2.0 ** rng.integers(-12, 0, size)
            np.add.at(total, indices if sparse else slice(None), grad)
            grad = grad.astype(dtype.as_numpy_dtype)
            worker.accumulate(grad, indices if sparse else None, momentum=0.0)
            at, values, _ = worker.select(WARM_UP[step // 4])
            sent.reshape(-1)[at.numpy()] += values.numpy().astype(float)
        np.testing.assert_array_equal(sent + worker.residual.numpy(), total)


@pytest.mark.parametrize("kind", ["normal", "ties", "zeros", "wild", "overflow"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_selection_is_exact(ops: ModuleType, dtype: tf.DType, kind: str) -> None:
    rng = np.random.default_rng(1)
    for size in (1, 7, 50_000):  # the largest is sampled
        values = rng.standard_normal(size)
        if kind == "ties":
            values = np.round(values * 2) / 2
        if kind == "zeros":
            values[rng.random(size) < 0.9995] = 0
        if kind == "wild":
            values[rng.integers(0, size, 9)] = [np.nan, np.inf, -np.inf] * 3
        if kind == "overflow":
            values[rng.integers(0, size, 9)] *= 1e6
        for sparsity in (0.0, *WARM_UP):
            for exact in (False, True):
                worker = Worker(ops, (size,), dtype)
                worker.u, worker.v = np.ones_like(worker.u), wide(values, dtype)
                worker.velocity.assign(worker.u)
                worker.residual.assign(worker.v)
                before = np.abs(worker.v.astype(float))
                at, sent, statistics = worker.select(sparsity, exact=exact, seed=size)
                expected_at, expected = worker.select_by_rule(sparsity)
                np.testing.assert_array_equal(at, expected_at)
                # As numbers: NumPy does not know that two NaN of bfloat16 are equal.
                np.testing.assert_array_equal(wide(sent, dtype), wide(expected, dtype))
                worker.check()
                taken = np.nan_to_num(before[expected_at], nan=np.inf, posinf=np.inf)
                assert statistics[:3].numpy().tolist() == [taken.min(), len(expected_at), size]
                with np.errstate(invalid="ignore"):
                    share = before[expected_at].sum() / before.sum() if before.any() else 0
                np.testing.assert_allclose(statistics[3], share, rtol=1e-12)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_are_clipped_before_they_are_added(
    ops: ModuleType, dtype: tf.DType, sparse: bool
) -> None:
    rng = np.random.default_rng(2)
    worker = Worker(ops, (40, 500), dtype)
    indices = np.array([3, 9, 3, 0]) if sparse else None
    for scale in (1e-3, 1.0, 4.0):
        grad = gradient(rng, (4, 500) if sparse else (40, 500), dtype) * scale
        grad = grad.astype(dtype.as_numpy_dtype)
        summed = wide(grad, dtype)
        if sparse:
            summed = np.stack([summed[3], summed[0] + summed[2], summed[1]])
        length = np.linalg.norm(summed.astype(float))
        (clipped,) = rules.clip_local_gradient(summed, threshold=20.0, num_workers=4)
        before = worker.residual.numpy()
        norm, ratio, bad = worker.accumulate(grad, indices, momentum=0.0, clip=10.0)
        np.testing.assert_allclose([norm, ratio, bad], [length, min(1, 10 / length), 0], rtol=1e-6)
        change = (worker.residual.numpy() - before)[[0, 3, 9] if sparse else slice(None)]
        np.testing.assert_allclose(change, clipped, rtol=1e-5, atol=1e-6)


def test_a_gradient_that_is_not_finite_is_counted_and_applied(ops: ModuleType) -> None:
    worker = Worker(ops, (4,), tf.float32)
    statistics = worker.accumulate(np.float32([np.nan, 1, np.inf, 2]))
    assert statistics[2] == 2
    np.testing.assert_array_equal(worker.residual.numpy(), np.float32([np.nan, 1, np.inf, 2]))
    assert np.isnan(worker.accumulate(np.float32([np.nan, 1, 1, 2]), clip=1.0)[1])
    assert np.isnan(worker.residual.numpy()).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_is_fine(ops: ModuleType, dtype: tf.DType) -> None:
    worker = Worker(ops, (0, 3), dtype)
    nothing = np.zeros((0, 3), dtype.as_numpy_dtype)
    assert worker.accumulate(nothing).tolist() == [0, 1, 0]
    assert worker.accumulate(nothing, np.int64([])).tolist() == [0, 1, 0]
    at, values, statistics = worker.select(0.9)
    assert at.shape == values.shape == (0,)
    assert (at.dtype, values.dtype) == (tf.int64, dtype)
    assert statistics.numpy().tolist() == [0, 0, 0, 0]
    rows = Worker(ops, (2, 3), dtype)
    rows.accumulate(nothing, np.int32([]))
    rows.check()
    var, rate = tf.Variable(nothing), tf.constant(1, compute(dtype))
    ops.resource_scatter_apply_gradient_descent(var.handle, rate, np.int32([]), nothing[:, 0])


def test_what_was_read_before_stays_as_it_was(ops: ModuleType) -> None:
    worker = Worker(ops, (100,), tf.float32)
    worker.accumulate(np.ones(100, np.float32))
    read = worker.residual.value()
    worker.select(0.5)
    worker.accumulate(np.ones(100, np.float32))
    np.testing.assert_array_equal(read, np.ones(100))


F = tf.float32
ONES = np.ones((3, 2), np.float32)
REFUSED: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("accumulate", {"momentum": 1.0}, ValueError, "`momentum` must be >= 0 and < 1. Received: 1"),
    ("accumulate", {"momentum": np.nan}, ValueError, "`momentum` must be .* Received: nan"),
    ("accumulate", {"clip": -1.0}, ValueError, "`clip_norm` must be finite and >= 0. .* -1"),
    ("accumulate", {"grad": ONES[:2]}, ValueError, r"`grad` must have the shape of `v"),
    ("accumulate", {"indices": [0, 3, 1]}, ValueError, r"\[0, 3\), the rows of `velo.*\[1\] = 3"),
    ("accumulate", {"indices": [0, 1, -1]}, ValueError, r"\[0, 3\), the rows of `velo.*\[2\] = -1"),
    ("accumulate", {"indices": [0, 1]}, ValueError, "the rows of `velocity` at `indices`"),
    ("accumulate", {"indices": [[0, 1, 2]]}, ValueError, "`indices` must be a vector"),
    ("select", {"sparsity": 1.0}, ValueError, "`sparsity` must be >= 0 and < 1. Received: 1"),
    ("select", {"sparsity": -0.1}, ValueError, "`sparsity` must be >= 0 and < 1. Received: -0.1"),
    ("scatter", {"rate": 0.0}, ValueError, "`learning_rate` must be finite and > 0. Received: 0"),
    ("scatter", {"rate": np.inf}, ValueError, "`learning_rate` must be .* Received: inf"),
    ("scatter", {"at": [5, 6]}, ValueError, r"\[0, 6\), the elements of `var`.*\[1\] = 6"),
    ("scatter", {"at": [5]}, ValueError, "`values` must have the shape of `indices`"),
]


@pytest.mark.parametrize(("op", "wrong", "kind", "match"), REFUSED)
def test_what_is_refused_changes_nothing(
    ops: ModuleType, op: str, wrong: dict[str, Any], kind: type[Exception], match: str
) -> None:
    worker, var = Worker(ops, (3, 2), F), tf.Variable(ONES)
    worker.accumulate(ONES)
    worker.accumulate_by_rule(ONES, None, 0.9)

    def scatter(rate: float = 1.0, at: Any = (0, 1)) -> None:
        values = [1.0, 2.0]
        ops.resource_scatter_apply_gradient_descent(var.handle, tf.constant(rate), [*at], values)

    calls = {
        "accumulate": lambda: worker.accumulate(**{"grad": ONES} | wrong),
        "select": lambda: worker.select(**wrong),
        "scatter": lambda: scatter(**wrong),
    }
    with pytest.raises((kind, tf.errors.InvalidArgumentError), match=match):
        calls[op]()
    worker.check()
    np.testing.assert_array_equal(var.numpy(), ONES)


def test_state_of_another_shape_dtype_or_none_is_refused(ops: ModuleType) -> None:
    worker = Worker(ops, (3, 2), F)
    wrong = {
        "different variables": worker.velocity,
        "`residual` must have the shape of `velocity`, ": tf.Variable(ONES[:2]),
        "`residual` must have dtype float. Received: half": tf.Variable(ONES.astype(np.float16)),
    }
    for match, worker.residual in wrong.items():
        with pytest.raises(tf.errors.InvalidArgumentError, match=match):
            worker.accumulate(ONES)
        with pytest.raises(tf.errors.InvalidArgumentError, match=match):
            worker.select(0.5)
    np.testing.assert_array_equal(worker.velocity.numpy(), 0 * ONES)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        u, v = (tf.Variable(ONES, name=name, trainable=False) for name in "uv")
        session.run(u.initializer)
        sent = ops.resource_dgc_select(u.handle, v.handle, 0.5, T=F)
        with pytest.raises(tf.errors.FailedPreconditionError, match="`residual` must be an init"):
            session.run(sent)


def test_sessions_functions_and_eager_calls_agree(ops: ModuleType) -> None:
    def build(u: tf.Variable, v: tf.Variable, w: tf.Variable) -> tuple[tf.Tensor, ...]:
        accumulated = ops.resource_dgc_accumulate(u.handle, v.handle, 0.5, 1.5, 2 * ONES)
        with tf.control_dependencies([accumulated]):
            at, values, statistics = ops.resource_dgc_select(u.handle, v.handle, 0.5, T=F)
        apply = ops.resource_scatter_apply_gradient_descent(w.handle, 0.1, at, values)
        with tf.control_dependencies([] if tf.executing_eagerly() else [apply]):
            return tf.identity(statistics), w.read_value()

    state = [tf.Variable(ONES) for _ in range(6)]
    eager = build(*state[:3])
    traced = tf.function(build).get_concrete_function(*state[3:])
    function = traced(*state[3:])
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = [tf.Variable(ONES, trainable=False) for _ in range(3)]
        fetched = build(*variables)
        session.run([variable.initializer for variable in variables])
        graph = session.run(fetched)
    for results in zip(eager, function, graph, strict=True):
        np.testing.assert_array_equal(results[0], results[1])
        np.testing.assert_array_equal(results[0], results[2])


def test_eight_threads_lose_nothing(ops: ModuleType) -> None:
    worker = Worker(ops, (50, 16), F)
    rows, grad = np.arange(0, 50, 5), np.ones((10, 16), np.float32)

    def push() -> None:
        for _ in range(60):
            worker.accumulate(grad, rows, momentum=0.0, use_locking=True)

    threads = [threading.Thread(target=push) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(worker.residual.numpy()[rows], 480 * grad)


def test_selection_alone_in_cpp(tmp_path: Path) -> None:
    source = Path(__file__).parent / "cc" / "test_selection.cc"
    flags = ["-std=c++17", "-O2", "-fopenmp-simd", "-ffp-contract=off", "-pthread"]
    flags += ["-Wall", "-Wextra", "-Werror"]
    program = tmp_path / "test_selection"
    command = ["g++", *flags, f"-I{SOURCES / 'kernels'}", str(source), "-o", str(program)]
    subprocess.run(command, check=True, timeout=120)
    done = subprocess.run([program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
