"""What is particular to Keras fit: the model is left as it was, optimizers, logs, several fits."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import deepinsight as di
from deepinsight.collectors.recording import ProbeWarning

DATA = (np.ones((20, 3), np.float32), np.zeros((20, 1), np.float32))


def make_model(optimizer: Any = "sgd", **settings: Any) -> Any:
    layers = [
        keras.Input((3,)),
        keras.layers.Dense(2, name="fc"),
        keras.layers.Dense(1, name="out"),
    ]
    model = keras.Sequential(layers)
    model.compile(optimizer, "mse", **settings)
    return model


def fit(model: Any, callbacks: list[Any], **settings: Any) -> Any:
    settings = {"batch_size": 4, "verbose": 0, "shuffle": False} | settings
    return model.fit(*DATA, callbacks=callbacks, **settings)


def test_defaults_record_logs_weights_gradients_and_throughput(tmp_path: Path) -> None:
    fit(make_model(), [di.TraceCallback(tmp_path)], epochs=2, validation_data=DATA)
    with di.open_run(tmp_path) as run:
        names = run.stream_names()
        for name in (
            "train/loss",
            "eval/loss",
            "weights/fc/kernel/tiles",
            "gradients/fc/kernel/norm",
            "gradients/out/bias/update_ratio",
            "throughput/samples_per_second",
        ):
            assert name in names
        assert list(run.steps("train/loss")) == list(range(1, 11))
        assert list(run.steps("eval/loss")) == [5, 10]


def test_logs_are_what_keras_reports(tmp_path: Path) -> None:
    model = make_model(metrics=["mae"])
    history = fit(model, [di.TraceCallback(tmp_path)], epochs=3, validation_data=DATA).history
    with di.open_run(tmp_path) as run:
        for key in ("loss", "mae"):
            at_end = run.frame(f"train/{key}").set_index("step")["value"].loc[[5, 10, 15]]
            np.testing.assert_allclose(at_end, history[key], rtol=1e-6)
            np.testing.assert_allclose(run.frame(f"eval/{key}")["value"], history[f"val_{key}"])


@pytest.mark.parametrize("fitted_before", [False, True])
def test_model_is_left_as_it_was_and_trains_the_same(fitted_before: bool, tmp_path: Path) -> None:
    def train(callbacks: list[Any]) -> Any:
        keras.utils.set_random_seed(3)
        model = make_model(keras.optimizers.Adam(0.01))
        if fitted_before:
            fit(model, [])
        function = model.train_function
        fit(model, callbacks, epochs=2)
        assert "apply" not in vars(model.optimizer)
        assert not {"train_step", "compute_metrics"} & vars(model).keys()
        if fitted_before:
            assert model.train_function is function
        return model

    chosen = [di.probes.Weights(), di.probes.Gradients(), di.probes.AUC(from_logits=True)]
    traced = train([di.TraceCallback(tmp_path, chosen, every_n_steps=2)])
    plain = train([])
    for one, other in zip(traced.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    fit(traced, [])  # and goes on without the callback
    with di.open_run(tmp_path) as run:
        first = 6 if fitted_before else 1
        assert run.steps("gradients/fc/kernel/norm")[0] == first
        assert "recorder/probe_failures" not in run.stream_names()


def test_several_fits_continue_one_run_and_compile_once(tmp_path: Path) -> None:
    model, callback = make_model(), di.TraceCallback(tmp_path, every_n_steps=2)
    functions = set()
    for _ in range(3):
        fit(
            model,
            [
                callback,
                keras.callbacks.LambdaCallback(
                    on_epoch_begin=lambda epoch, logs: functions.add(id(model.train_function))
                ),
            ],
        )
    assert len(functions) == 1
    with di.open_run(tmp_path) as run:
        assert run.status == "finished"
        assert list(run.steps("train/loss")) == list(range(1, 16))
        assert list(run.steps("gradients/fc/kernel/norm")) == [1, 2, 4, 6, 8, 10, 11, 12, 14]
        samples = run.frame("throughput/samples").set_index("step")["value"]
        assert samples.to_dict() == {s: 4.0 * s for s in (1, 2, 4, 6, 8, 10, 11, 12, 14)}


def test_a_compile_between_fits_is_noticed(tmp_path: Path) -> None:
    model, callback = make_model(), di.TraceCallback(tmp_path, every_n_steps=1)
    fit(model, [callback])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    fit(model, [callback])
    with di.open_run(tmp_path) as run:
        assert run.frame("gradients/fc/kernel/update_ratio")["value"].tolist()[-5:] == [0.0] * 5


@pytest.mark.parametrize("jit_compile", [False, True])
def test_loss_scaling_optimizer_gives_unscaled_gradients(jit_compile: bool, tmp_path: Path) -> None:
    norms = []
    for i, wrap in enumerate((lambda o: o, keras.optimizers.LossScaleOptimizer)):
        keras.utils.set_random_seed(5)
        model = make_model(wrap(keras.optimizers.SGD(0.01)), jit_compile=jit_compile)
        fit(model, [di.TraceCallback(tmp_path / str(i), every_n_steps=1)])
        with di.open_run(tmp_path / str(i)) as run:
            frame = run.frame("gradients/fc/kernel/norm")
            assert frame["step"].tolist() == [1, 2, 3, 4, 5]
            norms.append(frame["value"])
            assert len(run.frame("gradients/fc/kernel/update_ratio")) == 5
    np.testing.assert_allclose(norms[1], norms[0], rtol=1e-5)


def test_gradient_accumulation_counts_updates(tmp_path: Path) -> None:
    model = make_model(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2))
    fit(model, [di.TraceCallback(tmp_path, every_n_steps=1)], epochs=2)
    with di.open_run(tmp_path) as run:
        assert max(run.steps("weights/fc/kernel/raw")) == 5
        assert "recorder/probe_failures" not in run.stream_names()


def test_auc_takes_the_models_own_labels_and_outputs(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 3)).astype("f4")
    y = (x[:, :1] + 0.5 * rng.normal(size=(3000, 1)) > 0).astype("f4")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, activation="sigmoid")])
    model.compile(keras.optimizers.SGD(0.0), "binary_crossentropy")
    chosen = [di.probes.AUC(every_n_steps=30)]
    callback = di.TraceCallback(tmp_path, chosen)
    settings = {"batch_size": 100, "verbose": 0, "validation_data": (x, 1 - y)}
    model.fit(x, y, callbacks=[callback], **settings)
    from sklearn.metrics import roc_auc_score

    expected = roc_auc_score(y[:, 0], model.predict(x, verbose=0)[:, 0])
    with di.open_run(tmp_path) as run:
        # Validation, with its labels the other way round, does not count.
        assert run.frame("auc/cumulative")["value"].iloc[-1] == pytest.approx(expected, abs=1e-5)


def test_variables_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    towers = [keras.Sequential([keras.layers.Dense(2, name="fc")], name="tower") for _ in range(2)]

    class Two(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.towers = towers

        def call(self, x: Any) -> Any:
            return tf.reduce_sum(self.towers[0](x) + self.towers[1](x), 1, keepdims=True)

    model = Two()
    model.compile("sgd", "mse")
    fit(model, [di.TraceCallback(tmp_path)])
    with di.open_run(tmp_path) as run:
        kernels = [n for n in run.variables if "kernel" in n]
        assert len(kernels) == 2


def test_a_model_without_trainable_weights_is_no_trouble(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, trainable=False)])
    model.compile("sgd", "mse")
    with pytest.warns(UserWarning, match="does not have any trainable weights"):
        fit(model, [di.TraceCallback(tmp_path)])
    with di.open_run(tmp_path) as run:
        assert len(run.frame("train/loss")) > 0


def test_a_failing_probe_does_not_stop_fit(tmp_path: Path) -> None:
    class Failing(di.probes.Probe):
        name = "failing"

        def values(self, report: Any) -> dict[str, Any]:
            raise ZeroDivisionError("on purpose")

    callback = di.TraceCallback(tmp_path, [Failing(), di.probes.Scalars()], every_n_steps=1)
    with pytest.warns(ProbeWarning, match="'failing' failed: ZeroDivisionError"):
        fit(make_model(), [callback])
    with di.open_run(tmp_path) as run:
        assert len(run.frame("train/loss")) == 5
        assert run.frame("recorder/probe_failures")["value"].tolist() == [1, 2, 3]


def test_a_fit_that_broke_off_can_be_followed_by_another(tmp_path: Path) -> None:
    def stop(batch: int, logs: Any) -> None:
        if batch == 2:
            raise KeyError("mine")

    model, callback = make_model(), di.TraceCallback(tmp_path, every_n_steps=1)
    breaking = keras.callbacks.LambdaCallback(on_train_batch_begin=stop)
    with pytest.raises(KeyError, match="mine"):
        fit(model, [callback, breaking])
    fit(model, [callback])
    assert "apply" not in vars(model.optimizer)
    with di.open_run(tmp_path) as run:
        assert run.status == "finished"
        assert list(run.steps("gradients/fc/kernel/norm"))[-5:] == [3, 4, 5, 6, 7]


def test_large_variables_have_no_update_ratio(tmp_path: Path) -> None:
    chosen = [di.probes.Gradients(max_elements=5)]
    fit(make_model(), [di.TraceCallback(tmp_path, chosen)])
    with di.open_run(tmp_path) as run:
        assert "gradients/fc/kernel/update_ratio" not in run.stream_names()
        assert "gradients/fc/bias/update_ratio" in run.stream_names()
