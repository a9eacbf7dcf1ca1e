import json
import os
import shutil

import h5py
import numpy as np
import pytest

from deepinsight.traces import TraceError, TraceNotFoundError, TraceWriter, open_run, repair_run

ROWS = 400
KILLED = """
import os, sys
import numpy as np
from deepinsight.traces import TraceWriter
writer = TraceWriter(sys.argv[1], config={"a": 1})
for begin in range(0, 400, 50):
    for step in range(begin, begin + 50):
        writer.record("array", np.full(100, step, float), step=step)
        for stream in range(4):
            writer.record(f"s{stream}", stream * 1000 + step, step=step, unit="nat")
    assert writer.flush()
(writer.close if sys.argv[2] == "close" else lambda: os._exit(1))()
"""


@pytest.fixture(params=["close", "kill"])
def run_dir(tmp_path, run_python, request):
    done = run_python(KILLED, tmp_path / "run", request.param)
    assert done.returncode == (request.param == "kill"), done.stderr
    return tmp_path / "run"


def check(run_dir):
    """Whatever is there is right; return the rows of each stream."""
    rows = {}
    with open_run(run_dir) as run:
        assert run.warnings == ()
        for name in run.stream_names():
            if name.startswith("recorder/"):
                continue
            steps, _, values = run.array(name)
            np.testing.assert_array_equal(steps, np.arange(len(steps)))
            if name == "array":
                np.testing.assert_array_equal(values, np.repeat(steps[:, None], 100, axis=1))
            else:
                np.testing.assert_array_equal(values, int(name[1]) * 1000 + steps)
                assert run.stream(name).unit == "nat"
            rows[name] = len(steps)
    return rows


def test_a_whole_run_stays_as_it_is(run_dir):
    before = (run_dir / "main" / "000001.h5").read_bytes()
    killed = open_run(run_dir).status == "crashed"
    (report,) = repair_run(run_dir)
    assert report.outcome == ("closed" if killed else "intact")
    assert report.lost_rows == 0
    assert set(check(run_dir).values()) == {ROWS}
    if killed:
        assert report.rows == 5 * ROWS
        (again,) = repair_run(run_dir)
        assert again.outcome == "intact"
    else:
        assert (run_dir / "main" / "000001.h5").read_bytes() == before
    assert open_run(run_dir).config == {"a": 1}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("share", [0.98, 0.7, 0.4, 0.02, 0.0])
def test_of_a_cut_segment_the_whole_rows_are_saved(run_dir, share):
    path = run_dir / "main" / "000001.h5"
    os.truncate(path, int(path.stat().st_size * share))
    (report,) = repair_run(run_dir)
    assert (run_dir / "main" / "000001.h5.damaged").exists()
    rows = check(run_dir)
    if report.outcome == "lost":
        assert rows == {}
        assert share < 0.1
    else:
        assert report.outcome == "salvaged"
        kept = sum(rows.values())
        assert report.rows - 2 <= kept <= report.rows
        assert report.lost_rows <= 5 * ROWS + 2 - kept
        assert f"{report.rows} rows saved, {report.lost_rows} lost" in report.detail
    if share >= 0.7:
        assert sum(rows.values()) > ROWS


@pytest.mark.timeout(200)
@pytest.mark.parametrize("at", [0.0, 0.03, 0.3, 0.6])
def test_garbage_inside_hangs_nobody(tmp_path, run_python, at):
    run_dir = tmp_path / "run"
    assert run_python(KILLED, run_dir, "close").returncode == 0
    path = run_dir / "main" / "000001.h5"
    with open(path, "r+b") as file:
        file.seek(int(path.stat().st_size * at))
        file.write(np.random.default_rng(1).bytes(4096))
    with open_run(run_dir) as run:
        run.streams()
        before = len(run.warnings)
    (report,) = repair_run(run_dir)
    assert report.outcome in ({"salvaged", "lost"} if before else {"intact", "salvaged", "lost"})
    with open_run(run_dir) as run:
        assert run.warnings == ()
        for name in run.stream_names():
            run.array(name)
        if report.outcome != "intact":
            assert len(list((run_dir / "main").glob("*.damaged"))) == 1


@pytest.mark.parametrize("content", [None, "{", '{"format": "other"}'])
def test_a_missing_or_damaged_run_json_is_made_anew(run_dir, content):
    (run_dir / "run.json").unlink()
    if content is not None:
        (run_dir / "run.json").write_text(content)
    repair_run(run_dir)
    assert open_run(run_dir).config == {}
    assert set(check(run_dir).values()) == {ROWS}
    assert (run_dir / "run.json.damaged").exists() == (content is not None)


def test_a_newer_run_json_is_left_alone(tmp_path):
    content = json.dumps({"format": "deepinsight-run", "format_version": 2})
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(TraceError, match="Install a newer DeepInsight"):
        repair_run(tmp_path)
    assert (tmp_path / "run.json").read_text() == content


def test_a_live_run_is_refused(tmp_path):
    with (
        TraceWriter(tmp_path, "worker-0"),
        pytest.raises(TraceError, match=r"still being written by worker-0. Repair it when"),
    ):
        repair_run(tmp_path)


def test_foreign_and_newer_segments_are_left_alone(tmp_path):
    with TraceWriter(tmp_path) as writer:
        writer.record("x", 1, step=1)
    folder = tmp_path / "main"
    shutil.copy(folder / "000001.h5", folder / "000002.h5")
    with h5py.File(folder / "000002.h5", "a") as file:
        file.attrs["format_version"] = 2
    with h5py.File(folder / "000003.h5", "w") as file:
        file["mine"] = 1
    (folder / "000004.h5").write_text("no HDF5 at all")
    report = repair_run(tmp_path)
    assert [entry.outcome for entry in report] == ["intact", "left alone", "left alone", "lost"]
    assert (folder / "000004.h5.damaged").read_text() == "no HDF5 at all"
    with TraceWriter(tmp_path) as writer:
        writer.record("x", 2, step=2)
    assert (folder / "000005.h5").exists()
    assert open_run(tmp_path).steps("x").tolist() == [1, 2]


def test_where_there_is_no_run_there_is_nothing_to_repair(tmp_path):
    with pytest.raises(TraceNotFoundError, match=r"holds neither run\.json nor segments"):
        repair_run(tmp_path)
    with pytest.raises(TraceNotFoundError, match="holds neither"):
        repair_run(tmp_path / "missing")
