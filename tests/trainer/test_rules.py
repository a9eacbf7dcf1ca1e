"""The update rules against what their formulas say, dense and sparse."""

import numpy as np
import pytest
import tensorflow as tf

from deepinsight.trainer.optimizers import create_rule
from deepinsight.trainer.options import OPTIMIZERS, Options

v1 = tf.compat.v1
RATE = 0.1
# float32 carries 24 bits; 20 updates and a square root lose a few.
TOLERANCE = {"rtol": 2e-5, "atol": 2e-6}


def rule(name, rate=RATE, **options):
    return create_rule(Options("runs/none", optimizer=name, learning_rate=rate, **options))


def oracle(name, w, gradients):
    """The rule in float64, one gradient after the other."""
    w = w.astype(np.float64)
    v, a, m, s = np.zeros_like(w), np.full_like(w, 0.1), np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(gradients, start=1):
        if name == "sgd":
            w = w - RATE * g
        elif name == "momentum":
            v = 0.9 * v + g
            w = w - RATE * v
        elif name == "adam":
            m, s = 0.9 * m + 0.1 * g, 0.999 * s + 0.001 * g * g
            corrected = np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
            w = w - RATE * corrected * m / (np.sqrt(s) + 1e-8)
        else:  # without regularisation FTRL-proximal is Adagrad
            a = a + g * g
            w = w - RATE * g / np.sqrt(a)
    return w


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("name", ["sgd", "momentum", "adagrad", "adam", "ftrl"])
def test_a_rule_follows_its_formula(name, sparse):
    rng = np.random.default_rng(1)
    start = rng.normal(size=(4, 3)).astype(np.float32)
    gradients = rng.normal(size=(20, 4, 3)).astype(np.float32)
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", initializer=start, use_resource=True)
        gradient = v1.placeholder(tf.float32, [4, 3])
        given = tf.IndexedSlices(gradient, tf.range(4), [4, 3]) if sparse else gradient
        step = rule(name).apply_gradients([(given, w)])
        session.run(v1.global_variables_initializer())
        for g in gradients:
            session.run(step, {gradient: g})
        result = session.run(w)
    np.testing.assert_allclose(result, oracle(name, start, gradients), **TOLERANCE)


def test_momentum_is_an_option():
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", initializer=np.float32(0), use_resource=True)
        step = rule("momentum", 1.0, momentum=0.5).apply_gradients([(tf.ones([]), w)])
        session.run(v1.global_variables_initializer())
        seen = []
        for _ in range(3):
            session.run(step)
            seen.append(float(session.run(w)))
    assert seen == [-1.0, -2.5, -4.25]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_rule_of_the_command_line_learns(name):
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", initializer=np.float32([3, -2, 1]), use_resource=True)
        loss = tf.reduce_sum(tf.square(w - [1.0, 2.0, 3.0]))
        step = rule(name, 1.0 if name == "lars" else 0.05).minimize(loss)
        session.run(v1.global_variables_initializer())
        before = session.run(loss)
        for _ in range(50):
            session.run(step)
        assert session.run(loss) < 0.9 * before
