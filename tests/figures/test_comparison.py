import numpy as np
import pytest

from deepinsight.figures import (
    compute_comparison_info,
    is_empty_figure,
    plot_comparison,
    scalar_streams,
)


def losses(writer, values=(3.0, 2.0, 1.0), start_s=1000.0, samples=True):
    steps = np.arange(len(values)) * 10
    times = start_s + np.arange(len(values))
    writer.record_block("loss", values, steps=steps, wall_times_s=times, unit="nat")
    if samples:
        counts = 100.0 * np.arange(1, len(values) + 1)
        writer.record_block("throughput/samples", counts, steps=steps, wall_times_s=times)


def test_steps_and_seconds_since_the_start(record):
    runs = {"a": record(losses, name="a"), "b": record(losses, name="b")}
    by_step = compute_comparison_info(runs, "loss", against="step")
    assert by_step.runs == ("a", "b")
    assert by_step.unit == "nat"
    np.testing.assert_array_equal(by_step.series[0].x, [0, 10, 20])
    assert (by_step.smallest, by_step.largest) == ((1.0, 1.0), (3.0, 3.0))
    by_seconds = compute_comparison_info(runs, "loss", against="seconds")
    # The rows are older than the run's folder, as in an imported run: the first row is the start.
    np.testing.assert_allclose(by_seconds.series[0].x, [0, 1, 2])
    figure = plot_comparison(by_seconds)
    assert figure.layout.xaxis.title.text == "Time since the run's start (s)"
    assert figure.layout.yaxis.title.text == "loss (nat)"


def test_samples_are_those_of_all_processes_at_that_moment(record):
    run = record(losses, losses)
    info = compute_comparison_info({"a": run}, "loss", against="samples")
    assert [line.name for line in info.series] == ["a · worker-0", "a · worker-1"]
    # Counts are linear in time: at t = 0 (the start) nothing; then 200 and 300 from each worker.
    np.testing.assert_allclose(info.series[0].x[1:], [400, 600])


def test_a_count_of_samples_that_begins_again_goes_on_from_where_it_was(record):
    def write(writer):
        times = np.arange(4.0) + 1000
        steps = np.arange(4)
        writer.record_block("loss", np.ones(4), steps=steps, wall_times_s=times)
        counts = [100.0, 200.0, 50.0, 150.0]
        writer.record_block("throughput/samples", counts, steps=steps, wall_times_s=times)

    info = compute_comparison_info({"a": record(write)}, "loss", against="samples")
    np.testing.assert_allclose(info.series[0].x[1:], [200, 250, 350])


def test_samples_follow_what_was_counted_however_the_workers_synchronize(record):
    """The same 600 samples: 6 shared steps, 3 synchronous rounds, 3 own steps of each worker."""

    def worker(steps):
        def write(writer):
            times = 1000.0 + np.arange(1, 4)
            writer.record_block("loss", np.ones(3), steps=steps, wall_times_s=times)
            counts = [100.0, 200.0, 300.0]
            writer.record_block("throughput/samples", counts, steps=steps, wall_times_s=times)

        return write

    runs = {
        "async": record(worker([1, 3, 5]), worker([2, 4, 6]), name="async"),
        "sync": record(worker([1, 2, 3]), worker([1, 2, 3]), name="sync"),
        "model-average": record(
            worker([1, 2, 3]),
            worker([1, 2, 3]),
            name="local",
            config={"synchronization": "model-average", "samples_per_step": 7},
        ),
    }
    info = compute_comparison_info(runs, "loss", against="samples")
    assert info.runs == ("async", "async", "sync", "sync", "model-average", "model-average")
    for line in info.series:
        np.testing.assert_allclose(line.x, [200, 400, 600])


def test_a_run_without_counts_is_placed_by_its_samples_per_step(record):
    run = record(lambda w: losses(w, samples=False), config={"samples_per_step": 300})
    info = compute_comparison_info({"a": run}, "loss", against="samples")
    np.testing.assert_allclose(info.series[0].x, [0, 3000, 6000])


@pytest.mark.parametrize("each", [None, "many", 0, -1, True, [1]])
def test_samples_per_step_that_say_nothing_are_not_used(record, each):
    run = record(lambda w: losses(w, samples=False), config={"samples_per_step": each})
    info = compute_comparison_info({"a": run}, "loss", against="samples")
    assert info.left_out == (("a", "does not record throughput/samples"),)


def test_runs_that_cannot_be_placed_are_named_with_the_reason(record):
    runs = {
        "full": record(losses, name="a"),
        "no samples": record(lambda w: losses(w, samples=False), name="b"),
        "no loss": record(name="c"),
    }
    info = compute_comparison_info(runs, "loss", against="samples")
    assert info.runs == ("full",)
    assert dict(info.left_out) == {
        "no samples": "does not record throughput/samples",
        "no loss": "does not record loss",
    }
    assert "Not shown: no samples" in plot_comparison(info).layout.title.subtitle.text


@pytest.mark.parametrize(("stream", "reason"), [("loss", "Choose one run"), ("", "Choose one run")])
def test_no_run_at_all_says_what_to_do(stream, reason):
    info = compute_comparison_info({}, stream)
    assert reason in info.reason
    assert is_empty_figure(plot_comparison(info))


def test_runs_without_any_scalar_stream_say_so(record):
    info = compute_comparison_info({"a": record()}, "")
    assert "no scalar stream" in info.reason


def test_only_nan_gives_no_extremes_but_still_a_figure(record):
    info = compute_comparison_info({"a": record(lambda w: losses(w, [np.nan]))}, "loss")
    assert np.isnan(info.smallest[0])
    plot_comparison(info)


def test_scalar_streams_are_offered_evaluation_first(open_example):
    names = scalar_streams({"a": open_example("async"), "b": open_example("keras")})
    assert names[:2] == ("eval/auc", "eval/loss")
    assert "train/accuracy" in names
    assert "staleness/variables" not in names
    assert "weights/fc1/kernel/tiles" not in names


def test_an_unstated_unit_and_a_pure_number_are_said(record):
    def write(writer):
        writer.record("bare", 1.0, step=0)
        writer.record("share", 1.0, step=0, unit="1")

    run = record(write)
    titles = [
        plot_comparison(compute_comparison_info({"a": run}, name)).layout.yaxis.title.text
        for name in ("bare", "share")
    ]
    assert titles == ["bare (no unit recorded)", "share (dimensionless)"]


def test_names_cannot_become_markup(record):
    info = compute_comparison_info({"<a href='x'>y</a>": record(losses)}, "loss")
    assert plot_comparison(info).data[0].name == "&lt;a href='x'&gt;y&lt;/a&gt;"
