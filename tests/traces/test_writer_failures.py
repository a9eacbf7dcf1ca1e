"""What a recorder survives: full disks, dead writers, forks, folders that vanish."""

import os
import shutil
import time
import warnings

import numpy as np
import pytest

from deepinsight.traces import (
    ProcessNameInUseError,
    TraceError,
    TraceWarning,
    TraceWriteError,
    TraceWriter,
    open_run,
    repair_run,
)
from deepinsight.traces._segment_reader import SegmentReader


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


def test_a_warning_made_an_error_does_not_end_the_training(tmp_path, monkeypatch, capsys):
    writer = TraceWriter(tmp_path, flush_interval_s=60)
    monkeypatch.setattr("shutil.disk_usage", no_room)
    writer.record("x", 1.0, step=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not writer.flush()
        writer.close()
    assert "TraceWarning: The trace of process 'main'" in capsys.readouterr().err
