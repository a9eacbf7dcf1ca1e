import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from plotly.io.json import to_json_plotly

from deepinsight.figures import (
    compute_weight_heatmap_info,
    heatmap_stream,
    heatmap_variables,
    is_empty_figure,
    plot_weight_heatmap,
)
from deepinsight.figures._blocks import block_edges, block_maximum
from deepinsight.figures.weight_heatmap import colour_limits, quantise
from deepinsight.traces import StreamNotFoundError


def tiles(writer, values, step=0, name="w", **details):
    writer.record(
        f"weights/{name}/tiles", np.asarray(values, np.float32), step=step, details=details
    )


def test_the_snapshot_is_placed_in_the_variables_own_rows_and_columns(open_example, example_runs):
    info = compute_weight_heatmap_info(open_example("async"), "fc1/kernel")
    assert info.step == 350
    assert info.values.shape == (377, 256)
    assert info.block_shape == example_runs.BLOCK
    assert info.full_shape == example_runs.FULL_SHAPE
    assert [band.name for band in info.groups] == list(example_runs.GROUPS)
    assert (info.groups[3].start, info.groups[3].stop) == (380, 500)
    assert info.non_finite == 0
    band = info.values[134:143]
    assert np.median(band) > 8 * np.median(np.delete(info.values, np.s_[133:144], axis=0))
    figure = plot_weight_heatmap(info)
    edges = figure.data[0].y
    assert (edges[0], edges[-1], edges.size) == (-0.5, 1129.5, 378)


def test_a_step_between_snapshots_shows_the_one_before(open_example):
    run = open_example("async")
    assert compute_weight_heatmap_info(run, "fc1/kernel", step=149).step == 100
    assert compute_weight_heatmap_info(run, "fc1/kernel", step=150).step == 150


def test_a_step_before_the_first_snapshot_says_so(record):
    run = record(lambda w: tiles(w, [[1.0]], step=100))
    info = compute_weight_heatmap_info(run, "w", step=99)
    assert info.values is None
    assert "at or before step 99" in info.reason
    assert is_empty_figure(plot_weight_heatmap(info))


def test_nan_and_infinity_are_counted_and_drawn_in_their_own_colour(open_example):
    info = compute_weight_heatmap_info(open_example("diverged"), "fc1/kernel")
    # Rows 700 to 702 fall into the blocks 233 (699-701) and 234 (702-704).
    assert info.non_finite == 3
    assert np.isnan(info.values[233, 100])
    assert np.isinf(info.values[10, 20])
    figure = plot_weight_heatmap(info)
    assert "3 blocks hold NaN or infinity" in figure.layout.title.subtitle.text
    marked = np.argwhere(np.isfinite(figure.data[1].z))
    np.testing.assert_array_equal(marked, [[10, 20], [233, 100], [234, 100]])


def test_the_colours_of_one_snapshot_or_of_the_whole_run(record):
    def write(writer):
        tiles(writer, [[0.01, 0.1]], step=0)
        tiles(writer, [[0.01, 100.0]], step=1)

    run = record(write)
    alone = compute_weight_heatmap_info(run, "w", step=0, colour_range="step")
    common = compute_weight_heatmap_info(run, "w", step=0, colour_range="run")
    assert alone.colour_limits[1] == pytest.approx(0.1)
    assert common.colour_limits[1] == pytest.approx(100)


def test_big_pictures_are_merged_by_their_maximum(record):
    values = np.zeros((10, 7))
    values[9, 6] = 5
    run = record(lambda w: tiles(w, values, block_shape=[3, 2], full_shape=[29, 14]))
    info = compute_weight_heatmap_info(run, "w", max_rows=4, max_columns=7)
    assert info.values.shape == (4, 7)
    assert info.block_shape == (9, 2)
    assert info.values[3, 6] == 5
    assert plot_weight_heatmap(info).data[0].y[-1] == 28.5


def test_small_variables_are_shown_from_their_raw_values(record):
    run = record(lambda w: w.record("weights/b/raw", np.array([-3.0, 1.0]), step=4))
    assert heatmap_stream(run, "b") == "weights/b/raw"
    info = compute_weight_heatmap_info(run, "b")
    np.testing.assert_array_equal(info.values, [[3.0], [1.0]])
    assert info.full_shape == (2, 1)


def test_variables_are_offered_the_largest_first(open_example):
    assert heatmap_variables(open_example("async")) == ("fc1/kernel", "fc2/kernel", "fc2/bias")


def test_a_variable_without_tiles_says_what_to_do(open_example):
    run = open_example("async")
    info = compute_weight_heatmap_info(run, "fc9/kernel")
    assert "no tiles of fc9/kernel" in info.reason
    assert "Weights probe" in compute_weight_heatmap_info(run, "").reason
    with pytest.raises(StreamNotFoundError, match="weights/fc9/kernel/tiles"):
        heatmap_stream(run, "fc9/kernel")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 0.0], (0.1, 1.0)),
        ([np.nan, np.inf], (0.1, 1.0)),
        ([2.0], (0.2, 2.0)),
        ([1e-9, 1e-9, 1.0], (1e-4, 1.0)),
        ([0.02, 0.02, 0.02, 1.0], (0.01, 1.0)),
    ],
)
def test_colour_limits_span_one_decade_at_least_and_four_at_most(values, expected):
    limits = colour_limits([np.array([values], np.float32)])
    assert limits == pytest.approx(expected)


def test_a_band_of_huge_weights_gets_the_darkest_levels():
    rng = np.random.default_rng(0)
    values = np.abs(rng.normal(0, 0.05, (200, 50))).astype(np.float32)
    values[90:95] = 4.0
    levels = quantise(values, *colour_limits([values]))
    assert levels[90:95].min() == 254
    assert np.percentile(np.delete(levels, np.s_[90:95], axis=0), 99) < 170


def test_levels_are_logarithmic_and_clipped():
    values = np.array([[0.0, 0.01, 0.1, 1.0, 10.0, np.nan, np.inf]], np.float32)
    np.testing.assert_array_equal(quantise(values, 0.01, 1.0)[0], [0, 0, 127, 254, 254, 0, 0])


def test_the_payload_stays_small(open_example):
    info = compute_weight_heatmap_info(open_example("async"), "fc1/kernel")
    assert len(to_json_plotly(plot_weight_heatmap(info))) < 1_000_000


def test_group_names_cannot_become_markup(record):
    run = record(
        lambda w: tiles(w, np.ones((8, 2))), feature_groups={"<b>x</b>": (0, 4), "y": (4, 8)}
    )
    figure = plot_weight_heatmap(compute_weight_heatmap_info(run, "w"))
    assert figure.data[-1].text[0] == "&lt;b&gt;x&lt;/b&gt;"
    assert "<b>" not in json.dumps(figure.data[-1].to_plotly_json(), default=str)


matrices = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=40),
    elements=st.floats(0, 1e6, width=32),
)


@given(matrices, st.integers(1, 20), st.integers(1, 20))
def test_block_maxima_hold_every_block_and_no_more(values, rows, columns):
    merged, (height, width) = block_maximum(values, rows, columns)
    assert merged.shape[0] <= rows
    assert merged.shape[1] <= columns
    for i in range(merged.shape[0]):
        for j in range(merged.shape[1]):
            block = values[i * height : (i + 1) * height, j * width : (j + 1) * width]
            assert merged[i, j] == block.max()
    edges = block_edges(values.shape[0], height)
    assert edges.size == merged.shape[0] + 1
    assert (edges[0], edges[-1]) == (-0.5, values.shape[0] - 0.5)


def test_block_maxima_keep_nan():
    merged, _ = block_maximum(np.array([[np.nan, 1.0], [2.0, 3.0]]), 1, 1)
    assert np.isnan(merged[0, 0])
