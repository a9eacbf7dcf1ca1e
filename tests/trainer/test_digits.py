import numpy as np
import pytest
from sklearn.datasets import load_digits

from deepinsight.trainer.data import Digits
from deepinsight.trainer.errors import DataError


@pytest.fixture(scope="module")
def digits():
    return Digits()


def key_rows(ids):
    return {row.tobytes() for row in ids}


def take(data, count, **changed):
    settings = {"worker": 0, "workers": 2, "batch_size": 100, "seed": 1} | changed
    batches = data.batches(**settings)
    return [next(batches) for _ in range(count)]


def test_ids_name_the_column_and_the_intensity(digits):
    assert [g.name for g in digits.groups] == [f"row_{i}" for i in range(8)]
    assert digits.slots == 64
    batch = digits.held_out()
    assert batch.ids.dtype == np.int32
    columns, intensities = np.divmod(batch.ids, 17)
    assert (columns == np.arange(64) % 8).all()
    pixels, labels = load_digits(return_X_y=True)
    known = {
        row.tobytes(): label for row, label in zip(pixels.astype(np.int32), labels, strict=True)
    }
    for row, label in zip(intensities.astype(np.int32), batch.labels, strict=True):
        assert label == float(known[row.tobytes()] >= 5)


def test_held_out_and_training_examples_share_nothing(digits):
    training = np.concatenate([b.ids for w in (0, 1) for b in take(digits, 14, worker=w)])
    held_out = digits.held_out()
    assert len(held_out.labels) == 449
    assert 0.4 < held_out.labels.mean() < 0.6
    assert not key_rows(training) & key_rows(held_out.ids)
    assert key_rows(digits.training_sample().ids) <= key_rows(training)


def test_workers_have_disjoint_parts_that_cover_the_training_part(digits):
    parts = [
        np.concatenate([b.ids for b in digits.batches(
            worker=w, workers=3, batch_size=7, seed=5, epochs=1
        )])
        for w in range(3)
    ]  # fmt: skip
    assert [len(p) for p in parts] == [450, 449, 449]
    keys = [key_rows(p) for p in parts]
    assert not keys[0] & keys[1]
    assert not keys[0] & keys[2]
    assert not keys[1] & keys[2]


def test_an_epoch_shows_every_example_once_and_the_last_batch_is_the_rest(digits):
    batches = list(digits.batches(worker=0, workers=2, batch_size=100, seed=1, epochs=2))
    assert [len(b.labels) for b in batches] == [100] * 13 + [48]
    rows = np.concatenate([b.ids for b in batches])
    _, counts = np.unique(rows, axis=0, return_counts=True)
    assert counts.tolist() == [2] * 674


def test_the_seed_decides_the_order_and_a_resumed_run_goes_on_otherwise(digits):
    first, again, other, later = (
        take(digits, 1, seed=seed, position=position)[0]
        for seed, position in ((1, 0), (1, 0), (2, 0), (1, 500))
    )
    np.testing.assert_array_equal(first.ids, again.ids)
    assert (first.ids != other.ids).any()
    assert (first.ids != later.ids).any()


def test_too_many_workers_are_refused(digits):
    with pytest.raises(DataError, match=r"too few for 2000 workers\. Use fewer --workers"):
        digits.batches(worker=1999, workers=2000, batch_size=1, seed=1)
