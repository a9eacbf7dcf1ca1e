"""Checkpoints, parameter servers, synchronous training and the session hook."""

import socket
import threading

import numpy as np
import pytest
import tensorflow as tf

import deepinsight as di
from deepinsight.collectors.collection import traced_tensors
from deepinsight.collectors.graph import closure
from deepinsight.trainer.optimizers import (
    AccumulatedGradients,
    BoostedAdamOptimizer,
    BoostedMomentumOptimizer,
    DelayCompensatedGradientDescentOptimizer,
    LARSOptimizer,
)

from .execution import Graph, random_gradients, random_values
from .rule_cases import CASES, WORKERS

v1 = tf.compat.v1
SERVERS = []  # TensorFlow cannot end a server, so none may be collected


@pytest.mark.parametrize("name", CASES)
def test_a_saver_keeps_all_state(name, tmp_path):
    path = str(tmp_path / "model")
    generator = np.random.default_rng(2)
    pushes = [(i % WORKERS, random_gradients(generator)) for i in range(8)]

    def run(seed, part):
        graph = Graph(CASES[name].make, random_values(seed), WORKERS)
        for push in pushes[:4] if part == "first" else []:
            graph.push(push[0], *push[1])
        with graph.graph.as_default():
            saver = v1.train.Saver()
            if part == "first":
                saver.save(graph.session, path)
            else:
                saver.restore(graph.session, path)
        for push in pushes[4:]:
            graph.push(push[0], *push[1])
        with graph.graph.as_default():
            return graph.session.run([*graph.variables, *graph.optimizer.variables()])

    for one, other in zip(run(1, "first"), run(9, "restored"), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_eager_checkpoint_keeps_all_state(wrapped, tmp_path):
    def make():
        w = tf.Variable([1.0, -2.0])
        optimizer = BoostedAdamOptimizer(0.125, num_workers=2)
        if wrapped:
            optimizer = AccumulatedGradients(optimizer, 2)
        return w, optimizer, tf.train.Checkpoint(w=w, optimizer=optimizer)

    def push(w, optimizer, times):
        for i in range(times):
            grad = tf.constant([1.0, 3.0]) * (i + 1)
            optimizer.apply_gradients([(grad, w)], worker_index=i % 2)

    w, optimizer, checkpoint = make()
    push(w, optimizer, 5)
    path = checkpoint.save(str(tmp_path / "model"))
    push(w, optimizer, 5)
    restored, optimizer, checkpoint = make()
    push(restored, optimizer, 2)
    checkpoint.restore(path).assert_consumed()
    push(restored, optimizer, 5)
    np.testing.assert_array_equal(w.numpy(), restored.numpy())


@pytest.fixture(scope="module")
def cluster():
    """Two parameter servers and a worker in this process."""
    sockets = [socket.socket() for _ in range(3)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    spec = tf.train.ClusterSpec(
        {
            "ps": [f"127.0.0.1:{p}" for p in ports[:2]],
            "worker": [f"127.0.0.1:{ports[2]}"],
        }
    )
    made = [
        v1.train.Server(spec, job_name=job, task_index=index)
        for job, index in (("ps", 0), ("ps", 1), ("worker", 0))
    ]
    SERVERS.extend(made)
    return spec, made[2].target


PLACED = {
    "compensated": lambda: DelayCompensatedGradientDescentOptimizer(0.1, num_workers=2),
    "adam": lambda: BoostedAdamOptimizer(0.1, num_workers=2),
    "lars": lambda: LARSOptimizer(0.1, skip_list=["bias"]),
    "accumulated": lambda: AccumulatedGradients(
        DelayCompensatedGradientDescentOptimizer(0.1, num_workers=2), 1
    ),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", PLACED)
def test_slots_and_updates_are_on_the_servers_of_their_variables(cluster, name):
    spec, target = cluster
    with tf.Graph().as_default() as graph:
        with v1.device(v1.train.replica_device_setter(cluster=spec)):
            step = v1.train.get_or_create_global_step()
            kernel = v1.get_variable("kernel", initializer=[[1.0, 2.0]], use_resource=True)
            bias = v1.get_variable("bias", initializer=[1.0], use_resource=True)
            table = v1.get_variable("table", initializer=[[1.0], [2.0]], use_resource=True)
            rows = tf.gather(table, [1, 1])
            loss = tf.reduce_sum(kernel**2) + tf.reduce_sum(bias**2) + tf.reduce_sum(rows**2)
            optimizer = PLACED[name]()
            train = optimizer.minimize(loss, step)
        variables = (kernel, bias, table)
        assert len({v.device for v in variables}) == 2
        inner = [optimizer, getattr(optimizer, "_base", optimizer)]
        for one in inner:
            for slot in one.get_slot_names():
                for variable in variables:
                    found = one.get_slot(variable, slot)
                    assert found is None or found.device == variable.device
        for op in graph.get_operations():
            if op.type.startswith(("ResourceApply", "ResourceSparseApply")):
                assert op.device.startswith("/job:ps")
        with v1.Session(target) as session:
            session.run(v1.global_variables_initializer())
            before = session.run(variables)
            session.run(train)
            session.run(train)
            after = session.run(variables)
            assert session.run(step) == 2
    for one, other in zip(before, after, strict=True):
        assert (np.abs(other) < np.abs(one)).any()


@pytest.mark.timeout(120)
def test_streams_keep_the_order_of_the_gradients_across_servers(cluster):
    spec, target = cluster
    with tf.Graph().as_default() as graph:
        with v1.device(v1.train.replica_device_setter(cluster=spec)):
            made = [
                v1.get_variable(name, initializer=[norm], use_resource=True)
                for name, norm in (("a", 1.0), ("b", 2.0), ("c", 3.0))
            ]
            optimizer = LARSOptimizer(0.1, weight_decay=0.0, eeta=0.5)
            train = optimizer.apply_gradients([(tf.ones([1]), w) for w in made])
        assert made[0].device == made[2].device != made[1].device
        (trust,) = (t for t in traced_tensors(graph) if t.stream.name == "optimizer/trust_ratio")
        assert trust.stream.axes[0].labels == ("a", "b", "c")
        with v1.Session(target) as session:
            session.run(v1.global_variables_initializer())
            found, _ = session.run([trust.tensor, train])
    np.testing.assert_allclose(found, [0.5, 1.0, 1.5])


@pytest.mark.timeout(120)
def test_synchronous_training_takes_the_optimizer():
    with tf.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        w = v1.get_variable("w", initializer=[1.0], use_resource=True)
        sync = v1.train.SyncReplicasOptimizer(
            DelayCompensatedGradientDescentOptimizer(0.125, num_workers=2),
            replicas_to_aggregate=1,
            total_num_replicas=1,
        )
        train = sync.minimize(tf.reduce_sum(w**2), step)
        (update,) = sync.get_chief_queue_runner().enqueue_ops
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run([v.initializer for v in v1.local_variables()])
            session.run(sync.chief_init_op)
            for _ in range(3):
                # The worker pushes and waits for the token that the chief's update brings.
                worker = threading.Thread(target=session.run, args=(train,))
                worker.start()
                session.run(update)
                worker.join(60)
                assert not worker.is_alive()
            found = session.run(w)
    np.testing.assert_allclose(found, [0.75**3], rtol=1e-6)


def record(folder, build, steps):
    with tf.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        a = v1.get_variable("a", initializer=[1.0, 2.0], use_resource=True)
        b = v1.get_variable("b/kernel", initializer=[[3.0]], use_resource=True)
        train = build(tf.reduce_sum(a**2) + tf.reduce_sum(b**2), step)
        with v1.train.MonitoredTrainingSession(
            hooks=[di.TraceHook(folder, every_n_steps=1)]
        ) as session:
            for _ in range(steps):
                session.run(train)
            session.run(a)
    with di.open_run(folder) as run:
        names = [n for n in run.stream_names() if n.startswith("optimizer/")]
        return {n: (run.stream(n), run.array(n).values) for n in names}


def test_the_hook_records_what_the_optimizer_knows(tmp_path):
    def build(loss, step):
        optimizer = DelayCompensatedGradientDescentOptimizer(0.25, 1.0, num_workers=2)
        return optimizer.minimize(loss, step)

    found = record(tmp_path, build, 3)
    assert set(found) == {
        f"optimizer/{name}" for name in ("compensation_ratio", "sign_flips", "nonfinite_gradients")
    }
    info, values = found["optimizer/compensation_ratio"]
    assert info.axes[0].labels == ("a", "b/kernel")
    assert info.unit == "1"
    assert info.details == {"optimizer": "DelayCompensatedGradientDescent", "worker_index": 0}
    np.testing.assert_array_equal(values, np.zeros((3, 2)))  # one worker is never late
    assert found["optimizer/nonfinite_gradients"][0].unit == "elements"


def test_recording_makes_no_update_of_its_own(tmp_path):
    def build(loss, step):
        return LARSOptimizer(1.0, 0.0, 0.0, 0.25).minimize(loss, step)

    found = record(tmp_path, build, 4)
    # t = 0.25 |w| / |2 w| = 1/8; w shrinks by 2 / 8 per step, so the ratio stays.
    np.testing.assert_allclose(found["optimizer/trust_ratio"][1], np.full((4, 2), 0.125))
    np.testing.assert_array_equal(found["optimizer/nonfinite_gradients"][1], 0)


def test_several_optimizers_and_towers_report_under_their_names(tmp_path):
    def build(loss, step):
        boosted = BoostedMomentumOptimizer(0.1, 0.5, num_workers=2, name="tower")
        return tf.group(
            boosted.minimize(loss, step, worker_index=0),
            boosted.minimize(loss, worker_index=1),
            LARSOptimizer(0.1, skip_list=["kernel"]).minimize(loss),
            boosted.minimize(loss, worker_index=1),
        )

    found = record(tmp_path, build, 1)
    assert {name.removesuffix("/nonfinite_gradients") for name in found} >= {
        "optimizer",
        "optimizer/tower",
        "optimizer/tower_1",
        "optimizer/LARSOptimizer",
    }
    assert found["optimizer/tower/correlation"][0].details["worker_index"] == 1
    assert found["optimizer/LARSOptimizer/trust_ratio"][1][0, 1] == 1


def test_accumulated_steps_that_apply_nothing_report_nan(tmp_path):
    def build(loss, step):
        # The global step would stand still: count the calls instead.
        base = LARSOptimizer(0.1, 0.0, 0.0, 0.25)
        train = AccumulatedGradients(base, 2).minimize(loss)
        return tf.group(train, step.assign_add(1, read_value=False))

    found = record(tmp_path, build, 4)
    info, values = found["optimizer/trust_ratio"]
    assert np.isnan(values[[0, 2]]).all()
    np.testing.assert_allclose(values[[1, 3]], np.full((2, 2), 0.125), rtol=1e-6)
    assert info.details == {"optimizer": "LARSOptimizer", "accumulated_steps": 2}


def test_nonfinite_gradients_are_counted(tmp_path):
    def build(loss, step):
        a, b = v1.trainable_variables()
        grads = [(tf.constant([np.nan, np.inf]), a), (tf.constant([[1.0]]), b)]
        optimizer = LARSOptimizer(0.1, skip_list=["a"])
        return optimizer.apply_gradients(grads, step)

    found = record(tmp_path, build, 1)
    assert found["optimizer/nonfinite_gradients"][1].tolist() == [[2, 0]]


def test_a_graph_with_accumulated_gradients_survives_its_meta_graph():
    with tf.Graph().as_default():
        w = v1.get_variable("w", [2], use_resource=True)
        base = v1.train.GradientDescentOptimizer(0.1)
        train_op = AccumulatedGradients(base, 2).minimize(tf.reduce_sum(w))
        meta = v1.train.export_meta_graph()
    with tf.Graph().as_default() as graph:
        v1.train.import_meta_graph(meta)
        assert [op.name for op in graph.get_collection(v1.GraphKeys.TRAIN_OP)] == [train_op.name]


def test_what_changes_meanwhile_is_read_after_the_gradient():
    """Other workers push, and raise Adam's powers, while this one computes."""
    with tf.Graph().as_default() as graph:
        w = v1.get_variable("w", [2], use_resource=True)
        gradient = tf.identity(tf.ones([2]), "gradient")
        BoostedAdamOptimizer(num_workers=2).apply_gradients([(gradient, w)])
        for name in ("beta1_power", "pushes_by_others"):
            reads = [
                op
                for op in graph.get_operations()
                if op.type in ("ReadVariableOp", "ResourceGather")
                and name in op.inputs[0].op.name
                and "Read/" not in op.name  # the slot's own, for whoever asks for its value
            ]
            assert reads
            assert all(gradient.op in closure([op]) for op in reads), name
