"""What is particular to tf.compat.v1 sessions: which runs are touched, clusters, trouble."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import deepinsight as di
from deepinsight.collectors import graph as graph_module
from deepinsight.collectors.probes.base import Part, Probe, Slices
from deepinsight.collectors.recording import ProbeWarning

v1 = tf.compat.v1


def least_squares(optimizer: Any = None, global_step: bool = True) -> tuple[Any, Any]:
    """Train op and loss of a small problem in the default graph."""
    w = v1.get_variable("w", [3, 1], initializer=tf.ones_initializer(), use_resource=True)
    loss = tf.reduce_sum(tf.square(w - [[1.0], [2.0], [3.0]]))
    step = v1.train.get_or_create_global_step() if global_step else None
    optimizer = optimizer or v1.train.GradientDescentOptimizer(0.1)
    return optimizer.minimize(loss, global_step=step), loss


def recorded_steps(folder: Path, name: str, process: str | None = None) -> list[int]:
    with di.open_run(folder) as run:
        return [int(s) for s in run.steps(name, process)]


def test_runs_that_do_not_train_are_left_alone(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [])
        w = v1.get_variable("w", [], use_resource=True)
        loss = tf.square(w - x)
        step = v1.train.get_or_create_global_step()
        train_op = v1.train.AdamOptimizer().minimize(loss, global_step=step)
        di.trace_tensor("loss", loss)
        hook = di.TraceHook(tmp_path, every_n_steps=1)
        with v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            for _ in range(3):
                session.run(w)  # would fail if the hook asked for the loss: nothing feeds x
                session.run(train_op, {x: 2.0})
                session.run({"loss": loss, "w": [w]}, {x: 1.0})
    assert recorded_steps(tmp_path, "loss") == [1, 2, 3]
    assert recorded_steps(tmp_path, "gradients/w/norm") == [1, 2, 3]


def test_traced_tensors_are_fetched_only_where_their_placeholders_are_fed(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        train_op, loss = least_squares()
        extra = v1.placeholder(tf.float32, [2])
        di.trace_tensor("always", loss)
        di.trace_tensor("fed", 2 * extra, unit="m", axes=[di.Axis("place", ("left", "right"))])
        with v1.train.MonitoredTrainingSession(hooks=[di.TraceHook(tmp_path)]) as session:
            session.run(train_op)
            session.run(train_op, {extra: [1, 2]})
            session.run([train_op])
            session.run([train_op, {"loss": loss}], {extra: [3, 4]})
    with di.open_run(tmp_path) as run:
        assert list(run.steps("always")) == [1, 2, 3, 4]
        steps, _, values = run.array("fed")
        assert list(steps) == [2, 4]
        np.testing.assert_array_equal(values, [[2, 4], [6, 8]])
        assert run.stream("fed").unit == "m"
        assert run.stream("fed").axes[0].labels == ("left", "right")


def test_a_fed_intermediate_tensor_cuts_off_what_lies_behind_it() -> None:
    with tf.Graph().as_default():
        hidden = v1.placeholder(tf.float32, [])
        middle = hidden + 1
        end = middle * 2
        assert hidden.op in graph_module.closure([end])
        assert hidden.op not in graph_module.closure([end], frozenset({middle.name}))


def test_integer_and_boolean_tensors_keep_their_values(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        train_op, _ = least_squares()
        di.trace_tensor("large", tf.constant(2**60 + 1, tf.int64))
        di.trace_tensor("other", tf.constant([2**61 + 1], tf.int64))
        di.trace_tensor("flag", tf.constant(True))
        with v1.train.MonitoredTrainingSession(hooks=[di.TraceHook(tmp_path)]) as session:
            session.run(train_op)
    with di.open_run(tmp_path) as run:
        assert int(run.array("large").values[0]) == 2**60 + 1
        assert int(run.array("other").values[0, 0]) == 2**61 + 1
        assert bool(run.array("flag").values[0]) is True


def test_trace_tensor_refuses_what_it_cannot_record() -> None:
    with tf.Graph().as_default():
        tensor = tf.constant(1.0)
        assert di.trace_tensor("a", tensor) is tensor
        with pytest.raises(ValueError, match="'a' is already traced"):
            di.trace_tensor("a", tensor)
        with pytest.raises(ValueError, match="`tensor` must have a fixed shape"):
            di.trace_tensor("b", v1.placeholder(tf.float32, [None]))
        with pytest.raises(ValueError, match="`tensor` must be numeric"):
            di.trace_tensor("b", tf.constant("text"))
        with pytest.raises(ValueError, match="`axes` must name each dimension"):
            di.trace_tensor("b", tensor, axes=[di.Axis("x")])
        with pytest.raises(ValueError, match="`name` must be a valid stream name"):
            di.trace_tensor("b//c", tensor)
        with pytest.raises(ValueError, match="`every_n_steps` must be an integer >= 1"):
            di.trace_tensor("b", tensor, every_n_steps=0)
    with pytest.raises(ValueError, match=r"must be a tensor of a tf.compat.v1 graph"):
        di.trace_tensor("b", tf.constant(1.0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every_n_steps": 0}, "`every_n_steps` must be an integer >= 1. Received: .*=0"),
        ({"every_n_steps": None}, "`every_n_steps` must be an integer >= 1"),
        ({"overhead_budget": 0}, "`overhead_budget` must be > 0 and < 1"),
        ({"overhead_budget": float("nan")}, "`overhead_budget` must be > 0 and < 1"),
        ({"batch_size": 0}, "`batch_size` must be >= 1"),
        ({"probes": ["weights"]}, "`probes` must hold instances of deepinsight.probes"),
        ({"probes": di.probes.Weights()}, "`probes` must be a list of probes"),
    ],
)
@pytest.mark.parametrize("kind", ["TraceHook", "TraceCallback", "Recorder"])
def test_settings_out_of_range(
    kind: str, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    if kind == "Recorder" and "batch_size" in settings:
        return  # a recorder is told the samples of each step
    with pytest.raises(ValueError, match=message):
        getattr(di, kind)(tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


OPTIMIZERS: list[tuple[str, Callable[[], Any]]] = [
    ("sgd", lambda: v1.train.GradientDescentOptimizer(0.1)),
    ("momentum", lambda: v1.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True)),
    ("adagrad", lambda: v1.train.AdagradOptimizer(0.1)),
    ("adam", lambda: v1.train.AdamOptimizer(0.1)),
    ("ftrl", lambda: v1.train.FtrlOptimizer(0.1)),
    ("rmsprop", lambda: v1.train.RMSPropOptimizer(0.1)),
    ("adadelta", lambda: v1.train.AdadeltaOptimizer(0.1)),
    ("proximal", lambda: v1.train.ProximalAdagradOptimizer(0.1)),
]


@pytest.mark.parametrize("make", [m for _, m in OPTIMIZERS], ids=[n for n, _ in OPTIMIZERS])
@pytest.mark.parametrize("use_resource", [True, False], ids=["resource", "reference"])
def test_gradients_are_found_from_the_apply_ops(make: Any, use_resource: bool) -> None:
    with tf.Graph().as_default() as graph:
        dense = v1.get_variable("dense", [4, 2], use_resource=use_resource)
        table = v1.get_variable("table", [9, 2], use_resource=use_resource)
        rows = tf.gather(table, [1, 1, 5])
        loss = tf.reduce_sum(tf.square(rows)) + tf.reduce_sum(tf.square(dense))
        optimizer = make()
        pairs = optimizer.compute_gradients(loss)
        optimizer.apply_gradients(pairs)
        found = graph_module.find_applications(graph, [dense, table])
        gradients = {a.variable.op.name: a.gradient for a in found}
        assert gradients.keys() == {"dense", "table"}
        assert len(found) == 2
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            given = {v.op.name: g for g, v in pairs}
            expected = session.run([given["dense"], tf.convert_to_tensor(given["table"])])
            sparse = gradients["table"]
            assert isinstance(sparse, Slices)
            full = tf.math.unsorted_segment_sum(sparse.values, sparse.indices, 9)
            actual = session.run([gradients["dense"], full])
        for one, other in zip(actual, expected, strict=True):
            np.testing.assert_array_equal(one, other)


def test_resuming_continues_at_the_restored_global_step(tmp_path: Path) -> None:
    for _ in range(2):
        with tf.Graph().as_default():
            train_op, loss = least_squares()
            di.trace_tensor("loss", loss)
            hook = di.TraceHook(tmp_path / "run", every_n_steps=2)
            with v1.train.MonitoredTrainingSession(
                checkpoint_dir=str(tmp_path / "checkpoint"),
                hooks=[hook],
                save_summaries_steps=None,
                save_summaries_secs=None,
                log_step_count_steps=None,
            ) as session:
                for _ in range(3):
                    session.run(train_op)
    assert recorded_steps(tmp_path / "run", "loss") == [1, 2, 3, 4, 5, 6]
    assert recorded_steps(tmp_path / "run", "weights/w/raw") == [1, 2, 4, 6]


def test_without_global_step_the_runs_are_counted(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        train_op, loss = least_squares(global_step=False)
        di.trace_tensor("loss", loss)
        with v1.train.SingularMonitoredSession([di.TraceHook(tmp_path)]) as session:
            for _ in range(3):
                session.run(train_op)
    assert recorded_steps(tmp_path, "loss") == [1, 2, 3]


def test_optimizer_of_plain_assignments_needs_to_be_told(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        w = v1.get_variable("w", [2], initializer=tf.ones_initializer(), use_resource=True)
        gradient = tf.gradients(tf.reduce_sum(w * [3.0, 4.0]), w)[0]
        step = v1.train.get_or_create_global_step()
        with tf.control_dependencies([w.assign_sub(0.1 * gradient)]):
            train_op = step.assign_add(1)
        chosen = [di.probes.Gradients(grads_and_vars=[(gradient, w)])]
        with v1.train.SingularMonitoredSession([di.TraceHook(tmp_path, chosen, 1)]) as session:
            session.run(train_op)
    with di.open_run(tmp_path) as run:
        assert run.frame("gradients/w/norm")["value"].tolist() == [5.0]
        assert run.frame("gradients/w/update_ratio")["value"][0] == pytest.approx(0.5 / 2**0.5)


def test_a_global_step_that_a_branch_raises_is_read_after_the_branch(tmp_path: Path) -> None:
    """Every second run raises it, as under softsync; rows stand at it and not at the run."""
    with tf.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        step = v1.get_variable("raised", [], tf.int64, use_resource=True, trainable=False)
        v1.get_collection_ref(v1.GraphKeys.GLOBAL_STEP)[:] = [step]
        due = v1.placeholder(tf.bool, [])
        train_op = tf.cond(due, lambda: step.assign_add(1, read_value=True), step.read_value)
        seen = tf.cond(due, step.read_value, lambda: tf.zeros([], tf.int64))
        di.trace_tensor("mine/value", tf.cast(train_op, tf.float32))
        handle = step.handle.op
        branches = [op for op in seen.graph.get_operations() if op.type in ("If", "StatelessIf")]
        assert [graph_module._raised_in(op, handle) for op in branches] == [True, False]
        hook = di.TraceHook(tmp_path / "r", every_n_steps=1)
        with v1.train.SingularMonitoredSession(hooks=[hook]) as session:
            for number in range(6):
                session.run(train_op, {due: number % 2 == 1})
    with di.open_run(tmp_path / "r") as run:
        table = run.frame("mine/value")
    assert table["step"].tolist() == table["value"].astype(int).tolist()
    assert table["step"].max() == 3


def test_a_graph_without_training_step_is_warned_of(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        w = v1.get_variable("w", [2], use_resource=True)
        update = w.assign_sub([1.0, 1.0])
        with (
            pytest.warns(ProbeWarning, match="no training step was found in the graph"),
            v1.train.SingularMonitoredSession([di.TraceHook(tmp_path)]) as session,
        ):
            session.run(update)


class Failing(Probe):
    """Fails at every step."""

    name = "failing"
    wants_predictions = False

    def values(self, report: Any) -> dict[str, Any]:
        raise ZeroDivisionError("on purpose")


class FailingPart(Probe):
    """Fails where the graph is built."""

    name = "failing part"

    def parts(self) -> tuple[Part, ...]:
        def measure(*_: Any, **__: Any) -> Any:
            raise ZeroDivisionError("on purpose")

        return (Part(frozenset({"weight"}), measure),)


@pytest.mark.parametrize("probe", [Failing, FailingPart])
def test_a_failing_probe_is_counted_and_training_goes_on(probe: Any, tmp_path: Path) -> None:
    with tf.Graph().as_default():
        train_op, _ = least_squares()
        hook = di.TraceHook(tmp_path, [probe(), di.probes.Weights()], every_n_steps=1)

        def train() -> None:
            with v1.train.SingularMonitoredSession([hook]) as session:
                for _ in range(6):
                    session.run(train_op)

        with pytest.warns(ProbeWarning, match="failing.*ZeroDivisionError: on purpose"):
            train()
    with di.open_run(tmp_path) as run:
        assert list(run.steps("weights/w/raw")) == [1, 2, 3, 4, 5, 6]
        failures = run.frame("recorder/probe_failures")["value"]
        # A probe that keeps failing is switched off.
        assert failures.tolist() == ([1, 2, 3] if probe is Failing else [1])


def test_one_hook_serves_two_sessions_in_turn(tmp_path: Path) -> None:
    hook = di.TraceHook(tmp_path, every_n_steps=1)
    for _ in range(2):
        with tf.Graph().as_default():
            train_op, _ = least_squares()
            with v1.train.SingularMonitoredSession([hook]) as session:
                session.run(train_op)
                assert hook.writer is not None
    with pytest.raises(RuntimeError, match="The hook has no open trace"):
        _ = hook.writer
    assert recorded_steps(tmp_path, "weights/w/raw") == [1, 1]


def test_a_crashing_loop_leaves_a_readable_trace(tmp_path: Path) -> None:
    hook = di.TraceHook(tmp_path, every_n_steps=1)
    with tf.Graph().as_default():
        train_op, _ = least_squares()

        def train() -> None:
            with v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
                session.run(train_op)
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            train()
    hook.flush()
    assert recorded_steps(tmp_path, "weights/w/raw") == [1]
    hook._close()


def test_an_expensive_probe_set_stays_within_its_budget(tmp_path: Path) -> None:
    class Expensive(Probe):
        def values(self, report: Any) -> dict[str, Any]:
            import time

            time.sleep(0.01)
            return {"expensive": 1.0}

    def train(folder: Path, budget: float | None) -> tuple[int, float]:
        with tf.Graph().as_default():
            train_op, _ = least_squares()
            pause = tf.numpy_function(lambda: __import__("time").sleep(0.002), [], [])
            hook = di.TraceHook(folder, [Expensive()], every_n_steps=1, overhead_budget=budget)
            with v1.train.SingularMonitoredSession([hook]) as session:
                for _ in range(400):
                    session.run([train_op, pause])
        with di.open_run(folder) as run:
            shares = run.frame("recorder/overhead")["value"]
            return len(run.frame("expensive")), float(shares.iloc[1:].mean())

    rows, share = train(tmp_path / "free", None)
    assert rows == 400
    assert share > 0.5
    rows, share = train(tmp_path / "budget", 0.1)
    # 10 % of about 400 x 3 ms pay for about 12 of 10 ms; the first is not charged.
    assert 3 <= rows <= 40
    assert share < 0.15


def cluster() -> tuple[Any, Any]:
    """A parameter server and a worker in this process."""
    import socket

    sockets = [socket.socket() for _ in range(2)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    spec = tf.train.ClusterSpec({"ps": addresses[:1], "worker": addresses[1:]})
    server = v1.train.Server(spec, job_name="ps", task_index=0)
    return server, v1.train.Server(spec, job_name="worker", task_index=0)


@pytest.fixture(scope="module")
def servers() -> tuple[Any, Any]:
    return cluster()


def test_summaries_are_computed_on_the_parameter_server(servers: Any, tmp_path: Path) -> None:
    _, worker = servers
    with tf.Graph().as_default() as graph:
        setter = v1.train.replica_device_setter(1, worker_device="/job:worker/task:0")
        with v1.device(setter):
            w = v1.get_variable("big", [600, 4], use_resource=True)
            step = v1.train.get_or_create_global_step()
            loss = tf.reduce_sum(tf.square(w))
            train_op = v1.train.AdamOptimizer().minimize(loss, global_step=step)
            di.trace_tensor("on/worker", loss)
            di.trace_tensor("on/ps", tf.reduce_max(w))
        groups = {"a": slice(0, 100), "b": slice(100, 600)}
        hook = di.TraceHook(tmp_path, every_n_steps=2, process="worker-0", feature_groups=groups)
        with v1.train.MonitoredTrainingSession(worker.target, hooks=[hook]) as session:
            for _ in range(4):
                session.run(train_op)
        own = [op for op in graph.get_operations() if op.name.startswith("deepinsight/")]
        sizes = {}
        for pack in hook._plan.snapshots:
            # Everything that leads to a snapshot stays on the server, only the vector leaves.
            for op in graph_module.closure([pack.tensor]):
                # The placer puts an op that reads a handle beside the handle.
                if op in own and op.type not in ("Const", "NoOp", "ReadVariableOp"):
                    assert op.device.startswith("/job:ps"), (op.name, op.type, op.device)
            sizes[pack.probe.name] = int(pack.tensor.shape[0])
        saves = [op for ops in hook._plan.saves.values() for op in ops]
        assert all(op.device.startswith("/job:ps") for op in saves)
        assert sizes["gradients"] == 1
    with di.open_run(tmp_path) as run:
        assert run.variables["big"]["device"].startswith("/job:ps")
        assert list(run.steps("weights/big/tiles")) == [1, 2, 4]
        assert list(run.steps("gradients/big/update_ratio")) == [1, 2, 4]
        assert run.stream("weights/big/tiles").details["block_shape"] == [2, 1]
        assert list(run.steps("on/ps")) == list(run.steps("on/worker")) == [1, 2, 3, 4]
        assert "recorder/probe_failures" not in run.stream_names()


# Closing the session cancels the queue runner, which TensorFlow lets end in an exception: the
# test waits for that end, or the exception would fail whichever test runs at that moment.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_sync_replicas_gradients_are_not_taken_from_the_accumulators(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        w = v1.get_variable("w", [2], initializer=tf.ones_initializer(), use_resource=True)
        table = v1.get_variable("table", [5, 2], use_resource=True)
        rows = tf.gather(table, [3, 3])
        loss = tf.reduce_sum(w * [3.0, 4.0]) + tf.reduce_sum(rows)
        step = v1.train.get_or_create_global_step()
        optimizer = v1.train.SyncReplicasOptimizer(
            v1.train.GradientDescentOptimizer(0.1), replicas_to_aggregate=1, total_num_replicas=1
        )
        train_op = optimizer.minimize(loss, global_step=step)
        di.trace_tensor("loss", loss)
        hooks = [optimizer.make_session_run_hook(is_chief=True), di.TraceHook(tmp_path, None, 1)]
        # The queue runner of a local session waits for gradients for ever: do not wait for it.
        with v1.train.MonitoredTrainingSession(hooks=hooks, stop_grace_period_secs=1) as session:
            for _ in range(4):
                session.run(train_op)
    for thread in threading.enumerate():
        if thread.name.startswith("QueueRunnerThread-sync_token_q"):
            thread.join(30)
            assert not thread.is_alive()
    with di.open_run(tmp_path) as run:
        frame = run.frame("gradients/w/norm")
        assert len(frame) == 4
        assert frame["step"].is_monotonic_increasing
        np.testing.assert_allclose(frame["value"], 5.0)
        expected = np.linalg.norm([2.0, 2.0])  # row 3 twice, added up
        np.testing.assert_allclose(run.frame("gradients/table/norm")["value"], expected)
        assert len(run.steps("loss")) == 4


def test_a_traced_tensor_makes_no_update_of_its_own(tmp_path: Path) -> None:
    """One that depends on an update is fetched in the runs that make this update, and no others."""
    with tf.Graph().as_default():
        train_op, loss = least_squares()
        other = v1.get_variable("other", [], initializer=v1.zeros_initializer(), use_resource=True)
        added = other.assign_add(1.0, read_value=True)
        di.trace_tensor("other", added)
        di.trace_tensor("loss", loss)
        with v1.train.MonitoredTrainingSession(hooks=[di.TraceHook(tmp_path)]) as session:
            for run in (train_op, [train_op, added], train_op):
                session.run(run)
            assert session.run(other) == 1.0
    assert recorded_steps(tmp_path, "loss") == [1, 2, 3]
    assert recorded_steps(tmp_path, "other") == [2]


def test_staleness_bound_of_a_worker_beside_others(servers: Any, tmp_path: Path) -> None:
    """Between two pushes of this worker another session pushes three times, then none."""
    _, worker = servers
    with tf.Graph().as_default():
        with tf.device("/job:ps/task:0"):
            train_op, _ = least_squares()
        hook = di.TraceHook(tmp_path, [di.probes.Staleness()], process="worker-0")
        with (
            v1.train.MonitoredTrainingSession(worker.target, hooks=[hook]) as session,
            v1.Session(worker.target) as other,
        ):
            session.run(train_op)
            for _ in range(3):
                other.run(train_op)
            session.run(train_op)
            session.run(train_op)
    with di.open_run(tmp_path) as run:
        frame = run.frame("staleness/global")
        assert frame["step"].tolist() == [5, 6]
        assert frame["value"].tolist() == [3.0, 0.0]


def test_the_collection_survives_a_meta_graph() -> None:
    with tf.Graph().as_default():
        di.trace_tensor("a", tf.constant(1.0), unit="s")
        meta = v1.train.export_meta_graph()
    with tf.Graph().as_default() as graph:
        v1.train.import_meta_graph(meta)
        entries = [json.loads(t) for t in graph.get_collection("deepinsight/traced_tensors")]
        assert [(e["name"], e["unit"]) for e in entries] == [("a", "s")]
