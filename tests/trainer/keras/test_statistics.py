"""What the Keras optimizers tell of their updates, to the user and to `TraceCallback`."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import deepinsight as di
from deepinsight.trainer.keras import LARS, BoostedMomentum, DelayCompensatedGradientDescent

X = np.random.default_rng(2).normal(size=(24, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def fitted(optimizer, callback, **settings):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(2, name="fc"), keras.layers.Dense(1, name="out")]
    model = keras.Sequential([keras.Input((3,)), *layers], name="sequential")
    model.compile(optimizer, "mse", **settings)
    model.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0, callbacks=[callback])
    return model


def test_statistics_are_unknown_before_the_first_update():
    optimizer = LARS(0.1)
    assert optimizer.statistics["trust_ratio"] == {}
    optimizer.build([keras.Variable([1.0], name="w")])
    assert np.isnan(optimizer.statistics["trust_ratio"]["w"])


def test_statistics_are_no_state():
    plain, ours = keras.optimizers.SGD(0.1), DelayCompensatedGradientDescent(0.1)
    for optimizer in (plain, ours):
        optimizer.build([keras.Variable([1.0])])
    assert len(ours.variables) == len(plain.variables)


def test_statistics_of_a_compensated_push():
    optimizer = DelayCompensatedGradientDescent(0.5, 1.0, num_workers=2)
    variable = keras.Variable([1.0, 1.0], name="w")
    optimizer.apply([[2.0, 0.0]], [variable])
    optimizer.worker_index = 1
    optimizer.apply([[2.0, 1.0]])  # the compensation is 2 · 2 · (0 - 1) and 0
    assert optimizer.statistics["compensation_ratio"]["w"] == pytest.approx(4 / 3)
    assert optimizer.statistics["sign_flips"]["w"] == 0.5


def test_statistics_of_lars():
    optimizer, variable = LARS(1.0, weight_decay=0.5), keras.Variable([3.0, 4.0], name="w")
    optimizer.apply([[0.0, 2.0]], [variable])
    found = {name: values["w"] for name, values in optimizer.statistics.items()}
    assert found == pytest.approx(
        {
            "trust_ratio": 1e-3 * 5 / (2 + 0.5 * 5),
            "weight_norm": 5.0,
            "gradient_norm": 2.0,
            "nonfinite_gradients": 0.0,
        },
        rel=1e-6,
    )


def test_variables_of_one_name_are_told_apart():
    optimizer = LARS(0.1)
    variables = [keras.Variable([1.0], name="w") for _ in range(3)]
    optimizer.apply([[1.0], [2.0], [3.0]], variables)
    assert optimizer.statistics["gradient_norm"] == {"w": 1.0, "w_2": 2.0, "w_3": 3.0}


def test_a_worker_that_pulls_again_is_not_stale():
    moved = []
    for pulls in (False, True):
        optimizer = DelayCompensatedGradientDescent(0.5, 1.0, num_workers=2)
        variable = keras.Variable([1.0])
        optimizer.apply([[2.0]], [variable])
        with optimizer.worker(1):
            if pulls:
                optimizer.pull()
            optimizer.apply([[1.0]])
        moved.append(float(variable.value.numpy()[0]))
    assert moved == [0.0, -0.5]


def test_staleness_counts_the_updates_of_the_others():
    """An empty call and a call that only accumulates are no updates."""
    optimizer = BoostedMomentum(0.1, num_workers=3, gradient_accumulation_steps=2)
    variable, seen = keras.Variable([1.0]), []
    for worker in (0, 1, 1, 0, 2, 1):
        with optimizer.worker(worker):
            for _ in range(2):
                optimizer.apply([], [variable])
                optimizer.apply([tf.ones([1])], [variable])
        for m in range(3):
            with optimizer.worker(m):
                seen.append(int(optimizer._staleness()))
    expected = np.reshape(seen, (6, 3)).tolist()
    with optimizer.worker(2):
        before = int(optimizer._staleness())
        optimizer.apply([tf.ones([1])], [variable])
        assert int(optimizer._staleness()) == before > 0
    assert expected == [[0, 1, 1], [1, 0, 2], [2, 0, 3], [0, 1, 4], [1, 2, 0], [2, 0, 1]]


@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "loss scaling"])
def test_the_callback_records_what_the_optimizer_knows(wrapped, tmp_path):
    optimizer = LARS(0.1)
    used = (
        keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=4.0) if wrapped else optimizer
    )
    fitted(used, di.TraceCallback(tmp_path, every_n_steps=4))
    with di.open_run(tmp_path) as run:
        names = [n for n in run.stream_names() if n.startswith("optimizer/")]
        assert sorted(names) == ["optimizer/nonfinite_gradients", "optimizer/trust_ratio"]
        assert list(run.steps("optimizer/trust_ratio")) == [1, 4, 8, 12]
        info = run.stream("optimizer/trust_ratio")
        assert info.axes[0].labels == ("fc/kernel", "fc/bias", "out/kernel", "out/bias")
        last = run.array("optimizer/trust_ratio").values[-1]
        np.testing.assert_array_equal(last, list(optimizer.statistics["trust_ratio"].values()))
        norm = optimizer.statistics["gradient_norm"]["sequential/fc/kernel"]
        measured = run.frame("gradients/fc/kernel/norm")["value"]
        np.testing.assert_allclose(norm, measured.iloc[-1], rtol=1e-5)
        assert "recorder/probe_failures" not in run.stream_names()


def test_scalars_choose_among_the_streams(tmp_path):
    chosen = [di.probes.Scalars(["optimizer/correlation"])]
    fitted(BoostedMomentum(0.1), di.TraceCallback(tmp_path / "one", chosen))
    fitted(BoostedMomentum(0.1), di.TraceCallback(tmp_path / "none", [di.probes.Weights()]))
    for name, expected in (("one", ["optimizer/correlation"]), ("none", [])):
        with di.open_run(tmp_path / name) as run:
            assert [n for n in run.stream_names() if n.startswith("optimizer/")] == expected


def test_a_model_that_is_built_by_its_first_step_is_recorded(tmp_path):
    class Late(keras.Model):
        def __init__(self):
            super().__init__()
            self.fc = keras.layers.Dense(1, name="fc")

        def call(self, inputs):
            return self.fc(inputs)

    model = Late()
    model.compile(LARS(0.1), "mse")
    callback = di.TraceCallback(tmp_path, every_n_steps=2)
    model.fit(X, Y, batch_size=4, verbose=0, callbacks=[callback])
    with di.open_run(tmp_path) as run:
        assert run.stream("optimizer/trust_ratio").shape == (2,)
        assert list(run.steps("optimizer/trust_ratio")) == [1, 2, 4, 6]
