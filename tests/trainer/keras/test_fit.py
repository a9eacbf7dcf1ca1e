"""The Keras optimizers in ``fit``, in loops of one's own, and in files."""

import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from deepinsight.trainer.keras import (
    LARS,
    BoostedAdagrad,
    BoostedAdam,
    BoostedGradientDescent,
    BoostedMomentum,
    CompiledStepError,
    DelayCompensatedGradientDescent,
)

from .conftest import CASES, WITH_WORKERS

RNG = np.random.default_rng(3)
X = RNG.normal(size=(96, 3)).astype("float32")
Y = X @ np.asarray([[1.0], [-2.0], [0.5]], "float32")
WORDS = RNG.integers(0, 10, size=(96, 2))
ALL = [
    lambda **more: DelayCompensatedGradientDescent(0.1, adaptive=True, **more),
    lambda **more: BoostedGradientDescent(0.1, **more),
    lambda **more: BoostedMomentum(0.03, **more),
    lambda **more: BoostedAdagrad(0.5, **more),
    lambda **more: BoostedAdam(0.05, **more),
    lambda **more: LARS(0.1, eeta=0.1, skip_list=["bias"], **more),
]
NAMES = ["dc", "descent", "momentum", "adagrad", "adam", "lars"]
# Keras reads its variables with `np.array(variable)`, which NumPy 2 warns of.
saves = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
every_optimizer = pytest.mark.parametrize("make", ALL, ids=NAMES)


def dense_model(optimizer, **settings):
    keras.utils.set_random_seed(1)
    layers = [keras.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(optimizer, "mse", **settings)
    return model


def word_model(optimizer, **settings):
    keras.utils.set_random_seed(1)
    words = keras.Input((2,), dtype="int32")
    hidden = keras.layers.Flatten()(keras.layers.Embedding(10, 3, name="words")(words))
    model = keras.Model(words, keras.layers.Dense(1)(hidden))
    model.compile(optimizer, "mse", **settings)
    return model


def fit(model, x=X, epochs=4, **settings):
    given = {"batch_size": 16, "shuffle": False, "verbose": 0} | settings
    return model.fit(x, Y, epochs=epochs, **given).history["loss"]


@every_optimizer
def test_fit_lowers_the_loss(make):
    model = dense_model(make())
    losses = fit(model, epochs=12)
    assert losses[-1] < 0.5 * losses[0]
    for values in model.optimizer.statistics.values():
        assert len(values) == 4
        assert np.all(np.isfinite(list(values.values())))


@saves
@every_optimizer
def test_a_saved_model_goes_on_bit_for_bit(make, tmp_path):
    model = dense_model(make())
    fit(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is type(model.optimizer)
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    for one, other in zip(loaded.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(one.value.numpy(), other.value.numpy())
    assert fit(loaded) == fit(model)
    for one, other in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@saves
def test_a_saved_model_loads_in_a_process_that_imports_the_package(tmp_path):
    model = dense_model(LARS(0.1, skip_list=["bias"]))
    fit(model)
    model.save(tmp_path / "model.keras")
    script = (
        "import sys, keras, deepinsight.trainer.keras\n"
        "model = keras.models.load_model(sys.argv[1])\n"
        "print(model.optimizer.skip_list, int(model.optimizer.iterations))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "model.keras")],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.strip() == "('bias',) 24"


def two_workers(make, calls, variable, optimizer=None):
    """Pushes of two workers; the order and the gradients depend on the call's number alone."""
    optimizer = optimizer or make(num_workers=2)
    for call in calls:
        rng = np.random.default_rng(call)
        with optimizer.worker(int(rng.integers(2))):
            optimizer.apply([tf.constant(rng.normal(size=5).astype("float32"))], [variable])
    return optimizer


@saves
@pytest.mark.parametrize("name", WITH_WORKERS)
@pytest.mark.parametrize("format_", ["keras", "checkpoint"])
def test_the_state_of_several_workers_goes_on_bit_for_bit(name, format_, tmp_path):
    make, variable = CASES[name].make, keras.Variable(np.ones(5, "float32"))
    optimizer = two_workers(make, range(7), variable)
    copy = keras.Variable(variable.value.numpy())
    other = type(optimizer).from_config(optimizer.get_config())
    if format_ == "keras":
        store = {}
        optimizer.save_own_variables(store)
        other.build([copy])
        other.load_own_variables(store)
    else:
        path = tf.train.Checkpoint(optimizer=optimizer).save(str(tmp_path / "checkpoint"))
        other.build([copy])
        tf.train.Checkpoint(optimizer=other).restore(path).assert_consumed()
    two_workers(make, range(7, 14), variable, optimizer)
    two_workers(make, range(7, 14), copy, other)
    np.testing.assert_array_equal(copy.value.numpy(), variable.value.numpy())


@every_optimizer
def test_config_makes_the_same_optimizer(make):
    optimizer = make(name="mine", clipnorm=2.0)
    config = optimizer.get_config()
    assert (
        keras.optimizers.deserialize(keras.optimizers.serialize(optimizer)).get_config() == config
    )
    assert config["name"] == "mine"
    assert config["clipnorm"] == 2.0


@every_optimizer
def test_embedding_rows_that_no_sample_names_are_untouched(make):
    model = word_model(make())
    table = model.get_layer("words").embeddings
    before = table.value.numpy()
    fit(model, WORDS % 4 + 3, epochs=2)
    changed = np.any(table.value.numpy() != before, axis=1)
    np.testing.assert_array_equal(np.flatnonzero(changed), [3, 4, 5, 6])
    assert model.optimizer.statistics["nonfinite_gradients"]["words/embeddings"] == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"clipnorm": 0.5},
        {"clipvalue": 0.1},
        {"global_clipnorm": 0.5},
        {"weight_decay": 0.05},
        {"use_ema": True, "ema_overwrite_frequency": 2},
        {"gradient_accumulation_steps": 2},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_of_the_base_class_do_what_they_do_for_sgd(settings):
    """For dense and for sparse gradients."""
    weights = []
    for optimizer in (keras.optimizers.SGD, BoostedGradientDescent):
        model = word_model(optimizer(0.1, **settings))
        fit(model, WORDS, epochs=2)
        weights.append(model.get_weights())
    for sgd, ours in zip(*weights, strict=True):
        np.testing.assert_allclose(ours, sgd, rtol=1e-5, atol=1e-6)


def test_loss_scale_factor_does_what_it_does_for_sgd():
    losses = [
        fit(dense_model(make(0.1, loss_scale_factor=8.0)))
        for make in (keras.optimizers.SGD, BoostedGradientDescent)
    ]
    np.testing.assert_allclose(*losses, rtol=1e-6)


@pytest.mark.parametrize("make", [ALL[0], ALL[5]], ids=["dc", "lars"])
def test_mixed_precision_keeps_float32_variables(make):
    keras.utils.set_random_seed(1)
    policy = keras.mixed_precision.DTypePolicy("mixed_float16")
    layers = [keras.Input((3,)), keras.layers.Dense(4, "tanh", dtype=policy)]
    model = keras.Sequential([*layers, keras.layers.Dense(1, dtype="float32")])
    model.compile(keras.optimizers.LossScaleOptimizer(make(), initial_scale=128.0), "mse")
    losses = fit(model, epochs=8)
    assert losses[-1] < losses[0]
    assert {v.dtype for v in model.trainable_variables} == {"float32"}


@pytest.mark.parametrize("rate", [0.0, 0.05])
def test_schedules_give_the_rate_of_each_step(rate):
    schedule = keras.optimizers.schedules.CosineDecay(
        rate, 20, warmup_target=0.1, warmup_steps=4, alpha=0.0
    )
    losses = [
        fit(dense_model(make(schedule)), epochs=5)
        for make in (keras.optimizers.SGD, DelayCompensatedGradientDescent)
    ]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    config = DelayCompensatedGradientDescent(schedule).get_config()
    again = DelayCompensatedGradientDescent.from_config(config)
    assert float(again.learning_rate) == pytest.approx(rate)


def test_the_learning_rate_can_be_set_between_steps():
    optimizer, variable = LARS(1.0, momentum=0.0, weight_decay=0.0), keras.Variable([4.0])
    optimizer.apply([[1.0]], [variable])
    optimizer.learning_rate = 2.0
    optimizer.apply([[1.0]])
    first = 4.0 - 4.0e-3
    assert variable.value.numpy()[0] == pytest.approx(first - 2 * 1e-3 * first, rel=1e-6)


@pytest.mark.parametrize(
    "settings", [{"steps_per_execution": 3}, {"run_eagerly": True}, {"jit_compile": False}]
)
def test_every_way_to_run_a_step_trains_the_same(settings):
    model, same = dense_model(BoostedAdam(0.05), **settings), dense_model(BoostedAdam(0.05))
    fit(model)
    fit(same)
    for one, other in zip(model.get_weights(), same.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_train_on_batch_and_a_loop_of_ones_own_equal_fit():
    fitted = dense_model(LARS(1.0, eeta=0.1))
    fit(fitted, epochs=1)
    batches = dense_model(LARS(1.0, eeta=0.1))
    looped, optimizer = dense_model("sgd"), LARS(1.0, eeta=0.1)
    for start in range(0, len(X), 16):
        x, y = X[start : start + 16], Y[start : start + 16]
        batches.train_on_batch(x, y)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(looped(x) - y))
        variables = looped.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    assert int(optimizer.iterations) == 6
    for other in (batches, looped):
        for one, weights in zip(fitted.get_weights(), other.get_weights(), strict=True):
            np.testing.assert_allclose(weights, one, rtol=1e-5, atol=1e-7)


def test_a_function_builds_the_optimizer_when_it_is_traced():
    variable, optimizer = keras.Variable([1.0, 2.0]), BoostedMomentum(0.5, num_workers=2)

    @tf.function
    def step(grad):
        optimizer.apply([grad], [variable])

    variable.assign([3.0, 4.0])
    step(tf.ones([2]))
    traced = step.experimental_get_tracing_count()
    step(tf.ones([2]))
    assert step.experimental_get_tracing_count() == traced
    backups = [v.value.numpy() for v in optimizer.variables if "backup_1" in v.path]
    np.testing.assert_array_equal(backups, [[3.0, 4.0]])


def test_xla_is_off_where_there_is_no_gpu_and_refused_where_it_is_asked_for():
    model = dense_model(LARS(0.1))
    assert not model.jit_compile
    model = dense_model(LARS(0.1), jit_compile=True)
    before = model.get_weights()
    with pytest.raises(CompiledStepError, match=r"jit_compile=False.*model\.compile"):
        fit(model)
    for one, other in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)
    model.compile(LARS(0.1), "mse", jit_compile=False)
    fit(model)


def test_xla_is_refused_inside_a_compiled_function():
    variable, optimizer = keras.Variable([1.0]), LARS(0.1)

    @tf.function(jit_compile=True)
    def step():
        optimizer.apply([tf.constant([1.0])], [variable])

    with pytest.raises(CompiledStepError, match=r"LARS runs kernels that XLA cannot compile"):
        step()


@pytest.mark.parametrize("make", [ALL[4], ALL[5]], ids=["adam", "lars"])
def test_a_mirrored_strategy_on_one_device_trains_the_same(make):
    plain = fit(dense_model(make()))
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    with strategy.scope():
        model = dense_model(make())
    np.testing.assert_allclose(fit(model), plain, rtol=1e-5)
    assert np.isfinite(list(model.optimizer.statistics["nonfinite_gradients"].values())).all()
