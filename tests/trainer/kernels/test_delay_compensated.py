"""Delay-compensated gradient descent: laws and statistics of the ops."""

import numpy as np
import pytest
import tensorflow as tf

NAMES = ["dc", "adaptive"]
F = np.float32


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("size", [1, 7, 1025, 70_001])  # tail, block, several threads
@pytest.mark.parametrize("name", NAMES)
def test_without_variance_it_is_gradient_descent_to_the_bit(apply_ops, name, size, sparse):
    rng = np.random.default_rng(size)
    applied = apply_ops.Applied(apply_ops.CASES[name], apply_ops.random(rng, size, tf.float32))
    plain = tf.Variable(applied.var)
    for _ in range(20):
        grad = apply_ops.random(rng, size, tf.float32)
        applied.backups[0].assign(apply_ops.random(rng, size, tf.float32))
        rows = rng.permutation(size) if sparse else None
        placed = grad if rows is None else grad[np.argsort(rows)]
        tf.raw_ops.ResourceApplyGradientDescent(var=plain.handle, alpha=0.05, delta=placed)
        applied.apply(grad, rows, variance_parameter=0.0)
        assert applied.var.numpy().tobytes() == plain.numpy().tobytes()
        assert applied.backups[0].numpy().tobytes() == plain.numpy().tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_one_worker_that_pulls_after_each_push_is_gradient_descent(apply_ops, name):
    rng = np.random.default_rng(4)
    applied = apply_ops.Applied(apply_ops.CASES[name], apply_ops.random(rng, 50, tf.float32))
    plain = tf.Variable(applied.var)
    for _ in range(20):
        grad = apply_ops.random(rng, 50, tf.float32)
        tf.raw_ops.ResourceApplyGradientDescent(var=plain.handle, alpha=0.05, delta=grad)
        assert not applied.apply(grad).numpy().any()
    assert applied.var.numpy().tobytes() == plain.numpy().tobytes()


@pytest.mark.parametrize("sparse", [False, True])
def test_workers_share_a_mean_square_or_have_their_own(apply_ops, sparse):
    # Two workers, one mean square: the second one's variance parameter depends on the first's push.
    case = apply_ops.CASES["adaptive"]
    rng = np.random.default_rng(6)
    shared = apply_ops.Applied(case, apply_ops.random(rng, (5, 2), tf.float64), workers=2)
    for worker in rng.integers(0, 2, 20):
        grad = apply_ops.random(rng, (5, 2), tf.float64)
        shared.step(grad, rng.integers(0, 5, 5) if sparse else None, int(worker))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_statistics(apply_ops, name, sparse):
    case, rng = apply_ops.CASES[name], np.random.default_rng(5)
    w, backup, grad = (apply_ops.random(rng, (40, 100), tf.float32) for _ in range(3))
    applied = apply_ops.Applied(case, w)
    applied.backups[0].assign(backup)
    # Rows 3 and 5 come twice, each in two halves.
    rows = np.r_[np.arange(40), 3, 5]
    given = np.r_[grad, grad[[3, 5]]]
    given[[3, 5, 40, 41]] /= 2
    variance = F(3.0)
    if name == "adaptive":
        square = F(0.95) * F(0.1) + F(0.05) * grad**2
        variance = variance / np.sqrt(square + F(1e-7))
    compensation = np.float64(variance * grad * grad * (w - backup))
    ratio, flips, nonfinite = applied.apply(
        given if sparse else grad, rows if sparse else None, variance_parameter=3.0
    ).numpy()
    # Sums of 1024 float32 numbers at a time.
    assert ratio == pytest.approx(np.abs(compensation).sum() / np.abs(grad).sum(), rel=1e-5)
    assert flips == ((grad + compensation) * grad < 0).mean()
    assert 0 < flips < 1
    assert nonfinite == 0


@pytest.mark.parametrize("dtype", ["float32", "float64", "half", "bfloat16"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_finite_reaches_its_element_only_and_is_counted(apply_ops, name, bad, dtype):
    value = np.ones((3, 700), apply_ops.DTYPES[dtype].as_numpy_dtype)
    for rows in (None, [2, 0, 1]):
        applied = apply_ops.Applied(apply_ops.CASES[name], value)
        grad = value.copy()
        grad[1, 5] = grad[2, 699] = bad
        assert applied.apply(grad, rows).numpy()[2] == 2
        finite = np.isfinite(applied.var.numpy().astype(F))
        assert (~finite).sum() == 2
        expected = np.isfinite(grad.astype(F))
        np.testing.assert_array_equal(finite if rows is None else finite[rows], expected)
