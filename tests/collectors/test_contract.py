"""One suite for all three ways to attach: the same probes give the same streams and values.

The training is small enough to be done in NumPy beside it: x @ kernel + bias + table[ids], mean
squared error, gradient descent. ``ids`` repeats rows, so that the table's gradient has duplicates.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import deepinsight as di
from deepinsight.traces import Run

RATE = 0.5
STEPS = 7
EVERY = 3
RECORDED = [1, 3, 6]
SAMPLES = 8
SHAPES = {"fc/kernel": (6, 3), "fc/bias": (3,), "table/embeddings": (20, 3)}
# float32 sums of up to 60 terms and up to 7 updates away from the float64 oracle.
RTOL = 2e-5


@dataclass(frozen=True)
class Problem:
    """Data and initial weights."""

    x: np.ndarray
    ids: np.ndarray
    y: np.ndarray
    weights: dict[str, np.ndarray]


@dataclass(frozen=True)
class Step:
    """What one step does, in float64."""

    before: dict[str, np.ndarray]
    after: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray]
    loss: float
    scores: np.ndarray


def make_problem() -> Problem:
    rng = np.random.default_rng(7)
    weights = {name: rng.normal(size=shape).astype("f4") for name, shape in SHAPES.items()}
    weights["fc/kernel"][0, 0] = 0.0  # a zero for the share of zeros, at least in the beginning
    x = rng.normal(size=(SAMPLES, 6)).astype("f4")
    ids = np.array([1, 4, 4, 4, 9, 1, 0, 19], np.int32)
    y = (rng.random((SAMPLES, 3)) < 0.4).astype("f4")
    return Problem(x, ids, y, weights)


def oracle(problem: Problem) -> list[Step]:
    """Steps 1 to STEPS."""
    weights = {name: w.astype("f8") for name, w in problem.weights.items()}
    steps = []
    for _ in range(STEPS):
        table = weights["table/embeddings"]
        scores = problem.x @ weights["fc/kernel"] + weights["fc/bias"] + table[problem.ids]
        slope = 2 * (scores - problem.y) / scores.size
        rows = np.zeros_like(table)
        np.add.at(rows, problem.ids, slope)
        gradients = {
            "fc/kernel": problem.x.T @ slope,
            "fc/bias": slope.sum(0),
            "table/embeddings": rows,
        }
        after = {name: w - RATE * gradients[name] for name, w in weights.items()}
        loss = float(np.mean((scores - problem.y) ** 2))
        steps.append(Step(weights, after, gradients, loss, scores))
        weights = after
    return steps


def probes() -> list[Any]:
    """All probes that need no tensors of the graph."""
    p = di.probes
    return [
        p.Scalars(),
        p.Weights(),
        p.Gradients(),
        p.Throughput(),
        p.Staleness(),
        p.AUC(from_logits=True, half_life=2, window=3),
    ]


@pytest.fixture(scope="class")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("run")
    request.cls().train(folder, make_problem())
    with di.open_run(folder) as opened:
        yield opened


@pytest.fixture(scope="module")
def steps() -> list[Step]:
    return oracle(make_problem())


class CollectorContract:
    """Inherit, and implement ``train``."""

    recorded: ClassVar[list[int]] = RECORDED
    gradient_steps: ClassVar[list[int]] = RECORDED

    def train(self, folder: Path, problem: Problem) -> None:
        raise NotImplementedError

    def expected_losses(self, steps: list[Step]) -> list[float]:
        return [s.loss for s in steps]

    def at_recorded(self, run: Run, name: str) -> np.ndarray:
        steps, _, values = run.array(name)
        assert list(steps) == self.recorded
        return values

    def test_run_is_finished_and_without_warnings(self, run: Run) -> None:
        assert run.status == "finished"
        assert run.warnings == ()

    def test_variables_are_described(self, run: Run) -> None:
        assert {n: tuple(v["shape"]) for n, v in run.variables.items()} == SHAPES
        assert {v["dtype"] for v in run.variables.values()} == {"float32"}

    @pytest.mark.parametrize("name", SHAPES)
    def test_raw_is_the_weights_after_the_step(
        self, run: Run, steps: list[Step], name: str
    ) -> None:
        values = self.at_recorded(run, f"weights/{name}/raw")
        expected = [steps[s - 1].after[name] for s in self.recorded]
        np.testing.assert_allclose(values, expected, rtol=RTOL, atol=1e-6)

    @pytest.mark.parametrize("name", SHAPES)
    def test_tiles_of_small_variables_are_absolute_values(self, run: Run, name: str) -> None:
        raw = run.array(f"weights/{name}/raw").values
        tiles = self.at_recorded(run, f"weights/{name}/tiles")
        np.testing.assert_array_equal(tiles, np.abs(raw).reshape(tiles.shape))
        details = run.stream(f"weights/{name}/tiles").details
        assert details["block_shape"] == [1, 1]
        assert tuple(details["full_shape"]) == SHAPES[name]

    @pytest.mark.parametrize("name", SHAPES)
    def test_moments(self, run: Run, name: str) -> None:
        raw = run.array(f"weights/{name}/raw").values.astype("f8")
        moments = self.at_recorded(run, f"weights/{name}/moments")
        expected = [[w.mean(), w.std(), w.min(), w.max(), np.mean(w == 0)] for w in raw]
        np.testing.assert_allclose(moments, expected, rtol=RTOL, atol=1e-6)
        labels = run.stream(f"weights/{name}/moments").axes[0].labels
        assert labels == ("mean", "std", "min", "max", "share_of_zeros")

    @pytest.mark.parametrize("name", SHAPES)
    def test_percentiles(self, run: Run, name: str) -> None:
        raw = run.array(f"weights/{name}/raw").values
        values = self.at_recorded(run, f"weights/{name}/percentiles")
        expected = [np.percentile(w, [1, 5, 25, 50, 75, 95, 99]) for w in raw]
        np.testing.assert_allclose(values, expected, rtol=RTOL, atol=1e-6)

    def test_feature_groups_of_the_variables_they_name(self, run: Run) -> None:
        raw = run.array("weights/table/embeddings/raw").values.astype("f8")
        rms = self.at_recorded(run, "weights/table/embeddings/group_rms")
        peaks = self.at_recorded(run, "weights/table/embeddings/group_max")
        groups = [raw[:, :5], raw[:, 5:20]]
        expected = np.stack([np.sqrt((g**2).mean((1, 2))) for g in groups], 1)
        np.testing.assert_allclose(rms, expected, rtol=RTOL)
        np.testing.assert_allclose(
            peaks, np.stack([np.abs(g).max((1, 2)) for g in groups], 1), rtol=RTOL
        )
        assert run.stream("weights/table/embeddings/group_rms").axes[0].labels == ("user", "item")
        assert "weights/fc/bias/group_rms" not in run.stream_names()

    @pytest.mark.parametrize("name", SHAPES)
    def test_gradient_norm_counts_duplicate_rows_once(
        self, run: Run, steps: list[Step], name: str
    ) -> None:
        values = run.frame(f"gradients/{name}/norm").set_index("step")["value"]
        expected = {s: np.linalg.norm(steps[s - 1].gradients[name]) for s in self.gradient_steps}
        assert sorted(values.index) == self.gradient_steps
        assert values.to_dict() == pytest.approx(expected, rel=RTOL)

    @pytest.mark.parametrize("name", SHAPES)
    def test_update_ratio_is_of_one_step(self, run: Run, steps: list[Step], name: str) -> None:
        values = run.frame(f"gradients/{name}/update_ratio").set_index("step")["value"]
        expected = {}
        for s in self.gradient_steps:
            before, after = steps[s - 1].before[name], steps[s - 1].after[name]
            expected[s] = np.linalg.norm(after - before) / np.linalg.norm(before)
        # The difference of two float32 numbers close to each other.
        assert values.to_dict() == pytest.approx(expected, rel=2e-4)

    def test_scalars_are_recorded_at_every_step(self, run: Run, steps: list[Step]) -> None:
        frame = run.frame("train/loss")
        assert list(frame["step"]) == list(range(1, STEPS + 1))
        np.testing.assert_allclose(frame["value"], self.expected_losses(steps), rtol=RTOL)

    def test_throughput(self, run: Run) -> None:
        samples = self.at_recorded(run, "throughput/samples")
        np.testing.assert_array_equal(samples, [s * SAMPLES for s in self.recorded])
        for name in ("step_time", "steps_per_second", "samples_per_second"):
            assert (self.at_recorded(run, f"throughput/{name}") > 0).all()
        assert run.stream("throughput/step_time").unit == "s"

    def test_one_worker_is_never_stale(self, run: Run) -> None:
        assert set(run.frame("staleness/global")["value"]) == {0.0}
        assert "upper bound" in run.stream("staleness/global").description.lower()

    def test_auc_of_all_training_predictions(self, run: Run, steps: list[Step]) -> None:
        labels = make_problem().y.reshape(-1)
        expected = [
            roc_auc_score(
                np.tile(labels, s), np.concatenate([t.scores.reshape(-1) for t in steps[:s]])
            )
            for s in self.recorded
        ]
        values = self.at_recorded(run, "auc/cumulative")
        np.testing.assert_allclose(values, expected, atol=1e-4)
        assert np.isfinite(self.at_recorded(run, "auc/decayed")).all()
        assert np.isfinite(self.at_recorded(run, "auc/windowed")).all()

    def test_overhead_is_a_stream(self, run: Run) -> None:
        overhead = run.frame("recorder/overhead")["value"]
        assert ((overhead > 0) & (overhead <= 1)).all()

    def test_no_probe_failed(self, run: Run) -> None:
        assert "recorder/probe_failures" not in run.stream_names()


FEATURE_GROUPS = {
    "user": {"table/embeddings": slice(0, 5)},
    "item": {"table/embeddings": slice(5, 20)},
}


class TestNumpyRecorder(CollectorContract):
    def train(self, folder: Path, problem: Problem) -> None:
        weights = {name: w.copy() for name, w in problem.weights.items()}
        rec = di.Recorder(
            folder, probes=probes(), every_n_steps=EVERY, feature_groups=FEATURE_GROUPS
        )
        with rec:
            for step in range(1, STEPS + 1):
                table = weights["table/embeddings"]
                scores = problem.x @ weights["fc/kernel"] + weights["fc/bias"] + table[problem.ids]
                slope = 2 * (scores - problem.y) / np.float32(scores.size)
                rec.before_step(step, variables=weights)
                weights["fc/kernel"] -= RATE * problem.x.T @ slope
                weights["fc/bias"] -= RATE * slope.sum(0)
                np.add.at(table, problem.ids, -RATE * slope)
                rec.after_step(
                    step,
                    variables=weights,
                    gradients={
                        "fc/kernel": problem.x.T @ slope,
                        "fc/bias": slope.sum(0),
                        "table/embeddings": (slope, problem.ids),
                    },
                    samples=SAMPLES,
                    labels=problem.y,
                    scores=scores,
                    scalars={"train/loss": np.mean((scores - problem.y) ** 2)},
                )


class TestTensorFlowRecorder(CollectorContract):
    def train(self, folder: Path, problem: Problem) -> None:
        import tensorflow as tf

        weights = {name: tf.Variable(w) for name, w in problem.weights.items()}
        with di.Recorder(
            folder, probes=probes(), every_n_steps=EVERY, feature_groups=FEATURE_GROUPS
        ) as rec:
            for step in range(1, STEPS + 1):
                with tf.GradientTape() as tape:
                    rows = tf.gather(weights["table/embeddings"], problem.ids)
                    scores = problem.x @ weights["fc/kernel"] + weights["fc/bias"] + rows
                    loss = tf.reduce_mean(tf.square(scores - problem.y))
                gradients = tape.gradient(loss, list(weights.values()))
                assert isinstance(gradients[-1], tf.IndexedSlices)
                rec.before_step(step, variables=weights)
                for gradient, w in zip(gradients, weights.values(), strict=True):
                    w.assign_sub(RATE * tf.convert_to_tensor(gradient))
                rec.after_step(
                    step,
                    variables=weights,
                    gradients=gradients,
                    samples=SAMPLES,
                    labels=problem.y,
                    scores=scores,
                    scalars={"train/loss": loss},
                )


class TestSession(CollectorContract):
    use_resource = True

    def train(self, folder: Path, problem: Problem) -> None:
        import tensorflow as tf

        v1 = tf.compat.v1
        with tf.Graph().as_default():
            weights = {
                name: v1.get_variable(name, initializer=w, use_resource=self.use_resource)
                for name, w in problem.weights.items()
            }
            rows = tf.gather(weights["table/embeddings"], problem.ids)
            scores = problem.x @ weights["fc/kernel"] + weights["fc/bias"] + rows
            loss = tf.reduce_mean(tf.square(scores - problem.y))
            step = v1.train.get_or_create_global_step()
            train_op = v1.train.GradientDescentOptimizer(RATE).minimize(loss, global_step=step)
            di.trace_tensor("train/loss", loss, unit="nat")
            chosen = probes()
            chosen[-1] = di.probes.AUC(
                tf.constant(problem.y), scores, from_logits=True, half_life=2, window=3
            )
            hook = di.TraceHook(
                folder, chosen, EVERY, feature_groups=FEATURE_GROUPS, batch_size=SAMPLES
            )
            with v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
                for _ in range(STEPS):
                    session.run(train_op)


class TestSessionWithReferenceVariables(TestSession):
    use_resource = False


class TestKeras(CollectorContract):
    compile_settings: ClassVar[dict[str, Any]] = {"jit_compile": False}

    def expected_losses(self, steps: list[Step]) -> list[float]:
        # Keras logs the mean since the epoch began.
        losses = [s.loss for s in steps]
        return list(np.cumsum(losses) / np.arange(1, STEPS + 1))

    def train(self, folder: Path, problem: Problem) -> None:
        import keras
        import tensorflow as tf

        x = keras.Input((6,), name="x")
        ids = keras.Input((), dtype="int32", name="ids")
        scores = keras.layers.Dense(3, name="fc")(x)
        scores = scores + keras.layers.Embedding(20, 3, name="table")(ids)
        model = keras.Model([x, ids], scores, name="tower")
        kernel, bias, table = problem.weights.values()
        model.get_layer("fc").set_weights([kernel, bias])
        model.get_layer("table").set_weights([table])
        model.compile(keras.optimizers.SGD(RATE), "mse", **self.compile_settings)
        data = tf.data.Dataset.from_tensors(((problem.x, problem.ids), problem.y)).repeat(STEPS)
        callback = di.TraceCallback(folder, probes(), EVERY, feature_groups=FEATURE_GROUPS)
        model.fit(data, epochs=1, shuffle=False, verbose=0, callbacks=[callback])


class TestKerasWithXla(TestKeras):
    compile_settings: ClassVar[dict[str, Any]] = {"jit_compile": True}


class TestKerasEager(TestKeras):
    compile_settings: ClassVar[dict[str, Any]] = {"run_eagerly": True}


class TestKerasWithSeveralStepsPerExecution(TestKeras):
    """Weights are recorded where an execution ends, gradients at one due step inside it."""

    compile_settings: ClassVar[dict[str, Any]] = {"jit_compile": False, "steps_per_execution": 3}
    recorded: ClassVar[list[int]] = [3, 6, 7]
    gradient_steps: ClassVar[list[int]] = [1, 6]

    def test_scalars_are_recorded_at_every_step(self, run: Run, steps: list[Step]) -> None:
        frame = run.frame("train/loss")
        assert list(frame["step"]) == [3, 6, 7]
        expected = [self.expected_losses(steps)[s - 1] for s in (3, 6, 7)]
        np.testing.assert_allclose(frame["value"], expected, rtol=RTOL)
