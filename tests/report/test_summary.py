import math

import numpy as np
import pytest

from deepinsight.report import summarise_run
from deepinsight.report.summary import RunSummary
from deepinsight.traces import TraceWriter, open_run


def test_a_run_in_a_few_numbers(runs_folder):
    with open_run(runs_folder / "async") as run:
        summary = summarise_run(run)
    assert (summary.name, summary.status) == ("async", "finished")
    assert summary.processes == (("worker-0", "finished"), ("worker-1", "finished"))
    assert summary.last_step == 399
    assert [value.stream for value in summary.latest] == ["eval/auc", "eval/loss", "train/loss"]
    assert summary.latest_of("eval/auc").step == 360
    assert summary.latest_of("eval/auc").unit == "1"
    assert summary.latest_of("train/accuracy") is None
    assert summary.samples_per_second > 10_000
    assert summary.setting("optimizer") == "adagrad"
    assert summary.setting("missing") == ""
    assert summary.warnings == ()
    assert summary.duration_s >= 0


def test_rates_of_all_processes_are_added(tmp_path):
    for worker, rates in enumerate(([1.0, 100.0], [50.0])):
        with TraceWriter(tmp_path, f"worker-{worker}") as writer:
            steps = np.arange(len(rates))
            writer.record_block("throughput/samples_per_second", rates, steps=steps)
    with open_run(tmp_path) as run:
        assert summarise_run(run).samples_per_second == 150


def test_a_run_without_rows_has_no_numbers(tmp_path):
    with TraceWriter(tmp_path, "main"):
        pass
    with open_run(tmp_path) as run:
        summary = summarise_run(run)
    assert (summary.last_step, summary.latest) == (-1, ())
    assert math.isnan(summary.samples_per_second)


def test_a_run_of_other_streams_still_tells_its_last_step(tmp_path):
    with TraceWriter(tmp_path, "main") as writer:
        writer.record("mine/value", 1.0, step=41)
    with open_run(tmp_path) as run:
        assert summarise_run(run).last_step == 41


def test_a_live_run_lasts_until_its_newest_row(tmp_path):
    with TraceWriter(tmp_path, "main") as writer:
        with open_run(tmp_path) as run:
            start = run.processes[0].started_time_s
        writer.record("train/loss", math.nan, step=7, wall_time_s=start + 60)
        assert writer.flush()
        with open_run(tmp_path) as run:
            summary = summarise_run(run)
    assert summary.status == "live"
    assert summary.duration_s == pytest.approx(60, abs=1e-3)
    assert math.isnan(summary.latest_of("train/loss").value)


def test_a_damaged_segment_becomes_a_warning(runs_folder):
    with open_run(runs_folder / "cut-segment") as run:
        summary = summarise_run(run)
    assert len(summary.warnings) == 1
    assert "repair" in summary.warnings[0]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, ""),
        ({"synchronization": "async", "staleness_bound": None, "batch_size": 5}, "async"),
        (
            {"synchronization": "elastic-average", "moving_rate": 0.25,
             "synchronous_exchange": True, "communication_period": 10},
            "elastic-average (communication period 10, moving rate 0.25, synchronous exchange)",
        ),
        ({"synchronization": "block-momentum", "block_nesterov": False}, "block-momentum"),
        (
            {"synchronization": "sync", "replication": "in-graph", "replicas_to_aggregate": 2},
            "sync (in-graph, replicas to aggregate 2)",
        ),
    ],
)  # fmt: skip
def test_how_gradients_meet_is_told_with_its_settings(config, said):
    assert RunSummary("r", "finished", config=config).synchronized == said
