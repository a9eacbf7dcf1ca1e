"""Elastic averaging: its defaults, what it refuses, its savers, and what it tells of itself."""

import numpy as np
import pytest
import tensorflow as tf

from deepinsight.trainer.optimizers import LARSOptimizer
from deepinsight.trainer.optimizers.averaging.elastic_average import (
    GLOBAL_VARIABLE_NAME,
    LOCAL_VARIABLE_NAME,
    ElasticAverageCustomGetter,
    ElasticAverageOptimizer,
)

v1 = tf.compat.v1


@pytest.fixture
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


@pytest.fixture
def getter(graph):
    return ElasticAverageCustomGetter(worker_device="/device:CPU:0")


def descent(rate=0.5):
    return v1.train.GradientDescentOptimizer(rate)


def variable(getter, name="w", **options):
    with v1.variable_scope("", custom_getter=getter):
        return v1.get_variable(name, **{"initializer": tf.constant([1.0, 2.0])} | options)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"num_worker": 0}, r"`num_worker` must be >= 1. Received: num_worker=0\."),
        ({"num_worker": 1.5}, "`num_worker` must be an int. Received: num_worker=1.5"),
        ({"communication_period": 0}, "`communication_period` must be >= 1"),
        ({"moving_rate": -0.1}, "`moving_rate` must be >= 0 and <= 1. Received: moving_rate=-0.1"),
        ({"moving_rate": 1.5}, "`moving_rate` must be >= 0 and <= 1"),
        ({"moving_rate": np.nan}, "`moving_rate` must be >= 0 and <= 1. .*nan"),
        ({"moving_rate": "much"}, "`moving_rate` must be >= 0 and <= 1. .*'much'"),
        ({"rho": -1.0}, "`rho` must be finite and >= 0. Received: rho=-1.0"),
        ({"rho": np.inf}, "`rho` must be finite and >= 0"),
        ({"opt": 0.1}, "`opt` must be a tf.compat.v1.train.Optimizer. Received: builtins.float"),
        ({"opt": v1.train.FtrlOptimizer(0.1)}, "FtrlOptimizer, which computes them from sums"),
        ({"ea_custom_getter": None}, "`ea_custom_getter` must be .*. Received: None"),
        ({"opt": descent(0.0), "synchronous": True}, "`rho` must be given where .* rate 0.0"),
        (
            {"opt": v1.train.AdadeltaOptimizer(), "synchronous": True, "rho": "x"},
            "`rho` must be finite and >= 0. Received: rho='x'",
        ),
    ],
)
def test_arguments_out_of_range_are_refused(getter, options, match):
    right = {"opt": descent(), "num_worker": 2, "ea_custom_getter": getter}
    with pytest.raises(ValueError, match=match):
        ElasticAverageOptimizer(**right | options)


def test_a_penalty_needs_a_learning_rate_to_derive_it_from(getter):
    class Secret(v1.train.Optimizer):
        def __init__(self):
            super().__init__(False, "Secret")

    with pytest.raises(ValueError, match=r"`rho` must be given .* opt=Secret .* pass rho=0"):
        ElasticAverageOptimizer(Secret(), 1, getter, synchronous=True)
    ElasticAverageOptimizer(Secret(), 1, getter)


@pytest.mark.parametrize(
    ("base", "rate"),
    [
        (lambda: descent(0.25), 0.25),
        (lambda: v1.train.AdamOptimizer(0.125), 0.125),
        (lambda: LARSOptimizer(0.5), 0.5),
        (lambda: descent(lambda: 0.5), 0.5),
        (lambda: v1.train.MomentumOptimizer(tf.constant(2.0), 0.9), 2.0),
    ],
)
def test_defaults_are_those_of_the_paper(getter, base, rate):
    optimizer = ElasticAverageOptimizer(base(), 3, getter, synchronous=True)
    assert optimizer._moving_rate == 0.9 / 10 / 3
    rho = optimizer._rho
    if tf.is_tensor(rho):
        with v1.Session() as session:
            rho = session.run(rho)
    assert rho == pytest.approx(0.9 / 10 / 3 / rate)
    asynchronous = ElasticAverageOptimizer(base(), 3, getter)
    assert asynchronous._rho == 0


def test_a_variable_without_a_center_is_refused(getter):
    foreign = v1.get_variable("foreign", initializer=tf.zeros([2]))
    optimizer = ElasticAverageOptimizer(descent(), 1, getter)
    for attempt in (
        lambda: optimizer.apply_gradients([(tf.ones([2]), foreign)]),
        lambda: optimizer.compute_gradients(tf.reduce_sum(foreign)),
    ):
        with pytest.raises(ValueError, match=r"must have a centre .* Received: 'foreign:0'; make"):
            attempt()


def test_a_variable_that_cannot_be_averaged_is_refused(getter):
    whole = variable(getter, initializer=tf.constant([1, 2]))
    optimizer = ElasticAverageOptimizer(descent(), 1, getter)
    with pytest.raises(ValueError, match=r"must have a floating dtype .* Received: int32"):
        optimizer.get_init_op(0)
    assert whole in optimizer.global_variables


def test_no_model_no_gradient_no_hook(getter):
    optimizer = ElasticAverageOptimizer(descent(), 2, getter)
    with pytest.raises(RuntimeError, match="`swapping_saver` must be called after the model"):
        optimizer.swapping_saver()
    with pytest.raises(ValueError, match=r"There must be a trainable variable .* Received: none"):
        optimizer.get_init_op(0)
    w = variable(getter)
    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        optimizer.apply_gradients([(None, w)])
    with pytest.raises(ValueError, match="must be called first"):
        optimizer.make_session_run_hook(True, 0).begin()
    optimizer = ElasticAverageOptimizer(descent(), 2, getter)
    optimizer.minimize(tf.reduce_sum(w))
    with pytest.raises(ValueError, match="`make_session_run_hook`, must be called first"):
        print(optimizer.start_op)


@pytest.mark.parametrize("index", [-1, 2])
def test_a_worker_that_is_none_is_refused(getter, index):
    optimizer = ElasticAverageOptimizer(descent(), 2, getter)
    with pytest.raises(ValueError, match=f"`task_index` must be >= 0 and < 2, .*={index}"):
        optimizer.make_session_run_hook(False, index)


def test_rounds_need_a_resource_variable_to_count_them(getter):
    w = variable(getter)
    optimizer = ElasticAverageOptimizer(descent(), 1, getter, synchronous=True)
    with pytest.raises(ValueError, match=r"`global_step` must be a resource variable .*=None"):
        optimizer.minimize(tf.reduce_sum(w))


def test_calls_where_no_hook_can_follow_are_refused(getter):
    w = variable(getter)
    optimizer = ElasticAverageOptimizer(descent(), 1, getter)

    @tf.function
    def step():
        optimizer.apply_gradients([(tf.ones([2]), w)])

    with pytest.raises(ValueError, match=r"must be called in a tf.compat.v1 graph"):
        step.get_concrete_function()


def test_variables_that_come_after_the_exchange_was_built_are_refused(getter):
    w, late = variable(getter), variable(getter, "late")
    optimizer = ElasticAverageOptimizer(descent(), 1, getter)
    optimizer.apply_gradients([(tf.ones([2]), w)])
    optimizer.make_session_run_hook(True, 0)
    assert optimizer.launch_variables == []
    assert optimizer.start_op is None
    optimizer.apply_gradients([(tf.ones([2]), w)])
    with pytest.raises(ValueError, match="must be called for all variables before"):
        optimizer.apply_gradients([(tf.ones([2]), late)])


def test_a_getter_finds_its_variables_again(getter):
    with v1.variable_scope("m", custom_getter=getter):
        w = v1.get_variable("w", [2])
        table = v1.get_variable("table", [4], partitioner=v1.fixed_size_partitioner(2))
        fixed = v1.get_variable("fixed", [2], trainable=False)
    with v1.variable_scope("m", custom_getter=getter, reuse=True):
        assert v1.get_variable("w", [2]) is w
        again = v1.get_variable("table", [4], partitioner=v1.fixed_size_partitioner(2))
        assert list(again) == list(table)
    assert [v.op.name for v in getter.global_variables] == [
        "m/w", "m/table/part_0", "m/table/part_1"
    ]  # fmt: skip
    assert fixed not in getter.global_variables
    assert fixed in v1.global_variables()
    assert set(v1.local_variables()) == {w, *table}
    assert set(v1.trainable_variables()) == {w, *table}
    names = {v.op.name for v in v1.global_variables()} - {"m/fixed"}
    assert names == {
        f"{GLOBAL_VARIABLE_NAME}/m/{name}" for name in ("w", "table/part_0", "table/part_1")
    }


def train(optimizer, loss, steps, *fetches):
    op = optimizer.minimize(loss, v1.train.get_or_create_global_step())
    hook = optimizer.make_session_run_hook(True, 0)
    with v1.train.MonitoredSession(hooks=[hook]) as session:
        for _ in range(steps):
            session.run(op)
        return session.run(fetches)


def test_rounds_continue_from_a_checkpoint_of_a_run_without(tmp_path):
    found = []
    for synchronous in (False, True):
        with tf.Graph().as_default():
            getter = ElasticAverageCustomGetter(worker_device="/device:CPU:0")
            w = variable(getter)
            optimizer = ElasticAverageOptimizer(
                descent(), 1, getter, 1, 0.5, rho=0.0, synchronous=synchronous
            )
            op = optimizer.minimize(tf.reduce_sum(w), v1.train.get_or_create_global_step())
            hook = optimizer.make_session_run_hook(True, 0)
            with v1.train.MonitoredTrainingSession(
                checkpoint_dir=str(tmp_path), hooks=[hook], log_step_count_steps=None
            ) as session:
                session.run(op)
                found.append(session.run(optimizer.global_variables[w]).tolist())
    assert found == [[0.75, 1.75], [0.5, 1.5]]
    saved = {name for name, _ in tf.train.list_variables(str(tmp_path))}
    assert saved == {f"{GLOBAL_VARIABLE_NAME}/w", "global_step"}


@pytest.mark.parametrize("synchronous", [False, True])
def test_variables_without_a_gradient_begin_at_the_center_too(getter, synchronous):
    w = variable(getter)
    idle = variable(getter, "idle", initializer=tf.random.normal([3]))
    optimizer = ElasticAverageOptimizer(
        descent(), 1, getter, 1, 0.5, rho=0.0, synchronous=synchronous
    )
    own, center, moved = train(
        optimizer, tf.reduce_sum(w**2), 2, idle, optimizer.global_variables[idle], w
    )
    np.testing.assert_array_equal(own, center)
    assert np.any(own != 0)
    assert not np.array_equal(moved, [1, 2])


@pytest.mark.parametrize("synchronous", [False, True])
def test_the_worker_s_copy_of_the_center_is_kept_where_it_is_needed(getter, graph, synchronous):
    w = variable(getter)
    optimizer = ElasticAverageOptimizer(
        descent(), 1, getter, 2, 0.25, rho=0.5, synchronous=synchronous
    )
    loss = tf.reduce_sum(w**2)
    known = optimizer._known_center(w)
    assert known.op.name == f"{LOCAL_VARIABLE_NAME}/w"
    own, center, copy = train(optimizer, loss, 5, w, optimizer.global_variables[w], known)
    x = c = np.array([1.0, 2.0])
    seen = c
    for k in range(1, 6):
        x = x - 0.5 * (2 * x + 0.5 * (x - seen))
        if k % 2 == 0:
            x, c = x - 0.25 * (x - c), c + 0.25 * (x - c)
            seen = c
    np.testing.assert_allclose(own, x, rtol=1e-6)
    np.testing.assert_allclose(center, c, rtol=1e-6)
    np.testing.assert_allclose(copy, c, rtol=1e-6)


def test_a_penalty_reaches_the_variables_of_the_list_only(getter):
    w, other = variable(getter), variable(getter, "other")
    optimizer = ElasticAverageOptimizer(descent(), 1, getter, rho=2.0)
    loss = tf.reduce_sum(w) + tf.reduce_sum(other)
    pairs = optimizer.compute_gradients(loss, var_list=[other])
    assert [variable.op.name for _, variable in pairs] == ["other"]
    with v1.Session() as session:
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        session.run(optimizer.get_init_op(0))
        assert session.run(pairs[0][0]).tolist() == [1, 1]
        session.run(other.assign_add([3.0, -1.0]))
        assert session.run(pairs[0][0]).tolist() == [7, -1]


def test_without_the_start_a_penalty_is_no_number(getter):
    w = variable(getter)
    optimizer = ElasticAverageOptimizer(descent(), 1, getter, rho=2.0)
    ((gradient, _),) = optimizer.compute_gradients(tf.reduce_sum(w))
    with v1.Session() as session:
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        assert np.isnan(session.run(gradient)).all()


def test_a_swapping_saver_takes_the_centers_of_what_it_is_given(getter, tmp_path):
    w = variable(getter)
    fixed = v1.get_variable("fixed", initializer=tf.constant([5.0]), trainable=False)
    optimizer = ElasticAverageOptimizer(descent(), 1, getter, 1, 0.25)
    savers = {
        "all": optimizer.swapping_saver(),
        "list": optimizer.swapping_saver([w, fixed], max_to_keep=3),
        "dict": optimizer.swapping_saver({"weights": w, "fixed": fixed}, name="renaming"),
        "exported": v1.train.Saver(optimizer.exported),
    }
    op = optimizer.minimize(tf.reduce_sum(w**2))
    hook = optimizer.make_session_run_hook(True, 0)
    with v1.train.MonitoredSession(hooks=[hook]) as session:
        session.run(op)
        own, center = session.run([w, optimizer.global_variables[w]])
        raw = session.run_step_fn(lambda step_context: step_context.session)
        for name, saver in savers.items():
            saver.save(raw, str(tmp_path / name), write_meta_graph=False)
        # What a saver restores goes into the centre.
        session.run(op)
        assert not np.array_equal(session.run(optimizer.global_variables[w]), center)
        savers["dict"].restore(raw, str(tmp_path / "dict"))
        np.testing.assert_array_equal(session.run(optimizer.global_variables[w]), center)
    assert not np.array_equal(own, center)

    def saved(name):
        reader = tf.train.load_checkpoint(str(tmp_path / name))
        return {key: reader.get_tensor(key).tolist() for key in reader.get_variable_to_shape_map()}

    assert saved("all") == saved("exported") == {"w": center.tolist()}
    assert saved("list") == {"w": center.tolist(), "fixed": [5.0]}
    assert saved("dict") == {"weights": center.tolist(), "fixed": [5.0]}


def test_slots_are_the_base_optimizer_s(getter):
    w = variable(getter)
    optimizer = ElasticAverageOptimizer(v1.train.MomentumOptimizer(0.1, 0.9), 1, getter)
    optimizer.minimize(tf.reduce_sum(w))
    slot = optimizer.get_slot(w, "momentum")
    assert optimizer.get_slot_names() == ["momentum"]
    assert optimizer.variables() == [slot]
    assert optimizer.local_variables == [w, slot]
    assert slot in v1.local_variables()
    assert slot not in v1.global_variables()
