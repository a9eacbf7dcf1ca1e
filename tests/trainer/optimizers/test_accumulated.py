"""AccumulatedGradients: the mean once in k calls, of touched rows only, wherever it runs."""

import numpy as np
import pytest
import tensorflow as tf

from deepinsight.trainer.optimizers import (
    AccumulatedGradients,
    DelayCompensatedGradientDescentOptimizer,
)

from .execution import MODES, random_gradients, random_values

v1 = tf.compat.v1


class OneWorker(AccumulatedGradients):
    """Takes the worker's index that the runs hand over."""

    def apply_gradients(self, pairs, *arguments, worker_index, **more):
        return super().apply_gradients(pairs, *arguments, **more)


BASES = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.125),
    "momentum": lambda: v1.train.MomentumOptimizer(0.125, 0.5),
    "adam": lambda: v1.train.AdamOptimizer(0.125),
    "compensated": lambda: DelayCompensatedGradientDescentOptimizer(0.125),
}


def mean_slices(parts, steps):
    rows = np.concatenate([rows for _, rows, _ in parts]) / steps
    indices = np.concatenate([indices for _, _, indices in parts])
    return tf.IndexedSlices(tf.constant(rows), tf.constant(indices))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("base", BASES)
def test_is_the_base_on_the_mean(mode, base):
    steps = 3
    run = MODES[mode](lambda: OneWorker(BASES[base](), steps), random_values(1), 1)
    plain, rule = [tf.Variable(value) for value in random_values(1)], BASES[base]()
    generator = np.random.default_rng(2)
    for _ in range(4):
        before = [run.read(v) for v in run.variables]
        parts = [random_gradients(generator) for _ in range(steps)]
        for part in parts:
            for variable, value in zip(run.variables, before, strict=True):
                np.testing.assert_array_equal(run.read(variable), value)
            run.push(0, *part)
        dense = tf.constant(np.mean([dense for dense, _, _ in parts], axis=0))
        rule.apply_gradients(zip([dense, mean_slices(parts, steps)], plain, strict=True))
        for one, other in zip(run.variables, plain, strict=True):
            np.testing.assert_allclose(run.read(one), other.numpy(), rtol=1e-5, atol=1e-6)
        for variable in run.variables:
            np.testing.assert_array_equal(run.read(run.optimizer.get_slot(variable, "sum")), 0)
        assert not run.read(run.optimizer.get_slot(run.variables[1], "touched")).any()


def test_only_rows_with_a_gradient_are_updated():
    table = tf.Variable(tf.ones([4, 1]))
    optimizer = AccumulatedGradients(v1.train.MomentumOptimizer(1.0, 0.5), 2)
    seen = []
    for row in (1, 1, 2, 2):
        grad = tf.IndexedSlices(tf.ones([1, 1]), tf.constant([row]))
        optimizer.apply_gradients([(grad, table)])
        seen.append(table.numpy().ravel().tolist())
    # Row 1 has momentum, but no gradient in the second update.
    assert seen == [[1, 1, 1, 1], [1, 0, 1, 1], [1, 0, 1, 1], [1, 0, 0, 1]]


def test_global_step_counts_updates_and_a_checkpoint_keeps_the_sums(tmp_path):
    def build():
        step = v1.train.get_or_create_global_step()
        w = v1.get_variable("w", initializer=[1.0], use_resource=True)
        optimizer = AccumulatedGradients(v1.train.MomentumOptimizer(0.5, 0.5), 2)
        return w, step, optimizer.minimize(3 * w[0], step), v1.train.Saver()

    path = str(tmp_path / "model")
    with tf.Graph().as_default(), v1.Session() as session:
        w, step, train, saver = build()
        session.run(v1.global_variables_initializer())
        counts = []
        for _ in range(3):
            session.run(train)
            counts.append(int(session.run(step)))
        assert counts == [0, 1, 1]
        saver.save(session, path)
        session.run(train)
        expected = session.run(w)
    with tf.Graph().as_default(), v1.Session() as session:
        w, step, train, saver = build()
        saver.restore(session, path)
        session.run(train)
        assert session.run(step) == 2
        np.testing.assert_array_equal(session.run(w), expected)


def test_a_worker_index_and_a_whole_snapshot_reach_the_base():
    w = tf.Variable([[1.0], [2.0]])
    base = DelayCompensatedGradientDescentOptimizer(0.5, 1.0, num_workers=2)
    optimizer = AccumulatedGradients(base, 2)
    for _ in range(2):
        grad = tf.IndexedSlices(tf.ones([1, 1]), tf.constant([1]))
        snapshot = tf.constant([[9.0], [4.0]])
        optimizer.apply_gradients([(grad, w)], worker_index=1, backup=[(snapshot, w)])
    assert w.numpy().ravel().tolist() == [1.0, 2.5]  # 2 - 0.5 (1 + (2 - 4))


def test_slots_are_made_outside_the_conditional():
    with tf.Graph().as_default() as graph:
        w = v1.get_variable("w", [2], use_resource=True)
        base = DelayCompensatedGradientDescentOptimizer(0.5, num_workers=2)
        op = AccumulatedGradients(base, 2).minimize(tf.reduce_sum(w))
        assert isinstance(op, tf.Operation)
        assert {v.op.name for v in v1.global_variables()} == {
            "w",
            "w/AccumulatedGradients/sum",
            "accumulated_calls",
            "w/DelayCompensatedGradientDescent/backup_0",
            "w/DelayCompensatedGradientDescent/backup_1",
        }
        assert all(v.graph is graph for v in v1.global_variables())
