"""Laws that hold for any data."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from deepinsight.diagnostics import CumulativeAUC, DecayedAUC, WindowedAUC

# Sums of a few hundred float64 weights, in another order.
ROUNDING = 1e-10

seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 400)
half_lives = st.sampled_from([0.3, 5.0, 100.0, None])
scores_with_ties = st.sampled_from([0.0, 1e-30, 0.02, 0.02001, 0.3, 0.5, 1 - 1e-7, 1.0])


def same(one, other, tolerance=ROUNDING):
    return one == pytest.approx(other, abs=tolerance, nan_ok=True)


@st.composite
def batches(draw):
    """Batches of few distinct scores: labels, scores, at, weights."""
    made = []
    for at in draw(st.lists(st.integers(0, 300), min_size=1, max_size=8)):
        n = draw(st.integers(0, 12))
        labels = draw(hnp.arrays(bool, n))
        scores = draw(hnp.arrays(np.float64, n, elements=scores_with_ties))
        weights = draw(hnp.arrays(np.float64, n, elements=st.sampled_from([0.0, 0.5, 1.0, 7.0])))
        made.append((labels, scores, at, weights))
    return made


def fed(metric, given_batches):
    for batch in given_batches:
        metric.update(*batch)
    return metric


@given(batches(), half_lives)
def test_result_is_the_formula(exact_auc, given_batches, half_life):
    labels, scores, at, weights = (
        np.concatenate([np.broadcast_to(batch[i], batch[0].shape) for batch in given_batches])
        for i in range(4)
    )
    newest = max(batch[2] for batch in given_batches)
    if half_life is not None:
        weights = weights * 2.0 ** ((at - newest) / half_life)
    with np.errstate(under="ignore"):
        expected = exact_auc(labels, scores, weights)
    assert same(fed(DecayedAUC(half_life), given_batches).result(), expected)


@given(batches(), half_lives, st.integers(1, 4), seeds)
def test_workers_in_turn_merged_are_one_worker(given_batches, half_life, workers, seed):
    turn = np.random.default_rng(seed).integers(workers, size=len(given_batches))
    for make in (lambda: DecayedAUC(half_life), CumulativeAUC, lambda: WindowedAUC(64)):
        metrics = [make() for _ in range(workers)]
        for worker, batch in zip(turn, given_batches, strict=True):
            metrics[worker].update(*batch)
        for other in metrics[1:]:
            metrics[0].merge(other)
        alone = fed(make(), given_batches)
        assert same(metrics[0].result(), alone.result())
        assert metrics[0].class_weights() == pytest.approx(alone.class_weights(), rel=ROUNDING)


@given(batches(), half_lives, st.floats(1e-6, 1e6))
def test_scaling_all_sample_weights_changes_nothing(given_batches, half_life, factor):
    scaled = [(*batch[:3], factor * batch[3]) for batch in given_batches]
    assert same(
        fed(DecayedAUC(half_life), scaled).result(),
        fed(DecayedAUC(half_life), given_batches).result(),
    )


@given(batches(), st.floats(-1e6, 1e6), st.sampled_from([2.0, 8.0, 64.0]))
def test_shifting_the_clock_changes_nothing(given_batches, shift, half_life):
    shifted = [(b[0], b[1], b[2] + shift, b[3]) for b in given_batches]
    # The shifted clock is rounded to 2**-33, which moves a weight by about 1e-10.
    assert same(
        fed(DecayedAUC(half_life), shifted).result(),
        fed(DecayedAUC(half_life), given_batches).result(),
        1e-9,
    )


@given(batches())
def test_an_integer_weight_is_a_repeated_prediction(given_batches):
    weighted, repeated = CumulativeAUC(), CumulativeAUC()
    for labels, scores, at, _ in given_batches:
        counts = 1 + np.arange(labels.size) % 3
        weighted.update(labels, scores, at, counts)
        repeated.update(np.repeat(labels, counts), np.repeat(scores, counts), at)
    assert same(weighted.result(), repeated.result())


@given(batches(), half_lives)
def test_swapping_the_classes_turns_the_auc_around(given_batches, half_life):
    swapped = [(~batch[0], *batch[1:]) for batch in given_batches]
    assert same(
        fed(DecayedAUC(half_life), swapped).result(),
        1 - fed(DecayedAUC(half_life), given_batches).result(),
    )


@settings(max_examples=20, deadline=None)
@given(seeds, st.integers(30_000, 100_000), st.integers(1, 5000))
def test_chunks_are_the_whole(seed, n, batch):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, n)
    labels = rng.random(n) < 1 / (1 + np.exp(-logits))
    chunked, whole = CumulativeAUC(from_logits=True), CumulativeAUC(from_logits=True)
    whole.update(labels, logits)
    for start in range(0, n, batch):
        chunked.update(labels[start : start + batch], logits[start : start + batch])
    # The same rows are folded in the same groups, however they came.
    assert chunked.result() == whole.result()


@settings(max_examples=20, deadline=None)
@given(seeds, st.sampled_from(["sigmoid", "cube", "shrink"]))
def test_monotone_maps_change_nothing_but_the_buckets(seed, name):
    maps = {
        "sigmoid": lambda z: 1 / (1 + np.exp(-z)),
        "cube": lambda z: z**3,
        "shrink": lambda z: 5 + 0.05 * z,
    }
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 1, 60_000)
    labels = rng.random(logits.size) < 1 / (1 + np.exp(-logits))
    plain = CumulativeAUC(from_logits=True)
    mapped = CumulativeAUC(from_logits=name != "sigmoid")
    plain.update(labels, logits)
    mapped.update(labels, maps[name](logits))
    assert same(plain.result(), mapped.result(), 1e-5)  # the documented error, of both
