"""One contract for the three metrics, then what each does with time."""

import copy
import pickle

import numpy as np
import pytest

from deepinsight.diagnostics import CumulativeAUC, DecayedAUC, WindowedAUC
from deepinsight.errors import DeepInsightError

# Sums of up to 1e4 float64 weights, in another order than the oracle's.
ROUNDING = 1e-12

METRICS = {
    "decayed": lambda **options: DecayedAUC(half_life=100, **options),
    "never_forgets": lambda **options: DecayedAUC(half_life=None, **options),
    "cumulative": CumulativeAUC,
    "windowed": lambda **options: WindowedAUC(window=100, **options),
}


@pytest.fixture(params=METRICS)
def make(request):
    return METRICS[request.param]


def rows(seed, n=3000, ties=False):
    rng = np.random.default_rng(seed)
    scores = rng.random(n)
    labels = rng.random(n) < scores
    if ties:
        scores = np.round(scores, 1)
    return labels, scores


class TestContract:
    def test_no_data_is_nan(self, make):
        assert np.isnan(make().result())

    @pytest.mark.parametrize("label", [0, 1])
    def test_one_class_is_nan(self, make, label):
        metric = make()
        metric.update([label] * 5, [0.1, 0.2, 0.3, 0.4, 0.5], at=0)
        assert np.isnan(metric.result())

    def test_one_prediction_is_nan(self, make):
        metric = make()
        metric.update(1, 0.5, at=0)
        assert np.isnan(metric.result())
        assert metric.class_weights() == (0.0, 1.0)

    @pytest.mark.parametrize("ties", [False, True])
    def test_small_data_is_exact(self, make, exact_auc, ties):
        labels, scores = rows(1, ties=ties)
        metric = make()
        metric.update(labels, scores, at=0)
        assert metric.result() == pytest.approx(exact_auc(labels, scores), abs=ROUNDING)

    def test_all_equal_scores_are_one_half(self, make):
        metric = make()
        for at in range(50):  # more than what is kept exactly
            metric.update([0, 1] * 500, np.full(1000, 0.7), at=at)
        assert metric.result() == pytest.approx(0.5, abs=ROUNDING)

    @pytest.mark.parametrize(("order", "expected"), [(1, 1.0), (-1, 0.0)])
    def test_separated_classes_are_one_or_zero(self, make, order, expected):
        metric = make(from_logits=True)
        for at in range(50):
            metric.update([0, 1] * 500, order * np.tile([-3.0, 2.0], 500), at=at)
        assert metric.result() == pytest.approx(expected, abs=ROUNDING)

    @pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "float32", "float64"])
    def test_label_dtypes(self, make, dtype):
        metric = make()
        metric.update(np.array([0, 0, 1, 1], dtype=dtype), [0.1, 0.4, 0.35, 0.8], at=0)
        assert metric.result() == 0.75

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
    def test_score_dtypes(self, make, dtype):
        metric = make()
        metric.update([0, 0, 1, 1], np.array([0.1, 0.4, 0.35, 0.8], dtype=dtype), at=0)
        assert metric.result() == 0.75

    def test_any_shape_is_flattened(self, make, exact_auc):
        labels, scores = rows(2)
        metric = make()
        metric.update(labels.reshape(30, -1), scores.reshape(30, -1), at=0)
        assert metric.result() == pytest.approx(exact_auc(labels, scores), abs=ROUNDING)

    def test_empty_batch_changes_nothing(self, make):
        metric = make()
        metric.update([], [], at=0)
        assert np.isnan(metric.result())
        metric.update([0, 1], [0.2, 0.3], at=0)
        metric.update(np.empty((0, 4)), np.empty((0, 4)), at=0, sample_weight=np.empty((0, 4)))
        assert metric.result() == 1.0

    def test_sample_weights(self, make, exact_auc):
        labels, scores = rows(3, ties=True)
        weights = np.random.default_rng(4).exponential(size=labels.size)
        metric = make()
        metric.update(labels, scores, at=0, sample_weight=weights)
        assert metric.result() == pytest.approx(exact_auc(labels, scores, weights), abs=ROUNDING)

    def test_one_sample_weight_for_all(self, make):
        metric = make()
        metric.update([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8], at=0, sample_weight=3)
        assert metric.result() == 0.75
        assert metric.class_weights() == (6.0, 6.0)

    def test_weight_zero_is_left_out_whatever_label_and_score(self, make):
        metric = make()
        metric.update([0, 1, -1, 1], [0.2, 0.3, np.nan, 7.0], at=0, sample_weight=[1, 1, 0, 0])
        assert metric.result() == 1.0
        assert metric.nan_scores == 0

    def test_only_weight_zero_is_nan(self, make):
        metric = make()
        metric.update([0, 1], [0.2, 0.3], at=0, sample_weight=0.0)
        assert np.isnan(metric.result())

    def test_nan_scores_are_counted_and_left_out(self, make):
        metric = make()
        metric.update([0, 1, 1], [0.2, np.nan, 0.3], at=0, sample_weight=[1, 2, 3])
        metric.update([0, 1], [np.nan, np.nan], at=0)
        assert metric.nan_scores == 3
        assert metric.result() == 1.0
        assert metric.class_weights() == (1.0, 3.0)

    def test_infinite_logits_are_the_ends_of_the_order(self, make, exact_auc):
        rng = np.random.default_rng(5)
        labels = rng.random(40_000) < 0.5
        scores = rng.choice([-np.inf, -1e30, -1.0, -0.0, 0.0, 1e-40, 2.0, np.inf], labels.size)
        scores = scores + labels * 0.5
        metric = make(from_logits=True)
        for part in np.array_split(np.arange(labels.size), 40):
            metric.update(labels[part], scores[part], at=0)
        # 1e-40 and 0 are told apart by float32 denormals, so nothing is merged at all.
        assert metric.result() == pytest.approx(exact_auc(labels, scores), abs=ROUNDING)

    @pytest.mark.parametrize("scores", [[1.5, 0.5], [-0.1, 0.5], [np.inf, 0.5], [np.nan, 1.01]])
    def test_refuses_scores_that_are_no_probabilities(self, make, scores):
        metric = make()
        with pytest.raises(ValueError, match=r"probabilities in \[0, 1\].*from_logits=True"):
            metric.update([0, 1], scores, at=0)

    @pytest.mark.parametrize("label", [2, -1, 0.5, np.nan])
    def test_refuses_other_labels(self, make, label):
        with pytest.raises(ValueError, match=f"must be 0 or 1.*Received: a label of {label}"):
            make().update([0, label], [0.1, 0.2], at=0)

    @pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf, 1e101])
    def test_refuses_other_weights(self, make, weight):
        with pytest.raises(ValueError, match=r"`sample_weight` must be >= 0"):
            make().update([0, 1], [0.1, 0.2], at=0, sample_weight=[1.0, weight])

    def test_refuses_shapes_that_differ(self, make):
        with pytest.raises(ValueError, match=r"same shape.*labels of shape \(2,\).*\(2, 1\)"):
            make().update([0, 1], [[0.1], [0.2]], at=0)
        with pytest.raises(ValueError, match="3 weights for 2 labels"):
            make().update([0, 1], [0.1, 0.2], at=0, sample_weight=[1, 1, 1])

    def test_refuses_what_is_no_number(self, make):
        with pytest.raises(ValueError, match="`labels` must be an array of real numbers"):
            make().update(["no", "yes"], [0.1, 0.2], at=0)
        with pytest.raises(ValueError, match="`scores` must be an array of real numbers"):
            make().update([0, 1], [0.1, 0.2j], at=0)

    @pytest.mark.parametrize("at", [np.nan, np.inf, -np.inf, 1e30])
    def test_refuses_a_clock_that_is_not_finite(self, make, at):
        with pytest.raises(ValueError, match="`at` must be finite"):
            make().update([0, 1], [0.1, 0.2], at=at)

    def test_refuses_a_clock_per_prediction(self, make):
        with pytest.raises(ValueError, match="`at` must be one number"):
            make().update([0, 1], [0.1, 0.2], at=[1, 2])

    def test_a_refused_batch_changes_nothing(self, make):
        metric = make()
        metric.update([0, 1], [0.2, 0.3], at=0)
        for labels, scores, at, weight in [
            ([0, 2], [0.1, np.nan], 9e4, None),
            ([1, 0], [0.1, 2.0], 9e4, None),
            ([1, 0], [0.1, 0.2], 9e4, [1, -1]),
        ]:
            with pytest.raises(DeepInsightError, match="Received"):
                metric.update(labels, scores, at, weight)
        assert metric.result() == 1.0
        assert metric.nan_scores == 0
        assert metric.class_weights() == (1.0, 1.0)

    def test_the_caller_may_reuse_its_arrays(self, make):
        metric = make()
        labels, scores = np.array([True, False]), np.array([0.9, 0.1])
        metric.update(labels, scores, at=0)
        labels[:], scores[:] = False, 0.0
        assert metric.result() == 1.0

    @pytest.mark.parametrize("n", [500, 60_000])
    def test_result_changes_nothing(self, make, n):
        labels, scores = rows(6, n=n)
        asked, unasked = make(), make()
        for at, part in enumerate(np.array_split(np.arange(n), 20)):
            for metric in (asked, unasked):
                metric.update(labels[part], scores[part], at)
            asked.result()
            asked.class_weights()
        assert asked.result() == unasked.result()

    @pytest.mark.parametrize("n", [0, 500, 60_000])
    @pytest.mark.parametrize("clone", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
    def test_a_copy_continues_where_the_original_was(self, make, n, clone):
        labels, scores = rows(7, n=n)
        metric = make()
        metric.update(labels, scores, at=0)
        twin = clone(metric)
        assert np.array_equal(twin.result(), metric.result(), equal_nan=True)
        for each in (metric, twin):
            each.update(*rows(8), at=30)
        assert twin.result() == metric.result()

    def test_reset_forgets_everything_but_the_settings(self, make):
        metric = make(from_logits=True)
        metric.update([0, 1, 1], [5.0, -5.0, np.nan], at=1e9)
        metric.reset()
        assert np.isnan(metric.result())
        assert metric.nan_scores == 0
        metric.update([0, 1], [-5.0, 5.0], at=0)
        assert metric.result() == 1.0

    def test_merge_of_disjoint_shares_is_the_whole(self, make, exact_auc):
        labels, scores = rows(9, n=900)
        workers = [make() for _ in range(3)]
        for at in range(18):
            part = slice(50 * at, 50 * at + 50)
            workers[at % 3].update(labels[part], scores[part], at=0)
        for other in workers[1:]:
            before = other.result()
            workers[0].merge(other)
            assert other.result() == before
        assert workers[0].result() == pytest.approx(exact_auc(labels, scores), abs=ROUNDING)

    def test_merge_with_itself_doubles_the_weights(self, make):
        metric = make()
        metric.update([0, 0, 1], [0.1, 0.6, 0.5], at=0)
        metric.merge(metric)
        assert metric.class_weights() == (4.0, 2.0)
        assert metric.result() == 0.5

    def test_merge_adds_nan_counts_and_accepts_empty_metrics(self, make):
        one, other = make(), make()
        other.update([0, 1, 1], [0.1, 0.9, np.nan], at=5)
        one.merge(make())
        one.merge(other)
        one.merge(make())
        assert one.nan_scores == 1
        assert one.result() == 1.0

    def test_merge_refuses_other_settings(self, make):
        with pytest.raises(ValueError, match=r"same settings.*from_logits=True.*from_logits=False"):
            make().merge(make(from_logits=True))
        with pytest.raises(ValueError, match=r"same settings.*Received: float for"):
            make().merge(0.5)

    def test_repr_shows_the_settings(self, make):
        assert "from_logits=False" in repr(make())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (DecayedAUC(10), DecayedAUC(11)),
        (DecayedAUC(10), DecayedAUC(None)),
        (DecayedAUC(10), DecayedAUC(10, unit="seconds")),
        (DecayedAUC(None), CumulativeAUC()),
        (WindowedAUC(10), WindowedAUC(11)),
        (WindowedAUC(10), DecayedAUC(10)),
    ],
)
def test_merge_refuses_another_kind_unit_or_length(one, other):
    with pytest.raises(ValueError, match="same settings"):
        one.merge(other)


@pytest.mark.parametrize("value", [0, -1, np.nan, np.inf, 1e-10])
def test_refuses_lengths_out_of_range(value):
    with pytest.raises(ValueError, match="`half_life` must be finite and at least 1e-09"):
        DecayedAUC(value)
    with pytest.raises(ValueError, match="`window` must be finite and at least 1e-09"):
        WindowedAUC(value)


@pytest.mark.parametrize("metric", [DecayedAUC, WindowedAUC])
def test_refuses_other_units(metric):
    with pytest.raises(ValueError, match=r'"steps" or "seconds"\. Received: unit=.hours.'):
        metric(10, unit="hours")


class TestDecay:
    def test_weights_halve_with_every_half_life(self):
        metric = DecayedAUC(half_life=10)
        metric.update([0, 1, 1], [0.1, 0.2, 0.3], at=5)
        for at, share in [(15, 0.5), (25, 0.25), (35, 0.125), (40, 2**-3.5)]:
            metric.update([], [], at=at)
            assert metric.class_weights() == pytest.approx((share, 2 * share), rel=ROUNDING)

    def test_result_is_the_auc_of_decayed_weights(self, exact_auc):
        labels, scores = rows(10, ties=True)
        at = np.repeat(np.arange(60), 50) * 7.5
        metric = DecayedAUC(half_life=33, unit="seconds")
        start = 1.8e9
        for i in range(60):
            part = slice(50 * i, 50 * i + 50)
            metric.update(labels[part], scores[part], start + at[50 * i])
        exact = exact_auc(labels, scores, 2.0 ** ((at - at[-1]) / 33))
        # Unix times resolve 2.4e-7 s, so weights of this half-life are right to 5e-9.
        assert metric.result() == pytest.approx(exact, abs=1e-8)

    def test_the_order_of_batches_does_not_matter(self):
        labels, scores = rows(11)
        batches = [(labels[i::60], scores[i::60], 40 * i) for i in range(60)]
        shuffled = [batches[i] for i in np.random.default_rng(0).permutation(60)]
        results = []
        for order in (batches, shuffled, batches[::-1]):
            metric = DecayedAUC(half_life=10)  # 240 half-lives: weights are scaled down often
            for batch in order:
                metric.update(*batch)
            results.append(metric.result())
        assert results == pytest.approx([results[0]] * 3, abs=ROUNDING)

    @pytest.mark.parametrize("gap", [1e3, 1e6, 1e15, 2.0**62])
    def test_a_huge_gap_forgets_without_overflow(self, gap):
        metric = DecayedAUC(half_life=0.5)
        metric.update([0, 1], [0.9, 0.1], at=-gap)
        metric.update([0, 1], [0.1, 0.9], at=gap)
        assert metric.result() == 1.0
        metric.update([0, 1], [0.9, 0.1], at=0)  # time goes back
        assert metric.result() == 1.0

    def test_extreme_lengths_and_weights_stay_finite(self):
        metric = DecayedAUC(half_life=1e-9)
        for at in (0, 1, 6e-8, 2.0**63, -(2.0**63)):
            metric.update([0, 1], [0.1, 0.9], at, sample_weight=1e100)
            assert metric.result() == 1.0

    def test_a_class_seen_long_ago_still_counts(self):
        metric = DecayedAUC(half_life=1)
        metric.update([1, 1], [0.5, 0.9], at=0)
        metric.update([0] * 100, [0.7] * 100, at=900)
        assert metric.result() == 0.5

    def test_a_class_decayed_to_nothing_is_nan(self):
        metric = DecayedAUC(half_life=1)
        metric.update([1, 1], [0.5, 0.9], at=0)
        metric.update([0] * 100, [0.7] * 100, at=2000)
        assert np.isnan(metric.result())

    def test_merge_brings_different_clocks_together(self, exact_auc):
        labels, scores = rows(12)
        at = np.repeat([0.0, 300.0, 1000.0], 1000)
        for order in [(0, 1, 2), (2, 1, 0), (1, 2, 0)]:
            merged = DecayedAUC(half_life=70)
            for i in order:
                worker = DecayedAUC(half_life=70)
                worker.update(labels[at == at[1000 * i]], scores[at == at[1000 * i]], at[1000 * i])
                merged.merge(worker)
            exact = exact_auc(labels, scores, 2.0 ** ((at - 1000) / 70))
            assert merged.result() == pytest.approx(exact, abs=ROUNDING)

    def test_merge_of_long_histories_brings_clocks_together(self, exact_auc):
        (labels, scores), (other_labels, other_scores) = rows(18, 60_000), rows(19, 60_000)
        one, other = DecayedAUC(half_life=70), DecayedAUC(half_life=70)
        one.update(labels, scores, at=0)
        other.update(~other_labels, other_scores, at=100)
        exact = exact_auc(
            np.append(labels, ~other_labels),
            np.append(scores, other_scores),
            np.repeat([2.0 ** (-100 / 70), 1.0], 60_000),
        )
        for mine, theirs in [(one, other), (other, one)]:
            merged = copy.deepcopy(mine)
            merged.merge(theirs)
            assert merged.result() == pytest.approx(exact, abs=1e-5)  # the documented error

    @pytest.mark.parametrize("direction", [1, -1])
    def test_weights_stay_bounded_however_often_metrics_are_merged(self, direction):
        merged = DecayedAUC(half_life=1)
        merged.update([0, 1], [0.1, 0.9], at=0, sample_weight=1e100)
        for at in range(60, 60 * 100, 60):
            next_one = DecayedAUC(half_life=1)
            next_one.update([0, 1], [0.1, 0.9], at=direction * at, sample_weight=1e100)
            next_one.merge(merged)
            merged = next_one
        assert merged.result() == 1.0
        assert merged.class_weights() == pytest.approx((1e100, 1e100))

    def test_a_distribution_that_moves_is_followed(self, exact_auc):
        rng = np.random.default_rng(13)
        metric, seen, n = DecayedAUC(half_life=20, from_logits=True), [], 1024
        for at, centre in enumerate(np.repeat([0.0, -8.0, 8.0], 100)):
            spread = 1.0 if centre <= 0 else 0.03
            logits = rng.normal(centre, spread, n)
            labels = rng.random(n) < 1 / (1 + np.exp((centre - logits) / spread))
            metric.update(labels, logits, at)
            seen.append((labels, logits, np.full(n, 2.0 ** ((at - 299) / 20))))
        exact = exact_auc(*(np.concatenate(column) for column in zip(*seen, strict=True)))
        assert metric.result() == pytest.approx(exact, abs=1e-5)  # the documented error


class TestWindow:
    def test_a_short_window_is_exact_to_the_step(self, exact_auc):
        labels, scores = rows(14)
        metric = WindowedAUC(window=32)
        for at in range(60):
            part = slice(50 * at, 50 * at + 50)
            metric.update(labels[part], scores[part], at)
            first = 50 * max(0, at - 31)
            exact = exact_auc(labels[first : part.stop], scores[first : part.stop])
            assert metric.result() == pytest.approx(exact, abs=ROUNDING)

    def test_a_long_window_is_exact_to_a_32nd(self):
        metric = WindowedAUC(window=3200)
        for at in range(10_000):
            metric.update([at % 2], [0.5], at)
            kept = sum(metric.class_weights()) if at % 97 == 0 else None
            if kept is not None and at >= 3200:
                assert 3100 < kept <= 3200

    def test_seconds(self):
        metric = WindowedAUC(window=60.0, unit="seconds")
        start = 1.8e9
        metric.update([0, 1], [0.9, 0.1], start)
        metric.update([0, 1], [0.1, 0.9], start + 57.0)
        assert metric.result() == 0.5
        metric.update([], [], start + 60.0)
        assert metric.result() == 1.0

    def test_late_batches_find_their_place_and_older_ones_are_left_out(self):
        metric = WindowedAUC(window=10)
        metric.update([0, 1], [0.1, 0.9], at=20)
        metric.update([0, 1], [0.9, 0.1], at=15)
        assert metric.class_weights() == (2.0, 2.0)
        metric.update([0, 1], [0.9, 0.1], at=10)
        assert metric.class_weights() == (2.0, 2.0)
        metric.update([0, 1], [0.9, 0.1], at=20)
        assert metric.class_weights() == (3.0, 3.0)
        metric.update([], [], at=25)
        assert metric.class_weights() == (2.0, 2.0)

    @pytest.mark.parametrize("at", [2.0**63, 1e15])
    def test_a_huge_gap_empties_the_window(self, at):
        metric = WindowedAUC(window=1e-9)
        metric.update([0, 1], [0.1, 0.9], at=-at)
        metric.update([], [], at=at)
        assert np.isnan(metric.result())

    def test_merge_takes_each_slice_to_its_place(self, exact_auc):
        labels, scores = rows(15, n=120_000)
        at = np.arange(labels.size) // 1000
        workers = [WindowedAUC(window=96), WindowedAUC(window=96)]
        for step in range(120):
            mine = at == step
            workers[step % 2].update(labels[mine], scores[mine], step)
        recent = at // 3 > 119 // 3 - 32
        exact = exact_auc(labels[recent], scores[recent])
        for one, other in [(0, 1), (1, 0)]:
            merged = copy.deepcopy(workers[one])
            merged.merge(workers[other])
            assert merged.result() == pytest.approx(exact, abs=1e-5)  # the documented error
            assert sum(merged.class_weights()) == np.count_nonzero(recent)

    def test_memory_is_bounded(self):
        metric = WindowedAUC(window=1000, from_logits=True)
        rng = np.random.default_rng(16)
        for at in range(0, 3000, 5):
            metric.update(rng.random(4096) < 0.5, rng.normal(size=4096), at)
        metric.result()
        assert len(pickle.dumps(metric)) < 8 * 2**20  # the documented size


@pytest.mark.parametrize("metric", [DecayedAUC(500), CumulativeAUC()])
def test_checkpoints_stay_small(metric):
    rng = np.random.default_rng(17)
    for at in range(300):
        metric.update(rng.random(4096) < 0.5, rng.random(4096), at)
    assert len(pickle.dumps(metric)) < 2 * 2**20  # the documented size
