import json
import os
import shutil
import time

import h5py
import numpy as np
import pandas as pd
import pytest

from deepinsight.traces import (
    Axis,
    RunNotFoundError,
    StreamNotFoundError,
    TraceError,
    TraceNotFoundError,
    TraceWriter,
    open_run,
    open_runs,
)
from deepinsight.traces._segment_reader import SegmentReader


@pytest.fixture
def run_dir(tmp_path):
    """Two processes: scalars of 50 steps in two segments, vectors with labels, matrices."""
    labels = Axis("group", ("user", "ad", "step"))
    for process in ("worker-0", "worker-1"):
        settings = {"config": {"seed": 1}, "flush_interval_s": 60}
        with TraceWriter(tmp_path / "run", process, **settings) as writer:
            for step in range(0, 100, 2):
                writer.record("loss", step + 0.25, step=step, unit="nat", wall_time_s=1000.0 + step)
                if step == 50:
                    writer.flush()
                    writer.record("only-" + process, 1, step=step)
                writer.record("vector", np.full(3, step, "f4"), step=step, axes=[labels])
                writer.record("tiles", np.full((2, 2), step), step=step)
    return tmp_path / "run"


@pytest.fixture
def run(run_dir):
    with open_run(run_dir) as run:
        yield run


def test_a_run_says_what_it_is(run, run_dir):
    assert (run.path, run.name, run.status, run.warnings) == (run_dir, "run", "finished", ())
    assert run.config == {"seed": 1}
    assert len(run.run_id) == 32
    assert abs(run.created_time_s - time.time()) < 300
    assert repr(run) == "<Run 'run': finished, 2 processes>"
    first, second = run.processes
    assert (first.name, first.status, first.segments, first.pid) == (
        "worker-0",
        "finished",
        2,
        os.getpid(),
    )
    assert second.started_time_s <= second.ended_time_s


def test_streams_tell_rows_and_bounds(run):
    table = run.streams().set_index(["name", "process"])
    assert table.loc[("loss", "worker-1")].tolist() == [(), "float64", "nat", 50, 0, 98]
    assert table.loc[("tiles", "worker-0"), "shape"] == (2, 2)
    assert ("only-worker-0", "worker-1") not in table.index
    assert run.stream_names() == sorted(set(table.index.get_level_values(0)))


def test_a_stream_without_rows_has_no_bounds(tmp_path):
    with TraceWriter(tmp_path) as writer:
        writer.declare("silent", unit="s")
        writer.record("x", 1, step=1)
    with open_run(tmp_path) as run:
        row = run.streams().set_index("name").loc["silent"]
        assert (row["rows"], row["first_step"], row["last_step"]) == (0, pd.NA, pd.NA)
        assert (len(run.frame("silent")), len(run.array("silent", last=1).values)) == (0, 0)
        assert run.array("silent").values.shape == (0,)


@pytest.mark.parametrize("process", [None, "worker-0", "worker-1"])
def test_all_ways_of_reading_agree(run, process):
    frame = run.frame("loss", process)
    steps, times, values = run.array("loss", process)
    assert frame["step"].tolist() == steps.tolist() == run.steps("loss", process).tolist()
    assert frame["wall_time_s"].tolist() == times.tolist()
    assert frame["value"].tolist() == values.tolist() == (steps + 0.25).tolist()
    assert set(frame["process"]) == ({process} if process else {"worker-0", "worker-1"})
    for count in (0, 1, 27, 1000):
        for name in ("loss", "tiles"):
            whole = run.array(name, process)
            for part, cut in (
                ("first", slice(None, count)),
                ("last", slice(-count or len(steps), None)),
            ):
                some = run.array(name, process, **{part: count})
                assert all(np.array_equal(a, b[cut]) for a, b in zip(some, whole, strict=True))


@pytest.mark.parametrize(("step", "found"), [(-1, None), (0, 0), (1, 0), (51, 50), (1e9, 98)])
def test_row_is_the_newest_at_or_before_a_step(run, step, found):
    steps, _, values = run.row("tiles", step, "worker-0")
    assert steps.tolist() == ([] if found is None else [found])
    assert values.tolist() == ([] if found is None else [[[found] * 2] * 2])


def test_labels_become_columns_and_never_hide_others(run):
    frame = run.frame("vector", "worker-0")
    assert list(frame.columns) == ["step", "wall_time_s", "process", "user", "ad", "step (2)"]
    assert frame["ad"].tolist() == frame["step"].tolist()
    assert run.stream("vector").axes[0].labels == ("user", "ad", "step")


def test_unlabelled_and_repeated_columns(tmp_path):
    with TraceWriter(tmp_path) as writer:
        writer.record("plain", np.zeros(2), step=0)
        writer.record("twice", np.arange(2.0), step=0, axes=[Axis("a", ("x", "x"))])
    run = open_run(tmp_path)
    assert list(run.frame("plain").columns)[3:] == ["value_0", "value_1"]
    assert run.frame("twice").iloc[0, 3:].tolist() == [0, 1]


def test_more_than_127_processes_keep_their_names(tmp_path):
    with TraceWriter(tmp_path, "worker-000") as writer:
        writer.record("x", 1, step=1)
    for i in range(1, 140):
        shutil.copytree(tmp_path / "worker-000", tmp_path / f"worker-{i:03}")
    frame = open_run(tmp_path).frame("x")
    assert frame["process"].tolist() == [f"worker-{i:03}" for i in range(140)]


def test_a_table_takes_no_matrices(run):
    with pytest.raises(ValueError, match=r"values of shape \(2, 2\).*Use run.array\('tiles'\)"):
        run.frame("tiles")


def test_first_and_last_are_counts(run):
    with pytest.raises(ValueError, match="`first` or `last`, not both"):
        run.array("loss", first=1, last=1)
    with pytest.raises(ValueError, match=r"must be >= 0. Received: None, -1"):
        run.array("loss", last=-1)


def test_unknown_streams_and_processes_come_with_hints(run):
    with pytest.raises(StreamNotFoundError, match=r"no stream 'los'\. Close to it: loss, tiles\."):
        run.frame("los")
    with pytest.raises(KeyError, match=r"It has 7 streams\. run\.streams\(\) lists them"):
        run.stream("zzzzzz")
    with pytest.raises(StreamNotFoundError, match=r"'only-worker-0' in process 'worker-1'"):
        run.steps("only-worker-0", "worker-1")
    with pytest.raises(
        StreamNotFoundError, match=r"no process 'ps-0'\. It has: worker-0, worker-1"
    ):
        run.array("loss", "ps-0")


def test_a_stream_that_changed_its_shape_shows_the_newest_and_a_warning(tmp_path):
    for size in (3, 4):
        with TraceWriter(tmp_path) as writer:
            writer.record("w", np.full(size, size), step=size)
    run = open_run(tmp_path)
    assert run.array("w").values.tolist() == [[4, 4, 4, 4]]
    assert any("'w' has another shape here" in warning for warning in run.warnings)


def test_dtypes_that_differ_between_lives_lose_nothing(tmp_path):
    for dtype in ("float64", "float32"):
        with TraceWriter(tmp_path) as writer:
            writer.record("w", np.full(1, 0.1, dtype), step=1)
    assert open_run(tmp_path).array("w").values[:, 0].tolist() == [0.1, float(np.float32(0.1))]


def test_superseded_rows_are_left_out_even_where_steps_go_back(tmp_path):
    for steps in ([1, 5, 2, 9, 3], [4, 5]):
        with TraceWriter(tmp_path) as writer:
            for step in steps:
                writer.record("x", step * 10, step=step)
    run = open_run(tmp_path)
    assert run.steps("x").tolist() == [1, 5, 2, 9, 3, 4, 5]
    steps, _, values = run.array("x", superseded=False)
    assert (steps.tolist(), values.tolist()) == ([1, 2, 3, 4, 5], [10, 20, 30, 40, 50])
    assert run.array("x", superseded=False, first=2).values.tolist() == [10, 20]


def test_status_follows_the_writers(tmp_path, run_python):
    TraceWriter(tmp_path, "a").close()
    assert open_run(tmp_path).status == "finished"
    run_python("from deepinsight.traces import *; import sys, os\n"
               "w = TraceWriter(sys.argv[1], 'b'); w.record('x', 1, step=0)\n"
               "w.flush(); os._exit(1)",
               tmp_path)  # fmt: skip
    run = open_run(tmp_path)
    assert (run.status, [p.status for p in run.processes]) == ("crashed", ["finished", "crashed"])
    with TraceWriter(tmp_path, "b"):
        assert run.status == "live"
    assert run.status == "finished"
    (tmp_path / "b" / "process.json").unlink()
    run.refresh()
    assert [p.status for p in run.processes] == ["finished", "crashed"]
    assert run.steps("x").tolist() == [0]
    assert np.isnan(run.processes[1].started_time_s)


def test_a_run_without_processes_is_empty(tmp_path):
    TraceWriter(tmp_path).close()
    shutil.rmtree(tmp_path / "main")
    run = open_run(tmp_path)
    assert (run.status, run.stream_names(), len(run.streams()), run.warnings) == (
        "empty",
        [],
        0,
        (),
    )


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def garbage(path):
    path.write_bytes(np.random.default_rng(0).bytes(5000))


def emptied(path):
    path.write_bytes(b"")


def foreign(path):
    path.unlink()
    with h5py.File(path, "w") as file:
        file["mine"] = [1, 2]
        file.attrs["format"] = np.arange(3)


def newer(path):
    with h5py.File(path, "a") as file:
        file.attrs["format_version"] = 2


def no_life(path):
    with h5py.File(path, "a") as file:
        del file.attrs["life"]


def torn_metadata(path):
    with open(path, "r+b") as file:
        file.seek(500)
        file.write(np.random.default_rng(0).bytes(4096))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (cut, r"the file is cut \(\d+ of \d+ bytes\)"),
        (garbage, "not readable as HDF5"),
        (emptied, "not readable as HDF5"),
        (foreign, "a foreign HDF5 file, not a DeepInsight segment"),
        (newer, "trace format version 2; this DeepInsight reads up to version 1"),
        (no_life, "its attributes cannot be read"),
        (torn_metadata, "cannot be read|not readable"),
    ],
)
@pytest.mark.timeout(60)
def test_one_bad_segment_is_a_warning_and_the_rest_is_read(run_dir, spoil, message):
    spoil(run_dir / "worker-0" / "000001.h5")
    with open_run(run_dir) as run:
        assert run.steps("loss", "worker-0").tolist() == list(range(52, 100, 2))
        assert len(run.streams()) == 12
        assert len(run.frame("loss")) == 74
        assert run.array("tiles").values.shape == (75, 2, 2)
        assert any(pd.Series(run.warnings).str.contains(message))
        assert all("worker-0/000001.h5" in warning for warning in run.warnings)


def test_strangers_in_the_folders_are_warned_of(run_dir):
    for path in ("mine.h5", "worker-0/export.hdf5", "worker-1/000007.h5"):
        (run_dir / path).write_text("no HDF5")
    with open_run(run_dir) as run:
        assert len(run.frame("loss")) == 100
        assert len(run.warnings) == 3
        assert sum("not a segment of this run" in warning for warning in run.warnings) == 2
        assert "3 warnings" in repr(run)


def test_paths_without_a_run_say_what_is_below(run_dir, tmp_path):
    with pytest.raises(TraceNotFoundError, match=r"no run\.json.*Runs below it: run\."):
        open_run(tmp_path)
    with pytest.raises(FileNotFoundError, match="A recorder makes a run"):
        open_run(tmp_path / "missing")
    with pytest.raises(TraceNotFoundError, match="There is no folder"):
        open_runs(tmp_path / "missing")
    (run_dir / "run.json").write_text("{")
    with pytest.raises(TraceError, match=r"run\.json: not valid JSON"):
        open_run(run_dir)
    (run_dir / "run.json").write_text("[]")
    with pytest.raises(TraceError, match=r"must hold a JSON object. Received: list"):
        open_run(run_dir)


def test_a_run_that_is_removed_says_so_when_refreshed(run_dir):
    run = open_run(run_dir)
    shutil.rmtree(run_dir)
    with pytest.raises(TraceNotFoundError, match="is not there"):
        run.refresh()


def test_a_run_json_of_bare_bones_opens(run_dir):
    (run_dir / "run.json").write_text(
        json.dumps({"format": "deepinsight-run", "format_version": 1})
    )
    with open_run(run_dir) as run:
        assert (run.config, run.feature_groups, run.variables, run.run_id) == ({}, {}, {}, "")
        assert np.isnan(run.created_time_s)


def test_open_runs_finds_nested_and_linked_runs_lazily(tmp_path):
    for name in ("a", "a/deep/b", "größe", ".hidden"):
        TraceWriter(tmp_path / name).close()
    (tmp_path / "a" / "circle").symlink_to(tmp_path)
    (tmp_path / "latest").symlink_to(tmp_path / "größe")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    runs = open_runs(tmp_path)
    assert list(runs) == ["a", "a/deep/b", "broken", "größe", "latest"]
    assert len(runs) == 5
    assert runs["latest"].run_id == runs["größe"].run_id
    assert "a" in runs
    assert runs.get("missing") is None
    with pytest.raises(RunNotFoundError, match=r"no run 'missing'.*There are: a, a/deep/b"):
        runs["missing"]
    with pytest.raises(KeyError, match=r"no run '../x'"):
        runs["../x"]
    with pytest.raises(TraceError, match="not valid JSON"):
        runs["broken"]
    assert list(open_runs(tmp_path / "a" / "deep" / "b")) == ["."]


def test_a_relative_path_survives_a_change_of_directory(run_dir, monkeypatch):
    monkeypatch.chdir(run_dir.parent)
    run, runs = open_run("run"), open_runs(".")
    monkeypatch.chdir("/")
    assert len(run.frame("loss")) == len(runs["run"].frame("loss")) == 100


def test_the_writer_s_own_process_reads_the_live_run(tmp_path):
    with TraceWriter(tmp_path) as writer, open_run(tmp_path) as run:
        for step in range(5):
            writer.record("x", step, step=step)
            assert writer.flush()
            run.refresh()
            assert run.status == "live"
            assert run.frame("x")["value"].tolist() == list(range(step + 1))
        writer.record("late", 1, step=9)
        writer.flush()
        run.refresh()
        assert run.stream_names() == ["late", "recorder/dropped_rows", "recorder/write_errors", "x"]
    assert open_run(tmp_path).warnings == ()


def test_rows_without_a_step_do_not_count(tmp_path):
    """As a reader meets them between the two flushes of a writer."""
    with TraceWriter(tmp_path) as writer:
        writer.record_block("x", np.arange(10.0), steps=np.arange(10))
    path = tmp_path / "main" / "000001.h5"
    with h5py.File(path, "a") as file:
        file["x/step"].resize((12,))
        file["x/values"].resize((14,))
        file["x/wall_time_s"].resize((13,))
    assert len(open_run(tmp_path).frame("x")) == 10
    with h5py.File(path, "a") as file:
        file["x/wall_time_s"].resize((8,))
    assert len(open_run(tmp_path).frame("x")) == 8


def test_closed_segments_are_not_read_under_swmr(run_dir):
    reader = SegmentReader(run_dir / "worker-0" / "000001.h5")
    assert not reader._file.swmr_mode
    reader.close()


def test_hundreds_of_segments_read_fast(tmp_path):
    with TraceWriter(tmp_path, segment_bytes=1, flush_interval_s=60) as writer:
        for step in range(200):
            writer.record("x", step, step=step)
            writer.flush()
    began = time.perf_counter()
    with open_run(tmp_path) as run:
        assert run.frame("x")["value"].tolist() == list(range(200))
        assert run.processes[0].segments == 201
        run.streams()
    assert time.perf_counter() - began < 10
