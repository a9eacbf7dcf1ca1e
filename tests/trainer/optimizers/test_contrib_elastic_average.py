"""Scripts written for ``tf.contrib.opt.ElasticAverageOptimizer``, with only the import changed.

``tf`` is what those scripts imported: ``tensorflow.compat.v1``.
"""

import inspect
import threading
from functools import partial

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from deepinsight.trainer.optimizers.averaging.elastic_average import (
    GLOBAL_VARIABLE_NAME,
    ElasticAverageCustomGetter,
    ElasticAverageOptimizer,
)

from .elastic import Cluster, together

pytestmark = pytest.mark.timeout(120)


def plain(session):
    """The session inside a monitored one, which scripts took to hand it to a saver."""
    return session._sess._sess._sess._sess


def named(graph, names):
    """Variables of a graph by their names."""
    found = {v.op.name: v for v in graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)}
    found |= {v.op.name: v for v in graph.get_collection(tf.GraphKeys.LOCAL_VARIABLES)}
    return [found[name] for name in names]


def test_signatures_are_those_of_1_15():
    def of(function):
        parameters = list(inspect.signature(function).parameters.values())
        return [
            (p.name, p.default) for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY
        ]

    none = inspect.Parameter.empty
    assert of(ElasticAverageCustomGetter) == [("worker_device", none)]
    assert of(ElasticAverageOptimizer) == [
        ("opt", none), ("num_worker", none), ("ea_custom_getter", none),
        ("communication_period", 10), ("moving_rate", None), ("rho", None), ("use_locking", True),
        ("synchronous", False), ("name", "ElasticAverageOptimizer"),
    ]  # fmt: skip
    optimizer = ElasticAverageOptimizer
    assert of(optimizer.compute_gradients) == [
        ("self", none), ("loss", none), ("var_list", None),
        ("gate_gradients", tf.train.Optimizer.GATE_OP), ("aggregation_method", None),
        ("colocate_gradients_with_ops", False), ("grad_loss", None),
    ]  # fmt: skip
    assert of(optimizer.apply_gradients) == [
        ("self", none), ("grads_and_vars", none), ("global_step", None), ("name", None)
    ]  # fmt: skip
    assert of(optimizer.get_init_op) == [("self", none), ("task_index", none)]
    assert of(optimizer.make_session_run_hook) == [
        ("self", none), ("is_chief", none), ("task_index", none)
    ]  # fmt: skip
    assert of(optimizer.swapping_saver) == [
        ("self", none), ("var_list", None), ("name", "swapping_saver"), ("kwargs", none)
    ]  # fmt: skip
    assert optimizer.BETA == 0.9


def script(cluster, task_index, features, labels, steps, seen, tmp_path):
    """A training script in the form of the examples for 1.15."""
    is_chief = task_index == 0
    worker_device = f"/job:worker/task:{task_index}"
    with tf.Graph().as_default():
        ea_custom_getter = ElasticAverageCustomGetter(worker_device=worker_device)
        with (
            tf.device(
                tf.train.replica_device_setter(
                    worker_device=worker_device,
                    ps_device="/job:ps",
                    cluster=tf.train.ClusterSpec(cluster.jobs),
                )
            ),
            tf.variable_scope("", custom_getter=ea_custom_getter),
        ):
            global_step = tf.train.get_or_create_global_step()
            hid_w = tf.get_variable(initializer=tf.truncated_normal([4, 8], seed=1), name="hid_w")
            hid_b = tf.get_variable(initializer=tf.zeros([8]), name="hid_b")
            sm_w = tf.get_variable(initializer=tf.truncated_normal([8, 1], seed=2), name="sm_w")
            x, y = tf.placeholder(tf.float32, [None, 4]), tf.placeholder(tf.float32, [None, 1])
            hid = tf.nn.relu(tf.nn.xw_plus_b(x, hid_w, hid_b))
            loss = tf.reduce_mean(tf.square(tf.matmul(hid, sm_w) - y))
            with tf.device(worker_device):
                opt = tf.train.MomentumOptimizer(0.02, 0.9)
                optimizer = ElasticAverageOptimizer(
                    opt,
                    num_worker=2,
                    moving_rate=0.2,
                    rho=0.0,
                    communication_period=5,
                    ea_custom_getter=ea_custom_getter,
                )
                grads_vars = optimizer.compute_gradients(loss)
                train_op = optimizer.apply_gradients(grads_vars, global_step=global_step)
            saver = optimizer.swapping_saver()
        hooks = [optimizer.make_session_run_hook(is_chief, task_index)]
        feed = {x: features, y: labels}
        with tf.train.MonitoredTrainingSession(
            master=cluster.targets[task_index], is_chief=is_chief, hooks=hooks
        ) as mon_sess:
            seen[task_index] = [mon_sess.run(loss, feed)]
            for _ in range(steps):
                mon_sess.run(train_op, feed)
            seen[task_index] += [mon_sess.run(loss, feed), mon_sess.run(global_step)]
            if is_chief:
                saver.save(plain(mon_sess), str(tmp_path / "model"), global_step=global_step)


def test_a_script_trains_two_workers(tmp_path):
    generator = np.random.default_rng(0)
    features = generator.normal(size=(64, 4))
    labels = features @ generator.normal(size=(4, 1))
    cluster, seen = Cluster(2, ps=2), {}
    run = partial(
        script, cluster, features=features, labels=labels, steps=60, seen=seen, tmp_path=tmp_path
    )
    run(0)
    run(1)  # it comes when the other is done: the centre is all it gets of that
    first, last, step = seen[0]
    assert last < 0.3 * first
    assert step == 12
    assert last < seen[1][0] < 0.5 * first
    assert seen[1][2] == 24
    # What was saved is the centre that the second worker began with, in a plain graph.
    with tf.Graph().as_default(), tf.Session() as session:
        hid_w = tf.get_variable("hid_w", [4, 8])
        hid_b = tf.get_variable("hid_b", [8])
        sm_w = tf.get_variable("sm_w", [8, 1])
        tf.train.Saver().restore(session, tf.train.latest_checkpoint(str(tmp_path)))
        hidden = np.maximum(features @ session.run(hid_w) + session.run(hid_b), 0)
        loss = np.mean((hidden @ session.run(sm_w) - labels) ** 2)
    np.testing.assert_allclose(loss, seen[1][0], rtol=1e-4)


def get_worker(cluster, worker_id, period, moving_rate, opt=None, parts=False):
    """A graph as in the tests of 1.15, with the ops and the session."""
    graph = tf.Graph()
    with graph.as_default():
        worker_device = f"/job:worker/task:{worker_id}/cpu:0"
        ea_custom = ElasticAverageCustomGetter(worker_device=worker_device)
        setter = tf.train.replica_device_setter(
            worker_device=worker_device, ps_device="/job:ps/task:0/cpu:0", ps_tasks=1
        )
        with tf.variable_scope("", custom_getter=ea_custom), tf.device(setter):
            global_step = tf.train.get_or_create_global_step()
            var_0 = tf.get_variable(initializer=0.0, name="v0")
            var_1 = tf.get_variable(initializer=1.0, name="v1")
        pairs = [(tf.constant(-1.0), var_0), (tf.constant(-1.0), var_1)]
        if parts:
            partitioner = tf.fixed_size_partitioner(2, axis=0)
            spread = tf.train.replica_device_setter(
                worker_device=worker_device, ps_device="/job:ps/task:0/cpu:0", ps_tasks=2
            )
            scope = tf.variable_scope("", partitioner=partitioner, custom_getter=ea_custom)
            with scope, tf.device(spread):
                whole = tf.get_variable("partition_var", [2, 4], initializer=tf.ones_initializer)
            pairs += [(tf.fill([1, 4], -1.0), part) for part in whole]
        with tf.device(f"/job:worker/task:{worker_id}"):
            optimizer = ElasticAverageOptimizer(
                opt=opt() if opt else tf.train.GradientDescentOptimizer(1.0),
                num_worker=cluster.workers,
                moving_rate=moving_rate,
                communication_period=period,
                ea_custom_getter=ea_custom,
            )
            train_op = [optimizer.apply_gradients(pairs, global_step)]
        hook = optimizer.make_session_run_hook(worker_id == 0, worker_id)
        saver = optimizer.swapping_saver()
        session = tf.train.MonitoredTrainingSession(
            cluster.targets[worker_id], is_chief=worker_id == 0, hooks=[hook]
        )
    return graph, session, train_op, saver


def test_two_steps_of_one_worker_and_the_saver(tmp_path):
    graph, session, train_op, saver = get_worker(Cluster(1), 0, period=2, moving_rate=1.0)
    names = ["v0", "v1", *(f"{GLOBAL_VARIABLE_NAME}/v{i}" for i in (0, 1)), "global_step"]
    read = partial(session.run, named(graph, names))
    assert read() == [0, 1, 0, 1, 0]
    session.run(train_op)
    assert read() == [1, 2, 0, 1, 0]
    session.run(train_op)
    assert read() == [0, 1, 2, 3, 1]  # a moving rate of 1 swaps
    session.run(train_op)
    assert read() == [1, 2, 2, 3, 1]
    with graph.as_default():
        saver.save(plain(session), str(tmp_path / "model"))
        session.close()
    with tf.Graph().as_default(), tf.Session() as restored:
        v0 = tf.get_variable(initializer=0.0, name="v0")
        v1 = tf.get_variable(initializer=1.0, name="v1")
        tf.train.Saver([v1, v0]).restore(restored, str(tmp_path / "model"))
        assert restored.run([v0, v1]) == [2, 3]


def test_two_workers_and_parts_of_variables(tmp_path):
    cluster = Cluster(2, ps=2)
    workers = [get_worker(cluster, i, period=1, moving_rate=0.5, parts=True) for i in (0, 1)]
    for _, session, train_op, _ in workers:
        session.run(train_op)
    (graph, session, _, saver), (_, other, _, _) = workers
    names = ["v0", "v1", *(f"{GLOBAL_VARIABLE_NAME}/v{i}" for i in (0, 1))]
    assert session.run(named(graph, names)) == [0.5, 1.5, 0.75, 1.75]
    assert other.run(named(workers[1][0], names[:2])) == [0.75, 1.75]
    (part,) = session.run(named(graph, [f"{GLOBAL_VARIABLE_NAME}/partition_var/part_0"]))
    np.testing.assert_array_equal(part, np.full([1, 4], 1.75))
    with graph.as_default():
        saver.save(plain(session), str(tmp_path / "model"))
    for owner, monitored, *_ in workers:
        with owner.as_default():
            monitored.close()
    with tf.Graph().as_default(), tf.Session() as restored:
        scope = tf.variable_scope("", partitioner=tf.fixed_size_partitioner(2, axis=0))
        with scope:
            whole = tf.get_variable("partition_var", [2, 4])
        tf.train.Saver([whole]).restore(restored, str(tmp_path / "model"))
        np.testing.assert_array_equal(restored.run(whole.as_tensor()), np.full([2, 4], 1.75))
    with tf.Graph().as_default(), tf.Session() as restored:
        whole = tf.get_variable("partition_var", [2, 4])
        tf.train.Saver([whole]).restore(restored, str(tmp_path / "model"))
        np.testing.assert_array_equal(restored.run(whole), np.full([2, 4], 1.75))


def test_slots_of_adam_are_the_worker_s_own():
    graph, session, train_op, _ = get_worker(Cluster(1), 0, 2, 0.5, tf.train.AdamOptimizer)
    local = {v.op.name for v in graph.get_collection(tf.GraphKeys.LOCAL_VARIABLES)}
    assert {"v0/Adam", "v1/Adam_1", "beta1_power", "beta2_power"} <= local
    shared = {v.op.name for v in graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)}
    assert shared == {"global_step"} | {f"{GLOBAL_VARIABLE_NAME}/v{i}" for i in (0, 1)}
    session.run(train_op)
    with graph.as_default():
        session.close()


def test_variables_and_centers_go_where_1_15_put_them():
    cluster_spec = tf.train.ClusterSpec(
        {"ps": ["ps0:2222", "ps1:2222"], "worker": ["worker0:2222", "worker1:2222"]}
    )
    with tf.Graph().as_default():
        ea_custom = ElasticAverageCustomGetter(worker_device="/job:worker/task:0")
        setter = tf.train.replica_device_setter(
            cluster=cluster_spec, worker_device="/job:worker/task:0", ps_device="/job:ps"
        )
        with tf.device(setter), tf.variable_scope("", custom_getter=ea_custom):
            v = tf.get_variable(initializer=[1, 2], name="v")
            w = tf.get_variable(initializer=[2, 1], name="w")
            local = tf.get_variable(
                "seen", initializer=0, trainable=False, collections=["local_variables"]
            )
            shared = tf.get_variable("shared", initializer=0, trainable=False)
        assert v.device == w.device == local.device == "/job:worker/task:0"
        assert shared.device.startswith("/job:ps")
        assert local not in ea_custom.global_variables
        assert ea_custom._global_map[v].device == "/job:ps/task:0"
        assert ea_custom._global_map[w].device == "/job:ps/task:1"


def test_a_synchronous_script_keeps_both_workers_together():
    cluster, seen, started = Cluster(2), {}, threading.Event()

    def run(task_index):
        worker_device = f"/job:worker/task:{task_index}"
        with tf.Graph().as_default():
            getter = ElasticAverageCustomGetter(worker_device=worker_device)
            setter = tf.train.replica_device_setter(
                worker_device=worker_device, ps_device="/job:ps", ps_tasks=1
            )
            with tf.device(setter), tf.variable_scope("", custom_getter=getter):
                global_step = tf.train.get_or_create_global_step()
                v = tf.get_variable(initializer=0.0, name="v")
                optimizer = ElasticAverageOptimizer(
                    tf.train.GradientDescentOptimizer(0.1),
                    2,
                    getter,
                    communication_period=2,
                    synchronous=True,
                )
                loss = tf.square(v - (1.0 if task_index else 3.0))
                train_op = optimizer.minimize(loss, global_step=global_step)
            stop = tf.train.StopAtStepHook(last_step=30)
            hook = optimizer.make_session_run_hook(task_index == 0, task_index)
            if task_index:
                assert started.wait(60)  # who finds no variables looks again after 30 s only
            with tf.train.MonitoredTrainingSession(
                cluster.targets[task_index], is_chief=task_index == 0, hooks=[hook, stop]
            ) as session:
                started.set()
                while not session.should_stop():
                    seen[task_index] = session.run([v, optimizer.global_variables[v]])
                    session.run(train_op)

    together(partial(run, 0), partial(run, 1), timeout_s=100)
    assert 1 < seen[1][0] < seen[1][1] < seen[0][0] < 3
