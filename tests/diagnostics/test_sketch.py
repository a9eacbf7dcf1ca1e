import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinsight.diagnostics._sketch import (
    CELLS,
    EXACT_ROWS,
    KEY_BITS,
    PENDING_ROWS,
    Grid,
    Rows,
    ScoreHistogram,
    ScoreSketch,
    auc_of_weights,
    fold,
    ordered_keys,
)

any_score = st.floats(allow_nan=False, width=32)
probability = st.floats(0, 1, width=32)


def grid_of(seed, resolution=1000):
    weights = np.zeros((2, CELLS))
    rng = np.random.default_rng(seed)
    weights[:, rng.integers(CELLS, size=40)] = rng.exponential(size=40)
    return Grid.for_weights(weights, resolution)


@given(st.lists(any_score, min_size=2, max_size=50))
def test_keys_order_float32_scores_and_keep_ties(scores):
    values = np.array(scores)
    keys = ordered_keys(values, probabilities=False).astype(np.int64)
    assert np.array_equal(np.sign(np.subtract.outer(keys, keys)), compared(values))


@given(st.lists(probability, min_size=2, max_size=50))
def test_keys_order_probabilities_and_keep_ties(scores):
    values = np.array(scores)
    keys = ordered_keys(values, probabilities=True).astype(np.int64)
    assert np.array_equal(np.sign(np.subtract.outer(keys, keys)), compared(values))


def compared(values):
    return np.greater.outer(values, values) * 1 - np.less.outer(values, values) * 1


def test_probabilities_close_to_one_are_told_apart_as_finely_as_close_to_zero():
    small = np.array([1e-12, 2e-12, 3e-12])
    keys = ordered_keys(np.append(small, 1 - small), probabilities=True)
    assert np.unique(keys).size == 6


def test_grid_has_as_many_buckets_as_promised():
    for seed in range(5):
        grid = grid_of(seed)
        assert grid.size <= 2 * 1000 + CELLS
        assert grid.edges[0] == 0
        assert grid.edges[-1] == 2**KEY_BITS
        assert (np.diff(grid.edges) > 0).all()


def test_grid_finds_the_bucket_between_whose_edges_a_key_lies():
    grid = grid_of(1)
    keys = np.random.default_rng(2).integers(2**KEY_BITS, size=5000, dtype=np.uint32)
    keys[:3] = 0, 2**KEY_BITS - 1, 1 << 20
    found = grid.bucket_of(keys)
    assert np.array_equal(found, np.searchsorted(grid.edges, keys, side="right") - 1)


def test_grid_of_no_weight_has_one_bucket_per_cell():
    assert Grid.for_weights(np.zeros((2, CELLS)), 1000).size == CELLS


def test_moving_to_another_grid_keeps_the_weight_of_every_cell():
    one, other = grid_of(3), grid_of(4)
    histogram = ScoreHistogram(one, np.random.default_rng(5).exponential(size=(2, one.size)))
    moved = ScoreHistogram(other, histogram.onto(other))
    # The sums run over thousands of buckets.
    np.testing.assert_allclose(moved.cell_weights(), histogram.cell_weights(), rtol=0, atol=1e-9)
    assert (moved.weights >= 0).all()


def test_a_bucket_that_is_cut_spreads_evenly():
    coarse = Grid(np.zeros(CELLS, dtype=np.int64))
    fine = Grid(np.full(CELLS, 2))
    weights = np.zeros((2, CELLS))
    weights[1, 7] = 8.0
    moved = ScoreHistogram(coarse, weights).onto(fine)
    assert moved[1, 28:32].tolist() == [2.0, 2.0, 2.0, 2.0]
    assert moved.sum() == 8.0


def test_fold_refines_a_cell_before_it_bins_the_rows_that_fill_it():
    rng = np.random.default_rng(6)
    wide = Rows(rng.random(20_000), rng.random(20_000) < 0.5, np.ones(20_000))
    narrow_scores = 0.02 + 1e-4 * rng.random(20_000)
    narrow = Rows(narrow_scores, rng.random(20_000) < 0.5, np.ones(20_000))
    before = fold([], wide, 1 << 14, probabilities=True)
    after = fold([before], narrow, 1 << 14, probabilities=True)
    key = int(ordered_keys(np.array([0.02]), probabilities=True)[0])
    assert after.grid.levels[key >> 20] > before.grid.levels[key >> 20] + 2
    used = (after.weights.sum(axis=0) > before.onto(after.grid).sum(axis=0) + 0.5).sum()
    assert used > 500


def test_fold_leaves_its_inputs_as_they_are():
    rng = np.random.default_rng(7)
    rows = Rows(rng.random(5000), rng.random(5000) < 0.5, np.ones(5000))
    before = fold([], rows, 1000, probabilities=True)
    weights = before.weights.copy()
    fold([before], rows, 1000, probabilities=True)
    fold([before, before], rows, 1000, probabilities=True)
    assert np.array_equal(before.weights, weights)


def test_a_stationary_stream_keeps_its_grid():
    rng = np.random.default_rng(8)
    sketch = ScoreSketch(1 << 14, probabilities=True)
    grids = []
    for _ in range(20):
        scores = rng.random(PENDING_ROWS)
        sketch.add(scores, rng.random(PENDING_ROWS) < scores, 1.0)
        grids.append(sketch.parts()[0].grid)
    assert all(grid is grids[1] for grid in grids[1:])


def test_sorting_and_folding_agree_where_one_takes_over():
    rng = np.random.default_rng(9)
    scores = rng.random(EXACT_ROWS + 1)
    labels = rng.random(scores.size) < scores
    sketch = ScoreSketch(1 << 14, probabilities=True)
    sketch.add(scores[:-1], labels[:-1], 1.0)
    exact = sketch.auc()
    sketch.add(scores[-1:], labels[-1:], 1.0)
    # One prediction of 16,384 moves the AUC by at most 1 / 8,000 of a class.
    assert sketch.auc() == pytest.approx(exact, abs=1.5e-4)
    assert auc_of_weights(sketch.folded().weights) == sketch.auc()


def test_close_gives_the_buffer_back_and_keeps_the_result():
    rng = np.random.default_rng(10)
    sketch = ScoreSketch(1000, probabilities=True)
    sketch.add(rng.random(100), rng.random(100) < 0.5, 1.0)
    before = sketch.auc()
    sketch.close(most_rows=100)
    assert sketch.rows().scores.base is None or sketch.rows().scores.base.size == 100
    assert sketch.histogram is None
    assert sketch.auc() == before
    sketch.close(most_rows=99)
    assert sketch.histogram is not None
    assert sketch.class_weights() == pytest.approx(
        (100 - sketch.class_weights()[1], 100 - sketch.class_weights()[0])
    )


def test_auc_of_weights_counts_ties_half():
    assert auc_of_weights(np.array([[1.0, 1.0], [1.0, 1.0]])) == 0.5
    assert auc_of_weights(np.array([[2.0, 0.0], [0.0, 3.0]])) == 1.0
    assert np.isnan(auc_of_weights(np.array([[0.0, 0.0], [0.0, 3.0]])))
    assert np.isnan(auc_of_weights(np.zeros((2, 0))))
