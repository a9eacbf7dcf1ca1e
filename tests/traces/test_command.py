import json
import os

import numpy as np
import pytest

from deepinsight.traces import TraceNotFoundError, TraceWriter
from deepinsight.traces.command import inspect, repair


@pytest.fixture
def run_dir(tmp_path):
    groups = {"user": slice(0, 8)}
    config = {"lr": float("nan"), "deep": [float("inf")]}
    with TraceWriter(tmp_path / "run", "worker-0", config=config, feature_groups=groups) as writer:
        writer.record("loss", 0.123456789, step=3, unit="nat")
        writer.record("auc", np.nan, step=4, unit="1")
        writer.record("best", -np.inf, step=4)
        writer.record("tiles", np.zeros((2, 3), "f4"), step=5)
        writer.declare("silent")
    return tmp_path / "run"


def test_inspect_prints_a_table(run_dir, capsys):
    assert inspect([str(run_dir)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{run_dir}: finished, begun 20")
    assert lines[1] == "config: lr=nan, deep=[inf]"
    assert lines[2] == "feature groups: user"
    assert (
        lines[3]
        == f"process worker-0: finished, 1 segment, pid {os.getpid()} on {os.uname().nodename}"
    )
    rows = [line.split() for line in lines[5:]]
    assert rows[0] == ["stream", "process", "rows", "steps", "shape", "dtype", "unit", "latest"]
    assert ["loss", "worker-0", "1", "3-3", "scalar", "float64", "nat", "0.123457"] in rows
    assert ["auc", "worker-0", "1", "4-4", "scalar", "float64", "1", "nan"] in rows
    assert ["tiles", "worker-0", "1", "5-5", "2", "x", "3", "float32"] in rows
    assert ["silent", "worker-0", "0", "-", "scalar", "float64"] in rows


def test_inspect_json_is_strict_json(run_dir, capsys):
    assert inspect([str(run_dir), "--json"]) == 0

    def refuse(constant):
        raise AssertionError(f"not JSON: {constant}")

    summary = json.loads(capsys.readouterr().out, parse_constant=refuse)
    streams = {stream["name"]: stream for stream in summary["streams"]}
    assert summary["status"] == "finished"
    assert summary["config"] == {"lr": "nan", "deep": ["inf"]}
    assert (streams["auc"]["last_value"], streams["best"]["last_value"]) == ("nan", "-inf")
    assert streams["loss"]["last_value"] == 0.123456789
    assert (streams["tiles"]["shape"], streams["tiles"]["last_value"]) == ([2, 3], None)
    assert (streams["silent"]["rows"], streams["silent"]["first_step"]) == (0, None)
    assert summary["warnings"] == []


def test_inspect_shows_warnings(run_dir, capsys):
    (run_dir / "worker-0" / "000002.h5").write_bytes(b"")
    assert inspect([str(run_dir)]) == 0
    assert "warning: " in capsys.readouterr().out.splitlines()[-1]


def test_inspect_of_nothing_is_an_error(tmp_path):
    with pytest.raises(TraceNotFoundError, match="is not a run"):
        inspect([str(tmp_path)])


def test_repair_says_what_became_of_each_segment(run_dir, capsys):
    folder = run_dir / "worker-0"
    (folder / "000002.h5").write_bytes(b"nothing")
    assert repair([str(run_dir)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{folder}/000001.h5: intact.",
        f"{folder}/000002.h5: lost. Nothing could be read; kept as 000002.h5.damaged.",
        "2 segments looked at, 1 changed.",
    ]
