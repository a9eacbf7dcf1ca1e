"""K-FAC: against the inverse of the whole Kronecker product, and its laws."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinsight.trainer import rules

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])
# float32: 24 bits, and condition numbers of about 100; float64: 53 bits.
TOLERANCES = {np.float32: 1e-4, np.float64: 1e-11}


def factor(size, seed, rows=20):
    """The covariance of random rows, float64."""
    x = np.random.default_rng(seed).normal(size=(rows, size))
    return x.T @ x / rows


def direction(grad, first, second, damping):
    inverses = rules.invert_covariances(first, second, damping=damping)
    return rules.precondition(grad, *inverses)[0]


@DTYPES
@pytest.mark.parametrize("damping", [1e-3, 0.5])
def test_the_direction_is_the_gradient_times_the_inverse_of_the_whole_damped_fisher(dtype, damping):
    inputs, outputs = 4, 3
    first, second = factor(inputs + 1, 1), factor(outputs, 2)
    grad = np.random.default_rng(3).normal(size=(inputs + 1, outputs))
    pi = np.sqrt((np.trace(first) / (inputs + 1)) / (np.trace(second) / outputs))
    # Row-major vec: element (i, j), (k, l) of the Fisher matrix is A_ik S_jl.
    fisher = np.kron(
        first + pi * np.sqrt(damping) * np.eye(inputs + 1),
        second + np.sqrt(damping) / pi * np.eye(outputs),
    )
    expected = np.linalg.solve(fisher, grad.ravel()).reshape(grad.shape)
    ours = direction(*(a.astype(dtype) for a in (grad, first, second)), damping)
    assert ours.dtype == dtype
    np.testing.assert_allclose(ours, expected, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


def test_for_one_example_the_factors_are_the_fisher_matrix_itself():
    """The gradient of a layer for one example is the outer product of input and s."""
    rng = np.random.default_rng(4)
    a, s = np.append(rng.normal(size=3), 1.0), rng.normal(size=2)
    zeros = np.zeros((4, 4)), np.zeros((2, 2))
    (first,) = rules.average_covariance(zeros[0], a[None], updates=1)
    (second,) = rules.average_covariance(zeros[1], s[None], updates=1)
    gradient = np.outer(a, s).ravel()
    np.testing.assert_allclose(np.kron(first, second), np.outer(gradient, gradient), rtol=1e-14)


def test_the_first_batches_weigh_the_same_and_later_ones_decay():
    batches = [np.random.default_rng(i).normal(size=(3, 2)) for i in range(40)]
    mean = np.full((2, 2), 1e9)  # what was there before the first batch does not count
    history = []
    for number, batch in enumerate(batches, 1):
        (mean,) = rules.average_covariance(mean, batch, updates=number, decay=0.95)
        history.append(mean)
    moments = [b.T @ b / 3 for b in batches]
    np.testing.assert_allclose(history[19], np.mean(moments[:20], axis=0), rtol=1e-12)
    expected = 0.95 * history[38] + 0.05 * moments[39]
    np.testing.assert_allclose(history[39], expected, rtol=1e-12)


@given(scale=st.floats(1e-3, 1e3), seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_moving_a_scale_between_inputs_and_gradients_changes_nothing(scale, seed):
    """A ⊗ S is the same for cA and S/c, and so must be the damped inverse."""
    first, second = factor(4, seed), factor(3, seed + 1)
    grad = np.random.default_rng(seed).normal(size=(4, 3))
    one = direction(grad, first, second, 0.01)
    other = direction(grad, first * scale, second / scale, 0.01)
    np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


@given(scale=st.floats(1e-3, 1e3), damping=st.floats(1e-6, 10))
@settings(max_examples=30, deadline=None)
def test_the_shares_of_the_damping_multiply_to_it(scale, damping):
    pair = rules.split_damping(factor(4, 0) * scale, factor(3, 1), damping=damping)
    np.testing.assert_allclose(pair[0] * pair[1], damping, rtol=1e-12)


def test_the_damping_follows_the_mean_eigenvalues():
    first, second = rules.split_damping(np.diag([9.0, 27.0]), np.eye(3) * 2, damping=0.04)
    assert (first, second) == pytest.approx((0.6, 0.2 / 3), rel=1e-12)  # pi = 3


@pytest.mark.parametrize("empty", [0, 1])
def test_a_factor_of_zeros_has_half_of_the_damping(empty):
    factors = [np.eye(2), np.eye(2)]
    factors[empty] = np.zeros((2, 2))
    assert rules.split_damping(*factors, damping=0.25) == (0.5, 0.5)


def test_strong_damping_is_gradient_descent():
    grad = np.random.default_rng(5).normal(size=(4, 3))
    ours = direction(grad, factor(4, 1), factor(3, 2), 1e12)
    np.testing.assert_allclose(ours * 1e12, grad, rtol=1e-5)


def test_on_a_quadratic_with_its_own_curvature_one_step_is_enough():
    """The loss tr(W^T A W S) / 2 has the Hessian A ⊗ S and the gradient A W S."""
    first, second = factor(4, 1), factor(3, 2)
    weights = np.random.default_rng(5).normal(size=(4, 3))
    delta = direction(first @ weights @ second, first, second, 1e-14)
    np.testing.assert_allclose(delta, weights, rtol=1e-5, atol=1e-5)


def test_the_cap_bounds_the_fisher_norm_of_the_step():
    rng = np.random.default_rng(6)
    grads = [rng.normal(size=(3, 2)), rng.normal(size=(5,))]
    deltas = [2 * g for g in grads]
    norm = sum(2 * np.sum(g * g) for g in grads)
    for cap in (1e-3, 1e9):
        scale, q = rules.fisher_step_scale(deltas, grads, learning_rate=0.3, norm_constraint=cap)
        np.testing.assert_allclose(q, norm, rtol=1e-12)
        length = 0.09 * scale**2 * norm
        np.testing.assert_allclose(length, min(cap, 0.09 * norm), rtol=1e-12)
    assert scale == 1
    free, _ = rules.fisher_step_scale(deltas, grads, learning_rate=9.0, norm_constraint=None)
    assert free == 1


def test_a_gradient_of_zero_is_not_scaled():
    zero = np.zeros((2, 2), np.float32)
    scale, q = rules.fisher_step_scale([zero], [zero], learning_rate=1.0, norm_constraint=1e-6)
    assert (scale, q) == (1, 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_visible(bad):
    rows = np.array([[1.0, bad]])
    (covariance,) = rules.average_covariance(np.eye(2), rows, updates=3)
    assert not np.isfinite(covariance[1, 1])
    with pytest.raises(ValueError, match=r"`input_covariance` must be finite, and positive def"):
        rules.invert_covariances(covariance, np.eye(2), damping=1.0)
    scale, _ = rules.fisher_step_scale(
        [rows[0]], [np.ones(2)], learning_rate=1.0, norm_constraint=1.0
    )
    assert not scale > 0


@DTYPES
def test_inputs_are_not_modified_and_results_share_nothing_with_them(dtype):
    first, second = factor(3, 1).astype(dtype), factor(2, 2).astype(dtype)
    grad, rows = np.ones((3, 2), dtype), np.ones((4, 3), dtype)
    before = [a.copy() for a in (first, second, grad, rows)]
    results = [
        *rules.average_covariance(first, rows, updates=1),
        *rules.average_covariance(first, rows, updates=2),
        *rules.invert_covariances(first, second, damping=0.1),
        *rules.precondition(grad, first, second),
    ]
    for result in results:
        assert isinstance(result, np.ndarray)
        assert result.dtype == dtype
        assert not any(np.shares_memory(result, a) for a in (first, second, grad, rows))
    for array, copy in zip((first, second, grad, rows), before, strict=True):
        assert array.tobytes() == copy.tobytes()


def test_a_factor_that_is_not_positive_definite_is_named():
    bad = np.array([[1.0, 2.0], [2.0, 1.0]])  # eigenvalues -1 and 3
    with pytest.raises(ValueError, match=r"`output_covariance` must be .*; raise `damping`\. Rec"):
        rules.invert_covariances(np.eye(2), bad, damping=1e-6)
    rules.invert_covariances(np.eye(2), bad, damping=4.0)  # both shares are 2


def test_shapes_that_do_not_fit_are_refused():
    eye = np.eye(2)
    with pytest.raises(ValueError, match=r"`covariance` must be a square matrix.*\(2, 3\)"):
        rules.average_covariance(np.ones((2, 3)), np.ones((1, 2)), updates=1)
    for rows in (np.ones((0, 2)), np.ones((3, 1)), np.ones(2)):
        with pytest.raises(ValueError, match=r"`rows` must have the shape \[n >= 1, 2\]\. Rec"):
            rules.average_covariance(eye, rows, updates=1)
    with pytest.raises(ValueError, match=r"`rows` must be float64 as .* float32"):
        rules.average_covariance(eye, np.ones((1, 2), np.float32), updates=1)
    with pytest.raises(ValueError, match=r"`grad` must have the shape of its factors, \(2, 2\)"):
        rules.precondition(np.ones((2, 3)), eye, eye)
    with pytest.raises(ValueError, match=r"`input_covariance` must be a square .*shape \(0, 0\)"):
        rules.invert_covariances(np.ones((0, 0)), eye, damping=1.0)
    with pytest.raises(ValueError, match=r"`grad` must have the shape of `delta`"):
        rules.fisher_step_scale([eye], [np.ones(2)], learning_rate=1.0, norm_constraint=1.0)


@pytest.mark.parametrize("value", [0, -1, np.nan, np.inf])
def test_scalars_out_of_range_are_named(value):
    eye = np.eye(2)
    with pytest.raises(ValueError, match=r"`damping` must be finite and > 0.* Received: damping="):
        rules.split_damping(eye, eye, damping=value)
    with pytest.raises(ValueError, match=r"`learning_rate` must be finite and > 0"):
        rules.fisher_step_scale([eye], [eye], learning_rate=value, norm_constraint=None)
    with pytest.raises(ValueError, match=r"`norm_constraint` must be finite and > 0"):
        rules.fisher_step_scale([eye], [eye], learning_rate=1.0, norm_constraint=value)
    with pytest.raises(ValueError, match=r"`updates` must be an integer >= 1"):
        rules.average_covariance(eye, eye, updates=value)
    if value != 0:
        with pytest.raises(ValueError, match=r"`decay` must be >= 0 and < 1"):
            rules.average_covariance(eye, eye, updates=1, decay=value)
