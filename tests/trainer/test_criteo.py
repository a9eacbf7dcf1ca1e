import gzip

import numpy as np
import pytest

from deepinsight.trainer.data import Criteo
from deepinsight.trainer.data.criteo import integer_bucket, parse_line
from deepinsight.trainer.errors import DataError

EMPTY = "\t" * 38


def line(label="1", integers=("",) * 13, categoricals=("",) * 26):
    return "\t".join([label, *integers, *categoricals])


def write(path, count, make=None):
    rng = np.random.default_rng(1)
    lines = []
    for i in range(count):
        integers = [str(v) if v >= 0 else "" for v in rng.integers(-1, 50, 13)]
        categoricals = [f"{v:08x}" for v in rng.integers(0, 9, 26)]
        lines.append(line(str(i % 2), integers, categoricals))
    if make:
        make(lines)
    path.write_text("\n".join(lines) + "\n")
    return path


def test_missing_values_have_an_id_of_their_own():
    label, ids = parse_line(line("0"), 100)
    assert label == 0.0
    assert ids == [0] * 39


def test_integer_buckets_grow_with_the_value_and_stay_in_range():
    values = [*range(-5, 2000), 10**6, 10**12, 10**30]
    buckets = [integer_bucket(v) for v in values]
    assert buckets == sorted(buckets)
    assert min(buckets) == 1
    assert max(buckets) == 127
    assert [integer_bucket(v) for v in (-3, -1, 0, 1, 2)] == [1, 3, 4, 5, 6]


def test_categories_are_hashed_evenly_and_always_alike():
    hashed = [
        parse_line(line(categoricals=(f"{v:08x}",) + ("",) * 25), 11)[1][13] for v in range(5000)
    ]
    assert set(hashed) == set(range(1, 11))
    assert np.bincount(hashed)[1:].min() > 400
    again = parse_line(line(categoricals=("0000002a",) + ("",) * 25), 11)[1][13]
    assert again == hashed[0x2A]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("1\t2", "must have 40 tab-separated fields .* Received: 2."),
        ("2" + "\t" * 39, r"the label \(field 1\) must be 0 or 1. Received: '2'"),
        (line(integers=("x",) + ("",) * 12), "field 2 must be an integer or empty. Received: 'x'"),
        (
            line(categoricals=("",) * 25 + ("zz",)),
            "field 40 must be a hexadecimal number or empty. Received: 'zz'",
        ),
    ],
)
def test_a_malformed_line_is_named_with_its_file_and_number(tmp_path, broken, message):
    path = write(tmp_path / "day.tsv", 30, lambda lines: lines.__setitem__(11, broken))
    with pytest.raises(DataError, match=f"day.tsv, line 12: .*{message}"):
        Criteo(path)


def test_a_malformed_line_beyond_the_sample_is_found_in_training(tmp_path):
    path = write(tmp_path / "day.tsv", 100, lambda lines: lines.__setitem__(98, "?"))
    data = Criteo(path, held_out_limit=2)
    with pytest.raises(DataError, match=r"day\.tsv, line 99"):
        list(data.batches(worker=0, workers=1, batch_size=10, seed=1, epochs=1))


def test_a_missing_file_and_a_short_one_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"no\.tsv: the Criteo file cannot be read"):
        Criteo(tmp_path / "no.tsv")
    with pytest.raises(DataError, match="at least 10 lines"):
        Criteo(write(tmp_path / "short.tsv", 9))


def test_every_tenth_line_is_held_out_and_workers_share_the_rest(tmp_path):
    data = Criteo(write(tmp_path / "day.tsv", 57), buckets=50)
    assert len(data.groups) == 39
    assert len(data.held_out().labels) == 5
    parts = [
        list(data.batches(worker=w, workers=2, batch_size=8, seed=1, epochs=1)) for w in (0, 1)
    ]
    assert [[len(b.labels) for b in part] for part in parts] == [[8, 8, 8, 2]] * 2
    rows = np.concatenate([b.ids for part in parts for b in part])
    assert len(np.unique(rows, axis=0)) == 52
    assert rows.min() >= 0
    assert rows.max() < 128


def test_a_gzipped_file_reads_the_same(tmp_path):
    plain = write(tmp_path / "day.tsv", 20)
    packed = tmp_path / "day.tsv.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    np.testing.assert_array_equal(Criteo(plain).held_out().ids, Criteo(packed).held_out().ids)


def test_too_many_workers_are_refused(tmp_path):
    data = Criteo(write(tmp_path / "day.tsv", 10))
    with pytest.raises(DataError, match="too few lines for 10 workers"):
        data.batches(worker=9, workers=10, batch_size=1, seed=1)
