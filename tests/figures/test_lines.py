"""AUC history, throughput, distribution of the weights, gradients."""

import numpy as np
import pytest

from deepinsight.figures import (
    compute_auc_history_info,
    compute_gradient_norms_info,
    compute_throughput_info,
    compute_weight_distribution_info,
    is_empty_figure,
    plot_auc_history,
    plot_gradient_norms,
    plot_throughput,
    plot_weight_distribution,
)
from deepinsight.figures.gradient_norms import MOST_VARIABLES
from deepinsight.traces import Axis


def block(name, values, steps=None, **metadata):
    values = np.asarray(values, np.float64)
    steps = np.arange(len(values)) if steps is None else steps
    return lambda writer: writer.record_block(name, values, steps=steps, **metadata)


def both(*blocks):
    return lambda writer: [own(writer) for own in blocks]


def test_every_kind_of_auc_is_a_line_and_undefined_values_are_gaps(record):
    run = record(
        both(
            block("auc/decayed", [np.nan, 0.6, 0.7]),
            block("auc/cumulative", [0.5, 0.55, 0.6]),
            block("eval/auc", [0.65], steps=[2]),
        ),
        block("auc/decayed", [0.61], steps=[1]),
    )
    info = compute_auc_history_info(run)
    assert [line.name for line in info.series] == [
        "decayed · worker-0",
        "decayed · worker-1",
        "cumulative",
        "held-out (eval)",
    ]
    assert info.kinds == (0, 0, 2, 3)
    assert info.processes == (0, 1, 0, 0)
    np.testing.assert_array_equal(info.series[0].y, [np.nan, 0.6, 0.7])
    assert info.series[0].last == 0.7
    figure = plot_auc_history(info)
    assert "undefined in 1 rows" in figure.layout.title.subtitle.text
    assert figure.data[0].line.dash != figure.data[1].line.dash
    assert figure.data[0].line.color == figure.data[1].line.color
    assert "dimensionless" in figure.layout.yaxis.title.text


def test_step_times_are_in_milliseconds_with_their_median_and_tail(record):
    times = [3.0, *[0.01] * 18, np.nan]
    run = record(
        both(
            block("throughput/step_time", times), block("throughput/samples_per_second", [1, 500])
        ),
        block("throughput/step_time", [0.02]),
    )
    info = compute_throughput_info(run)
    assert [line.name for line in info.series] == ["worker-0", "worker-1"]
    assert info.median_ms == pytest.approx((10.0, 20.0))
    assert info.p95_ms[0] == pytest.approx(np.percentile(times[:-1], 95) * 1e3)
    assert info.samples_per_second[0] == 500
    assert np.isnan(info.samples_per_second[1])
    figure = plot_throughput(info)
    assert "Together 500 samples/s" in figure.layout.title.subtitle.text
    assert figure.layout.yaxis.type == "log"
    assert "ms" in figure.layout.yaxis.title.text


def test_step_times_without_a_finite_value_have_no_median(record):
    info = compute_throughput_info(record(block("throughput/step_time", [np.nan])))
    assert np.isnan(info.median_ms[0])
    plot_throughput(info)


def test_percentiles_and_moments_are_lines_by_their_labels(record):
    percentiles = (Axis("percentile", ("p1", "p50", "p99")),)
    moments = (Axis("moment", ("mean", "std", "min", "max", "share_of_zeros")),)
    run = record(
        both(
            block("weights/w/percentiles", [[-1, 0, 1], [-2, 0, 2]], axes=percentiles),
            block("weights/w/moments", [[0, 1, -3, 3, 0.25], [0, 1, -4, 4, 0.5]], axes=moments),
        )
    )
    info = compute_weight_distribution_info(run, "w")
    assert [line.name for line in info.percentiles] == ["p1", "p50", "p99"]
    np.testing.assert_array_equal(info.percentiles[2].y, [1, 2])
    assert info.last_share_of_zeros == 0.5
    figure = plot_weight_distribution(info)
    assert [trace.name for trace in figure.data] == ["p1 to p99", "median", "mean", "min", "max"]
    assert "50 %" in figure.layout.title.subtitle.text


def test_moments_alone_show_a_band_of_one_standard_deviation(record):
    axes = (Axis("moment", ("mean", "std")),)
    run = record(block("weights/w/moments", [[1, 0.5], [2, np.nan]], axes=axes))
    figure = plot_weight_distribution(compute_weight_distribution_info(run, "w"))
    assert figure.data[0].name == "mean ± std"
    np.testing.assert_allclose(figure.data[0].y, [0.5, 1.5])


def test_moments_that_are_not_finite_are_counted(open_example):
    figure = plot_weight_distribution(
        compute_weight_distribution_info(open_example("diverged"), "fc1/kernel")
    )
    assert "not finite in 8 of 8 snapshots" in figure.layout.title.subtitle.text


def test_norms_and_update_ratios_share_the_colour_of_their_variable(open_example):
    info = compute_gradient_norms_info(open_example("async"))
    assert info.variables == ("fc1/kernel", "fc2/kernel")
    assert info.norm_variables == info.ratio_variables == (0, 1)
    np.testing.assert_allclose(info.norms[0].y[:2], [2.5, 0.5 + 2 / 51])
    figure = plot_gradient_norms(info)
    assert figure.data[0].line.color == figure.data[2].line.color
    assert [bool(trace.showlegend) for trace in figure.data] == [True, True, False, False]
    assert (figure.layout.yaxis.type, figure.layout.yaxis2.type) == ("log", "log")
    assert figure.layout.xaxis2.title.text == "Step (updates)"


def test_the_smallest_of_too_many_variables_are_left_out_and_counted(record):
    names = [f"v{i:02}" for i in range(MOST_VARIABLES + 3)]
    variables = {name: {"shape": [i + 1, 2]} for i, name in enumerate(names)}
    run = record(
        both(*(block(f"gradients/{name}/norm", [1.0]) for name in names)), variables=variables
    )
    info = compute_gradient_norms_info(run)
    assert info.left_out == 3
    assert info.variables[0] == names[-1]
    assert "v02" not in info.variables
    assert "3 smaller variables" in plot_gradient_norms(info).layout.title.subtitle.text


@pytest.mark.parametrize(
    ("compute", "plot", "reason"),
    [
        (compute_auc_history_info, plot_auc_history, "records no AUC"),
        (compute_throughput_info, plot_throughput, "records no step times"),
        (compute_gradient_norms_info, plot_gradient_norms, "records no gradients"),
        (
            lambda run: compute_weight_distribution_info(run, "w"),
            plot_weight_distribution,
            "Neither percentiles nor moments",
        ),
    ],
)
def test_runs_without_the_streams_say_what_to_record(record, compute, plot, reason):
    info = compute(record())
    assert reason in info.reason
    figure = plot(info)
    assert is_empty_figure(figure)
    assert reason.split()[0] in figure.layout.annotations[0].text
