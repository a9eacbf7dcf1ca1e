"""Elastic averaging and block momentum: the ops against the rules, bit for bit."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinsight.trainer import kernels, rules

DTYPES = [tf.float32, tf.float64, tf.half, tf.bfloat16]
EPSILON = {tf.float32: 2**-23, tf.float64: 2**-52, tf.half: 2**-10, tf.bfloat16: 2**-7}
few = settings(max_examples=6, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)
F = tf.float32


@pytest.fixture(scope="module")
def ops() -> ModuleType:
    return kernels.ops()


def compute(dtype: tf.DType) -> tf.DType:
    return tf.float64 if dtype == tf.float64 else tf.float32


def wide(values: Any, dtype: tf.DType) -> np.ndarray:
    """In the dtype of the arithmetic."""
    return np.asarray(values).astype(compute(dtype).as_numpy_dtype)


def numbers(rng: np.random.Generator, shape: Any, dtype: tf.DType) -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype.as_numpy_dtype)


def exchange(
    ops: ModuleType, local: Any, center: Any, rate: float = 0.3, indices: Any = None, **how: Any
) -> np.ndarray:
    dtype = local.dtype
    inputs = (local.handle, center.handle, tf.constant(rate, compute(dtype)))
    if indices is None:
        return ops.resource_elastic_exchange(*inputs, T=dtype, **how).numpy()
    return ops.resource_sparse_elastic_exchange(*inputs, indices, T=dtype, **how).numpy()


def remote_exchange(ops: ModuleType, local: Any, center: Any, rate: float = 0.3) -> Any:
    """As `exchange`, of values that come from elsewhere."""
    pulled, statistics = ops.resource_apply_elastic_pull(
        center.handle, tf.constant(rate, compute(center.dtype)), local
    )
    return pulled.numpy(), statistics.numpy()


def block_step(ops: ModuleType, var: Any, delta: Any, mean: Any, *rates: float, **how: Any) -> Any:
    scalars = [tf.constant(rate, compute(var.dtype)) for rate in rates]
    return ops.resource_apply_block_momentum(var.handle, delta.handle, *scalars, mean, **how)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@few
@given(seed=seeds)
def test_workers_that_exchange_in_any_order_have_the_bits_of_the_rule(
    ops: ModuleType, dtype: tf.DType, sparse: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    shape = (9, 700)  # more than a block of elements, and no multiple of one
    state = [numbers(rng, shape, dtype) for _ in range(4)]  # three workers, then the center
    variables = [tf.Variable(values) for values in state]
    rate = rng.random()
    for step in range(20):
        worker = rng.integers(3)
        push = numbers(rng, shape, dtype)
        variables[worker].assign_sub(push)
        state[worker] = state[worker] - push
        indices = rng.integers(0, 9, 5).astype(rng.choice([np.int32, np.int64]))
        how = {"indices": indices} if sparse else {}
        x, c = wide(state[worker], dtype), wide(state[3], dtype)
        norm, bad = exchange(
            ops, variables[worker], variables[3], rate, use_locking=bool(step % 2), **how
        )
        rule = rules.sparse_elastic_exchange if sparse else rules.elastic_exchange
        after = rule(x, c, moving_rate=float(compute(dtype).as_numpy_dtype(rate)), **how)
        state[worker], state[3] = (values.astype(dtype.as_numpy_dtype) for values in after)
        np.testing.assert_array_equal(variables[worker].numpy(), state[worker])
        np.testing.assert_array_equal(variables[3].numpy(), state[3])
        rows = np.unique(indices) if sparse else slice(None)
        np.testing.assert_allclose(norm, np.linalg.norm((x - c)[rows].astype(float)), rtol=1e-12)
        assert bad == 0


@pytest.mark.parametrize("dtype", DTYPES)
@few
@given(seed=seeds)
def test_values_from_elsewhere_exchange_as_a_variable_does(
    ops: ModuleType, dtype: tf.DType, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    shape, rate = (9, 2100), rng.random()  # more than a unit of elements
    values = [numbers(rng, shape, dtype) for _ in range(2)]
    local, center = (tf.Variable(value) for value in values)
    remote = tf.Variable(values[1])
    for _ in range(3):
        given, before = local.numpy(), local.read_value()
        statistics = exchange(ops, local, center, rate)
        pulled, remote_statistics = remote_exchange(ops, before, remote, rate)
        np.testing.assert_array_equal(pulled, local.numpy())
        np.testing.assert_array_equal(remote.numpy(), center.numpy())
        np.testing.assert_array_equal(remote_statistics, statistics)
        np.testing.assert_array_equal(before.numpy(), given)  # still what was sent
        local.assign_sub(numbers(rng, shape, dtype))


def test_a_value_of_the_center_itself_may_be_exchanged(ops: ModuleType) -> None:
    center = tf.Variable([1.0, 2.0])
    read = center.read_value()
    pulled, statistics = remote_exchange(ops, read, center)
    assert (pulled.tolist(), statistics.tolist()) == ([1, 2], [0, 0])
    assert (read.numpy().tolist(), center.numpy().tolist()) == ([1, 2], [1, 2])


@pytest.mark.parametrize("dtype", DTYPES)
@few
@given(seed=seeds)
def test_an_exchange_conserves_the_sum(ops: ModuleType, dtype: tf.DType, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = [numbers(rng, 500, dtype) for _ in range(2)]
    local, center = (tf.Variable(value) for value in values)
    exchange(ops, local, center, 0.45)
    before = sum(value.astype(float) for value in values)
    after = local.numpy().astype(float) + center.numpy().astype(float)
    # Each rounding to the dtype errs by half an epsilon, of numbers below 8; there are two.
    tolerance = 8 * EPSILON[dtype]
    np.testing.assert_allclose(after, before, rtol=0, atol=tolerance)


def test_moving_rates_at_the_ends_of_their_range(ops: ModuleType) -> None:
    local, center = tf.Variable([8.0, -2.0]), tf.Variable([0.0, 2.0])
    assert exchange(ops, local, center, 0.0)[0] == np.sqrt(80)
    np.testing.assert_array_equal(local.numpy(), [8, -2])
    exchange(ops, local, center, 1.0)
    np.testing.assert_array_equal(local.numpy(), [0, 2])
    np.testing.assert_array_equal(center.numpy(), [8, -2])
    assert remote_exchange(ops, local.numpy(), center, 1.0)[0].tolist() == [8, -2]
    np.testing.assert_array_equal(center.numpy(), [0, 2])


@pytest.mark.parametrize("use_nesterov", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@few
@given(seed=seeds)
def test_block_momentum_has_the_bits_of_the_rule(
    ops: ModuleType, dtype: tf.DType, use_nesterov: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    shape = (3, 1100)
    param, delta = numbers(rng, shape, dtype), np.zeros(shape, compute(dtype).as_numpy_dtype)
    var, slot = tf.Variable(param), tf.Variable(delta)
    eta, zeta = (float(delta.dtype.type(rate)) for rate in (0.75, rng.uniform(0.1, 1.5)))
    for _ in range(20):
        # The mean of three workers that went from what was broadcast, each its own way.
        workers = [wide(param, dtype) - 0.1 * rng.standard_normal(shape) for _ in range(3)]
        mean = np.mean(workers, axis=0).astype(dtype.as_numpy_dtype)
        norm, bad = block_step(ops, var, slot, mean, eta, zeta, use_nesterov=use_nesterov).numpy()
        updated, delta = rules.block_momentum_step(
            wide(param, dtype),
            delta,
            wide(mean, dtype),
            block_momentum=eta,
            block_learning_rate=zeta,
            use_nesterov=use_nesterov,
        )
        param = updated.astype(dtype.as_numpy_dtype)
        np.testing.assert_array_equal(var.numpy(), param)
        np.testing.assert_array_equal(slot.numpy(), delta)
        np.testing.assert_allclose(norm, np.linalg.norm(delta.astype(float)), rtol=1e-12)
        assert bad == 0


def test_block_momentum_without_momentum_is_the_mean(ops: ModuleType) -> None:
    mean = np.float64([3, -1])
    var, delta = tf.Variable([1.0, 1.0], dtype=tf.float64), tf.Variable(np.zeros(2))
    block_step(ops, var, delta, mean, 0.0, 1.0)
    np.testing.assert_array_equal(var.numpy(), mean)


def test_what_is_not_finite_is_counted_and_applied(ops: ModuleType) -> None:
    local, center = tf.Variable([np.nan, 1.0, np.inf]), tf.Variable([0.0, 0.0, 0.0])
    assert exchange(ops, local, center)[1] == 2
    assert np.isfinite(center.numpy()).tolist() == [False, True, False]
    pulled, statistics = remote_exchange(ops, [0.0, np.nan, 0.0], tf.Variable([0.0, 0.0, 1.0]))
    assert statistics[1] == 1
    assert np.isnan(pulled).tolist() == [False, True, False]
    var, delta = tf.Variable([0.0, 0.0]), tf.Variable([0.0, 0.0])
    assert block_step(ops, var, delta, [np.inf, 1.0], 0.5, 1.0)[1] == 1
    np.testing.assert_array_equal(var.numpy(), [np.inf, 1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_is_fine(ops: ModuleType, dtype: tf.DType) -> None:
    empty = [tf.Variable(tf.zeros((0, 4), dtype)) for _ in range(2)]
    assert exchange(ops, *empty).tolist() == [0, 0]
    assert remote_exchange(ops, empty[0].read_value(), empty[1])[0].shape == (0, 4)
    full = [tf.Variable(tf.fill((2, 4), tf.cast(value, dtype))) for value in (1, 3)]
    assert exchange(ops, *full, indices=np.int64([])).tolist() == [0, 0]
    np.testing.assert_array_equal(full[0].numpy(), 1)
    delta = tf.Variable(tf.zeros((0, 4), compute(dtype)))
    assert block_step(ops, empty[0], delta, empty[1], 0.5, 1.0).numpy().tolist() == [0, 0]


ONES = np.ones((3, 2), np.float32)
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"rate": -0.1}, "`moving_rate` must be >= 0 and <= 1. Received: -0.1"),
    ({"rate": 1.5}, "`moving_rate` must be >= 0 and <= 1. Received: 1.5"),
    ({"rate": np.nan}, "`moving_rate` must be >= 0 and <= 1. Received: nan"),
    ({"indices": [2, 3]}, r"`indices` must be in \[0, 3\), the rows of `local`.*\[1\] = 3"),
    ({"indices": [-1]}, r"`indices` must be in \[0, 3\), the rows of `local`.*\[0\] = -1"),
    ({"indices": [[0]]}, "`indices` must be a vector"),
    ({"center": tf.Variable(ONES[:2])}, "`center` must have the shape of `local`"),
    ({"center": tf.Variable(ONES.astype(float))}, "`center` must have dtype float. .* double"),
    ({"remote": ONES[:2]}, r"`local` must have the shape of `center`, \[3,2\]. .* \[2,2\]"),
    ({"remote": ONES, "rate": 1.5}, "`moving_rate` must be >= 0 and <= 1. Received: 1.5"),
    ({"remote": ONES, "rate": np.nan}, "`moving_rate` must be >= 0 and <= 1. Received: nan"),
    ({"remote": ONES.astype(float)}, "`center` must have dtype double. Received: float"),
    ({"mean": ONES[:2]}, "`mean` must have the shape of `var`"),
    ({"momentum": 1.0}, "`block_momentum` must be >= 0 and < 1. Received: 1"),
    ({"zeta": 0.0}, "`block_learning_rate` must be finite and > 0. Received: 0"),
    ({"delta": tf.Variable(ONES[:, :1])}, "`delta` must have the shape of `var`"),
    ({"delta": tf.Variable(ONES.astype(float))}, "`delta` must have dtype float. .* double"),
]


@pytest.mark.parametrize(("wrong", "match"), REFUSED)
def test_what_is_refused_changes_nothing(
    ops: ModuleType, wrong: dict[str, Any], match: str
) -> None:
    local, center = tf.Variable(ONES), tf.Variable(2 * ONES)

    def block(
        mean: Any = ONES, momentum: float = 0.5, zeta: float = 1.0, delta: Any = center
    ) -> None:
        block_step(ops, local, delta, mean, momentum, zeta)

    def remotely(remote: Any, rate: float = 0.5) -> None:
        dtype = np.float64 if remote.dtype == np.float64 else np.float32
        ops.resource_apply_elastic_pull(center.handle, dtype(rate), remote)

    def here(**wrong: Any) -> None:
        exchange(ops, local, **{"center": center} | wrong)

    elastic = {"rate", "indices", "center"} & wrong.keys()
    run = remotely if "remote" in wrong else here if elastic else block
    with pytest.raises(tf.errors.InvalidArgumentError, match=match):
        run(**wrong)
    np.testing.assert_array_equal(local.numpy(), ONES)
    np.testing.assert_array_equal(center.numpy(), 2 * ONES)


def test_one_variable_twice_a_scalar_with_rows_or_no_variable_is_refused(ops: ModuleType) -> None:
    one, scalars = tf.Variable(ONES), [tf.Variable(1.0), tf.Variable(2.0)]
    with pytest.raises(tf.errors.InvalidArgumentError, match="different variables"):
        exchange(ops, one, one)
    with pytest.raises(tf.errors.InvalidArgumentError, match="`local` must have rows"):
        exchange(ops, *scalars, indices=np.int32([]))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x, c = (tf.Variable(ONES, trainable=False) for _ in range(2))
        session.run(x.initializer)
        run = ops.resource_elastic_exchange(x.handle, c.handle, 0.5, T=F)
        with pytest.raises(tf.errors.FailedPreconditionError, match="`center` must be an init"):
            session.run(run)
        pull = ops.resource_apply_elastic_pull(c.handle, 0.5, ONES)
        with pytest.raises(tf.errors.FailedPreconditionError, match="`center` must be an init"):
            session.run(pull)


def test_shapes_are_checked_when_a_graph_is_built(ops: ModuleType) -> None:
    with tf.Graph().as_default():
        x, c = tf.Variable(ONES), tf.Variable(ONES[:2])
        with pytest.raises(ValueError, match="`center` must have the shape of `local`"):
            ops.resource_elastic_exchange(x.handle, c.handle, 0.5, T=F)
        with pytest.raises(ValueError, match="`mean` must have the shape of `var`"):
            ops.resource_apply_block_momentum(x.handle, x.handle, 0.5, 1.0, ONES[:2])
        with pytest.raises(ValueError, match="`local` must have the shape of `center`"):
            ops.resource_apply_elastic_pull(c.handle, 0.5, ONES)
        unknown = tf.compat.v1.placeholder(F, None)
        assert ops.resource_apply_elastic_pull(c.handle, 0.5, unknown).pulled.shape == (2, 2)
        with pytest.raises(ValueError, match="Hyperparameters of a float variable must be float"):
            ops.resource_elastic_exchange(x.handle, x.handle, tf.constant(0.5, tf.float64), T=F)


def test_sessions_functions_and_eager_calls_agree(ops: ModuleType) -> None:
    def build(x: tf.Variable, c: tf.Variable, d: tf.Variable) -> tuple[tf.Tensor, ...]:
        norm = ops.resource_elastic_exchange(x.handle, c.handle, 0.25, T=F)
        with tf.control_dependencies([norm]):
            step = ops.resource_apply_block_momentum(
                x.handle, d.handle, 0.5, 1.0, 3 * ONES, use_nesterov=True
            )
        with tf.control_dependencies([step]):
            return norm, step, x.read_value(), c.read_value(), d.read_value()

    def start() -> list[tf.Variable]:
        return [tf.Variable(scale * ONES, trainable=False) for scale in (1, 2, 0)]

    eager, state = build(*start()), start()
    function = tf.function(build).get_concrete_function(*state)(*state)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = start()
        fetched = build(*variables)
        session.run([variable.initializer for variable in variables])
        graph = session.run(fetched)
    for results in zip(eager, function, graph, strict=True):
        np.testing.assert_array_equal(results[0], results[1])
        np.testing.assert_array_equal(results[0], results[2])
