"""Every Keras optimizer against its NumPy rule, dense and sparse, with interleaved workers."""

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from deepinsight.trainer.keras import (
    LARS,
    BoostedAdagrad,
    BoostedAdam,
    BoostedGradientDescent,
    BoostedMomentum,
    DelayCompensatedGradientDescent,
)

from .conftest import CASES, RATE, WITH_WORKERS, Oracle, numpy

STEPS = 24
STORAGE = {
    "float32": np.float32,
    "float64": np.float64,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}
# float32 and float64 make the same operations in the same order, except for the sums of LARS and
# the rounding of square roots and powers. The half types may round to the neighbour.
TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}


def gradient_of(rng, shape, dtype, sparse):
    """A gradient that NumPy and TensorFlow hold exactly alike, and its indices."""
    if not sparse:
        return rng.normal(size=shape).astype(STORAGE[dtype]), None
    indices = rng.integers(0, shape[0], size=5)  # of 6 rows: there are duplicates
    if dtype in ("float16", "bfloat16"):
        indices = rng.permutation(shape[0])[:4]
    values = rng.normal(size=(len(indices), *shape[1:])).astype(STORAGE[dtype])
    return values, indices


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("dtype", STORAGE)
@pytest.mark.parametrize("name", CASES)
def test_equals_the_rule(name, dtype, sparse):
    case, rng = CASES[name], np.random.default_rng(5)
    workers = 3 if name in WITH_WORKERS else 1
    start = rng.normal(size=(6, 3)).astype(STORAGE[dtype])
    expected = Oracle(
        case, start.astype("float64" if dtype == "float64" else "float32"), workers, STORAGE[dtype]
    )
    variable = keras.Variable(start, dtype=dtype, name="w")
    optimizer = case.make(**({"num_workers": workers} if workers > 1 else {}))
    for step in range(STEPS):
        worker = int(rng.integers(workers))
        grad, indices = gradient_of(rng, start.shape, dtype, sparse)
        given = tf.constant(grad, dtype)
        if sparse:
            given = tf.IndexedSlices(
                given, tf.constant(indices, tf.int32 if step % 2 else tf.int64)
            )
        if workers > 1:
            optimizer.worker_index = worker
        optimizer.apply([given], [variable])
        expected.step(worker, grad.astype(expected.param.dtype), indices)
        tolerance = TOLERANCE[dtype]
        np.testing.assert_allclose(numpy(variable), expected.param, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", CASES)
def test_a_traced_function_equals_the_eager_loop(name):
    case, rng = CASES[name], np.random.default_rng(6)
    several = {"num_workers": 2} if name in WITH_WORKERS else {}
    grads = rng.normal(size=(10, 4)).astype("float32")
    order = rng.integers(2, size=10)

    def train(compiled):
        variable, optimizer = keras.Variable(np.ones(4, "float32")), case.make(**several)

        def step(grad, worker):
            if not several:
                optimizer.apply([grad], [variable])
                return
            with optimizer.worker(worker):
                optimizer.apply([grad], [variable])

        step = tf.function(step) if compiled else step
        for grad, worker in zip(grads, order, strict=True):
            step(tf.constant(grad), tf.constant(worker))
        return variable.numpy()

    np.testing.assert_array_equal(train(True), train(False))


def plain(name, var, slots, grad, step):
    """One step of TensorFlow's own kernel."""
    raw, rate = tf.raw_ops, np.float32(RATE)
    handles = [s.handle for s in slots]
    if name == "GradientDescent":
        raw.ResourceApplyGradientDescent(var=var.handle, alpha=rate, delta=grad)
    elif name == "Momentum":
        raw.ResourceApplyMomentum(
            var=var.handle, accum=handles[0], lr=rate, grad=grad, momentum=np.float32(0.9)
        )
    elif name == "Adagrad":
        epsilon = np.float32(1e-7)
        raw.ResourceApplyAdagradV2(
            var=var.handle, accum=handles[0], lr=rate, epsilon=epsilon, grad=grad
        )
    else:
        raw.ResourceApplyAdam(
            var=var.handle,
            m=handles[0],
            v=handles[1],
            beta1_power=np.float32(0.9**step),
            beta2_power=np.float32(0.999**step),
            lr=rate,
            beta1=np.float32(0.9),
            beta2=np.float32(0.999),
            epsilon=np.float32(1e-8),
            grad=grad,
        )


@pytest.mark.parametrize(
    ("name", "make", "slots"),
    [
        ("GradientDescent", DelayCompensatedGradientDescent, []),
        ("GradientDescent", BoostedGradientDescent, []),
        ("Momentum", BoostedMomentum, [0.0]),
        ("Adagrad", BoostedAdagrad, [0.1]),
        ("Adam", BoostedAdam, [0.0, 0.0]),
    ],
)
def test_without_compensation_equals_tensorflow_bit_for_bit(name, make, slots):
    rng = np.random.default_rng(7)
    start = rng.normal(size=1001).astype("float32")
    off = "variance_parameter" if make is DelayCompensatedGradientDescent else "boost"
    optimizer = make(RATE, num_workers=2, **{off: 0.0})
    ours, theirs = keras.Variable(start), tf.Variable(start)
    state = [tf.Variable(np.full_like(start, fill)) for fill in slots]
    for step in range(1, STEPS + 1):
        grad = rng.normal(size=1001).astype("float32")
        with optimizer.worker(int(rng.integers(2))):
            optimizer.apply([grad], [ours])
        plain(name, theirs, state, grad, step)
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


@pytest.mark.parametrize("make", [DelayCompensatedGradientDescent, BoostedGradientDescent])
def test_one_worker_equals_keras_sgd_bit_for_bit(make):
    """Also where the base class moves the variables between the pushes."""
    rng = np.random.default_rng(8)
    settings = {"weight_decay": 0.1, "clipnorm": 2.0, "use_ema": True, "ema_overwrite_frequency": 3}
    start, trained = rng.normal(size=50).astype("float32"), []
    grads = rng.normal(size=(STEPS, 50)).astype("float32")
    for optimizer in (make(0.1, **settings), keras.optimizers.SGD(0.1, **settings)):
        variable = keras.Variable(start)
        for grad in grads:
            optimizer.apply([tf.constant(grad)], [variable])
        trained.append(variable.numpy())
    np.testing.assert_array_equal(*trained)


def test_skipped_variables_of_lars_take_plain_momentum():
    lars = LARS(0.5, momentum=0.5, weight_decay=0.1, skip_list=["bias"], nesterov=True)
    start = np.asarray([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "float32")
    dense = keras.Variable(start, name="bias_dense")
    table = keras.Variable(start, name="bias_table")
    velocity = np.zeros_like(start)
    expected = start.copy()
    for _ in range(20):
        rows = tf.IndexedSlices(tf.ones((3, 2)), tf.constant([2, 0, 2]))  # row 2 twice, row 1 never
        grad = np.asarray([[1.0] * 2, [0.0] * 2, [2.0] * 2], "float32")
        lars.apply([tf.constant(grad), rows], [dense, table])
        velocity = 0.5 * velocity + 0.5 * grad
        expected -= 0.5 * velocity + 0.5 * grad
    np.testing.assert_allclose(dense.numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(table.numpy(), expected, rtol=1e-6)
    assert lars.statistics["trust_ratio"] == {"bias_dense": 1.0, "bias_table": 1.0}
    norms = lars.statistics["gradient_norm"]
    np.testing.assert_allclose(norms["bias_dense"], norms["bias_table"])


def test_variables_excluded_from_decay_do_not_decay_under_lars():
    moved = []
    for excluded in (None, ["kept"]):
        lars = LARS(0.5, weight_decay=0.5)
        lars.exclude_from_weight_decay(var_names=excluded)
        variable = keras.Variable([3.0, 4.0], name="kept")
        lars.apply([[0.0, 1.0]], [variable])
        moved.append(float(variable.numpy()[0]))
    assert moved[0] < 3.0
    assert moved[1] == 3.0
