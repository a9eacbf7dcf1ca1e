"""The trainer with the update rules that have kernels of their own."""

import numpy as np
import pytest
import tensorflow as tf

from deepinsight.traces import open_run
from deepinsight.trainer.cluster.members import Patience
from deepinsight.trainer.data import open_data
from deepinsight.trainer.graph import Replica, build_graph
from deepinsight.trainer.options import COMPENSATED, Options

from .conftest import SMALL

v1 = tf.compat.v1


def trained(steps=12, **given):
    """The variables, by name, after some steps of a single process."""
    options = Options("runs/none", ps=0, workers=1, hidden=(8,), learning_rate=0.05, **given)
    data = open_data(options)
    batches = data.batches(worker=0, workers=1, batch_size=50, seed=1, epochs=None, position=0)
    with tf.Graph().as_default():
        graph = build_graph(options, data, Replica(0, 1, 0), Patience())
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for _, batch in zip(range(steps), batches, strict=False):
                session.run(graph.push.op, {graph.ids: batch.ids, graph.labels: batch.labels})
            assert session.run(graph.global_step) == steps
            return session.run(graph.model.variables)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        (name, model)
        for name in COMPENSATED
        for model in ("dense", "wide-deep")
        # TensorFlow's sparse Adam moves all rows of a table, ours those that were touched.
        if (name, model) != ("boosted-adam", "wide-deep")
    ],
)
def test_alone_a_compensated_rule_is_its_plain_rule(name, model):
    """What the worker read is what it updates: there is nothing to correct."""
    plain = {"dc-asgd": "sgd", "dc-asgd-adaptive": "sgd"}.get(name, name.removeprefix("boosted-"))
    ours, theirs = trained(optimizer=name, model=model), trained(optimizer=plain, model=model)
    for variable, value in theirs.items():
        # float32, 12 steps; TensorFlow sums rows in another order and takes 1/sqrt by a table
        np.testing.assert_allclose(ours[variable], value, rtol=2e-4, atol=2e-6, err_msg=variable)


def test_boosted_adam_leaves_untouched_rows_alone():
    before, after = (trained(steps, optimizer="boosted-adam") for steps in (1, 2))
    moved = (before["embedding/row_0"] != after["embedding/row_0"]).any(axis=1)
    assert 0 < moved.sum() < len(moved)


def test_on_a_cluster_the_server_compensates_and_the_trace_says_how_much(train, tmp_path):
    path = tmp_path / "run"
    done = train(
        "--run-dir", path, "--optimizer", "dc-asgd", "--variance-parameter", 1, "--ps", 2,
        "--steps", 300, "--trace-every", 4, "--eval-every", 0, *SMALL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with open_run(path) as run:
        assert run.config["variance_parameter"] == 1.0
        assert run.frame("eval/auc")["value"].iloc[-1] > 0.6
        stream = run.stream("optimizer/compensation_ratio")
        assert set(stream.axes[0].labels) == set(run.variables)
        ratios = run.array("optimizer/compensation_ratio").values
        assert np.isfinite(ratios).all()
        assert ratios.max() > 0  # some push was stale, and the snapshot is what its worker read
        assert not run.array("optimizer/nonfinite_gradients").values.any()
        assert (run.array("optimizer/sign_flips").values <= 1).all()


def test_boosted_adagrad_on_a_cluster_records_its_correlation(train, tmp_path):
    path = tmp_path / "run"
    done = train(
        "--run-dir", path, "--optimizer", "boosted-adagrad", "--steps", 300, "--trace-every", 4,
        "--eval-every", 0, *SMALL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with open_run(path) as run:
        correlation = run.array("optimizer/correlation").values
        assert (np.abs(correlation) <= 1).all()
        assert correlation.any()


def test_lars_in_a_synchronous_run_records_its_trust_ratios(train, tmp_path):
    path = tmp_path / "run"
    done = train(
        "--run-dir", path, "--optimizer", "lars", "--synchronization", "sync", "--steps", 40,
        "--trace-every", 5, "--eval-every", 0, *SMALL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with open_run(path) as run:
        assert len(run.frame("eval/loss")) == 1
        steps = run.frame("staleness/global", "worker-0")["step"]
        assert sorted(steps) == list(range(1, 41))  # a fetch makes no round of its own
        trust = run.array("optimizer/trust_ratio", "worker-0").values[-1]
        assert (trust > 0).all()
        assert (trust != 1).any()
