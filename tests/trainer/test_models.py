import numpy as np
import pytest
import tensorflow as tf

from deepinsight.trainer.cluster.members import Patience
from deepinsight.trainer.data import FeatureGroup, open_data
from deepinsight.trainer.errors import OptionError
from deepinsight.trainer.graph import Replica, build_graph
from deepinsight.trainer.models import column_slices
from deepinsight.trainer.optimizers import LeastLoaded
from deepinsight.trainer.options import OPTIMIZERS, Options

v1 = tf.compat.v1
ALONE = Replica(index=0, workers=1, ps=0)


def options(**given):
    return Options(run_dir="unused", ps=0, workers=1, **given)


def build(given):
    data = open_data(given)
    return data, build_graph(given, data, ALONE, Patience())


def shapes(graph):
    return {name: v.shape.as_list() for name, v in graph.model.variables.items()}


@pytest.fixture(autouse=True)
def fresh_graph():
    with tf.Graph().as_default():
        yield


def test_dense_has_the_shape_of_the_name():
    _, graph = build(options(model="dense"))
    assert shapes(graph) == {
        "fc1/kernel": [1130, 256], "fc1/bias": [256],
        "fc2/kernel": [256, 128], "fc2/bias": [128],
        "fc3/kernel": [128, 64], "fc3/bias": [64],
        "fc4/kernel": [64, 32], "fc4/bias": [32],
        "logits/kernel": [32, 1], "logits/bias": [1],
    }  # fmt: skip
    assert sum(int(np.prod(s)) for s in shapes(graph).values()) == 332_801


def test_wide_deep_has_two_tables_per_group():
    _, graph = build(options(embedding_dim=4, hidden=(16,)))
    found = shapes(graph)
    assert found["embedding/row_7"] == [136, 4]
    assert found["wide/row_7"] == [136, 1]
    assert found["fc1/kernel"] == [32, 16]
    assert found["logits/kernel"] == [16, 1]
    assert len(found) == 2 * 8 + 4


def test_wide_deep_computes_its_formula():
    data, graph = build(options(embedding_dim=4, hidden=(16,)))
    batch = data.held_out()
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        names = list(graph.model.variables)
        rng = np.random.default_rng(1)
        values = {n: rng.normal(0, 0.3, v.shape) for n, v in graph.model.variables.items()}
        for name in names:
            graph.model.variables[name].load(values[name], session)
        logits = session.run(graph.logits, {graph.ids: batch.ids})
    deep, wide = [], 0.0
    for i, group in enumerate(data.groups):
        ids = batch.ids[:, 8 * i : 8 * i + 8]
        deep.append(values[f"embedding/{group.name}"][ids].sum(axis=1))
        wide += values[f"wide/{group.name}"][ids].sum(axis=(1, 2))
    hidden = np.concatenate(deep, axis=1) @ values["fc1/kernel"] + values["fc1/bias"]
    expected = np.maximum(hidden, 0) @ values["logits/kernel"] + values["logits/bias"]
    np.testing.assert_allclose(logits, expected[:, 0] + wide, rtol=1e-4, atol=1e-4)


def test_dense_sees_digits_one_hot():
    data, graph = build(options(model="dense", hidden=(4,)))
    batch = data.held_out()
    encoded = graph.model._encode(graph.ids)
    with v1.Session() as session:
        values = session.run(encoded, {graph.ids: batch.ids})
    assert values.shape == (449, 1130)
    offsets = np.repeat(np.arange(8) * 136, 8)
    expected = np.zeros_like(values)
    np.put_along_axis(expected, batch.ids + offsets, 1.0, axis=1)
    np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("width", [3, 10, 100, 1130])
def test_columns_cover_the_input_in_the_order_of_the_groups(width):
    groups = [FeatureGroup("a", 1, 5), FeatureGroup("b", 2, 900), FeatureGroup("c", 1, 20)]
    slices = column_slices(groups, width)
    assert list(slices) == ["a", "b", "c"]
    edges = [edge for s in slices.values() for edge in (s.start, s.stop)]
    assert edges[0] == 0
    assert edges[-1] == width
    assert edges[1:-1:2] == edges[2::2]
    assert all(s.stop > s.start for s in slices.values())
    if width >= 925:
        for group in groups:
            columns = slices[group.name]
            assert columns.stop - columns.start >= group.vocabulary


def test_fewer_columns_than_groups_are_refused():
    with pytest.raises(OptionError, match=r"--input-width must be at least .* 2. Received: 1"):
        column_slices([FeatureGroup("a", 1, 5), FeatureGroup("b", 1, 5)], 1)


def test_feature_groups_name_rows_that_exist():
    for model in ("dense", "wide-deep"):
        with tf.Graph().as_default():
            _, graph = build(options(model=model, hidden=(8,)))
            found = shapes(graph)
            covered = []
            for group, rows in graph.model.feature_groups().items():
                assert group.startswith("row_")
                for name, part in rows.items():
                    size = len(range(*part.indices(found[name][0])))
                    assert size > 0
                    if name == "fc1/kernel":
                        covered += range(*part.indices(found[name][0]))
            assert covered == list(range(found["fc1/kernel"][0]))


@pytest.mark.parametrize("rule", OPTIMIZERS)
@pytest.mark.parametrize("model", ["dense", "wide-deep"])
def test_every_rule_lowers_the_loss_of_every_model_and_a_lone_worker_is_never_stale(model, rule):
    data, graph = build(options(model=model, hidden=(16,), optimizer=rule))
    batches = data.batches(worker=0, workers=1, batch_size=200, seed=1)
    losses = []
    # Where a table starts at zero LARS scales nothing: its first step is too long, and it returns.
    steps = 150 if rule == "lars" else 30
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for expected_step in range(steps):
            batch = next(batches)
            _, loss, step, stale, stale_variables = session.run(
                [
                    graph.push.op, graph.loss, graph.push.step, graph.staleness,
                    graph.variable_staleness,
                ],
                {graph.ids: batch.ids, graph.labels: batch.labels},
            )  # fmt: skip
            losses.append(loss)
            assert (step, stale) == (expected_step, 0)
            assert not stale_variables.any()
            assert len(stale_variables) == len(graph.variable_names)
        assert session.run(graph.global_step) == steps
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.01


def test_the_same_seed_makes_the_same_weights():
    values = []
    for seed in (3, 3, 4):
        with tf.Graph().as_default(), v1.Session() as session:
            _, graph = build(options(seed=seed))
            session.run(v1.global_variables_initializer())
            values.append(session.run(graph.model.variables["fc1/kernel"]))
    np.testing.assert_array_equal(values[0], values[1])
    assert (values[0] != values[2]).any()


def test_variables_go_to_the_emptiest_server():
    with v1.device(
        v1.train.replica_device_setter(
            ps_tasks=2, worker_device="/job:worker/task:0", ps_strategy=LeastLoaded(2)
        )
    ):
        sizes = {"a": 100, "b": 10, "c": 20, "d": 60, "e": 20}
        devices = {name: v1.get_variable(name, [size]).device for name, size in sizes.items()}
    tasks = {name: device[-1] for name, device in devices.items()}
    assert tasks == {"a": "0", "b": "1", "c": "1", "d": "1", "e": "1"}
