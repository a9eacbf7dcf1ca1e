"""Every refusal names the argument and what was received, and leaves the variable alone."""

import numpy as np
import pytest
import tensorflow as tf

from deepinsight.trainer import optimizers
from deepinsight.trainer.optimizers import (
    AccumulatedGradients,
    DelayCompensatedGradientDescentOptimizer,
    LARSOptimizer,
)

v1 = tf.compat.v1
NAN = float("nan")


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        ("DelayCompensatedGradientDescent", {"learning_rate": 0}, r"`learning_rate` .*=0\."),
        ("DelayCompensatedGradientDescent", {"learning_rate": NAN}, "`learning_rate` .*=nan"),
        ("DelayCompensatedGradientDescent", {"learning_rate": "1"}, "`learning_rate` .*='1'"),
        ("DelayCompensatedGradientDescent", {"learning_rate": np.float32(-1)}, r"=-1\.0"),
        ("DelayCompensatedGradientDescent", {"variance_parameter": -1}, "`variance_parameter`"),
        ("DelayCompensatedGradientDescent", {"decay": 1.0}, r"`decay` must be in \[0, 1\)"),
        ("DelayCompensatedGradientDescent", {"epsilon": 0.0}, "`epsilon` must be finite and > 0"),
        ("DelayCompensatedGradientDescent", {"num_workers": 0}, "`num_workers` .*num_workers=0"),
        ("DelayCompensatedGradientDescent", {"num_workers": 1.5}, "`num_workers` must be an int"),
        ("BoostedGradientDescent", {"boost": 1.0}, r"`boost` must be in \[0, 1\)"),
        ("BoostedGradientDescent", {"staleness_scale": 0}, "`staleness_scale`"),
        ("BoostedGradientDescent", {"correlation_epsilon": 0}, "`correlation_epsilon`"),
        ("BoostedMomentum", {"momentum": 1.0}, "`momentum`"),
        ("BoostedAdagrad", {"initial_accumulator_value": 0}, "`initial_accumulator_value`"),
        ("BoostedAdagrad", {"epsilon": -1}, "`epsilon`"),
        ("BoostedAdam", {"beta2": 1.0}, "`beta2`"),
        ("LARS", {"eeta": 0.0}, "`eeta`"),
        ("LARS", {"weight_decay": -0.1}, "`weight_decay`"),
        ("LARS", {"skip_list": "bias"}, r"write \['bias'\]"),
    ],
)
def test_hyperparameters_out_of_range_are_refused_at_once(kind, arguments, message):
    needed = {"learning_rate": 0.1} | ({"momentum": 0.9} if kind == "BoostedMomentum" else {})
    with pytest.raises(ValueError, match=message):
        getattr(optimizers, f"{kind}Optimizer")(**(needed | arguments))


def test_tensors_out_of_range_are_refused_by_the_kernel():
    w = tf.Variable([1.0])
    for rate in (tf.constant(-1.0), tf.Variable(NAN)):
        optimizer = DelayCompensatedGradientDescentOptimizer(rate)
        with pytest.raises(tf.errors.InvalidArgumentError, match="learning_rate"):
            optimizer.apply_gradients([(tf.constant([1.0]), w)])
    with pytest.raises(ValueError, match=r"`learning_rate` .*=-2"):
        DelayCompensatedGradientDescentOptimizer(lambda: -2.0).apply_gradients(
            [(tf.constant([1.0]), w)]
        )
    assert w.numpy().tolist() == [1.0]


@pytest.mark.parametrize(
    ("worker", "message"),
    [(2, r"\[0, 2\)\. Received: worker_index=2"), (-1, "=-1"), (0.5, "must be an int")],
)
def test_a_worker_out_of_range_is_refused(worker, message):
    w = tf.Variable([1.0])
    optimizer = DelayCompensatedGradientDescentOptimizer(0.1, num_workers=2)
    with pytest.raises(ValueError, match=f"`worker_index` .*{message}"):
        optimizer.minimize(lambda: w * w, var_list=[w], worker_index=worker)
    assert w.numpy().tolist() == [1.0]


@pytest.mark.parametrize(
    ("grad", "message"),
    [
        (tf.zeros([3]), r"`grad` must have the shape \(2,\) .*Received: \(3,\)"),
        (tf.zeros([2], tf.float64), "`grad` must have the dtype .*float32.*Received: float64"),
        (
            tf.IndexedSlices(tf.zeros([3]), tf.zeros([2], tf.int32)),
            r"shape \(2,\) of its variable's rows.*Received: \(3,\)",
        ),
        (
            tf.IndexedSlices(tf.zeros([2, 1]), tf.zeros([1, 2], tf.int32)),
            "vector of indices",
        ),
    ],
)
@pytest.mark.parametrize("optimizer", [LARSOptimizer(0.1), None])
def test_gradients_that_do_not_fit_are_refused(grad, message, optimizer):
    w = tf.Variable([1.0, 2.0])
    optimizer = optimizer or AccumulatedGradients(v1.train.GradientDescentOptimizer(0.1), 2)
    with pytest.raises(ValueError, match=message):
        optimizer.apply_gradients([(grad, w)])


def test_variables_that_the_kernels_cannot_update_are_refused():
    with tf.Graph().as_default():
        ref = v1.get_variable("ref", [2], use_resource=False)
        whole = v1.get_variable("whole", [2], tf.int32, use_resource=True)
        free = v1.get_variable(
            "free", initializer=v1.placeholder(tf.float32), validate_shape=False, use_resource=True
        )
        optimizer = LARSOptimizer(0.1)
        for var, message in (
            (ref, "resource variable. Received: a ref variable, 'ref:0'; create it with use_reso"),
            (whole, "float16, bfloat16, float32, float64. Received: int32 for 'whole:0'"),
            (free, "fixed shape. Received: <unknown> for 'free:0'"),
            (ref + 1, "resource variable. Received: "),
        ):
            with pytest.raises(ValueError, match=f"`var` must .*{message}"):
                optimizer.apply_gradients([(tf.zeros([2], var.dtype.base_dtype), var)])


def test_an_uninitialised_variable_is_named():
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", [2], use_resource=True)
        step = LARSOptimizer(0.1).apply_gradients([(tf.zeros([2]), w)])
        with pytest.raises(
            tf.errors.FailedPreconditionError,
            match=r"`var` must be an initialized variable\. Received: \S+, which is not",
        ):
            session.run(step)


def test_an_index_out_of_bounds_leaves_the_variable_alone():
    w = tf.Variable([[1.0], [2.0]])
    for optimizer in (LARSOptimizer(0.1), DelayCompensatedGradientDescentOptimizer(0.1)):
        for index in (2, -1):
            grad = tf.IndexedSlices(tf.ones([2, 1]), tf.constant([0, index]))
            with pytest.raises(tf.errors.InvalidArgumentError, match=rf"{index}"):
                optimizer.apply_gradients([(grad, w)])
    assert w.numpy().ravel().tolist() == [1.0, 2.0]


def test_backups_and_staleness_that_do_not_fit_are_refused():
    w, other = tf.Variable([1.0, 2.0]), tf.Variable([1.0])
    optimizer = optimizers.BoostedGradientDescentOptimizer(0.1)
    pair, row = (tf.zeros([2]), w), tf.IndexedSlices(tf.zeros([1]), tf.constant([0]))
    for more, message in (
        ({"backup": [(tf.zeros([1]), other)]}, "`backup` must be pairs .*not among them"),
        ({"backup": [(tf.zeros([3]), w)]}, r"`backup` must have the shape \(2,\) .*\(3,\)"),
        ({"backup": [(tf.zeros([2], tf.float64), w)]}, "`backup` .* float32.*float64"),
        ({"backup": [(row, w)]}, r"`backup` must have the shape .*rows \(1,\)"),
        ({"staleness": 0.5}, "`staleness` must be an integer scalar. Received: float32"),
        ({"staleness": [(1, other)]}, "`staleness` must be pairs"),
    ):
        with pytest.raises(ValueError, match=message):
            optimizer.apply_gradients([pair], **more)
    with pytest.raises(ValueError, match=r"`backup` must have rows \(1,\) .*Received: \(3,\)"):
        optimizer.apply_gradients([(row, w)], backup=[(tf.zeros([3]), w)])
    with pytest.raises(tf.errors.InvalidArgumentError, match="staleness"):
        optimizer.apply_gradients([pair], staleness=-1)
    assert w.numpy().tolist() == [1.0, 2.0]


def test_accumulation_is_refused_where_it_makes_no_sense():
    base = v1.train.GradientDescentOptimizer(0.1)
    for steps, message in ((0, ">= 1. Received: steps=0"), (1.5, "an int. Received: steps=1.5")):
        with pytest.raises(ValueError, match=f"`steps` must be {message}"):
            AccumulatedGradients(base, steps)
    with pytest.raises(ValueError, match=r"`base` must .* Received: builtins\.str"):
        AccumulatedGradients("sgd", 2)
    w = tf.Variable([[1.0]])
    with pytest.raises(ValueError, match="No gradients provided"):
        AccumulatedGradients(base, 2).apply_gradients([(None, w)])
    rows = tf.IndexedSlices(tf.zeros([1, 1]), tf.constant([0]))
    compensated = AccumulatedGradients(DelayCompensatedGradientDescentOptimizer(0.1), 2)
    with pytest.raises(ValueError, match="`backup` must be of the variable's shape"):
        compensated.apply_gradients([(rows, w)], backup=[(rows, w)])
    with pytest.raises(TypeError, match="worker_index"):
        AccumulatedGradients(base, 1).apply_gradients([(rows, w)], worker_index=0)


def test_a_gradient_that_is_not_finite_is_applied_as_it_is():
    w = tf.Variable([1.0, 1.0])
    DelayCompensatedGradientDescentOptimizer(0.5, 0.0).apply_gradients(
        [(tf.constant([NAN, 1.0]), w)]
    )
    np.testing.assert_array_equal(w, [NAN, 0.5])
