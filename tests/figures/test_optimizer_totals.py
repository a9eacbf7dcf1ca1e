import numpy as np
import pytest

from deepinsight.figures import compute_optimizer_totals, tabulate_optimizer_totals
from deepinsight.figures.optimizer_totals import OptimizerTotals, WorkerTotals
from deepinsight.traces import TraceWriter, open_run


def counts(**streams):
    def write(writer):
        for name, values in streams.items():
            writer.record_block(f"sync/{name}", values, steps=np.arange(len(values)))

    return write


def test_gradients_bytes_and_waits_of_each_worker(record):
    run = record(
        counts(accepted_gradients=[1, 5, 9], dropped_gradients=[0, 1, 1], wait_time=[0.1, 0.3]),
        counts(total_bytes_sent=[10.0, 250.0], total_dense_bytes=[1000.0, 2000.0]),
    )
    first, second = compute_optimizer_totals({"r": run}).workers
    assert (first.run, first.worker) == ("r", "worker-0")
    assert (first.accepted, first.dropped, first.pushed) == (9, 1, 10)
    assert first.wait_s == pytest.approx(0.2)
    assert np.isnan(first.bytes_sent)
    assert (second.bytes_sent, second.dense_bytes) == (250, 2000)
    assert np.isnan(second.pushed)


def test_what_a_process_counted_before_a_restart_is_added(tmp_path):
    for begin, values in ((0, [1.0, 4.0]), (2, [2.0, 3.0])):
        with TraceWriter(tmp_path, "worker-0") as writer:
            steps = begin + np.arange(2)
            writer.record_block("sync/accepted_gradients", values, steps=steps)
    with open_run(tmp_path) as run:
        assert compute_optimizer_totals({"r": run}).workers[0].accepted == 7


def test_what_is_not_finite_counts_nothing(record):
    run = record(
        counts(wait_time=[np.nan, 0.5, np.inf, 0.1], accepted_gradients=[2.0, np.nan, 3.0])
    )
    worker = compute_optimizer_totals({"r": run}).workers[0]
    assert worker.wait_s == pytest.approx(0.3)
    assert worker.accepted == 3


def test_the_table_has_the_columns_that_someone_records(record):
    runs = {
        "a": record(counts(accepted_gradients=[900], dropped_gradients=[100]), name="a"),
        "b": record(
            counts(total_bytes_sent=[2e6], total_dense_bytes=[1e9], wait_time=[0.0125]),
            counts(wait_time=[0.0]),
            name="b",
        ),
        "c": record(name="c"),
    }
    table = tabulate_optimizer_totals(compute_optimizer_totals(runs))
    assert table.heads[:2] == ("Run", "Worker")
    rows = {row[:2]: dict(zip(table.heads, row, strict=True)) for row in table.rows}
    assert set(rows) == {("a", "worker-0"), ("b", "worker-0"), ("b", "worker-1")}
    assert rows["a", "worker-0"]["Pushed"] == "1,000"
    assert rows["a", "worker-0"]["Dropped (%)"] == "10"
    assert rows["a", "worker-0"]["Sent"] == "\N{EN DASH}"
    assert rows["b", "worker-0"]["Sent"] == "2 MB"
    assert rows["b", "worker-0"]["Uncompressed"] == "1 GB"
    assert rows["b", "worker-0"]["Compression (\N{MULTIPLICATION SIGN})"] == "500"
    assert rows["b", "worker-0"]["Mean wait (ms)"] == "12.5"
    assert rows["b", "worker-1"]["Mean wait (ms)"] == "0"


def test_one_quantity_alone_has_one_column(record):
    run = record(counts(dropped_gradients=[0, 3]))
    table = tabulate_optimizer_totals(compute_optimizer_totals({"r": run}))
    assert table.heads == ("Run", "Worker", "Dropped")
    assert table.rows == (("r", "worker-0", "3"),)


def test_without_any_there_is_no_table(open_example, record):
    assert tabulate_optimizer_totals(compute_optimizer_totals({"k": open_example("keras")})) is None
    vector = record(lambda writer: writer.record("sync/total_bytes_sent", np.ones(3), step=0))
    assert compute_optimizer_totals({"v": vector}).workers == ()


def test_the_caption_tells_of_the_columns_shown():
    """Only waits: nothing is said of gradients or bytes."""
    totals = OptimizerTotals((WorkerTotals("r", "worker-0", wait_s=0.5),))
    told = "Per worker, as last recorded: mean of the recorded waits for others"
    assert tabulate_optimizer_totals(totals).caption == told
