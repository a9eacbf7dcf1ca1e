"""LARS: trust ratio, decay, momentum."""

import numpy as np
import pytest

from deepinsight.trainer import rules

RATE = {"learning_rate": 0.5}


def reference(w, v, g, *, learning_rate, momentum, weight_decay, eeta, epsilon, use_nesterov):
    """The rule in float64, with numpy's own norm."""
    wn, gn = np.linalg.norm(w), np.linalg.norm(g)
    trust = eeta * wn / (gn + weight_decay * wn + epsilon) if wn and gn else 1.0
    update = learning_rate * trust * (g + weight_decay * w)
    v = momentum * v + update
    return w - (momentum * v + update if use_nesterov else v), v


@pytest.mark.parametrize("use_nesterov", [False, True])
# float32: 24 bits, a few lost in 20 updates; float64: 53 bits, the norm's order of summation.
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float64, 1e-13)])
def test_it_follows_its_formula(dtype, tolerance, use_nesterov):
    rng = np.random.default_rng(1)
    ours = [rng.normal(size=(5, 7)).astype(dtype), np.zeros((5, 7), dtype)]
    theirs = [a.astype(np.float64) for a in ours]
    hyper = {"momentum": 0.9, "weight_decay": 0.01, "eeta": 0.1, "epsilon": 1e-3}
    hyper |= RATE | {"use_nesterov": use_nesterov}
    for _ in range(20):
        g = rng.normal(size=(5, 7)).astype(dtype)
        *ours, _ = rules.lars_step(*ours, g, **hyper)
        theirs = reference(*theirs, g.astype(np.float64), **hyper)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=tolerance, atol=tolerance)


def test_the_trust_ratio():
    *_, trust = rules.lars_step(
        [3.0, 4.0], [0.0, 0.0], [0.0, 2.0], weight_decay=0.4, eeta=0.5, epsilon=1.0, **RATE
    )
    assert trust == 0.5 * 5 / (2 + 2 + 1)


@pytest.mark.parametrize(("w", "g"), [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_a_norm_of_zero_means_full_trust(w, g):
    param, velocity, trust = rules.lars_step([w], [0.0], [g], weight_decay=0.25, **RATE)
    assert trust == 1
    assert velocity == 0.5 * (g + 0.25 * w)
    assert param == w - velocity


def test_squares_beyond_float32_do_not_overflow_the_norm():
    big = np.full(4, 1e30, np.float32)
    *_, trust = rules.lars_step(big, big * 0, big, eeta=1.0, weight_decay=0.0, **RATE)
    assert trust == 1


def test_sparse_norms_cover_the_touched_rows():
    w = np.array([[3.0, 4.0], [1e9, 1e9]])
    param, _, trust = rules.sparse_lars_step(
        w, w * 0, [[1.0, 0.0]], [0], eeta=1.0, weight_decay=0.0, **RATE
    )
    assert trust == 5
    np.testing.assert_array_equal(param, [[0.5, 4.0], [1e9, 1e9]])
