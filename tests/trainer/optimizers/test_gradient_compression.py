"""Gradient compression against its rules, on real servers: nothing is lost, little is sent."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

import deepinsight as di
from deepinsight.collectors.collection import traced_tensors
from deepinsight.trainer import rules
from deepinsight.trainer.optimizers.compression.optimizer import GradientCompressionOptimizer

from .compression_workers import DENSE, LOOKED_UP, SHAPES, Rules, Scripted, start_cluster

v1 = tf.compat.v1
pytestmark = pytest.mark.timeout(120)
CONTAINERS = (f"compression{i}" for i in itertools.count())


@pytest.fixture(scope="module")
def cluster():
    """Two parameter servers and two workers in this process."""
    return start_cluster()


def random_step(generator):
    """Targets, and the rows that are looked up, some of them twice."""
    targets = {name: generator.normal(size=s).astype(np.float32) for name, s in SHAPES.items()}
    return targets, generator.integers(0, SHAPES["table"][0] - 1, LOOKED_UP).astype(np.int32)


def interleave(cluster, steps, rule, oracle, scale=None, **options):
    """Run a random script; yields the worker and its result after each push."""
    container = next(CONTAINERS)
    workers = [Scripted(cluster, container, i, rule, **options) for i in (0, 1)]
    generator = np.random.default_rng(7)
    busy, pushes, seen = [False, False], 0, [0, 0]
    while pushes < steps:
        i = int(generator.integers(2))
        if not busy[i]:
            step = random_step(generator)
            workers[i].pull(*step)
            oracle.pull(i, *step)
            seen[i] = pushes
        else:
            result = workers[i].apply()
            oracle.apply(i, scale)
            assert result["step"] == pushes
            assert result["staleness"] == pushes - seen[i]
            pushes += 1
            assert result["reached"] == pushes
            yield workers[i], i
        busy[i] = not busy[i]
    for worker, waits in zip(workers, busy, strict=True):
        if waits:
            worker.apply()
        worker.session.close()


@pytest.mark.parametrize("compress_sparse", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_two_workers_in_any_order_have_the_bits_of_the_rules(cluster, momentum, compress_sparse):
    oracle = Rules(momentum=momentum, sparsity=0.9, rate=0.1, compress_sparse=compress_sparse)
    options = {"sparsity": 0.9, "momentum": momentum, "compress_sparse": compress_sparse}
    for worker, i in interleave(cluster, 16, 0.1, oracle, **options):
        for name, value in worker.values().items():
            np.testing.assert_array_equal(value, oracle.weights[name], err_msg=name)
        state = worker.state()
        for name in DENSE + ["table"] * compress_sparse:
            for part, expected in zip(
                ("velocity", "residual"), oracle.states[i][name], strict=True
            ):
                found = state[f"{name}/GradientCompression/{part}"]
                np.testing.assert_array_equal(found, expected, err_msg=f"{name} {part}")
    assert any(np.abs(v).any() for u, v in oracle.states[0].values())


def compare(cluster, rule, oracle, rtol=0.0, scale=None, steps=12, **options):
    """The weights after each push of a random script."""
    for worker, _ in interleave(cluster, steps, rule, oracle, scale, **options):
        for name, value in worker.values().items():
            expected = oracle.weights[name]
            np.testing.assert_allclose(value, expected, rtol=rtol, atol=rtol, err_msg=name)


def test_without_masking_the_velocity_goes_on(cluster):
    oracle = Rules(momentum=0.9, sparsity=0.9, rate=0.125, masking=False)
    options = {"sparsity": 0.9, "momentum_factor_masking": False, "exact": True}
    compare(cluster, 0.125, oracle, **options)


def test_the_sparsity_rises_with_each_workers_own_steps(cluster):
    stages = [0.5, 0.5, 0.5, 0.75, 0.75, 0.75]  # 0.99 is more than the sparsity after it
    oracle = Rules(
        momentum=0.5, sparsity=lambda step: [*stages, 0.9][min(step, len(stages))], rate=0.125
    )
    options = {"sparsity": 0.9, "momentum": 0.5, "warm_up": (0.5, 0.75), "warm_up_steps": 6}
    compare(cluster, 0.125, oracle, **options)


def test_no_stage_of_the_warm_up_exceeds_the_sparsity(cluster):
    oracle = Rules(momentum=0.0, sparsity=lambda step: 0.75 if step < 2 else 0.8, rate=0.125)
    options = {"sparsity": 0.8, "momentum": 0.0, "warm_up": (0.75, 0.99), "warm_up_steps": 4}
    compare(cluster, 0.125, oracle, **options)


RATES = {
    "tensor": lambda rate: rate,
    "callable": lambda rate: lambda: rate,
    "optimizer": v1.train.GradientDescentOptimizer,
}


@pytest.mark.parametrize("kind", RATES)
def test_the_learning_rate_may_follow_the_global_step(cluster, kind):
    oracle = Rules(momentum=0.5, sparsity=0.9, rate=lambda step: 0.5 ** (1 + step // 4))

    def rule(step):
        halved = v1.train.exponential_decay(0.5, step, 4, 0.5, staircase=True)
        return RATES[kind](halved() if callable(halved) else halved)

    compare(cluster, rule, oracle, sparsity=0.9, momentum=0.5)


@pytest.mark.parametrize("compress_sparse", [False, True])
def test_all_gradients_of_a_worker_are_clipped_together(cluster, compress_sparse):
    scales = []

    def scale(gradients, ids):
        parts = [gradients[name].ravel() for name in DENSE]
        if compress_sparse:
            summed = np.zeros(SHAPES["table"])
            np.add.at(summed, ids, gradients["table"])
            parts.append(summed.ravel())
        together = np.concatenate(parts).astype(np.float64)
        (clipped,) = rules.clip_local_gradient(together, threshold=60.0, num_workers=2)
        scales.append(clipped[0] / together[0])
        return scales[-1]

    oracle = Rules(momentum=0.9, sparsity=0.9, rate=0.125, compress_sparse=compress_sparse)
    options = {"sparsity": 0.9, "clip_norm": 60.0, "compress_sparse": compress_sparse}
    compare(cluster, 0.125, oracle, rtol=1e-5, scale=scale, steps=16, **options)
    assert min(scales) < 0.99
    assert max(scales) == 1


class Towers:
    """Workers in one graph, which take their gradients from outside."""

    def __init__(self, shapes, workers=1, dtype=tf.float32, rate=1.0, **options):
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.step = v1.train.get_or_create_global_step()
            self.weights = [
                v1.get_variable(f"w{i}", shape, dtype, v1.zeros_initializer(), use_resource=True)
                for i, shape in enumerate(shapes)
            ]
            self.feeds = [v1.placeholder(dtype, shape) for shape in shapes]
            pairs = list(zip(self.feeds, self.weights, strict=True))
            self.optimizers = [
                GradientCompressionOptimizer(rate, num_workers=workers, **options)
                for _ in range(workers)
            ]
            self.ops = [one.apply_gradients(pairs, self.step) for one in self.optimizers]
            self.streams = {t.stream.name: t.tensor for t in traced_tensors(self.graph)}
            self.init = v1.global_variables_initializer(), v1.local_variables_initializer()

    def __enter__(self):
        self.session = v1.Session(graph=self.graph)
        self.session.run(self.init)
        return self

    def __exit__(self, *error):
        self.session.close()

    def push(self, gradients, worker=0, fetches=()):
        feeds = dict(zip(self.feeds, gradients, strict=True))
        return self.session.run([fetches, self.ops[worker]], feeds)[0]

    def residuals(self, worker=0):
        own = {v.op.name: v for v in self.optimizers[worker].own}
        return self.session.run([v for name, v in own.items() if "/residual" in name])


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.half, tf.bfloat16])
def test_what_was_sent_and_what_waits_is_the_sum_of_the_gradients(dtype):
    shapes = [(20, 6), (50,), (), (0, 3)]
    generator = np.random.default_rng(3)
    total = [np.zeros(shape) for shape in shapes]
    options = {"momentum": 0.0, "sparsity": 0.9, "dense_below": 20, "dtype": dtype}
    with Towers(shapes, workers=2, **options) as towers:
        for turn in range(12):
            # Whole numbers: all sums are exact in all types, as long as they are below 256.
            grads = [generator.integers(-3, 4, shape) for shape in shapes]
            towers.push(grads, worker=int(generator.integers(2)))
            total = [t + g for t, g in zip(total, grads, strict=True)]
            sent = [-np.asarray(w, np.float64) for w in towers.session.run(towers.weights)]
            waits = [sum(parts) for parts in zip(*map(towers.residuals, (0, 1)), strict=True)]
            for s, v, t in zip(sent, waits, total, strict=True):
                np.testing.assert_array_equal(s + v, t)
            assert np.count_nonzero(waits[0]), turn
            assert not np.count_nonzero(waits[2]), turn


@pytest.mark.parametrize("dense_below", [0, None])
def test_small_variables_are_sent_whole_unless_asked_otherwise(dense_below):
    options = {"momentum": 0.5, "sparsity": 0.9, "dense_below": dense_below}
    with Towers([(9,), (10,)], **options) as towers:
        for _ in range(2):
            towers.push([np.arange(9), np.arange(10)])
        small, large = towers.session.run(towers.weights)
    # Twice the gradient and half of the first as momentum, or the largest of what waits by then.
    expected = -2.5 * np.arange(9) if dense_below is None else [0] * 7 + [-17.5, -8]
    np.testing.assert_array_equal(small, expected)
    np.testing.assert_array_equal(large, [0] * 8 + [-20, -9])


def test_rows_are_applied_as_they_are_unless_asked_otherwise():
    for compress in (False, True):
        with tf.Graph().as_default():
            table = v1.get_variable("t", initializer=np.zeros((40, 2), np.float32))
            rows = tf.IndexedSlices(
                tf.constant([[1.0, 2], [3, 4], [10, 20]]), tf.constant([5, 7, 5])
            )
            optimizer = GradientCompressionOptimizer(
                0.5, num_workers=1, sparsity=0.975, compress_sparse=compress
            )
            train = optimizer.apply_gradients([(rows, table)])
            with v1.Session() as session:
                session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
                session.run(train)
                found = session.run(table)
        expected = np.zeros((40, 2))
        expected[5] = [-5.5, -11]
        if not compress:
            expected[7] = [-1.5, -2]
            assert optimizer.own == []
        np.testing.assert_array_equal(found, expected)


def test_a_norm_that_is_not_finite_is_not_hidden():
    with Towers([(30,)], clip_norm=1.0, sparsity=0.5, dense_below=0) as towers:
        towers.push([np.full(30, np.nan)])
        assert np.isnan(towers.session.run(towers.weights[0])).sum() == 15
    with Towers([(4,)], clip_norm=1.0, sparsity=0.5, dense_below=0) as towers:
        towers.push([np.zeros(4)])
        np.testing.assert_array_equal(towers.session.run(towers.weights[0]), 0)


def crossing(graph):
    """What goes from a worker to a parameter server: dtype and bytes' tensor, by server."""
    found = {}
    for op in graph.get_operations():
        if not op.device.startswith("/job:ps") or op.type == "AssignVariableOp":
            continue
        for tensor in op.inputs:
            if tensor.device.startswith("/job:worker"):
                found.setdefault(op.device, set()).add(tensor.ref())
    return {device: [ref.deref() for ref in refs] for device, refs in found.items()}


@pytest.mark.parametrize("moving_rate", [False, True])
def test_one_message_crosses_to_each_server_and_its_bytes_are_told(cluster, moving_rate):
    with tf.Graph().as_default() as graph, graph.container(next(CONTAINERS)):
        setter = v1.train.replica_device_setter(
            cluster=cluster.spec, worker_device="/job:worker/task:0"
        )
        with v1.device(setter):
            shapes = {"a": (100, 10), "b": (30, 10), "c": (50, 10), "d": (7,), "e": (11,)}
            weights = [v1.get_variable(n, s, use_resource=True) for n, s in shapes.items()]
            rate = tf.constant(0.1) * 1 if moving_rate else 0.1
            gradients = [(tf.ones(w.shape), w) for w in weights]
            optimizer = GradientCompressionOptimizer(
                rate, num_workers=2, sparsity=0.9, warm_up=(0.5,), warm_up_steps=1
            )
            train = optimizer.apply_gradients(gradients)
        assert {w.device for w in weights} == {"/job:ps/task:0", "/job:ps/task:1"}
        streams = {t.stream.name: t.tensor for t in traced_tensors(graph)}
        messages = crossing(graph)
        assert set(messages) == {"/job:ps/task:0", "/job:ps/task:1"}
        assert all(len(m) == 1 and m[0].dtype == tf.uint8 for m in messages.values())
        sizes = [tf.size(m[0]) for m in messages.values()]
        with v1.Session(cluster.targets[0]) as session:
            session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            told = [session.run([train, streams, sizes])[1:] for _ in range(2)]
    # "d" has fewer than 1 / (1 - 0.9) elements. Index and value are 4 bytes each.
    extra = 7 * 4 + (2 * 4 if moving_rate else 0)
    dense = sum(int(np.prod(shape)) for shape in shapes.values()) * 4
    sent = []
    for (found, travelled), elements in zip(
        told, ([500, 150, 250, 6], [100, 30, 50, 1]), strict=True
    ):
        sent.append(sum(elements) * 8 + extra)
        assert found["sync/bytes_sent"] == sum(travelled) == sent[-1]
        assert found["sync/dense_bytes"] == dense
        np.testing.assert_allclose(found["sync/compression_ratio"], dense / sent[-1])
        assert found["sync/total_bytes_sent"] == sum(sent)
        assert found["sync/total_dense_bytes"] == dense * len(sent)
    assert [found["sync/sparsity"] for found, _ in told] == [0.5, 0.9]


def test_types_of_two_sizes_go_in_two_messages():
    with tf.Graph().as_default() as graph:
        weights = [
            v1.get_variable(dtype.name, [40], dtype, v1.zeros_initializer(), use_resource=True)
            for dtype in (tf.float64, tf.half, tf.float32)
        ]
        pairs = [(tf.cast(tf.range(40), w.dtype), w) for w in weights]
        optimizer = GradientCompressionOptimizer(1.0, num_workers=1, sparsity=0.9)
        train = optimizer.apply_gradients(pairs)
        sent = {t.stream.name: t.tensor for t in traced_tensors(graph)}["sync/bytes_sent"]
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            assert session.run([sent, train])[0] == 4 * (4 + 8) + 4 * (4 + 2) + 4 * (4 + 4)
            for found in session.run(weights):
                np.testing.assert_array_equal(found, [0] * 36 + [-36, -37, -38, -39])


def test_the_hook_records_what_waits(tmp_path):
    generator = np.random.default_rng(5)
    with Towers([(60,), (40,), (3,)], sparsity=0.9, momentum=0.0) as towers:
        grads = [generator.normal(size=shape).astype(np.float32) for shape in (60, 40, 3)]
        with (
            towers.graph.as_default(),
            v1.train.MonitoredTrainingSession(
                hooks=[di.TraceHook(tmp_path, every_n_steps=1)]
            ) as session,
        ):
            feeds = dict(zip(towers.feeds, grads, strict=True))
            for _ in range(3):
                session.run(towers.ops[0], feeds)
            waits = session.run([v for v in towers.optimizers[0].own if "residual" in v.name])
    with di.open_run(tmp_path) as run:
        found = {n: run.array(n).values for n in run.stream_names() if n.startswith("sync/")}
        unit = run.stream("sync/bytes_sent").unit
    assert unit == "bytes"
    assert set(found) == {f"sync/{name}" for name in (
        "bytes_sent", "dense_bytes", "compression_ratio", "total_bytes_sent",
        "total_dense_bytes", "residual_norm", "threshold", "sparsity",
    )}  # fmt: skip
    norm = np.sqrt(sum((w.astype(float) ** 2).sum() for w in waits))
    np.testing.assert_allclose(found["sync/residual_norm"][-1], norm)
    first = max(np.sort(np.abs(grads[0]))[-6], np.sort(np.abs(grads[1]))[-4])
    np.testing.assert_allclose(found["sync/threshold"][0], first)
    np.testing.assert_array_equal(found["sync/total_bytes_sent"], [92, 184, 276])


def test_a_second_tower_reports_under_its_name():
    towers = Towers([(30,)], workers=2)
    assert {"sync/bytes_sent", "sync/GradientCompression/bytes_sent"} <= set(towers.streams)
    own = [v.op.name for one in towers.optimizers for v in one.own]
    assert len(own) == len(set(own)) == 8


def test_the_state_is_on_the_worker_and_in_no_checkpoint(cluster):
    with tf.Graph().as_default() as graph:
        setter = v1.train.replica_device_setter(
            cluster=cluster.spec, worker_device="/job:worker/task:1"
        )
        with v1.device(setter):
            w = v1.get_variable("w", [30, 40], use_resource=True)
            b = v1.get_variable("b", [4], use_resource=True)
            optimizer = GradientCompressionOptimizer(0.1, num_workers=2)
            optimizer.minimize(tf.reduce_sum(w**2) + tf.reduce_sum(b**2))
        assert w.device == "/job:ps/task:0"
        assert len(optimizer.own) == 6
        assert optimizer.variables() == optimizer.own
        assert {v.device for v in optimizer.own} == {"/job:worker/task:1"}
        assert not any(v is o for v in v1.global_variables() for o in optimizer.own)
        assert v1.local_variables() == optimizer.own
        for op in graph.get_operations():
            if op.type.startswith("ResourceDgc"):
                assert op.device == "/job:worker/task:1"
            if op.type == "ResourceScatterApplyGradientDescent":
                assert op.device.startswith("/job:ps")


def test_a_device_function_cannot_take_the_state_away(cluster):
    with tf.Graph().as_default():
        gradient = v1.placeholder(tf.float32, [2])
        with v1.device(v1.train.replica_device_setter(cluster=cluster.spec)):
            w = v1.get_variable("w", [2], use_resource=True)
            with pytest.raises(ValueError, match=r"on /job:ps/task:\d; name `worker_device`"):
                GradientCompressionOptimizer(0.1, num_workers=2).apply_gradients([(gradient, w)])
            optimizer = GradientCompressionOptimizer(
                0.1, num_workers=2, worker_device="/job:worker/task:1"
            )
            optimizer.apply_gradients([(gradient, w)])
        assert {v.device for v in optimizer.own} == {"/job:worker/task:1"}


def test_it_learns_what_gradient_descent_learns():
    """A linear model of 400 inputs; 16 of 400 elements per step are enough."""
    generator = np.random.default_rng(11)
    inputs = generator.normal(size=(800, 400)).astype(np.float32)
    truth = generator.normal(size=400).astype(np.float32)
    with tf.Graph().as_default():
        w = v1.get_variable("w", [400], initializer=v1.zeros_initializer(), use_resource=True)
        error = tf.linalg.matvec(tf.constant(inputs), w) - inputs @ truth
        loss = tf.reduce_mean(error**2)
        optimizer = GradientCompressionOptimizer(
            0.005, num_workers=1, sparsity=0.96, warm_up_steps=40, clip_norm=100.0
        )
        train = optimizer.minimize(loss)
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            before = session.run(loss)
            for _ in range(900):
                session.run(train)
            assert session.run(loss) < 1e-3 * before


REFUSED = [
    ({"learning_rate": 0.0}, "`learning_rate` must be finite and > 0. Received: .*=0.0"),
    ({"momentum": 1.0}, r"`momentum` must be in \[0, 1\). Received: momentum=1.0"),
    ({"num_workers": 0}, "`num_workers` must be >= 1. Received: num_workers=0"),
    ({"num_workers": 1.5}, "`num_workers` must be an int. Received: num_workers=1.5"),
    ({"sparsity": 1.0}, r"`sparsity` must be in \[0, 1\). Received: sparsity=1.0"),
    ({"sparsity": float("nan")}, "`sparsity` must be .* Received: sparsity=nan"),
    ({"sparsity": lambda: 0.5}, "`sparsity` must be a number .* Received: sparsity=<function"),
    ({"warm_up": (0.5, 1.0)}, r"`warm_up\[1\]` must be in .* Received: warm_up\[1\]=1.0"),
    ({"warm_up_steps": -1}, "`warm_up_steps` must be >= 0. Received: warm_up_steps=-1"),
    ({"clip_norm": 0.0}, "`clip_norm` must be finite and > 0. Received: clip_norm=0.0"),
    ({"dense_below": -1}, "`dense_below` must be >= 0. Received: dense_below=-1"),
]


@pytest.mark.parametrize(("wrong", "match"), REFUSED)
def test_what_makes_no_sense_is_refused(wrong, match):
    with pytest.raises(ValueError, match=match):
        GradientCompressionOptimizer(**{"learning_rate": 0.1, "num_workers": 2} | wrong)


BASES = {
    "MomentumOptimizer": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
    "AdagradOptimizer": lambda: v1.train.AdagradOptimizer(0.1),
    "SGD": tf.keras.optimizers.SGD,
}


@pytest.mark.parametrize("name", BASES)
def test_a_server_that_does_more_than_gradient_descent_is_refused(name):
    match = rf"GradientDescentOptimizer\. Received: .*\.{name}; .* would count it twice"
    with pytest.raises(ValueError, match=match):
        GradientCompressionOptimizer(BASES[name](), num_workers=2)


def test_a_graph_is_needed_and_gradients_that_have_not_travelled():
    optimizer = GradientCompressionOptimizer(0.1, num_workers=2)
    w = tf.Variable([1.0])
    with pytest.raises(RuntimeError, match=r"into a graph\. Received: a call in eager execution"):
        optimizer.apply_gradients([(tf.constant([1.0]), w)])
    traced = tf.function(lambda: optimizer.apply_gradients([(tf.constant([1.0]), w)]))
    with pytest.raises(RuntimeError, match=r"a call in a tf\.function; build it"):
        traced()
    with tf.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        weight = v1.get_variable("w", [1], use_resource=True)
        with pytest.raises(RuntimeError, match="must follow `apply_gradients`"):
            optimizer.make_session_run_hook("/nowhere")
        with pytest.raises(ValueError, match="No gradients provided"):
            optimizer.apply_gradients([(None, weight)])
        with pytest.raises(ValueError, match=r"Received: \(2,\) for 'w:0'"):
            optimizer.apply_gradients([(tf.ones([2]), weight)])
        sync = v1.train.SyncReplicasOptimizer(optimizer, 1, 1)
        with pytest.raises(ValueError, match="'w:0' out of an accumulator"):
            sync.minimize(tf.reduce_sum(weight), step)


def test_a_rate_out_of_range_is_refused_when_the_op_runs():
    with tf.Graph().as_default():
        rate = v1.placeholder(tf.float32, [])
        w = v1.get_variable("w", [4], use_resource=True)
        optimizer = GradientCompressionOptimizer(rate, num_workers=1)
        train = optimizer.apply_gradients([(tf.ones([4]), w)])
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            with pytest.raises(tf.errors.InvalidArgumentError, match="`learning_rate` must be"):
                session.run(train, {rate: 0.0})
