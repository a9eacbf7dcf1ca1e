"""LARS against its formula, and its skip list against plain momentum."""

import numpy as np
import pytest
import tensorflow as tf

from deepinsight.trainer import rules
from deepinsight.trainer.optimizers import AccumulatedGradients, LARSOptimizer

from .execution import INDICES, MODES, random_values

v1 = tf.compat.v1
HYPER = {"momentum": 0.5, "weight_decay": 0.25, "eeta": 0.125, "epsilon": 1e-3}


class Unnumbered(LARSOptimizer):
    """Takes the worker's index that the runs hand over."""

    def apply_gradients(self, pairs, *arguments, worker_index, **more):
        return super().apply_gradients(pairs, *arguments, **more)


def gradients(generator):
    rows = generator.normal(size=(INDICES, 2)).astype(np.float32)
    indices = generator.integers(0, 5, INDICES).astype(np.int32)
    return generator.normal(size=(3, 2)).astype(np.float32), rows, indices


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_follows_its_rule(mode, nesterov):
    values = random_values(1)
    run = MODES[mode](lambda: Unnumbered(0.5, use_nesterov=nesterov, **HYPER), values, 1)
    hyper = dict(HYPER, learning_rate=0.5, use_nesterov=nesterov)
    velocities = [np.zeros_like(value) for value in values]
    generator = np.random.default_rng(2)
    for _ in range(20):
        dense, rows, indices = gradients(generator)
        run.push(0, dense, rows, indices)
        values[0], velocities[0], _ = rules.lars_step(values[0], velocities[0], dense, **hyper)
        values[1], velocities[1], _ = rules.sparse_lars_step(
            values[1], velocities[1], rows, indices, **hyper
        )
    for variable, value, velocity in zip(run.variables, values, velocities, strict=True):
        np.testing.assert_allclose(run.read(variable), value, rtol=1e-5, atol=1e-6)
        slot = run.read(run.optimizer.get_slot(variable, "momentum"))
        np.testing.assert_allclose(slot, velocity, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64])
@pytest.mark.parametrize("nesterov", [False, True])
def test_skipped_variables_get_plain_momentum(nesterov, dtype):
    values = random_values(3)
    run = MODES["eager"](
        lambda: Unnumbered(0.5, skip_list=["Var"], use_nesterov=nesterov, **HYPER), values, 1, dtype
    )
    assert all("Var" in v.name for v in run.variables)
    velocities = [np.zeros_like(value) for value in values]
    generator = np.random.default_rng(2)
    hyper = {"learning_rate": 1.0, "momentum": 0.5, "use_nesterov": nesterov}
    for _ in range(5):
        dense, rows, indices = gradients(generator)
        run.push(0, dense, rows, indices)
        values[0], velocities[0] = rules.momentum_step(
            values[0], velocities[0], 0.5 * dense, **hyper
        )
        values[1], velocities[1] = rules.sparse_momentum_step(
            values[1], velocities[1], 0.5 * rows, indices, **hyper
        )
    # Five steps of a dtype with 8, 11, 24 or 53 bits; the oracle has 24.
    tolerance = {tf.bfloat16: 5e-2, tf.float16: 1e-2}.get(dtype, 1e-5)
    for variable, value in zip(run.variables, values, strict=True):
        found = tf.cast(variable, tf.float32).numpy()
        np.testing.assert_allclose(found, value, rtol=tolerance, atol=tolerance)


def test_only_variables_with_a_part_of_the_name_are_skipped():
    with tf.Graph().as_default(), v1.Session() as session:
        found = {}
        for name in ("dense/kernel", "dense/bias"):
            w = v1.get_variable(name, initializer=[3.0, 4.0], use_resource=True)
            found[name] = w
        optimizer = LARSOptimizer(1.0, 0.0, 0.0, 0.1, skip_list=["bias", "norm"])
        step = optimizer.apply_gradients([(tf.constant([0.0, 2.0]), w) for w in found.values()])
        session.run(v1.global_variables_initializer())
        session.run(step)
        found = session.run(found)
    np.testing.assert_allclose(found["dense/kernel"], [3.0, 3.5], rtol=1e-6)
    np.testing.assert_array_equal(found["dense/bias"], [3.0, 2.0])


def test_accumulated_lars_is_lars_on_the_mean_gradient():
    steps, values = 4, random_values(5)
    accumulated = [tf.Variable(value) for value in values]
    plain = [tf.Variable(value) for value in values]
    large = AccumulatedGradients(LARSOptimizer(0.5, **HYPER), steps)
    direct = LARSOptimizer(0.5, **HYPER)
    generator = np.random.default_rng(7)
    for _ in range(3):
        small = [gradients(generator) for _ in range(steps)]
        for dense, rows, indices in small:
            slices = tf.IndexedSlices(tf.constant(rows), tf.constant(indices))
            large.apply_gradients(zip([tf.constant(dense), slices], accumulated, strict=True))
        mean = np.mean([dense for dense, _, _ in small], axis=0)
        rows = np.concatenate([rows for _, rows, _ in small]) / steps
        indices = np.concatenate([indices for _, _, indices in small])
        slices = tf.IndexedSlices(tf.constant(rows), tf.constant(indices))
        direct.apply_gradients(zip([tf.constant(mean), slices], plain, strict=True))
    for one, other in zip(accumulated, plain, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5, atol=1e-6)
