import os
import shutil
import tempfile
import threading
import time
import warnings
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from deepinsight.traces import (
    Axis,
    ProcessNameInUseError,
    TraceError,
    TraceWarning,
    TraceWriteError,
    TraceWriter,
    open_run,
    repair_run,
)
from deepinsight.traces._run_files import segment_paths
from deepinsight.traces._segment_reader import SegmentReader

DTYPES = ["bool", "int8", "uint8", "int32", "int64", "uint64", "float16", "float32", "float64"]


@st.composite
def batches(draw):
    """Dtype, shape and a list of arrays [n, *shape]; each is recorded as a block or row by row."""
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(st.sampled_from([(), (0,), (3,), (2, 3)]))
    parts = draw(
        st.lists(
            st.tuples(
                st.integers(0, 4).flatmap(lambda n: hnp.arrays(dtype, (n, *shape))),
                st.booleans(),
                st.booleans(),
            ),
            min_size=1,
            max_size=5,
        )
    )
    return dtype, shape, parts


@settings(max_examples=40, deadline=None)
@given(batches())
def test_what_was_written_is_read(drawn):
    dtype, shape, parts = drawn
    with tempfile.TemporaryDirectory() as folder:
        with TraceWriter(folder, flush_interval_s=60) as writer:
            writer.declare("x", shape=shape, dtype=dtype, unit="1")
            step = 0
            for values, as_block, flush in parts:
                steps = step + np.arange(len(values))
                if as_block:
                    writer.record_block("x", values, steps=steps, wall_times_s=steps + 0.5)
                else:
                    for at, value in zip(steps, values, strict=True):
                        writer.record("x", value, step=at, wall_time_s=at + 0.5)
                step += len(values)
                assert not flush or writer.flush()
        expected = np.concatenate([values for values, *_ in parts])
        with open_run(folder) as run:
            if not len(expected):
                assert not run.stream_names() or not len(run.steps("x"))
                return
            assert run.stream("x").dtype == dtype
            steps, times, values = run.array("x")
            assert (writer.dropped_rows, writer.write_errors) == (0, 0)
        assert values.dtype == expected.dtype
        np.testing.assert_array_equal(values, expected)
        np.testing.assert_array_equal(steps, np.arange(len(expected)))
        np.testing.assert_array_equal(times, steps + 0.5)


def test_nan_and_infinity_are_data(tmp_path):
    with TraceWriter(tmp_path) as writer:
        for step, value in enumerate([np.nan, np.inf, -np.inf, 1.0]):
            writer.record("x", value, step=step)
    np.testing.assert_array_equal(
        open_run(tmp_path).frame("x")["value"], [np.nan, np.inf, -np.inf, 1]
    )


def test_the_description_of_the_first_record_is_kept(tmp_path):
    axes = (Axis("unit", tuple("abc"), "1"),)
    with TraceWriter(tmp_path) as writer:
        about = {"unit": "nat", "description": "what", "reduction": "max", "details": {"k": [1]}}
        writer.record("x", np.zeros(3, "f4"), step=0, axes=axes, **about)
        writer.record("x", np.ones(3, "f4"), step=1, unit="ignored")
    info = open_run(tmp_path).stream("x")
    assert (info.shape, info.dtype, info.axes) == ((3,), "float32", axes)
    assert {key: getattr(info, key) for key in about} == about


@pytest.mark.parametrize("names", [["loss/aux", "loss"], ["loss", "loss/aux"]])
def test_a_stream_may_continue_the_name_of_another(tmp_path, names):
    with TraceWriter(tmp_path) as writer:
        for name in names:
            writer.record(name, len(name), step=1)
    run = open_run(tmp_path)
    assert [run.array(name).values[0] for name in names] == [len(name) for name in names]


def test_a_hundred_thousand_labels_fit(tmp_path):
    labels = tuple(f"feature {i}" for i in range(100_000))
    with TraceWriter(tmp_path) as writer:
        writer.record("x", np.zeros(100_000, "f4"), step=0, axes=[Axis("feature", labels)])
    assert open_run(tmp_path).stream("x").axes[0].labels == labels


def test_a_late_stream_begins_a_segment_and_each_stream_is_continuous(tmp_path):
    with TraceWriter(tmp_path) as writer:
        for step in range(6):
            writer.record("early", step, step=step)
            if step >= 3:
                writer.record("late", step, step=step)
            writer.flush()
    assert len(segment_paths(tmp_path / "main")) == 2
    run = open_run(tmp_path)
    assert run.steps("early").tolist() == list(range(6))
    assert run.frame("late")["value"].tolist() == [3, 4, 5]


def test_segments_follow_the_size_limit_and_growing_chunks(tmp_path):
    with TraceWriter(tmp_path, segment_bytes=100_000, flush_interval_s=60) as writer:
        for begin in range(0, 60_000, 5_000):
            steps = np.arange(begin, begin + 5_000)
            writer.record_block("x", steps * 0.5, steps=steps)
            writer.flush()
    assert len(segment_paths(tmp_path / "main")) > 4
    steps, _, values = open_run(tmp_path).array("x")
    np.testing.assert_array_equal(steps, np.arange(60_000))
    np.testing.assert_array_equal(values, steps * 0.5)


def test_longer_streams_get_longer_chunks(tmp_path):
    with TraceWriter(tmp_path) as writer:
        for begin in range(0, 200_000, 1_000):
            steps = np.arange(begin, begin + 1_000)
            writer.record_block("x", steps * 0.5, steps=steps)
            writer.flush()
    chunks = []
    for path in segment_paths(tmp_path / "main"):
        with h5py.File(path) as file:
            chunks.append(file["x/values"].chunks[0])
    assert 2 <= len(chunks) <= 8
    assert chunks == sorted(set(chunks))
    assert open_run(tmp_path).steps("x").tolist() == list(range(200_000))


def test_plain_h5py_reads_a_segment(tmp_path):
    with TraceWriter(tmp_path, "worker-0") as writer:
        writer.record("weights/fc1/tiles", np.eye(3), step=7, unit="1", wall_time_s=2.5)
    with h5py.File(tmp_path / "worker-0" / "000001.h5") as file:
        assert dict(file.attrs) | {"created_time_s": 0.0, "run_id": ""} == {
            "format": "deepinsight-trace", "format_version": 1, "run_id": "", "process": "worker-0",
            "segment": 1, "life": 1, "created_time_s": 0.0,
        }  # fmt: skip
        group = file["weights/fc1/tiles"]
        assert group.attrs["unit"] == "1"
        assert (group["step"][:], group["wall_time_s"][:]) == ([7], [2.5])
        np.testing.assert_array_equal(group["values"][:], [np.eye(3)])


def test_rows_beyond_the_queue_are_counted_in_the_trace_and_warned_of_once(tmp_path):
    writer = TraceWriter(tmp_path, flush_interval_s=60, queue_bytes=1000)
    with (  # noqa: PT031
        writer._write_lock,
        pytest.warns(TraceWarning, match="drops rows: .*queue_bytes") as caught,
    ):
        for step in range(20):
            writer.record("x", 1.0, step=step)
    writer.close()
    assert len(caught) == 1
    assert writer.dropped_rows == 15
    run = open_run(tmp_path)
    assert run.frame("recorder/dropped_rows")["value"].iloc[-1] == 15
    assert run.steps("x").tolist() == list(range(5))


def no_room(path):
    return shutil._ntuple_diskusage(1 << 30, 1 << 30, 1 << 20)


def test_while_the_disk_is_full_rows_wait_and_then_arrive(tmp_path, monkeypatch):
    writer = TraceWriter(tmp_path, flush_interval_s=0.02)
    writer.record("x", 0.0, step=0)
    assert writer.flush()
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", no_room)
        with pytest.warns(TraceWarning, match="the disk is full: 1 MiB left") as caught:  # noqa: PT031
            for step in range(1, 50):
                writer.record("x", float(step), step=step)
                time.sleep(0.002)
            assert not writer.flush()
        assert len(caught) == 1
        assert open_run(tmp_path).steps("x").tolist() == [0]
    writer.record("x", 50.0, step=50)
    writer.close()
    run = open_run(tmp_path)
    assert run.frame("x")["value"].tolist() == list(range(51))
    assert run.frame("recorder/write_errors")["value"].iloc[-1] == writer.write_errors > 0
    assert (writer.dropped_rows, run.status, run.warnings) == (0, "finished", ())


def test_close_on_a_full_disk_counts_what_is_lost(tmp_path, monkeypatch):
    writer = TraceWriter(tmp_path, flush_interval_s=60)
    writer.record("x", 0.0, step=0)
    writer.flush()
    writer.record("x", 1.0, step=1)
    writer.record_block("x", [2.0, 3.0], steps=[2, 3])
    monkeypatch.setattr("shutil.disk_usage", no_room)
    with pytest.warns(TraceWarning, match="the disk is full"):
        writer.close()
    assert writer.dropped_rows == 3
    assert open_run(tmp_path).steps("x").tolist() == [0]


def test_a_real_write_error_costs_rows_not_the_training(tmp_path, run_python):
    """RLIMIT_FSIZE makes HDF5's own writes fail, as a quota would."""
    done = run_python(
        """
        import resource, sys, time, warnings
        import numpy as np
        from deepinsight.traces import TraceWriter
        writer = TraceWriter(sys.argv[1], flush_interval_s=0.02)
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        writer.record("x", np.zeros(1000), step=0)
        assert writer.flush()
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for step in range(1, 300):
                writer.record("x", np.full(1000, step, float), step=step)
                time.sleep(0.002)
            while not writer.write_errors:
                time.sleep(0.01)
        assert len(caught) == 1, caught
        assert "Training goes on" in str(caught[0].message)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        deadline = time.monotonic() + 30
        writer.record("x", np.full(1000, 300.0), step=300)
        while not writer.flush() and time.monotonic() < deadline:
            time.sleep(0.05)
        writer.close()
        print(writer.dropped_rows, writer.write_errors)
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    dropped_rows, write_errors = map(int, done.stdout.split())
    assert [segment.outcome for segment in repair_run(tmp_path)][-1] == "intact"
    run = open_run(tmp_path)
    steps, _, values = run.array("x")
    assert dropped_rows > 0
    assert write_errors > 0
    assert {0, 300} <= set(steps.tolist())
    assert len(set(steps.tolist())) == len(steps) >= 301 - dropped_rows
    np.testing.assert_array_equal(values, np.repeat(steps[:, None], 1000, axis=1))
    assert run.frame("recorder/dropped_rows")["value"].iloc[-1] == dropped_rows
    assert run.status == "finished"


@pytest.mark.skipif(os.getuid() != 0, reason="mounting a small file system takes root")
@pytest.mark.parametrize("spare_bytes", [16 << 20, -(1 << 40)], ids=["seen before", "met by HDF5"])
def test_a_small_file_system_fills_up_without_an_error(tmp_path, run_python, spare_bytes):
    done = run_python(
        '''
        import ctypes, os, subprocess, sys, time, warnings
        import numpy as np
        libc = ctypes.CDLL(None, use_errno=True)
        folder = sys.argv[1].encode()
        if libc.unshare(0x00020000) or libc.mount(None, b"/", None, 0x4000 | 0x40000, None) or (
            libc.mount(b"tmpfs", folder, b"tmpfs", 0, b"size=24m")):
            print("no mount"); sys.exit()
        from deepinsight.traces import TraceWriter, _output
        _output._SPARE_BYTES = int(sys.argv[2])
        warnings.simplefilter("ignore")
        with TraceWriter(sys.argv[1] + "/run", flush_interval_s=0.02) as writer:
            for step in range(400):
                writer.record("x", np.full(10_000, step, float), step=step)
                time.sleep(0.002)
            assert writer.write_errors
        read = """if True:
            import sys
            from deepinsight.traces import open_run
            run = open_run(sys.argv[1] + "/run")
            steps, _, values = run.array("x")
            assert (values == steps[:, None]).all()
            assert 0 < len(steps) < 400, len(steps)
            assert 400 - int(sys.argv[2]) <= len(steps), (len(steps), sys.argv[2])
            print("fine", run.warnings)
        """
        arguments = [sys.argv[1], str(writer.dropped_rows)]
        sys.exit(subprocess.run([sys.executable, "-c", read, *arguments], timeout=30).returncode)
        ''',
        tmp_path,
        spare_bytes,
    )
    assert done.returncode == 0, done.stderr
    if "no mount" in done.stdout:
        pytest.skip("mounting is not allowed here")
    assert done.stdout == "fine ()\n"


def test_a_folder_that_cannot_be_made_is_told_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceWriteError, match=r"cannot be written: .*Choose a folder"):
        TraceWriter(tmp_path / "file" / "run")


def test_a_folder_that_vanishes_does_not_end_the_training(tmp_path):
    writer = TraceWriter(tmp_path / "run", flush_interval_s=60)
    writer.record("x", 1.0, step=1)
    shutil.rmtree(tmp_path / "run")
    with pytest.warns(TraceWarning, match="cannot be written"):  # noqa: PT031
        assert not writer.flush()
        writer.update_metadata(config={"a": 1})
        writer.close()
    assert writer.dropped_rows == 1


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "run.json").write_text('{"name": "mine"}')
    with pytest.raises(TraceError, match=r"not a DeepInsight run. Choose another folder"):
        TraceWriter(tmp_path)
    (tmp_path / "run.json").write_text('{"format": "deepinsight-run", "format_version": 2}')
    with pytest.raises(TraceError, match=r"run format version 2; .*Install a newer DeepInsight"):
        TraceWriter(tmp_path)


def test_one_writer_at_a_time_has_a_process_name(tmp_path):
    with (
        TraceWriter(tmp_path, "worker-0"),
        pytest.raises(ProcessNameInUseError, match=f"'worker-0'.*by pid {os.getpid()} on"),
    ):
        TraceWriter(tmp_path, "worker-0")


def test_a_restart_continues_the_run(tmp_path):
    for first, last in ((0, 10), (6, 12), (9, 15)):
        with TraceWriter(tmp_path) as writer:
            for step in range(first, last):
                writer.record("x", 100 * first + step, step=step)
            if first == 0:
                writer.record("rare", 1, step=9)
    run = open_run(tmp_path)
    assert len(run.steps("x")) == 22
    assert run.status == "finished"
    frame = run.frame("x", superseded=False)
    assert frame["step"].tolist() == list(range(15))
    assert frame["value"].tolist() == [*range(6), 606, 607, 608, *range(909, 915)]
    assert run.steps("rare").tolist() == [9]
    assert run.row("x", 8).values.tolist() == [608]
    assert run.processes[0].segments == 3


def test_an_exception_inside_with_leaves_a_crashed_process(tmp_path):
    with pytest.raises(ZeroDivisionError, match="by zero"), TraceWriter(tmp_path) as writer:  # noqa: PT012
        writer.record("x", 1.0, step=0)
        writer.record("x", 1 / 0, step=1)
    run = open_run(tmp_path)
    assert (run.status, run.steps("x").tolist()) == ("crashed", [0])
    assert run.processes[0].ended_time_s is None


@pytest.mark.parametrize(
    ("end", "status"),
    [("", "finished"), ("raise ValueError('x')", "crashed"), ("sys.exit(0)", "finished"),
     ("import os; os.kill(os.getpid(), 9)", "crashed")],
)  # fmt: skip
def test_a_forgotten_close(tmp_path, run_python, end, status):
    run_python(
        f"""
        import sys
        from deepinsight.traces import TraceWriter
        writer = TraceWriter(sys.argv[1], flush_interval_s=60)
        for step in range(9):
            writer.record("x", step, step=step)
        if "kill" in {end!r}: writer.flush()
        {end}
        """,
        tmp_path,
    )
    run = open_run(tmp_path)
    assert (run.status, run.warnings, run.steps("x").tolist()) == (status, (), list(range(9)))


def test_a_forked_child_leaves_the_trace_to_its_parent(tmp_path, run_python):
    done = run_python(
        """
        import os, sys, time
        import numpy as np
        from deepinsight.traces import TraceWriter
        writer = TraceWriter(sys.argv[1], flush_interval_s=0.01)
        children = []
        for step in range(300):
            writer.record("x", np.full(500, step, float), step=step)
            if step % 50 == 10:
                pid = os.fork()
                if not pid:
                    try:
                        writer.record("x", np.zeros(500), step=step)
                    except RuntimeError as error:
                        assert "forked child" in str(error)
                    writer.flush(); writer.close()
                    time.sleep(0.2)
                    if writer._output._segment:
                        writer._output._segment._file.close()  # as the interpreter's end may
                    sys.exit(0)
                children.append(pid)
            time.sleep(0.002)
        stay = os.fork()
        if not stay:
            time.sleep(60)
        for pid in children:
            assert os.waitpid(pid, 0)[1] == 0
        writer.close()
        TraceWriter(sys.argv[1]).close()  # free, although a child lives on
        os.kill(stay, 9)
        """,
        tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    run = open_run(tmp_path)
    steps, _, values = run.array("x")
    assert (run.status, run.warnings) == ("finished", ())
    assert steps.tolist() == list(range(300))
    np.testing.assert_array_equal(values, np.repeat(steps[:, None], 500, axis=1))


def test_a_child_forked_between_write_and_flush_cannot_take_rows_back(tmp_path, run_python):
    """HDF5 writes its cache at a process's end: the child's is as old as the fork."""
    done = run_python(
        """
        import os, sys, time
        from pathlib import Path
        import numpy as np
        from deepinsight.traces._segment_writer import SegmentWriter
        from deepinsight.traces.schema import StreamInfo
        path = Path(sys.argv[1]) / "000001.h5"
        attributes = {"run_id": "", "process": "main", "segment": 1, "life": 1}
        writer = SegmentWriter(path, attributes, [(StreamInfo("x", (500,)), 0)])
        stream = writer._streams["x"]
        stream.append_values(np.zeros(20), np.ones((20, 500)))
        stream.append_steps(np.arange(20))
        child = os.fork()
        if not child:
            time.sleep(0.5)
            sys.exit(0)
        for step in range(20, 220):
            writer.append({"x": (np.array([step]), np.zeros(1), np.ones((1, 500)))})
        assert os.waitpid(child, 0)[1] == 0
        writer.close()
        """,
        tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    reader = SegmentReader(tmp_path / "000001.h5")
    assert reader.steps("x").tolist() == list(range(220))
    reader.close()


def test_several_threads_record_at_once(tmp_path):
    writer = TraceWriter(tmp_path, flush_interval_s=0.01)

    def record(thread):
        for step in range(500):
            writer.record("shared", thread, step=step)
            writer.record(f"own/{thread}", np.full(3, step), step=step)

    threads = [threading.Thread(target=record, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    run = open_run(tmp_path)
    shared = run.frame("shared")
    for i in range(4):
        assert run.array(f"own/{i}").values[:, 0].tolist() == list(range(500))
        assert shared[shared["value"] == i]["step"].tolist() == list(range(500))


def test_a_closed_recorder_says_so(tmp_path):
    writer = TraceWriter(tmp_path)
    writer.record("x", 1, step=0)
    writer.close()
    writer.close()
    assert writer.flush()
    with pytest.raises(RuntimeError, match="'main' is closed"):
        writer.record("x", 1, step=1)
    assert open_run(tmp_path).steps("x").tolist() == [0]


@pytest.fixture
def writer(tmp_path):
    with TraceWriter(tmp_path) as writer:
        writer.record("scalar", 1.0, step=0)
        writer.record("vector", np.zeros(3, "f4"), step=0)
        writer.declare("byte", dtype="uint8")
        writer.declare("flag", dtype="bool")
        yield writer


@pytest.mark.parametrize(
    ("step", "error", "message"),
    [
        (-1, ValueError, r"`step` must be >= 0. Received: step=-1 for stream 'scalar'"),
        (3.7, TypeError, r"`step` must be an integer >= 0. Received: step=3.7"),
        (float("nan"), TypeError, "must be an integer"),
        (float("inf"), TypeError, "must be an integer"),
        ("3", TypeError, "must be an integer"),
        (None, TypeError, "must be an integer"),
        (1 << 63, ValueError, "`step` must be"),
    ],
)
def test_steps_are_integers_from_zero(writer, step, error, message):
    with pytest.raises(error, match=message):
        writer.record("scalar", 1.0, step=step)
    with pytest.raises(ValueError, match=r"`steps` must be integers >= 0"):
        writer.record_block("scalar", [1.0], steps=[step])


@pytest.mark.parametrize("step", [np.int64(3), np.uint8(3), np.array(3), True, 3])
def test_numpy_integers_are_steps(tmp_path, step):
    with TraceWriter(tmp_path) as writer:
        writer.record("x", 1.0, step=step)
    assert open_run(tmp_path).steps("x").tolist() == [int(step)]


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("scalar", [1.0], ValueError, r"takes values of shape \(\). Received: shape \(1,\)"),
        ("scalar", np.ones((1, 1)), ValueError, r"Received: shape \(1, 1\)"),
        ("scalar", "3.5", TypeError, "takes numbers. Received: str"),
        ("scalar", None, TypeError, "takes numbers. Received: NoneType"),
        ("scalar", 1j, TypeError, "takes numbers. Received: complex"),
        ("scalar", 10**400, TypeError, "takes numbers. Received: int of dtype object"),
        ("vector", np.zeros(4), ValueError, r"shape \(3,\). Received: shape \(4,\)"),
        ("vector", 1.0, ValueError, r"shape \(3,\). Received: shape \(\)"),
        ("byte", 256, ValueError, "holds uint8. Received: int64, which does not fit"),
        ("byte", -1, ValueError, "does not fit"),
        ("byte", 1.0, ValueError, "does not fit without loss. Declare the stream"),
        ("flag", 2, ValueError, "holds bool"),
        ("new", ["a", "b"], TypeError, "'new' takes numbers"),
        ("bad//name", 1.0, ValueError, "joined by '/'"),
        ("a/step", 1.0, ValueError, "must not be 'step'"),
    ],
)  # fmt: skip
def test_values_that_do_not_fit_are_refused(writer, name, value, error, message):
    with pytest.raises(error, match=message):
        writer.record(name, value, step=1)
    assert name in {"scalar", "vector", "byte", "flag"} or name not in writer._streams


def test_blocks_that_do_not_fit_are_refused(writer):
    with pytest.raises(
        ValueError, match=r"one step per row .*shape \(2,\) and values of shape \(3,\)"
    ):
        writer.record_block("scalar", [1.0, 2.0, 3.0], steps=[1, 2])
    with pytest.raises(ValueError, match=r"one step per row"):
        writer.record_block("scalar", 1.0, steps=[1])
    with pytest.raises(
        ValueError, match=r"`steps` must be integers >= 0. Received: int64, \[ 2 -1\]"
    ):
        writer.record_block("scalar", [1.0, 2.0], steps=[2, -1])
    with pytest.raises(ValueError, match=r"shape \(3,\). Received: shape \(2,\)"):
        writer.record_block("vector", np.zeros((4, 2)), steps=range(4))
    with pytest.raises(TypeError, match="takes numbers"):
        writer.record_block("scalar", ["a"], steps=[1])


def test_a_stream_is_declared_once(writer):
    writer.declare("vector", shape=(3,), dtype="float32")
    with pytest.raises(
        ValueError, match=r"holds float32 values of shape .*Record it under another name"
    ):
        writer.declare("vector", shape=(4,), dtype="float32")


def test_arrays_are_copied_and_floats_out_of_range_become_infinite(tmp_path):
    with TraceWriter(tmp_path, flush_interval_s=60) as writer:
        array = np.ones(3, "f4")
        writer.record("x", array, step=0)
        array[:] = 2
        writer.record("x", np.array([1e300, -1e300, 1e-300]), step=1)
        block = np.ones((1, 3), "f4")
        writer.record_block("x", block, steps=[2])
        block[:] = 7
    values = open_run(tmp_path).array("x").values
    np.testing.assert_array_equal(values, [[1, 1, 1], [np.inf, -np.inf, 0], [1, 1, 1]])


def test_short_floats_of_tensorflow_are_stored_as_float32(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    with TraceWriter(tmp_path) as writer:
        writer.record("x", np.array([0.5, np.nan], ml_dtypes.bfloat16), step=0)
        writer.record("y", ml_dtypes.bfloat16(0.5), step=0)
    run = open_run(tmp_path)
    np.testing.assert_array_equal(run.array("x").values, np.array([[0.5, np.nan]], "f4"))
    assert run.array("y").values.tolist() == [0.5]


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"flush_interval_s": 0}, "flush_interval_s=0"),
     ({"queue_bytes": float("nan")}, "queue_bytes=nan"),
     ({"segment_bytes": -1}, "segment_bytes=-1"), ({"process": "a/b"}, "process='a/b'"),
     ({"process": ""}, "process=''"), ({"process": ".x"}, "process='.x'"),
     ({"feature_groups": {"g": 3}}, "Feature group 'g'")],
)  # fmt: skip
def test_settings_out_of_range_are_refused(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        TraceWriter(tmp_path, **settings)


@pytest.mark.parametrize("argument", ["config", "variables"])
def test_metadata_that_is_not_json_names_the_entry(tmp_path, argument):
    with pytest.raises(TypeError, match=rf"Received: {argument}\['model'\] = .*object"):
        TraceWriter(tmp_path, **{argument: {"lr": 0.1, "model": object()}})
    assert not (tmp_path / "main").exists()


def test_metadata_is_merged_and_numpy_and_paths_are_json(tmp_path):
    with TraceWriter(
        tmp_path, config={"lr": np.float32(0.5), "path": Path("a"), "shape": (1, 2)}
    ) as writer:
        writer.update_metadata(config={"seed": 1}, variables={"w": {"shape": np.array([3])}})
        writer.update_metadata(feature_groups={"user": slice(0, 8)})
    run = open_run(tmp_path)
    assert run.config == {"lr": 0.5, "path": "a", "shape": [1, 2], "seed": 1}
    assert run.variables == {"w": {"shape": [3]}}
    assert run.feature_groups == {"user": {"*": [0, 8]}}


def test_processes_that_start_at_once_share_one_run(tmp_path, run_python):
    done = run_python(
        """
        import os, sys
        from deepinsight.traces import TraceWriter
        children = []
        for i in range(4):
            pid = os.fork()
            if not pid:
                with TraceWriter(sys.argv[1], f"worker-{i}", config={f"k{i}": i}) as writer:
                    for j in range(20):
                        writer.update_metadata(variables={f"v{i}/{j}": {"shape": [j]}})
                    writer.record("x", i, step=i)
                os._exit(0)
            children.append(pid)
        assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    run = open_run(tmp_path)
    assert run.config == {f"k{i}": i for i in range(4)}
    assert len(run.variables) == 80
    assert run.frame("x")["value"].tolist() == [0, 1, 2, 3]


def test_a_relative_folder_stays_where_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with TraceWriter("runs/größe 1") as writer:
        monkeypatch.chdir("/")
        writer.record("x", 1, step=0)
        writer.flush()
        writer.record("late", 1, step=0)
    assert open_run(tmp_path / "runs" / "größe 1").stream_names()[0] == "late"


def test_a_warning_made_an_error_does_not_end_the_training(tmp_path, monkeypatch, capsys):
    writer = TraceWriter(tmp_path, flush_interval_s=60)
    monkeypatch.setattr("shutil.disk_usage", no_room)
    writer.record("x", 1.0, step=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not writer.flush()
        writer.close()
    assert "TraceWarning: The trace of process 'main'" in capsys.readouterr().err


def test_recording_a_scalar_only_queues(tmp_path):
    """At most 10 microseconds are allowed; beside other tests the best of many runs counts."""
    with TraceWriter(tmp_path, flush_interval_s=60) as writer:
        best = np.inf
        for _ in range(20):
            began = time.perf_counter()
            for step in range(1000):
                writer.record("x", 1.0, step=step)
            best = min(best, (time.perf_counter() - began) / 1000)
    assert best < 10e-6
