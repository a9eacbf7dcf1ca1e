"""Deep Gradient Compression: nothing is lost, the largest goes first."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinsight.trainer import rules

F = np.float32


@pytest.mark.parametrize("sent_as", [np.float32, np.float16])
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(1, 40),
    sparsity=st.sampled_from([0.0, 0.5, 0.75, 0.999]),
)
@settings(deadline=None)
def test_mass_balance_is_exact(sent_as, seed, size, sparsity):
    # Multiples of 1/16 of a few hundred at most: float32 adds them exactly, float16 rounds some.
    rng = np.random.default_rng(seed)
    velocity = residual = sent = total = np.zeros(size, F)
    for _ in range(10):
        g = (rng.integers(-4000, 4000, size=size) / 16).astype(F)
        velocity, residual = rules.accumulate_for_compression(velocity, residual, g, momentum=0)
        indices, values, velocity, residual = rules.select_top_k(
            velocity, residual, sparsity=sparsity, dtype=sent_as
        )
        assert values.dtype == sent_as
        (sent,) = rules.scatter_gradient_descent_step(
            sent, indices, values.astype(F), learning_rate=1.0
        )
        total = total + g
    np.testing.assert_array_equal(residual - sent, total)


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=30), st.floats(0, 0.99))
@settings(deadline=None)
def test_the_largest_are_sent(values, sparsity):
    v, u = np.array(values, F), np.ones(len(values), F)
    indices, sent, velocity, residual = rules.select_top_k(u, v, sparsity=sparsity)
    count = max(1, round((1 - sparsity) * len(v)))
    assert indices.dtype == np.int64
    assert indices.tolist() == sorted(set(indices.tolist()))
    assert len(indices) == count
    np.testing.assert_array_equal(np.sort(np.abs(sent)), np.sort(np.abs(v))[-count:])
    np.testing.assert_array_equal(sent, v[indices])
    assert not velocity[indices].any()
    assert not residual[indices].any()
    left = np.setdiff1d(np.arange(len(v)), indices)
    np.testing.assert_array_equal(residual[left], v[left])
    assert (velocity[left] == 1).all()


def test_ties_go_to_the_lower_index_and_nan_is_sent():
    ones = np.ones((2, 3), F)
    indices, *_ = rules.select_top_k(ones, ones, sparsity=0.5)
    assert indices.tolist() == [0, 1, 2]
    bad = np.array([9, np.nan, 1], F)
    indices, values, *_ = rules.select_top_k(bad, bad, sparsity=0.7)
    assert indices.tolist() == [1]
    assert np.isnan(values).all()


def test_nothing_of_nothing():
    indices, values, velocity, residual = rules.select_top_k(np.zeros(0), np.zeros(0), sparsity=0)
    assert [a.shape for a in (indices, values, velocity, residual)] == [(0,)] * 4


def test_momentum_correction():
    velocity, residual = rules.accumulate_for_compression([2.0], [1.0], [3.0], momentum=0.5)
    assert (velocity, residual) == (4.0, 5.0)


def test_selecting_changes_no_input():
    u, v = np.ones(3), np.arange(3.0)
    rules.select_top_k(u, v, sparsity=0)
    assert u.tolist() == [1, 1, 1]
    assert v.tolist() == [0, 1, 2]


def test_a_gradient_is_clipped_to_its_share_of_the_threshold():
    (clipped,) = rules.clip_local_gradient([3.0, 4.0], threshold=5.0, num_workers=4)
    np.testing.assert_allclose(clipped, [1.5, 2.0], rtol=1e-15)
    for kept in ([0.3, 0.4], [0.0, 0.0], []):
        (same,) = rules.clip_local_gradient(np.array(kept), threshold=5.0, num_workers=4)
        np.testing.assert_array_equal(same, kept)


def test_scatter_sums_duplicates_and_leaves_the_rest():
    param = np.full((2, 2), 8.0, F)
    (new,) = rules.scatter_gradient_descent_step(param, [3, 1, 3], F([1, 2, 3]), learning_rate=0.5)
    assert new.tolist() == [[8, 7], [8, 6]]
    assert param.tolist() == [[8, 8], [8, 8]]
    (scalar,) = rules.scatter_gradient_descent_step(F(1), [0], F([1]), learning_rate=1)
    assert scalar == 0


@pytest.mark.parametrize("index", [-1, 4])
def test_scatter_names_an_element_out_of_range(index):
    with pytest.raises(ValueError, match=rf"< 4, the number of elements. .*\[0\] = {index}\."):
        rules.scatter_gradient_descent_step(np.ones((2, 2)), [index], [1.0], learning_rate=1)


def test_bad_input_is_refused():
    one = np.ones(2)
    with pytest.raises(ValueError, match=r"one value per index: shape \(2,\)\. .*\(1,\)"):
        rules.scatter_gradient_descent_step(one, [0, 1], [1.0], learning_rate=1)
    with pytest.raises(ValueError, match=r"`values` must be float64 as .* dtype float32"):
        rules.scatter_gradient_descent_step(one, [0], F([1]), learning_rate=1)
    with pytest.raises(ValueError, match=r"`learning_rate` must be finite and > 0"):
        rules.scatter_gradient_descent_step(one, [0], [1.0], learning_rate=0)
    for sparsity in (-0.1, 1, np.nan):
        with pytest.raises(ValueError, match="`sparsity` must be >= 0 and < 1"):
            rules.select_top_k(one, one, sparsity=sparsity)
    with pytest.raises(ValueError, match="`threshold` must be finite and > 0"):
        rules.clip_local_gradient(one, threshold=0, num_workers=1)
    with pytest.raises(ValueError, match=r"`num_workers` must be an integer >= 1. Received.*=0"):
        rules.clip_local_gradient(one, threshold=1, num_workers=0)
    with pytest.raises(ValueError, match=r"`grad` must be float32 or float64.*int64"):
        rules.clip_local_gradient([1, 2], threshold=1, num_workers=1)
