"""What the Keras optimizers refuse, and that the variable is untouched then."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deepinsight.trainer.keras import (
    LARS,
    BackendError,
    BoostedAdagrad,
    BoostedAdam,
    BoostedGradientDescent,
    BoostedMomentum,
    DelayCompensatedGradientDescent,
    _checks,
)

DC = DelayCompensatedGradientDescent
NAN = float("nan")
EVERY = [DC, BoostedGradientDescent, BoostedMomentum, BoostedAdagrad, BoostedAdam, LARS]
BOOSTED = EVERY[1:5]
WITH_WORKERS = EVERY[:5]


@pytest.mark.parametrize("make", EVERY)
@pytest.mark.parametrize("value", [0.0, -0.1, NAN, float("inf"), "fast", True, None])
def test_a_learning_rate_out_of_range(make, value):
    with pytest.raises(ValueError, match=r"`learning_rate` must be .* > 0\. Received: learning"):
        make(value)


@pytest.mark.parametrize(
    ("make", "name", "values"),
    [
        (DC, "variance_parameter", [-1.0, NAN, float("inf"), "2"]),
        (DC, "decay", [1.0, -0.1, NAN]),
        (DC, "epsilon", [0.0, -1.0, NAN]),
        *[(make, "boost", [1.0, -0.1, NAN, None]) for make in BOOSTED],
        *[(make, "staleness_scale", [0.0, NAN]) for make in BOOSTED],
        *[(make, "decay", [1.0, NAN]) for make in BOOSTED],
        *[(make, "correlation_epsilon", [0.0, NAN]) for make in BOOSTED],
        (BoostedMomentum, "momentum", [1.0, -0.5, NAN]),
        (BoostedAdagrad, "initial_accumulator_value", [0.0, -0.1, NAN]),
        (BoostedAdagrad, "epsilon", [-1e-9, NAN]),
        (BoostedAdam, "beta_1", [1.0, NAN]),
        (BoostedAdam, "beta_2", [1.0, -1.0]),
        (BoostedAdam, "epsilon", [-1.0, NAN]),
        (LARS, "momentum", [1.0, NAN]),
        (LARS, "weight_decay", [-1e-4, NAN, None]),
        (LARS, "eeta", [0.0, NAN]),
        (LARS, "epsilon", [-1.0, NAN]),
    ],
)
def test_a_hyperparameter_out_of_range(make, name, values):
    for value in values:
        with pytest.raises(ValueError, match=rf"`{name}` must be .* Received: {name}="):
            make(0.1, **{name: value})


@pytest.mark.parametrize("skip_list", ["bias", [""], [3]])
def test_a_skip_list_that_is_none(skip_list):
    with pytest.raises(ValueError, match=r"`skip_list` must be a list of non-empty strings"):
        LARS(0.1, skip_list=skip_list)


@pytest.mark.parametrize("make", WITH_WORKERS)
@pytest.mark.parametrize("value", [0, -1, 1.5, True, None])
def test_a_number_of_workers_out_of_range(make, value):
    with pytest.raises(ValueError, match=r"`num_workers` must be an int >= 1\. Received: num_work"):
        make(0.1, num_workers=value)


@pytest.mark.parametrize("value", [2, -1, 0.0, True, None, np.asarray([0, 1])])
def test_a_worker_index_out_of_range(value):
    optimizer = DC(0.1, num_workers=2)
    with pytest.raises(ValueError, match=r"in \[0, num_workers\), here \[0, 2\)\. Received: "):
        optimizer.worker_index = value
    with pytest.raises(ValueError, match=r"`worker_index` must be an int"), optimizer.worker(value):
        pass
    assert optimizer.worker_index == 0


def test_one_worker_has_index_0():
    optimizer = DC(0.1)
    optimizer.worker_index = 0
    with pytest.raises(ValueError, match=r"here \[0, 1\)\. Received: worker_index=1"):
        optimizer.worker_index = 1


def test_a_worker_index_out_of_range_in_a_traced_function():
    optimizer, variable = DC(0.1, num_workers=2), keras.Variable([1.0])

    @tf.function
    def step(worker):
        with optimizer.worker(worker):
            optimizer.apply([tf.constant([1.0])], [variable])

    step(tf.constant(1))
    before = variable.value.numpy()
    for wrong in (2, -1):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"`worker_index` must be in \[0, 2"
        ):
            step(tf.constant(wrong))
    np.testing.assert_array_equal(variable.value.numpy(), before)


def test_a_pull_before_there_are_variables():
    with pytest.raises(ValueError, match=r"must be built before a worker can pull; call `build`"):
        DC(0.1, num_workers=2).pull()


@pytest.mark.parametrize("make", EVERY)
@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_a_variable_that_is_no_floating_one(make, dtype):
    variable = keras.Variable([1, 2], dtype=dtype, name="counts", trainable=False)
    with pytest.raises(ValueError, match=rf"one of the dtypes float16.*: {dtype} for 'counts'"):
        make(0.1).build([variable])


def test_a_ref_variable():
    with tf.Graph().as_default():
        variable = tf.compat.v1.get_variable("old", [2], use_resource=False)
        with pytest.raises(ValueError, match=r"Received: float32_ref for 'old"):
            LARS(0.1).build([variable])


def test_something_that_is_no_variable():
    with pytest.raises(ValueError, match=r"must hold variables\. Received: .*Tensor"):
        LARS(0.1).build([tf.constant([1.0])])


def test_a_variable_on_a_gpu():
    with pytest.raises(ValueError, match=r"in main memory.*'w' on .*GPU:0.*tf\.device\('CPU:0'\)"):
        _checks.check_device("w", "/job:localhost/replica:0/task:0/device:GPU:0")
    for device in ("/job:localhost/replica:0/task:0/device:CPU:0", "", None):
        _checks.check_device("w", device)


@pytest.mark.parametrize("make", EVERY)
@pytest.mark.parametrize(
    ("grad", "message"),
    [
        (np.ones((2, 2), "float32"), r"`grad` must have the shape"),
        (tf.IndexedSlices(tf.ones((1, 2)), tf.constant([3])), r"3.* is not in|indices.* = 3"),
        (tf.IndexedSlices(tf.ones((1, 2)), tf.constant([-1])), r"-1.* is not in|indices.* = -1"),
        (tf.IndexedSlices(tf.ones((1, 3)), tf.constant([0])), r"must have the shape"),
    ],
    ids=["shape", "index", "negative", "row"],
)
def test_a_gradient_that_does_not_fit(make, grad, message):
    start = np.ones((3, 2), "float32")
    variable, optimizer = keras.Variable(start), make(0.1)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        optimizer.apply([grad], [variable])
    np.testing.assert_array_equal(variable.value.numpy(), start)
    optimizer.apply([np.ones((3, 2), "float32")], [variable])
    assert np.all(variable.value.numpy() < start)


@pytest.mark.parametrize("value", [0.0, -1.0, NAN])
def test_a_learning_rate_that_is_set_out_of_range(value):
    optimizer, variable = LARS(0.1), keras.Variable([1.0])
    optimizer.learning_rate = value
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"`learning_rate` must be"):
        optimizer.apply([[1.0]], [variable])
    assert variable.value.numpy()[0] == 1.0


def test_a_schedule_that_goes_below_zero():
    schedule = keras.optimizers.schedules.PolynomialDecay(0.1, 10, end_learning_rate=-1.0)
    optimizer, variable = LARS(schedule), keras.Variable([1.0])
    optimizer.apply([[1.0]], [variable])
    optimizer.iterations.assign(5)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"`learning_rate` must be"):
        optimizer.apply([[1.0]], [variable])


def test_a_variable_that_the_optimizer_does_not_know():
    optimizer = LARS(0.1)
    optimizer.build([keras.Variable([1.0])])
    with pytest.raises(ValueError, match=r"Unknown variable"):
        optimizer.apply([[1.0]], [keras.Variable([1.0])])


def test_several_workers_under_a_strategy():
    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        optimizer, variable = DC(0.1, num_workers=2), keras.Variable([1.0])
        with pytest.raises(ValueError, match=r"`num_workers` must be 1 under a distribution strat"):
            optimizer.build([variable])


def test_another_backend(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(BackendError, match=r"must be tensorflow\. Received: 'jax'\. Set KERAS"):
        LARS(0.1)


@pytest.mark.parametrize("make", EVERY)
def test_nan_and_infinity_are_applied_and_counted(make):
    optimizer, variable = make(0.1), keras.Variable(np.ones(4, "float32"), name="w")
    optimizer.apply([[1.0, NAN, float("inf"), float("-inf")]], [variable])
    assert optimizer.statistics["nonfinite_gradients"] == {"w": 3.0}
    assert not np.isfinite(variable.value.numpy()[1])
