"""The base rules against TensorFlow's own kernels, bit for bit in float32."""

import numpy as np
import pytest
import tensorflow as tf

from deepinsight.trainer import rules

STEPS = 25
# Odd sizes take the tail of a vectorised loop, the last one several threads.
SIZES = [1, 2, 3, 5, 7, 16, 17, 33, 1001, 65537]
TABLES = [(1, 1), (7, 1), (7, 3), (50, 16), (50, 17)]
F = np.float32
RATE, MU, EPSILON, BETA1, BETA2 = F(0.013), F(0.9), F(1e-7), F(0.9), F(0.999)
RAW = tf.raw_ops


def same_bits(ours, theirs):
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == np.float32
        np.testing.assert_array_equal(mine.view(np.uint32), other.numpy().view(np.uint32))


def start(shape, *fills):
    rng = np.random.default_rng(np.atleast_1d(shape))
    arrays = [rng.normal(size=shape).astype(F), *(np.full(shape, fill, F) for fill in fills)]
    scales = F(10) ** rng.integers(-3, 2, size=(STEPS, 1)).astype(F)
    grads = rng.normal(size=(STEPS, *np.atleast_1d(shape))).astype(F)
    grads *= scales.reshape(STEPS, *[1] * (grads.ndim - 1))
    return arrays, [tf.Variable(a) for a in arrays], grads


@pytest.mark.parametrize("size", SIZES)
def test_gradient_descent(size):
    ours, theirs, grads = start(size)
    for g in grads:
        RAW.ResourceApplyGradientDescent(var=theirs[0].handle, alpha=RATE, delta=g)
        ours = rules.gradient_descent_step(*ours, g, learning_rate=RATE)
    same_bits(ours, theirs)


@pytest.mark.parametrize("use_nesterov", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_momentum(size, use_nesterov):
    ours, theirs, grads = start(size, 0)
    given = {"momentum": MU, "use_nesterov": use_nesterov}
    for g in grads:
        var, accum = (x.handle for x in theirs)
        RAW.ResourceApplyMomentum(var=var, accum=accum, lr=RATE, grad=g, **given)
        ours = rules.momentum_step(*ours, g, learning_rate=RATE, **given)
    same_bits(ours, theirs)


@pytest.mark.parametrize("size", SIZES)
def test_adagrad(size):
    ours, theirs, grads = start(size, 0.1)
    for g in grads:
        var, accum = (x.handle for x in theirs)
        RAW.ResourceApplyAdagradV2(var=var, accum=accum, lr=RATE, epsilon=EPSILON, grad=g)
        ours = rules.adagrad_step(*ours, g, learning_rate=RATE, accum_epsilon=EPSILON)
    same_bits(ours, theirs)


@pytest.mark.parametrize("size", SIZES)
def test_adam(size):
    ours, theirs, grads = start(size, 0, 0)
    power1, power2 = BETA1, BETA2
    for g in grads:
        var, m, v = (x.handle for x in theirs)
        powers = {"beta1_power": power1, "beta2_power": power2, "beta1": BETA1, "beta2": BETA2}
        RAW.ResourceApplyAdam(var=var, m=m, v=v, lr=RATE, epsilon=EPSILON, grad=g, **powers)
        ours = rules.adam_step(*ours, g, learning_rate=RATE, adam_epsilon=EPSILON, **powers)
        power1, power2 = power1 * BETA1, power2 * BETA2
    same_bits(ours, theirs)


def some_rows(grads, rng):
    for g in grads:
        indices = rng.permutation(len(g))[: max(1, len(g) // 2)]
        yield g[indices], indices


@pytest.mark.parametrize("use_nesterov", [False, True])
@pytest.mark.parametrize("shape", TABLES)
def test_sparse_momentum(shape, use_nesterov):
    ours, theirs, grads = start(shape, 0)
    given = {"momentum": MU, "use_nesterov": use_nesterov}
    for g, indices in some_rows(grads, np.random.default_rng(2)):
        RAW.ResourceSparseApplyMomentum(
            var=theirs[0].handle, accum=theirs[1].handle, lr=RATE, grad=g, indices=indices, **given
        )
        ours = rules.sparse_momentum_step(*ours, g, indices, learning_rate=RATE, **given)
    same_bits(ours, theirs)


def test_the_two_nesterov_orders_of_tensorflow_differ_in_the_last_bit_only():
    (param, velocity), _, grads = start((50, 17), 0)
    given = {"learning_rate": RATE, "momentum": MU, "use_nesterov": True}
    dense, _ = rules.momentum_step(param, velocity, grads[0], **given)
    sparse, _ = rules.sparse_momentum_step(param, velocity, grads[0], np.arange(50), **given)
    assert (dense != sparse).any()
    np.testing.assert_array_max_ulp(dense + F(8), sparse + F(8), maxulp=1)


@pytest.mark.parametrize("shape", TABLES)
def test_sparse_adagrad(shape):
    ours, theirs, grads = start(shape, 0.1)
    for g, indices in some_rows(grads, np.random.default_rng(3)):
        RAW.ResourceSparseApplyAdagradV2(
            var=theirs[0].handle,
            accum=theirs[1].handle,
            lr=RATE,
            epsilon=EPSILON,
            grad=g,
            indices=indices,
        )
        given = {"learning_rate": RATE, "accum_epsilon": EPSILON}
        ours = rules.sparse_adagrad_step(*ours, g, indices, **given)
    same_bits(ours, theirs)
