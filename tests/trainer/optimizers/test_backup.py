"""What a gradient is compared with: the slot, or the value that the worker really read."""

import numpy as np
import pytest
import tensorflow as tf

from deepinsight.trainer.optimizers import (
    BoostedGradientDescentOptimizer,
    BoostedMomentumOptimizer,
    DelayCompensatedGradientDescentOptimizer,
)

from .execution import MODES, random_gradients, random_values

v1 = tf.compat.v1


def delay_compensated(**more):
    return DelayCompensatedGradientDescentOptimizer(0.5, 1.0, **({"num_workers": 2} | more))


def test_the_first_compensation_is_zero_and_the_push_renews_only_the_workers_own_backup():
    w = tf.Variable([1.0, 2.0])
    optimizer = delay_compensated()
    optimizer.apply_gradients([(tf.constant([2.0, 2.0]), w)], worker_index=1)
    np.testing.assert_array_equal(w, [0.0, 1.0])
    np.testing.assert_array_equal(optimizer.get_slot(w, "backup_0"), [1.0, 2.0])
    np.testing.assert_array_equal(optimizer.get_slot(w, "backup_1"), [0.0, 1.0])


def test_a_late_gradient_is_compensated():
    w = tf.Variable([1.0])
    optimizer = delay_compensated()
    optimizer.apply_gradients([(tf.constant([2.0]), w)], worker_index=0)
    optimizer.apply_gradients([(tf.constant([3.0]), w)], worker_index=1)
    # 0 - 0.5 (3 + 3 · 3 · (0 - 1))
    np.testing.assert_array_equal(w, [3.0])


@pytest.mark.parametrize("mode", MODES)
def test_one_worker_is_tensorflows_gradient_descent_bit_for_bit(mode):
    runs = []
    for make in (
        lambda: DelayCompensatedGradientDescentOptimizer(0.1, 2.0),
        lambda: BoostedGradientDescentOptimizer(0.1),
    ):
        run = MODES[mode](make, random_values(3), 1)
        generator = np.random.default_rng(4)
        for _ in range(10):
            dense, rows, indices = random_gradients(generator)
            # TensorFlow adds duplicate rows to the variable one by one, the kernel sums them.
            run.push(0, dense, rows, np.arange(len(indices), dtype=np.int32))
        runs.append([run.read(v) for v in run.variables])
    plain = [tf.Variable(value) for value in random_values(3)]
    rule = v1.train.GradientDescentOptimizer(0.1)
    generator = np.random.default_rng(4)
    for _ in range(10):
        dense, rows, indices = random_gradients(generator)
        sparse = tf.IndexedSlices(tf.constant(rows), tf.range(len(indices)))
        rule.apply_gradients([(tf.constant(dense), plain[0]), (sparse, plain[1])])
    for found in runs:
        for one, other in zip(found, plain, strict=True):
            np.testing.assert_array_equal(one, other.numpy())


@pytest.mark.parametrize(
    "kind", [DelayCompensatedGradientDescentOptimizer, BoostedGradientDescentOptimizer]
)
def test_a_snapshot_taken_right_after_the_push_is_the_slot(kind):
    variables = [[tf.Variable(value) for value in random_values(5)] for _ in range(2)]
    with_slots, with_snapshots = kind(0.1, num_workers=2), kind(0.1, num_workers=2)
    read = [[v.numpy() for v in variables[1]] for _ in range(2)]
    generator = np.random.default_rng(6)
    for worker in (0, 1, 1, 0, 1, 0, 0, 1):
        dense, rows, indices = random_gradients(generator)
        slices = tf.IndexedSlices(tf.constant(rows), tf.constant(indices))
        gradients = [tf.constant(dense), slices]
        pairs = [list(zip(gradients, place, strict=True)) for place in variables]
        with_slots.apply_gradients(pairs[0], worker_index=worker)
        snapshots = list(zip(map(tf.constant, read[worker]), variables[1], strict=True))
        with_snapshots.apply_gradients(pairs[1], worker_index=worker, backup=snapshots)
        read[worker][0] = variables[1][0].numpy()
        # A slot knows a row as of the worker's last push to this row.
        read[worker][1][indices] = variables[1][1].numpy()[indices]
    assert not [name for name in with_snapshots.get_slot_names() if "backup" in name]
    for one, other in zip(*variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_rows_and_slices_are_taken_as_the_gradients_own_rows():
    grad = tf.IndexedSlices(tf.constant([[1.0], [2.0]]), tf.constant([3, 1]))
    found = []
    for snapshot in (
        tf.constant([[9.0], [5.0], [9.0], [7.0]]),
        tf.constant([[7.0], [5.0]]),
        tf.IndexedSlices(tf.constant([[7.0], [5.0]]), tf.constant([3, 1])),
    ):
        w = tf.Variable([[1.0], [2.0], [3.0], [4.0]])
        delay_compensated().apply_gradients([(grad, w)], backup=[(snapshot, w)])
        found.append(w.numpy().ravel().tolist())
    # Row 3: 4 - 0.5 (1 + 1 (4 - 7)), row 1: 2 - 0.5 (2 + 4 (2 - 5)).
    assert found == [[1.0, 7.0, 3.0, 5.0]] * 3


def test_a_backup_starts_as_the_value_that_the_variable_was_restored_to():
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", initializer=[1.0], use_resource=True)
        session.run(w.initializer)
        w.load([5.0], session)  # as a restore would
        optimizer = delay_compensated()
        step = optimizer.apply_gradients([(tf.constant([1.0]), w)])
        session.run([slot.initializer for slot in optimizer.variables()])
        assert session.run(optimizer.get_slot(w, "backup_1")).tolist() == [5.0]
        session.run(step)
        assert session.run(w).tolist() == [4.5]


def test_random_variables_and_their_backups_are_initialised_alike():
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", [50], use_resource=True)
        optimizer = delay_compensated()
        optimizer.minimize(tf.reduce_sum(w**2))
        session.run(v1.global_variables_initializer())
        value, *backups = session.run([w, *(optimizer.get_slot(w, f"backup_{i}") for i in (0, 1))])
        for backup in backups:
            np.testing.assert_array_equal(backup, value)


def test_a_staleness_handed_over_weakens_the_boost():
    moved = {}
    for staleness in (0, 10, [10]):
        w = tf.Variable([0.0])
        optimizer = BoostedGradientDescentOptimizer(1.0, boost=0.5, staleness_scale=10.0, decay=0.0)
        given = [(tf.constant(10), w)] if isinstance(staleness, list) else staleness
        optimizer.apply_gradients(
            [(tf.constant([1.0]), w)], backup=[(tf.constant([1.0]), w)], staleness=given
        )
        moved[str(staleness)] = float(w.numpy()[0])
        assert "pushes_by_others" not in optimizer.get_slot_names()
    # The variable moved by -1 already, so the correlation is -1.
    np.testing.assert_allclose(moved["0"], -0.5, rtol=1e-6)
    np.testing.assert_allclose([moved["10"], moved["[10]"]], -0.75, rtol=1e-6)


def test_towers_in_one_graph_share_the_slots():
    with tf.Graph().as_default():
        w = v1.get_variable("w", [2], use_resource=True)
        optimizer = BoostedMomentumOptimizer(0.1, 0.9, num_workers=2)
        optimizer.minimize(tf.reduce_sum(w), worker_index=0)
        known = {v.name for v in v1.global_variables()}
        optimizer.minimize(tf.reduce_sum(w), worker_index=1)
        assert {v.name for v in v1.global_variables()} == known
        assert {f"w/BoostedMomentum/{slot}:0" for slot in optimizer.get_slot_names()} < known
