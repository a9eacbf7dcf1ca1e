import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinsight.figures import (
    compute_staleness_distribution_info,
    compute_staleness_timeline_info,
    compute_staleness_variables_info,
    is_empty_figure,
    plot_staleness_distribution,
    plot_staleness_timeline,
    plot_staleness_variables,
)
from deepinsight.figures.staleness_distribution import MOST_BARS, bar_edges
from deepinsight.figures.staleness_timeline import MOST_STRETCHES
from deepinsight.traces import Axis


def pushes(values, steps=None):
    values = np.asarray(values, np.float64)
    steps = np.arange(values.size) if steps is None else steps
    return lambda writer: writer.record_block("staleness/global", values, steps=steps)


def test_each_worker_is_counted_on_common_bars(record):
    run = record(pushes([0, 0, 1, 3]), pushes([1, 1, np.nan]))
    info = compute_staleness_distribution_info(run)
    first, second = info.workers
    assert info.bar_width == 1
    np.testing.assert_array_equal(first.centres, [0, 1, 2, 3])
    np.testing.assert_allclose(first.shares, [0.5, 0.25, 0, 0.25])
    np.testing.assert_allclose(second.shares, [0, 1, 0, 0])
    assert (first.pushes, first.mean, first.largest) == (4, 1.0, 3.0)
    assert first.p95 == pytest.approx(np.percentile([0, 0, 1, 3], 95))
    assert (second.pushes, second.non_finite) == (2, 1)
    figure = plot_staleness_distribution(info)
    assert "6 pushes" in figure.layout.title.subtitle.text
    assert "1 not finite" in figure.layout.title.subtitle.text
    np.testing.assert_allclose(figure.data[0].y, [50, 25, 0, 25])
    assert figure.layout.xaxis.title.text == "Staleness (updates)"


def test_a_worker_without_a_finite_value_has_empty_bars(record):
    info = compute_staleness_distribution_info(record(pushes([1, 2]), pushes([np.inf])))
    silent = info.workers[1]
    assert (silent.pushes, silent.non_finite) == (0, 1)
    assert silent.shares.sum() == 0
    assert np.isnan(silent.mean)
    plot_staleness_distribution(info)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=50))
def test_bars_hold_every_value_and_are_not_too_many(values):
    edges = bar_edges(np.array(values, np.float64))
    counts, _ = np.histogram(values, bins=edges)
    assert counts.sum() == len(values)
    assert counts.size <= MOST_BARS
    assert np.allclose(np.diff(edges), edges[1] - edges[0])


def test_strict_alternation_shows_as_one_bar_at_one(record):
    info = compute_staleness_distribution_info(record(pushes([1] * 50), pushes([1] * 50)))
    assert [worker.mean for worker in info.workers] == [1.0, 1.0]
    np.testing.assert_array_equal(info.workers[0].centres, [1])


def test_the_timeline_averages_equal_stretches_of_steps(record):
    steps = np.arange(10 * MOST_STRETCHES)
    values = np.where(steps % 10 == 3, 5.0, 0.0)
    values[0] = np.nan
    info = compute_staleness_timeline_info(record(pushes(values, steps)))
    line = info.lines[0]
    assert info.stretch == 10
    assert line.steps.size == MOST_STRETCHES
    assert (line.steps[0], line.steps[1]) == (4.5, 14.5)
    np.testing.assert_allclose(line.mean[:2], [5 / 9, 0.5])
    assert set(line.smallest) == {0.0}
    assert set(line.largest) == {5.0}
    assert line.pushes == values.size - 1
    figure = plot_staleness_timeline(info)
    assert "every 10 steps" in figure.layout.title.subtitle.text


def test_the_timeline_shows_a_single_push(record):
    info = compute_staleness_timeline_info(record(pushes([2.0], np.array([7]))))
    np.testing.assert_array_equal(info.lines[0].steps, [7])
    assert plot_staleness_timeline(info).data[1].mode == "markers"


def test_steps_that_go_back_within_a_worker_are_put_in_order(record):
    info = compute_staleness_timeline_info(record(pushes([1, 2, 3], np.array([5, 3, 4]))))
    np.testing.assert_array_equal(info.lines[0].steps, [3, 4, 5])
    np.testing.assert_array_equal(info.lines[0].mean, [2, 3, 1])


def test_variables_are_averaged_per_worker(record):
    def write(values, labels):
        axes = (Axis("variable", labels),)
        return lambda w: w.record_block(
            "staleness/variables", np.array(values), steps=np.arange(len(values)), axes=axes
        )

    run = record(write([[1.0, 4.0], [3.0, np.nan]], ("a", "b")), write([[0.0, np.nan]], ("a", "b")))
    info = compute_staleness_variables_info(run)
    assert info.variables == ("a", "b")
    assert info.workers == ("worker-0", "worker-1")
    np.testing.assert_array_equal(info.means, [[2.0, 4.0], [0.0, np.nan]])
    assert list(plot_staleness_variables(info).layout.yaxis.ticktext) == ["a", "b"]


def test_bars_of_length_zero_are_said_in_words(record):
    axes = (Axis("variable", ("a", "b")),)

    def write(writer):
        zeros = np.zeros((5, 2))
        writer.record_block("staleness/variables", zeros, steps=np.arange(5), axes=axes)

    figure = plot_staleness_variables(compute_staleness_variables_info(record(write)))
    assert is_empty_figure(figure)
    shown = " ".join(note.text for note in figure.layout.annotations).replace("<br>", " ")
    assert "0 updates for each of 2 variables and 1 worker" in shown


@pytest.mark.parametrize(
    ("compute", "plot"),
    [
        (compute_staleness_distribution_info, plot_staleness_distribution),
        (compute_staleness_timeline_info, plot_staleness_timeline),
        (compute_staleness_variables_info, plot_staleness_variables),
    ],
)
def test_runs_without_staleness_say_why(open_example, record, compute, plot):
    for run in (open_example("keras"), record(pushes([np.nan])), record(name="empty")):
        info = compute(run)
        assert "records no staleness" in info.reason
        assert is_empty_figure(plot(info))


def test_a_synchronous_run_explains_that_nothing_is_stale(open_example):
    info = compute_staleness_distribution_info(open_example("sync"))
    assert "synchronous" in info.reason


@pytest.mark.parametrize("name", ["model-average", "block-momentum", "elastic-average"])
def test_a_run_of_local_steps_explains_that_nothing_is_stale(record, name):
    run = record(config={"synchronization": name})
    for compute in (compute_staleness_distribution_info, compute_staleness_variables_info):
        assert "a copy of its own, so none is stale" in compute(run).reason
