import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinsight.figures._series import make_series, read_rows, thin


def test_a_short_line_is_left_as_it_is_but_for_infinities():
    x = np.arange(4.0)
    thin_x, thin_y = thin(x, np.array([1.0, np.nan, np.inf, 2.0]), points=10)
    np.testing.assert_array_equal(thin_x, x)
    np.testing.assert_array_equal(thin_y, [1.0, np.nan, np.nan, 2.0])


def test_thinning_keeps_the_extremes_and_both_ends():
    x = np.arange(100_000.0)
    y = np.sin(x / 500)
    y[[31_234, 77_777]] = 50, -50
    thin_x, thin_y = thin(x, y, points=400)
    assert thin_x.size <= 400
    assert {31_234.0, 77_777.0, 0.0, 99_999.0} <= set(thin_x)
    assert thin_y.max() == 50
    assert thin_y.min() == -50


def test_a_gap_stays_a_gap_when_a_long_line_is_thinned():
    y = np.ones(10_000)
    y[4000:6000] = np.nan
    thin_x, thin_y = thin(np.arange(10_000.0), y, points=100)
    gap = np.isnan(thin_y)
    assert gap.any()
    assert np.all((thin_x[gap] >= 4000) & (thin_x[gap] < 6000))


def test_a_long_line_at_one_place_is_thinned_too():
    x, y = thin(np.full(9000, 3.0), np.arange(9000.0), points=100)
    assert x.size <= 100
    assert set(x) == {3.0}
    assert y.max() == 8999


def test_a_line_without_a_finite_value_has_no_points_but_one_gap():
    x, y = thin(np.arange(9000.0), np.full(9000, np.nan), points=100)
    assert x.size == 1
    assert np.isnan(y).all()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(st.floats(-1e9, 1e9), st.sampled_from([np.nan, np.inf, -np.inf])), max_size=300
    ),
    st.integers(8, 40),
)
def test_thinning_chooses_among_the_points_in_their_order(values, points):
    y = np.array(values, np.float64)
    x = np.arange(y.size, dtype=np.float64)
    thin_x, thin_y = thin(x, y, points)
    assert thin_x.size <= max(points + points // 4 + 1, 0) or y.size <= points
    assert np.all(np.diff(thin_x) > 0)
    for place, value in zip(thin_x, thin_y, strict=True):
        original = y[int(place)]
        assert value == original or (np.isnan(value) and not np.isfinite(original))
    finite = y[np.isfinite(y)]
    if finite.size:
        assert np.nanmax(thin_y) == finite.max()
        assert np.nanmin(thin_y) == finite.min()


def test_a_line_counts_what_it_stands_for():
    line = make_series("a", [3, 1, 2, np.nan], [np.nan, 10.0, 20.0, 99.0])
    np.testing.assert_array_equal(line.x, [1, 2, 3])
    np.testing.assert_array_equal(line.y, [10.0, 20.0, np.nan])
    assert (line.rows, line.non_finite) == (3, 1)
    assert np.isnan(line.last)


def test_an_empty_line_has_no_last_value():
    line = make_series("a", [], [])
    assert line.rows == 0
    assert np.isnan(line.last)


def test_rows_come_per_process_and_without_those_that_were_written_again(record):
    record(
        lambda w: w.record_block("loss", np.arange(6.0), steps=np.arange(6)),
        lambda w: w.record_block("loss", np.arange(3.0), steps=np.arange(3)),
    )
    run = record(lambda w: w.record_block("loss", [30.0, 40.0], steps=[3, 4]))
    first, second = read_rows(run, "loss")
    assert (first.process, second.process) == ("worker-0", "worker-1")
    np.testing.assert_array_equal(first.steps, [0, 1, 2, 3, 4])
    np.testing.assert_array_equal(first.values, [0, 1, 2, 30, 40])
    np.testing.assert_array_equal(second.values, [0, 1, 2])


@pytest.mark.parametrize("stream", ["nobody/recorded", "image"])
def test_streams_that_make_no_line_read_as_nothing(record, stream):
    run = record(lambda w: w.record("image", np.zeros((2, 2)), step=0))
    assert read_rows(run, stream) == ()
