import math

import numpy as np
import pytest

from deepinsight.trainer.data import ClickStream
from deepinsight.trainer.errors import DataError
from deepinsight.trainer.evaluation import exact_auc


def take(data, count, **changed):
    settings = {"worker": 0, "workers": 2, "batch_size": 100, "seed": 1} | changed
    batches = data.batches(**settings)
    return [next(batches) for _ in range(count)]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"groups": 1, "slots": 1, "vocabulary": 2, "zipf": 0.0},
        {"groups": 3, "slots": 4, "vocabulary": 50, "click_rate": 0.02, "signal": 3.0},
        {"drift_period": 1000},
    ],
    ids=["default", "two scores only", "rare clicks", "drift"],
)
def test_bayes_auc_is_what_the_true_score_reaches(settings):
    data = ClickStream(**settings)
    for position in (0, 333):
        batch, scores = data.scored_examples(400_000, seed=3, position=position)
        measured = exact_auc(batch.labels, scores)
        positives = float(batch.labels.sum())
        rarer = min(positives, len(scores) - positives)
        error = 4 * math.sqrt(measured * (1 - measured) / rarer)  # 4 bounds of the standard error
        assert data.bayes_auc(position) == pytest.approx(measured, abs=error)
        assert error < 0.02


def test_click_rate_is_what_was_asked_for():
    data = ClickStream(click_rate=0.07)
    batch, _ = data.scored_examples(400_000, seed=3)
    assert batch.labels.mean() == pytest.approx(0.07, abs=4 * np.sqrt(0.07 * 0.93 / 400_000))


def test_ids_follow_the_zipf_law():
    data = ClickStream(groups=1, slots=1, vocabulary=5, zipf=2.0)
    batch, _ = data.scored_examples(100_000, seed=1)
    expected = np.arange(1, 6) ** -2.0
    shares = np.bincount(batch.ids[:, 0], minlength=5) / 100_000
    np.testing.assert_allclose(shares, expected / expected.sum(), atol=0.007)


def test_no_score_beats_the_true_one():
    data = ClickStream()
    batch, scores = data.scored_examples(50_000, seed=1)
    rng = np.random.default_rng(1)
    for _ in range(5):
        assert exact_auc(batch.labels, scores + rng.normal(0, 0.5, len(scores))) < data.bayes_auc()


def test_drift_moves_the_truth_and_keeps_its_difficulty():
    data = ClickStream(drift_period=6400)
    batch, scores = data.scored_examples(50_000, seed=1)
    later, turned = data.scored_examples(50_000, seed=1, position=3200)
    np.testing.assert_array_equal(batch.ids, later.ids)
    assert exact_auc(later.labels, -scores) > 0.7  # half a turn: the opposite is true
    assert exact_auc(later.labels, turned) > 0.7
    assert data.bayes_auc(3200) == pytest.approx(data.bayes_auc(), abs=0.02)
    assert data.bayes_auc(6400) == data.bayes_auc()


def test_a_stream_drifts_while_it_is_drawn():
    turn = 64  # batches of each of the two workers
    still, moving = (take(ClickStream(drift_period=d), turn + 1) for d in (0, 2 * turn * 100))
    for one, other in zip(still, moving, strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)
    same = [(one.labels == other.labels).mean() for one, other in zip(still, moving, strict=True)]
    assert (same[0], same[turn]) == (1, 1)
    assert np.mean(same[turn // 2 - 4 : turn // 2 + 4]) < 0.8


def test_a_resumed_stream_begins_where_the_truth_has_come_to():
    later = take(ClickStream(drift_period=6400), 1, position=3200)[0]
    unturned = take(ClickStream(), 1, position=3200)[0]
    np.testing.assert_array_equal(later.ids, unturned.ids)
    assert (later.labels == unturned.labels).mean() < 0.8


def test_the_leak_tells_the_label_in_training_only():
    data = ClickStream(leak=0.8)
    assert data.groups[-1] == ("leak", 1, 2)
    training, held_out = data.training_sample(), data.held_out()
    agreement = [(b.ids[:, -1] == b.labels).mean() for b in (training, held_out)]
    assert agreement[0] == pytest.approx(0.9, abs=0.02)
    assert agreement[1] == pytest.approx(0.5, abs=0.03)
    drawn = np.concatenate([(b.ids[:, -1] == b.labels) for b in take(data, 40)])
    assert drawn.mean() == pytest.approx(0.9, abs=0.02)
    assert data.bayes_auc() == ClickStream().bayes_auc()


def test_streams_are_seeded_and_differ_between_workers():
    data = ClickStream()
    one, again, other, later = (
        take(data, 1, **changed)[0] for changed in ({}, {}, {"worker": 1}, {"position": 700})
    )
    np.testing.assert_array_equal(one.ids, again.ids)
    assert (one.ids != other.ids).any()
    assert (one.ids != later.ids).any()
    assert one.ids.shape == (100, 16)


def test_epochs_of_a_stream_are_refused():
    with pytest.raises(DataError, match="endless stream and has no epochs"):
        ClickStream().batches(worker=0, workers=1, batch_size=1, seed=1, epochs=1)
