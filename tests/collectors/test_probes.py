"""The formulas of the probes: NumPy and TensorFlow against plain loops, and their arguments."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from deepinsight import probes
from deepinsight.collectors import arrays as arrays_module
from deepinsight.collectors.arrays import NumpyArrays, TensorFlowArrays
from deepinsight.collectors.probes.base import Probe, Slices, StepReport, Variable
from deepinsight.collectors.probes.weights import TilePlan

GROUPS = {"a": slice(0, 2), "b": slice(2, None)}


def numpy_values(w: np.ndarray) -> Any:
    return NumpyArrays(), w


def tensorflow_values(w: np.ndarray) -> Any:
    return TensorFlowArrays(), tf.Variable(w)


BACKENDS = [numpy_values, tensorflow_values]


def measured(backend: Any, w: np.ndarray, probe: probes.Weights, **groups: slice) -> Any:
    xp, weight = backend(w)
    dtype = "float64" if w.dtype == np.float64 else "float32"
    variable = Variable("w", w.shape, dtype, "", groups)
    arrays = probe.measure(xp, variable, weight=weight)
    arrays = {key: np.asarray(value) for key, value in arrays.items()}
    streams = {s.name: s for s in probe.variable_streams(variable, frozenset({"weight"}))}
    values = probe.finish(variable, arrays)
    assert values.keys() == streams.keys()
    for name, value in values.items():
        assert np.shape(value) == streams[name].shape, name
    return {name.rpartition("/")[2]: value for name, value in values.items()}, streams


def block_maxima(w: np.ndarray, plan: TilePlan) -> np.ndarray:
    matrix = np.abs(w.reshape(plan.rows, plan.columns))
    tiles = np.empty(plan.tiles, w.dtype)
    for i in range(plan.tiles[0]):
        for j in range(plan.tiles[1]):
            rows = slice(i * plan.block_rows, (i + 1) * plan.block_rows)
            columns = slice(j * plan.block_columns, (j + 1) * plan.block_columns)
            tiles[i, j] = matrix[rows, columns].max()
    return tiles


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "shape", [(), (1,), (7,), (5, 3), (8, 8), (9, 10), (2, 3, 4), (3, 3, 2, 9), (17, 1), (1, 33)]
)
def test_weights_of_any_shape(backend: Any, dtype: Any, shape: tuple[int, ...]) -> None:
    w = np.random.default_rng(1).normal(size=shape).astype(dtype)
    values, streams = measured(backend, w, probes.Weights(max_tiles=4))
    plan = TilePlan.of(shape, 4)
    assert max(plan.tiles) <= 4
    np.testing.assert_array_equal(values["tiles"], block_maxima(w, plan))
    expected = [w.mean(), w.std(), w.min(), w.max(), 0.0]
    tolerance = 1e-6 if dtype == np.float32 else 1e-14
    np.testing.assert_allclose(values["moments"], expected, rtol=0, atol=tolerance)
    np.testing.assert_array_equal(values["raw"], w)
    details = streams["weights/w/tiles"].details
    assert details["block_shape"] == [plan.block_rows, plan.block_columns]
    assert details["full_shape"] == list(shape)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(1000,), (999, 2), (103, 10), (7, 150)])
def test_large_variables_are_measured_in_slices(
    backend: Any, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    w = np.random.default_rng(2).normal(size=shape)
    groups = {"a": slice(0, 5), "rest": slice(5, shape[0]), "none": slice(3, 3)}
    whole, _ = measured(backend, w, probes.Weights(max_tiles=8), **groups)
    monkeypatch.setattr(arrays_module, "CHUNK_ELEMENTS", 64)
    sliced, _ = measured(backend, w, probes.Weights(max_tiles=8), **groups)
    for key in whole:
        np.testing.assert_allclose(sliced[key], whole[key], rtol=1e-12, err_msg=key)
    np.testing.assert_allclose(whole["group_rms"][0], np.sqrt(np.mean(w[:5] ** 2)))
    assert np.isnan(whole["group_rms"][2])


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_stays_in_its_tile_and_infinity_is_data(backend: Any) -> None:
    w = np.ones((6, 4), np.float32)
    w[0, 1], w[5, 3] = np.nan, -np.inf
    values, _ = measured(backend, w, probes.Weights(max_tiles=2), **GROUPS)
    np.testing.assert_array_equal(values["tiles"], [[np.nan, 1], [1, np.inf]])
    assert np.isnan(values["moments"][:4]).all()
    assert np.isnan(values["percentiles"]).all()
    np.testing.assert_array_equal(values["group_max"], [np.nan, np.inf])


@pytest.mark.parametrize("backend", BACKENDS)
def test_share_of_zeros_counts_negative_zero_and_constants_have_no_spread(backend: Any) -> None:
    values, _ = measured(backend, np.array([0.0, -0.0, 0.0, 2.0], np.float32), probes.Weights())
    assert values["moments"][4] == 0.75
    values, _ = measured(backend, np.full((50, 3), 0.1, np.float32), probes.Weights())
    assert values["moments"][1] == pytest.approx(0, abs=1e-8)


def test_half_precision_is_summarised_in_float32() -> None:
    values, streams = measured(tensorflow_values, np.ones((3, 2), np.float16), probes.Weights())
    assert values["tiles"].dtype == np.float32
    assert streams["weights/w/raw"].dtype == "float32"


@pytest.mark.parametrize("backend", BACKENDS)
def test_subsample_is_stated_and_visits_every_column(backend: Any) -> None:
    probe = probes.Weights(max_sample=100, max_raw=0)
    w = np.tile(np.arange(10.0), (100, 1))  # the column is the value
    values, streams = measured(backend, w, probe)
    assert values["percentiles"][0] == 0
    assert values["percentiles"][-1] == 9
    assert values["percentiles"][3] == pytest.approx(4.5, abs=0.5)
    assert streams["weights/w/percentiles"].reduction == (
        "percentiles of a subsample: every 11th of 1000 elements in row-major order, 91 in all"
    )
    assert "weights/w/raw" not in streams


def test_same_summaries_inside_a_compiled_function() -> None:
    w = np.random.default_rng(3).normal(size=(40, 6)).astype("f4")
    probe, variable = probes.Weights(max_tiles=4), Variable("w", w.shape, groups=GROUPS)
    tensor = tf.Variable(w)

    def measure() -> Any:
        return probe.measure(TensorFlowArrays(), variable, weight=tensor)

    plain = probe.measure(NumpyArrays(), variable, weight=w)
    for compiled in (tf.function(measure), tf.function(measure, jit_compile=True)):
        for key, value in compiled().items():
            np.testing.assert_allclose(value, plain[key], rtol=1e-5, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("xp", [NumpyArrays(), TensorFlowArrays(), TensorFlowArrays(True)])
def test_norm_of_a_sparse_gradient_adds_up_duplicate_rows(xp: Any) -> None:
    values = np.array([[1.0, 2.0], [3.0, -2.0], [5.0, 0.0]], np.float32)
    sparse = Slices(values, np.array([4, 4, 0]))
    norm = probes.Gradients().measure_norm(xp, Variable("w", (5, 2)), gradient=sparse)["norm"]
    assert float(norm) == pytest.approx(np.sqrt(4.0**2 + 0 + 25), rel=1e-6)


@pytest.mark.parametrize("xp", [NumpyArrays(), TensorFlowArrays()])
@pytest.mark.parametrize(
    ("before", "after", "ratio"),
    [([3.0, 4.0], [3.0, 4.5], 0.1), ([0.0], [1.0], np.inf), ([0.0], [0.0], np.nan)],
)
def test_update_ratio(xp: Any, before: list[float], after: list[float], ratio: float) -> None:
    before, after = np.array(before, np.float32), np.array(after, np.float32)
    measure = probes.Gradients().measure_ratio
    found = measure(xp, Variable("w", before.shape), weight=after, weight_before=before)
    np.testing.assert_allclose(found["update_ratio"], ratio, rtol=1e-6)


def test_include_selects_variables() -> None:
    for probe in (probes.Weights("^fc"), probes.Gradients("^fc")):
        assert probe.accepts(Variable("fc1/kernel", (2, 2)))
        assert not probe.accepts(Variable("table/fc", (2, 2)))
        assert not probe.accepts(Variable("fc1/empty", (0, 2)))


def test_staleness_bound_leaves_out_this_workers_own_steps() -> None:
    probe = probes.Staleness()
    assert probe.values(StepReport(5, 0.0)) == {}
    assert probe.values(StepReport(9, 0.0, previous_step=5)) == {"staleness/global": 3.0}
    exact = StepReport(9, 0.0, previous_step=5, offered=frozenset({"staleness/global"}))
    assert probe.values(exact) == {}
    offered = exact.offered
    assert list(probe.streams(samples_known=False, offered=offered)) == []


def test_throughput_rates_are_over_the_time_since_the_last_record() -> None:
    probe = probes.Throughput()
    probe.start(StepReport(0, 100.0, samples=0.0))
    first = probe.values(StepReport(1, 101.0, step_time_s=0.5, steps_done=1, samples=10.0))
    assert first["throughput/steps_per_second"] == 1.0
    values = probe.values(StepReport(9, 103.0, step_time_s=0.25, steps_done=9, samples=90.0))
    assert values == {
        "throughput/step_time": 0.25,
        "throughput/samples": 90.0,
        "throughput/steps_per_second": 4.0,
        "throughput/samples_per_second": 40.0,
    }


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Probe(every_n_steps=0), "`every_n_steps` must be an integer >= 1. Received: .*0"),
        (lambda: Probe(every_n_steps=2.5), "`every_n_steps` must be an integer >= 1"),
        (lambda: Probe(every_n_seconds=float("nan")), "`every_n_seconds` must be > 0"),
        (lambda: Probe(every_n_steps=1, every_n_seconds=1.0), "not both"),
        (lambda: probes.Weights(max_tiles=0), "`max_tiles` must be 1 to 4096. Received: .*0"),
        (lambda: probes.Weights(max_sample=0), "`max_sample` must be >= 1"),
        (lambda: probes.Weights(max_raw=-1), "`max_raw` must be >= 0"),
        (lambda: probes.Gradients(max_elements=-1), "`max_elements` must be >= 0"),
        (lambda: probes.AUC(labels=1), "both `labels` and `scores`"),
        (lambda: probes.AUC(half_life=0), "`half_life` must be > 0"),
        (lambda: probes.AUC(window=float("nan")), "`window` must be > 0"),
        (lambda: probes.AUC(unit="epochs"), '`unit` must be "steps" or "seconds"'),
    ],
)
def test_arguments_out_of_range(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
