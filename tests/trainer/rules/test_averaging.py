"""Elastic averaging, block momentum, staleness-weighted accumulation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from deepinsight.trainer import rules

# Small integers and moving rates of a few bits: float32 keeps every sum exactly.
GRID = hnp.arrays(np.float32, (4, 2), elements=st.integers(-1000, 1000).map(float))


@given(GRID, GRID, st.sampled_from([0.0, 0.125, 0.25, 0.5, 1.0]))
@settings(deadline=None)
def test_an_elastic_exchange_conserves_the_sum(local, center, rate):
    total = local + center
    x, c = rules.elastic_exchange(local, center, moving_rate=rate)
    np.testing.assert_array_equal(x + c, total)
    np.testing.assert_array_equal(x - c, (local - center) * (1 - 2 * rate))


@given(GRID, GRID, st.lists(st.integers(0, 3), max_size=6))
@settings(deadline=None)
def test_a_sparse_exchange_moves_each_named_row_once(local, center, indices):
    copies = local.copy(), center.copy()
    x, c = rules.sparse_elastic_exchange(local, center, indices, moving_rate=0.25)
    dense = rules.elastic_exchange(local, center, moving_rate=0.25)
    named = np.isin(np.arange(4), indices)[:, None]
    np.testing.assert_array_equal(x, np.where(named, dense[0], local))
    np.testing.assert_array_equal(c, np.where(named, dense[1], center))
    np.testing.assert_array_equal((local, center), copies)


@given(hnp.arrays(np.float32, (3, 4, 2), elements=st.integers(-1000, 1000).map(float)), GRID)
@settings(deadline=None)
def test_a_round_takes_all_distances_from_the_same_center(locals_, center):
    copies = locals_.copy(), center.copy()
    x, c = rules.elastic_round(locals_, center, moving_rate=0.25)
    for mine, moved in zip(locals_, x, strict=True):
        np.testing.assert_array_equal(
            moved, rules.elastic_exchange(mine, center, moving_rate=0.25)[0]
        )
    np.testing.assert_array_equal(x.sum(axis=0) + c, locals_.sum(axis=0) + center)
    np.testing.assert_array_equal(locals_, copies[0])
    np.testing.assert_array_equal(center, copies[1])
    alone = rules.elastic_round(locals_[:1], center, moving_rate=0.25)
    one = rules.elastic_exchange(locals_[0], center, moving_rate=0.25)
    np.testing.assert_array_equal(alone[0][0], one[0])
    np.testing.assert_array_equal(alone[1], one[1])


def test_eamsgd_is_nesterov_momentum_seen_from_the_weights():
    # TensorFlow's Nesterov keeps the look-ahead x + delta v and the slot -v / eta.
    rng = np.random.default_rng(5)
    eta, delta = 0.1, 0.99
    start, target = rng.normal(size=(2, 6))
    x, v, ahead, slot = start, np.zeros(6), start, np.zeros(6)
    for _ in range(30):
        x, v = rules.eamsgd_step(
            x, v, lambda at: 2 * (at - target), learning_rate=eta, momentum=delta
        )
        ahead, slot = rules.momentum_step(
            ahead, slot, 2 * (ahead - target), learning_rate=eta, momentum=delta, use_nesterov=True
        )
        np.testing.assert_allclose(x + delta * v, ahead, rtol=1e-9)
        np.testing.assert_allclose(v, -eta * slot, rtol=1e-9)


def test_eamsgd_without_momentum_is_gradient_descent():
    x, v = rules.eamsgd_step([2.0], [5.0], lambda at: 3 * at, learning_rate=0.5, momentum=0)
    assert (x.tolist(), v.tolist()) == ([-1.0], [-3.0])


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"momentum": 1.0}, "`momentum` must be >= 0 and < 1"),
        ({"learning_rate": 0.0}, "`learning_rate` must be finite and > 0"),
        ({"velocity": [0.0, 0.0]}, "`velocity` must have the shape of `param`"),
        ({"gradient": lambda at: at[:0]}, "`grad` must have the shape of `param`"),
    ],
)
def test_an_eamsgd_step_out_of_range_is_refused(wrong, match):
    right = {
        "param": [1.0], "velocity": [0.0], "gradient": lambda at: at,
        "learning_rate": 0.1, "momentum": 0.9,
    }  # fmt: skip
    with pytest.raises(ValueError, match=match):
        rules.eamsgd_step(**right | wrong)


@pytest.mark.parametrize("rate", [-0.1, 1.1, np.nan])
def test_a_moving_rate_out_of_range_is_refused(rate):
    with pytest.raises(ValueError, match="`moving_rate` must be >= 0 and <= 1"):
        rules.elastic_exchange([1.0], [0.0], moving_rate=rate)
    with pytest.raises(ValueError, match="`moving_rate` must be >= 0 and <= 1"):
        rules.sparse_elastic_exchange([1.0], [0.0], [0], moving_rate=rate)
    with pytest.raises(ValueError, match="`moving_rate` must be >= 0 and <= 1"):
        rules.elastic_round(np.ones((2, 1)), np.ones(1), moving_rate=rate)


def test_an_exchange_of_unlike_arrays_is_refused():
    with pytest.raises(ValueError, match=r"`center` must have the shape of `local`, \(1,\)"):
        rules.elastic_exchange([1.0], [0.0, 1.0], moving_rate=0.5)
    with pytest.raises(ValueError, match=r"`center` must have the shape of `locals_`, \(1,\)"):
        rules.elastic_round(np.ones((2, 1)), np.ones(2), moving_rate=0.5)
    with pytest.raises(ValueError, match="`locals_` must have a row per worker"):
        rules.elastic_round(1.0, np.ones(()), moving_rate=0.5)
    for shape, index in (((2,), 2), ((2,), -1), ((), 0)):
        with pytest.raises(ValueError, match=rf"indices\[0\] = {index}\."):
            rules.sparse_elastic_exchange(np.ones(shape), np.ones(shape), [index], moving_rate=0.5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_flows_through(bad):
    exchanged = rules.elastic_exchange([bad, 1.0], [0.0, 1.0], moving_rate=0.5)
    blocked = rules.block_momentum_step([0.0, 1.0], [0.0, 0.0], [bad, 1.0], block_momentum=0.5)
    for result in (*exchanged, *blocked):
        assert not np.isfinite(result[0])
        assert np.isfinite(result[1])


@given(GRID, GRID, GRID, st.booleans())
@settings(deadline=None)
def test_without_block_momentum_the_mean_is_broadcast(param, delta, mean, use_nesterov):
    new, moved = rules.block_momentum_step(
        param, delta, mean, block_momentum=0, use_nesterov=use_nesterov
    )
    np.testing.assert_array_equal(new, mean)
    np.testing.assert_array_equal(moved, mean - param)


def test_the_look_ahead_is_the_block_model_and_momentum_times_delta():
    # The block model W and delta by the paper, W + eta delta broadcast; ours holds the broadcast.
    rng = np.random.default_rng(4)
    eta, zeta = 0.75, 0.5
    block, delta = rng.normal(size=5), np.zeros(5)
    ours = block, delta
    for _ in range(20):
        mean = rng.normal(size=5)
        delta = eta * delta + zeta * (mean - ours[0])
        ours = rules.block_momentum_step(
            *ours, mean, block_momentum=eta, block_learning_rate=zeta, use_nesterov=True
        )
        np.testing.assert_allclose(ours[1], delta, rtol=1e-14)
        # What was broadcast, without its look-ahead, moves by delta.
        block = block + delta
        np.testing.assert_allclose(ours[0] - eta * ours[1], block, rtol=1e-12, atol=1e-12)


def test_block_momentum_refuses_bad_scalars_and_shapes():
    one = np.ones(2)
    with pytest.raises(ValueError, match="`block_momentum` must be >= 0 and < 1"):
        rules.block_momentum_step(one, one, one, block_momentum=1)
    with pytest.raises(ValueError, match="`block_learning_rate` must be finite and > 0"):
        rules.block_momentum_step(one, one, one, block_momentum=0, block_learning_rate=0)
    with pytest.raises(ValueError, match=r"`mean` must have the shape of `param`, \(2,\)"):
        rules.block_momentum_step(one, one, one[:1], block_momentum=0)


@given(st.integers(0, 2**40), st.floats(0, 100))
def test_a_gradient_weighs_less_the_staler_it_is(staleness, alpha):
    weight = rules.staleness_weight(staleness, alpha=alpha)
    assert weight == alpha / max(staleness, 1)
    assert rules.staleness_weight(staleness + 1, alpha=alpha) <= weight


def test_the_mean_of_weighted_gradients():
    total = np.zeros(2, np.float32)
    for g, staleness in [([4, 8], 0), ([4, 8], 4), ([8, 0], 2)]:
        weight = rules.staleness_weight(staleness)
        (total,) = rules.weighted_accumulation(total, np.array(g, np.float32), weight=weight)
    (mean,) = rules.accumulated_mean(total, count=3)
    assert mean.dtype == np.float32
    assert mean.tolist() == [3.0, np.float32(10 / 3)]


def test_bad_staleness_weight_and_count_are_refused():
    for staleness in (-1, 0.5, True):
        with pytest.raises(ValueError, match=f"`staleness` must be .*=.*{staleness}"):
            rules.staleness_weight(staleness)
    with pytest.raises(ValueError, match="`alpha` must be finite and >= 0"):
        rules.staleness_weight(1, alpha=-1)
    for count in (0, -1, 1.0):
        with pytest.raises(ValueError, match=f"`count` must be an integer >= 1. .*={count}"):
            rules.accumulated_mean(np.ones(1), count=count)
    with pytest.raises(ValueError, match=r"`total` must be float32 or float64.*int64"):
        rules.accumulated_mean([1], count=1)
