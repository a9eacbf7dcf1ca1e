import numpy as np
import pytest

from deepinsight.figures import (
    compute_optimizer_info,
    is_empty_figure,
    optimizer_streams,
    plot_optimizer,
)
from deepinsight.figures import optimizer as module
from deepinsight.traces import Axis

VARIABLES = ("w1", "w2", "w3", "w4", "w5", "w6")


def scalar(name="sync/wait_time", values=(1.0, 2.0, 3.0), unit="s", description="A wait."):
    def write(writer):
        writer.record_block(
            name, values, steps=np.arange(len(values)) * 10, unit=unit, description=description
        )

    return write


def vector(values, name="optimizer/trust_ratio", labels=VARIABLES):
    def write(writer):
        values_ = np.asarray(values, np.float64)
        axes = (Axis("variable", tuple(labels)),)
        writer.record_block(name, values_, steps=np.arange(len(values_)), unit="1", axes=axes)

    return write


def every(*writes):
    def write(writer):
        for one in writes:
            one(writer)

    return write


def panel_of(info, stream):
    return next(panel for panel in info.panels if panel.stream == stream)


def texts(figure):
    return [annotation.text for annotation in figure.layout.annotations]


def test_a_panel_per_stream_synchronization_first(record):
    names = ("optimizer/b", "sync/zeta", "sync/wait_time", "sync/live_workers", "optimizer/a")
    run = record(every(*(scalar(name) for name in names)))
    info = compute_optimizer_info({"r": run})
    shown = [panel.stream for panel in info.panels]
    # What every way to synchronize has comes before the rest.
    assert shown == [
        "sync/live_workers",
        "sync/wait_time",
        "sync/zeta",
        "optimizer/a",
        "optimizer/b",
    ]
    assert [panel.title for panel in info.panels][:2] == ["Live workers", "Wait time"]
    heads = [text for text in texts(plot_optimizer(info)) if text.startswith("<b>")]
    assert heads == ["<b>Synchronization</b>", "<b>Update rule</b>"]


def test_other_streams_are_not_the_optimizers(record):
    def write(writer):
        writer.record("train/loss", 1.0, step=0)
        writer.record("mine/sync", 1.0, step=0)
        writer.record("sync/matrix", np.ones((2, 2)), step=0)

    assert optimizer_streams({"r": record(write)}) == ()


def test_a_scalar_has_a_line_per_process_with_all_its_rows(record):
    run = record(scalar(values=(1.0, 2.0, 3.0)), scalar(values=(4.0, 5.0)))
    panel = compute_optimizer_info({"r": run}).panels[0]
    assert [(line.process, line.entry) for line in panel.lines] == [
        ("worker-0", ""),
        ("worker-1", ""),
    ]
    np.testing.assert_array_equal(panel.lines[0].series.x, [0, 10, 20])
    np.testing.assert_array_equal(panel.lines[1].series.y, [4, 5])
    assert (panel.unit, panel.description) == ("s", "A wait.")
    assert (panel.smallest, panel.largest) == (1.0, 5.0)


def test_a_vector_shows_the_entries_that_move_most_and_says_how_many_do_not(record):
    # Extents: w1 0, w2 1, w3 2, ... w6 5, of which w2 is the largest value by far.
    values = [[7.0, 99.0, 0.0, 0.0, 0.0, 0.0], [7.0, 100.0, 2.0, 3.0, 4.0, 5.0]]
    info = compute_optimizer_info({"r": record(vector(values))})
    panel = info.panels[0]
    assert panel.entries == ("w6", "w5", "w4", "w3")
    assert panel.more_entries == 2
    np.testing.assert_array_equal(panel.lines[0].series.y, [0, 5])
    text = next(text for text in texts(plot_optimizer(info)) if "Trust ratio" in text)
    assert "4 of 6 shown, those that move most" in text
    assert all(name in text for name in panel.entries)


def test_entries_that_stand_still_are_not_said_to_move(record):
    figure = plot_optimizer(compute_optimizer_info({"r": record(vector([range(6)] * 3))}))
    text = next(text for text in texts(figure) if "Trust ratio" in text)
    assert "4 of 6 shown, all constant" in text


def test_extents_are_taken_over_all_processes_and_runs(record):
    still, moving = np.zeros((3, 2)), np.array([[0, 0], [0, 5], [0, 0]])
    runs = {
        "a": record(vector(still, labels="uv"), name="a"),
        "b": record(vector(still, labels="uv"), vector(moving, labels="uv"), name="b"),
    }
    panel = compute_optimizer_info(runs).panels[0]
    # Several runs share one entry, so that a colour can stand for a run.
    assert panel.entries == ("v",)
    assert [(line.run, line.process) for line in panel.lines] == [
        ("a", "worker-0"),
        ("b", "worker-0"),
        ("b", "worker-1"),
    ]


def test_what_is_not_finite_leaves_a_gap_is_counted_and_chooses_nothing(record):
    values = [[np.nan, 1.0, 0.0], [np.nan, 2.0, np.inf], [np.nan, 1.0, -np.inf]]
    info = compute_optimizer_info({"r": record(vector(values, labels="abc"))})
    panel = info.panels[0]
    assert panel.entries == ("b", "c", "a")
    assert panel.non_finite == 5
    assert (panel.smallest, panel.largest) == (0.0, 2.0)
    figure = plot_optimizer(info)
    assert any("Not drawn: 5 values that are not finite" in text for text in texts(figure))
    assert not is_empty_figure(figure)


def test_nothing_but_nan_is_still_a_panel(record):
    info = compute_optimizer_info({"r": record(scalar(values=[np.nan, np.nan]))})
    assert np.isnan(info.panels[0].largest)
    assert not info.panels[0].whole
    assert plot_optimizer(info).layout.yaxis.type == "linear"


def test_long_lines_are_thinned_and_keep_their_extremes(record):
    values = np.sin(np.arange(50_000) / 100)
    values[12_345] = 50.0
    line = compute_optimizer_info({"r": record(scalar(values=values))}).panels[0].lines[0]
    assert line.series.x.size <= 2001
    assert line.series.rows == 50_000
    assert line.series.y.max() == 50.0


def test_several_runs_have_a_colour_each_on_the_same_panel(record):
    runs = {
        "sync": record(scalar(), scalar(), name="sync"),
        "local": record(every(scalar(), scalar("sync/rounds")), name="local"),
    }
    info = compute_optimizer_info(runs)
    assert info.runs == ("sync", "local")
    assert info.processes == (("worker-0", "worker-1"), ("worker-0",))
    assert {line.run for line in panel_of(info, "sync/wait_time").lines} == {"sync", "local"}
    assert {line.run for line in panel_of(info, "sync/rounds").lines} == {"local"}
    figure = plot_optimizer(info)
    colours = {trace.name: trace.line.color for trace in figure.data}
    assert colours["sync · worker-0"] == colours["sync · worker-1"] != colours["local"]
    legend = [trace.name for trace in figure.data if trace.showlegend]
    assert legend == ["sync · worker-0", "sync · worker-1", "local"]


def test_dashes_tell_processes_apart_where_colours_are_entries(record):
    values = np.arange(12.0).reshape(2, 6)
    figure = plot_optimizer(compute_optimizer_info({"r": record(vector(values), vector(values))}))
    drawn = [trace for trace in figure.data if trace.x[0] is not None]
    assert len({trace.line.color for trace in drawn}) == 4
    assert {trace.line.dash for trace in drawn} == {"solid", "dash"}
    legend = [trace for trace in figure.data if trace.x[0] is None]
    assert [(trace.name, trace.line.dash) for trace in legend] == [
        ("worker-0", "solid"),
        ("worker-1", "dash"),
    ]
    assert figure.layout.showlegend


def test_one_process_needs_no_legend(record):
    assert not plot_optimizer(compute_optimizer_info({"r": record(scalar())})).layout.showlegend


@pytest.mark.parametrize(
    ("values", "kind", "mode", "shape"),
    [
        ((0.0, 1.0, 5.0), "linear", "tozero", "hv"),
        ((0.0, 100.0, 500.0), "linear", "tozero", "linear"),
        ((0.5, 1.0, 5.0), "linear", "normal", "linear"),
        ((1e-6, 1.5), "log", "normal", "linear"),
        ((-1.0, 4000.0), "linear", "normal", "linear"),
    ],
    ids=["few", "many", "number", "decades", "negative"],
)
def test_the_axis_suits_the_values(record, values, kind, mode, shape):
    figure = plot_optimizer(compute_optimizer_info({"r": record(scalar(values=values))}))
    axis = figure.layout.yaxis
    assert (axis.type, axis.rangemode, figure.data[0].line.shape) == (kind, mode, shape)
    assert axis.title.text == ("s (log scale)" if kind == "log" else "s")


def test_a_title_tells_the_stream_and_the_whole_description_when_pointed_at(record):
    long = "word " * 60 + "end"
    figure = plot_optimizer(
        compute_optimizer_info({"r": record(scalar("optimizer/LARS_1/trust", description=long))})
    )
    note = next(a for a in figure.layout.annotations if a.hovertext)
    assert note.hovertext == f"optimizer/LARS_1/trust: {long}"
    lines = note.text.split("<br>")
    assert "Trust · LARS_1" in lines[0]
    assert len(lines) == 3
    assert lines[-1].endswith("…")


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_panels_do_not_overlap(record, count):
    names = [f"{group}/q{i}" for group in ("sync", "optimizer") for i in range(count)]
    figure = plot_optimizer(
        compute_optimizer_info({"r": record(every(*(scalar(name) for name in names)))})
    )
    layout = figure.layout
    boxes = [
        (layout[f"xaxis{i or ''}"].domain, layout[f"yaxis{i or ''}"].domain)
        for i in (0, *range(2, 2 * count + 1))
    ]
    assert len(boxes) == 2 * count
    for i, (x, y) in enumerate(boxes):
        assert 0 <= x[0] < x[1] <= 1
        assert 0 < y[0] < y[1] < 1
        for other_x, other_y in boxes[:i]:
            apart_x = x[0] >= other_x[1] or other_x[0] >= x[1]
            apart_y = y[0] >= other_y[1] or other_y[0] >= y[1]
            assert apart_x or apart_y
    pixels = (boxes[0][1][1] - boxes[0][1][0]) * (layout.height - layout.margin.t - layout.margin.b)
    assert pixels == pytest.approx(150)


def test_samples_and_seconds(record):
    def write(writer):
        times = 1000.0 + np.arange(3)
        for name, values in (("sync/rounds", [1, 2, 3]), ("throughput/samples", [64, 128, 192])):
            writer.record_block(name, values, steps=[5, 6, 7], wall_times_s=times)

    runs = {"counted": record(write, name="counted"), "bare": record(scalar(), name="bare")}
    by_samples = compute_optimizer_info(runs, against="samples")
    assert by_samples.runs == ("counted",)
    np.testing.assert_allclose(by_samples.panels[0].lines[0].series.x[1:], [128, 192])
    assert by_samples.left_out == (("bare", "does not record throughput/samples"),)
    figure = plot_optimizer(by_samples)
    assert "Not shown: bare" in figure.layout.title.subtitle.text
    assert figure.layout.xaxis.title.text == "Samples consumed by all workers (samples)"
    by_seconds = compute_optimizer_info(runs, against="seconds")
    np.testing.assert_allclose(panel_of(by_seconds, "sync/rounds").lines[0].series.x, [0, 1, 2])


def test_more_than_can_be_looked_at_is_left_out_and_said(record, monkeypatch):
    monkeypatch.setattr(module, "MOST_PANELS", 2)
    monkeypatch.setattr(module, "MOST_PROCESSES", 1)
    write = every(scalar("sync/a"), scalar("sync/b"), scalar("sync/c"))
    info = compute_optimizer_info({"r": record(write, write, write)})
    assert [panel.stream for panel in info.panels] == ["sync/a", "sync/b"]
    assert info.more_streams == 1
    assert info.panels[0].more_processes == 2
    figure = plot_optimizer(info)
    assert "Not shown: 1 more stream" in figure.layout.title.subtitle.text
    assert any("Not drawn: 2 more processes" in text for text in texts(figure))


def test_a_run_without_any_says_how_to_get_some(record):
    def declare(writer):
        writer.declare("sync/rounds", unit="rounds")
        writer.record("train/loss", 1.0, step=0)

    info = compute_optimizer_info({"r": record(declare)})
    assert info.panels == ()
    for word in ("recorded nothing", "trace_tensor", "--synchronization", "--optimizer"):
        assert word in info.reason
    assert is_empty_figure(plot_optimizer(info))
    assert "Choose one run" in compute_optimizer_info({}).reason


def test_a_run_that_records_none_stands_beside_one_that_does(record):
    runs = {"a": record(scalar(), name="a"), "b": record(name="b")}
    info = compute_optimizer_info(runs)
    assert info.runs == ("a",)
    assert info.left_out == (("b", "has recorded nothing about its optimizer"),)


def test_names_cannot_become_markup(record):
    evil = "<i>v</i>%{y}"
    run = record(
        every(
            scalar("sync/wait", unit="<u>s</u>", description="<script>"),
            vector([[1.0], [2.0]], labels=[evil]),
        )
    )
    figure = plot_optimizer(compute_optimizer_info({"<b>r": run, "other": run}))
    shown = [*texts(figure), *(trace.name for trace in figure.data)]
    shown += [trace.hovertemplate for trace in figure.data]
    shown += [figure.layout.yaxis.title.text]
    assert all(trace.hovertemplate.count("%{") == 2 for trace in figure.data)
    for text in shown:
        for markup in ("<i>", "<u>", "<script>", "<b>r"):
            assert markup not in text


def test_the_users_zoom_ends_where_the_panels_change(record):
    revisions = {
        plot_optimizer(compute_optimizer_info({"r": record(write, name=str(i))})).layout.uirevision
        for i, write in enumerate(
            [
                scalar(),
                scalar(values=(2.0, 3.0)),
                scalar(values=(1e-5, 3.0)),
                every(scalar(), scalar("sync/rounds")),
            ]
        )
    }
    assert len(revisions) == 3


def test_nan_before_the_first_value_is_no_value_yet(record):
    panel = compute_optimizer_info({"r": record(scalar(values=(np.nan, np.nan, 2.0, np.nan)))})
    line = panel.panels[0].lines[0].series
    np.testing.assert_array_equal(line.x, [20, 30])
    assert panel.panels[0].non_finite == 1
    never = compute_optimizer_info({"r": record(scalar(values=(np.nan, np.nan)), name="b")})
    assert never.panels[0].non_finite == 2


def test_an_axis_of_what_stands_still_begins_at_zero(record):
    still = plot_optimizer(compute_optimizer_info({"r": record(scalar(values=(0.03, 0.03)))}))
    assert still.layout.yaxis.rangemode == "tozero"
    moves = record(scalar(values=(0.03, 0.04)), name="b")
    figure = plot_optimizer(compute_optimizer_info({"r": moves}))
    assert figure.layout.yaxis.rangemode == "normal"
