"""What travels in an exchange, which dtypes it takes, and what base optimizers do to it."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinsight.collectors.collection import traced_tensors
from deepinsight.trainer import rules
from deepinsight.trainer.optimizers import AccumulatedGradients, LARSOptimizer
from deepinsight.trainer.optimizers.averaging import elastic_exchange
from deepinsight.trainer.optimizers.averaging.elastic_average import (
    ElasticAverageCustomGetter,
    ElasticAverageOptimizer,
)
from deepinsight.trainer.optimizers.averaging.elastic_bytes import Layout, pack, unpack

from .elastic import START, Cluster, Worker

v1 = tf.compat.v1
pytestmark = pytest.mark.timeout(120)
DTYPES = [tf.float32, tf.float64, tf.half, tf.bfloat16, tf.int64]
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def messages(op):
    """What a run of `op` sends from device to device: tensors, and the ends of ops."""
    seen, todo, sent = set(), [op], set()
    while todo:
        receiver = todo.pop()
        if receiver in seen:
            continue
        seen.add(receiver)
        for given_ in (*receiver.inputs, *receiver.control_inputs):
            sender = getattr(given_, "op", given_)
            todo.append(sender)
            if sender.device != receiver.device:
                sent.add((given_.name, sender.device, receiver.device))
    return sorted((sender, receiver) for _, sender, receiver in sent)


@pytest.mark.parametrize("ps", [1, 2])
def test_an_exchange_is_one_message_each_way_and_server(ps):
    worker = Worker(Cluster(1, ps), 0)
    here = "/job:worker/task:0"
    expected = [(here, f"/job:ps/task:{i}") for i in range(ps)]
    expected += [(f"/job:ps/task:{i}", here) for i in range(ps)]
    assert messages(worker.optimizer._built()._exchange) == sorted(expected)
    worker.close()


arrays = st.tuples(
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3), max_size=3),
    st.integers(0, 2**32 - 1),
)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(arrays, min_size=1, max_size=5))
def test_what_is_packed_comes_out_again(described):
    values = [
        np.asarray(np.random.default_rng(seed).integers(-1000, 1000, shape)).astype(
            dtype.as_numpy_dtype
        )
        for dtype, shape, seed in described
    ]
    with tf.Graph().as_default(), v1.Session() as session:
        tensors = [tf.constant(value) for value in values]
        layout = Layout.of(tensors)
        packed = pack(tensors)
        out, size = session.run([unpack(packed, layout), tf.size(packed)])
    assert size == sum(value.nbytes for value in values) == sum(layout.sizes)
    for value, result in zip(values, out, strict=True):
        assert (value.dtype, value.shape) == (result.dtype, result.shape)
        assert value.tobytes() == result.tobytes()


@pytest.mark.parametrize(("large", "kernel"), [(16, True), (2**20, True), (2**20, False)])
def test_all_floating_dtypes_exchange_as_the_rule_does(monkeypatch, large, kernel):
    monkeypatch.setattr(elastic_exchange, "LARGE", large)  # most of it alone, or all together
    cluster, rate = Cluster(1), 0.3
    generator = np.random.default_rng(0)
    with tf.Graph().as_default():
        getter = ElasticAverageCustomGetter(worker_device="/job:worker/task:0")
        setter = v1.train.replica_device_setter(
            worker_device="/job:worker/task:0", ps_device="/job:ps", ps_tasks=1
        )
        with v1.device(setter), v1.variable_scope("", custom_getter=getter):
            variables = [
                v1.get_variable(
                    f"v_{dtype.name}_{len(shape)}",
                    initializer=tf.constant(generator.normal(size=shape), dtype),
                )
                for dtype in DTYPES[:4]
                for shape in ((), (5, 3))
            ]
            optimizer = ElasticAverageOptimizer(
                v1.train.GradientDescentOptimizer(1.0), 1, getter, 1, rate, kernel=kernel
            )
            pairs = [
                (tf.constant(generator.normal(size=v.shape), v.dtype.base_dtype), v)
                for v in variables
            ]
            train_op = optimizer.apply_gradients(pairs)
        centers = [optimizer.global_variables[v] for v in variables]
        hook = optimizer.make_session_run_hook(True, 0)
        with v1.train.MonitoredTrainingSession(cluster.targets[0], hooks=[hook]) as session:
            before, gradients = session.run([variables, [gradient for gradient, _ in pairs]])
            session.run(train_op)
            after, center = session.run([variables, centers])
    squares = 0.0
    for value, gradient, x, c in zip(before, gradients, after, center, strict=True):
        wide = np.float64 if value.dtype == np.float64 else np.float32
        stepped = (value.astype(value.dtype) - gradient.astype(value.dtype)).astype(wide)
        expected = rules.elastic_exchange(stepped, value.astype(wide), moving_rate=rate)
        squares += np.sum((stepped - value.astype(wide)) ** 2.0)
        for result, right in zip((x, c), expected, strict=True):
            assert result.dtype == value.dtype
            # composed, a half's step is rounded before it is added: one unit in the last place
            apart = 0 if kernel or value.dtype.itemsize > 2 else 2.0**-7
            np.testing.assert_allclose(
                result.astype(wide), right.astype(value.dtype).astype(wide), rtol=apart, atol=apart
            )
    assert squares > 1


def test_eamsgd_follows_its_rule():
    """TensorFlow's variable is the look-ahead; what the centre sees are the weights."""
    eta, delta, rate, period = 0.125, 0.99, 0.25, 3
    cluster = Cluster(2)
    team = [
        Worker(
            cluster,
            i,
            lambda: v1.train.MomentumOptimizer(eta, delta, use_nesterov=True),
            communication_period=period,
            moving_rate=rate,
        )
        for i in range(2)
    ]
    generator = np.random.default_rng(1)
    target = {name: generator.normal(size=value.shape) for name, value in START.items()}
    center = {name: value.astype(float) for name, value in START.items()}
    x = [dict(center) for _ in team]
    v = [{name: np.zeros_like(value) for name, value in center.items()} for _ in team]
    steps = [0, 0]
    for w in [0, 0, 1, 0, 1, 1, 1, 0, 1, 1, 0, 0, 1, 0, 0]:
        ahead = team[w].read(team[w].locals)
        rows = generator.permutation(6)[:4].astype(np.int32)
        for name, at in ahead.items():
            np.testing.assert_allclose(at, x[w][name] + delta * v[w][name], rtol=1e-4, atol=1e-5)
        slope = {name: ahead[name] - target[name] for name in ahead}
        team[w].train(slope["w"], slope["table"][rows], rows)
        for name, chosen in (("w", slice(None)), ("table", rows)):
            x[w][name], v[w][name] = x[w][name].copy(), v[w][name].copy()
            x[w][name][chosen], v[w][name][chosen] = rules.eamsgd_step(
                x[w][name][chosen],
                v[w][name][chosen],
                lambda at, name=name, chosen=chosen: at - target[name][chosen],
                learning_rate=eta,
                momentum=delta,
            )
        steps[w] += 1
        if steps[w] % period == 0:
            for name in START:
                x[w][name], center[name] = rules.elastic_exchange(
                    x[w][name], center[name], moving_rate=rate
                )
        read = team[w].read(team[w].centers)
        for name, value in center.items():
            np.testing.assert_allclose(read[name], value, rtol=1e-4, atol=1e-5)
    assert team[0].read(team[0].step) == 4
    for worker in team:
        worker.close()


def run_alone(base, make_loss, steps, feed=None, **options):
    """Train a variable and a table in this process; their values, and the centres'."""
    with tf.Graph().as_default():
        getter = ElasticAverageCustomGetter(worker_device="/device:CPU:0")
        with v1.variable_scope("", custom_getter=getter):
            w = v1.get_variable("w", initializer=tf.constant([1.0, -2.0]))
            table = v1.get_variable("table", initializer=tf.ones([4, 2]))
        optimizer = ElasticAverageOptimizer(base(), 1, getter, **options)
        op = optimizer.minimize(make_loss(w, table), v1.train.get_or_create_global_step())
        hook = optimizer.make_session_run_hook(True, 0)
        with v1.train.MonitoredSession(hooks=[hook]) as session:
            for step in range(steps):
                session.run(op, feed(step) if feed else None)
            return session.run(
                [w, table, optimizer.global_variables[w], optimizer.global_variables[table]]
            )


def square(w, table):
    return tf.reduce_sum(w**2) + tf.reduce_sum(tf.gather(table, [2, 0, 2]) ** 2)


def test_a_learning_rate_may_be_fed():
    given_ = {}

    def base():
        given_["rate"] = v1.placeholder(tf.float32, [])
        return v1.train.MomentumOptimizer(given_["rate"], 0.5, use_nesterov=True)

    options = {"communication_period": 1, "moving_rate": 0.5}
    fed = run_alone(base, square, 3, lambda _: {given_["rate"]: 0.125}, **options)
    fixed = run_alone(
        lambda: v1.train.MomentumOptimizer(0.125, 0.5, use_nesterov=True), square, 3, **options
    )
    for one, other in zip(fed, fixed, strict=True):
        np.testing.assert_array_equal(one, other)


BASES = {
    "adagrad": lambda: v1.train.AdagradOptimizer(0.1),
    "adam": lambda: v1.train.AdamOptimizer(0.1),
    "lars": lambda: LARSOptimizer(0.1),
    "accumulated": lambda: AccumulatedGradients(v1.train.GradientDescentOptimizer(0.1), 2),
}


@pytest.mark.parametrize("base", BASES)
def test_between_exchanges_a_worker_takes_the_steps_of_its_optimizer(base):
    x = run_alone(BASES[base], square, 4, communication_period=10)[:2]
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", initializer=tf.constant([1.0, -2.0]))
        table = v1.get_variable("table", initializer=tf.ones([4, 2]))
        op = BASES[base]().minimize(square(w, table))
        session.run(v1.global_variables_initializer())
        for _ in range(4):
            session.run(op)
        plain = session.run([w, table])
    for one, other in zip(x, plain, strict=True):
        np.testing.assert_array_equal(one, other)
        assert not np.array_equal(one, np.ones_like(one))


def test_two_optimizers_in_one_graph_have_streams_of_their_own():
    with tf.Graph().as_default() as graph:
        for tower in ("a", "b", "c"):
            getter = ElasticAverageCustomGetter(worker_device="/device:CPU:0")
            with v1.variable_scope(tower, custom_getter=getter):
                w = v1.get_variable("w", initializer=tf.zeros([2]))
            optimizer = ElasticAverageOptimizer(
                v1.train.GradientDescentOptimizer(0.1), 1, getter, name="Elastic"
            )
            optimizer.apply_gradients([(tf.ones([2]), w)])
        names = {traced.stream.name for traced in traced_tensors(graph)}
    assert names == {
        f"{prefix}/{fact}"
        for prefix in ("sync", "sync/Elastic", "sync/Elastic_1")
        for fact in ("distance_to_center", "rounds")
    }


def test_a_global_step_that_is_no_resource_variable_counts_exchanges():
    """Scripts that turn TensorFlow 2's behaviour off have such a one."""
    with tf.Graph().as_default():
        step = v1.get_variable(
            "global_step",
            initializer=np.int64(7),
            trainable=False,
            use_resource=False,
            collections=[v1.GraphKeys.GLOBAL_VARIABLES, v1.GraphKeys.GLOBAL_STEP],
        )
        assert not hasattr(step, "handle")
        getter = ElasticAverageCustomGetter(worker_device="/device:CPU:0")
        with v1.variable_scope("", custom_getter=getter, use_resource=False):
            w = v1.get_variable("w", initializer=tf.constant([1.0, -2.0]))
        optimizer = ElasticAverageOptimizer(
            v1.train.GradientDescentOptimizer(0.25), 1, getter, 2, moving_rate=0.5
        )
        op = optimizer.minimize(tf.reduce_sum(w**2), step)
        hook = optimizer.make_session_run_hook(True, 0)
        with v1.train.MonitoredSession(hooks=[hook]) as session:
            for _ in range(5):
                session.run(op)
            result = session.run([step, w, optimizer.global_variables[w]])
    # 1 -> 1/4, meets 1 at 5/8 -> 5/32, meets 5/8 at 25/64 -> 25/128
    assert [value.tolist() for value in result] == [9, [0.1953125, -0.390625], [0.390625, -0.78125]]
