"""A small network with K-FAC's layers, in TensorFlow and in NumPy with the rules as oracle."""

import numpy as np
import tensorflow as tf

from deepinsight.trainer import rules
from deepinsight.trainer.optimizers.kfac.optimizer import DenseLayer

v1 = tf.compat.v1
INPUTS, HIDDEN = 3, 4
RATE, MOMENTUM = 1 / 64, 0.875  # exact in float32, in which TensorFlow keeps them
NAMES = ("hidden/kernel", "hidden/bias", "out/kernel", "shift")
SLOTS = ("input_covariance", "output_covariance", "input_inverse", "output_inverse")
LAYERS = {"hidden": ("hidden/kernel", "hidden/bias"), "out": ("out/kernel", None)}


def first_values(dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    shapes = dict(zip(NAMES, [(INPUTS, HIDDEN), (HIDDEN,), (HIDDEN, 1), (1,)], strict=True))
    return {name: rng.normal(0, 0.5, shape).astype(dtype) for name, shape in shapes.items()}


def batch(seed, rows=32, dtype=np.float32):
    """Inputs, labels, and the noise that makes sampled labels."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, INPUTS)) * [1.0, 2.0, 0.5]
    y = np.sin(x.sum(axis=1)) + 0.5
    return tuple(a.astype(dtype) for a in (x, y, rng.normal(size=rows)))


class Network:
    """``relu(x K + b) k + shift``, squared error; shift belongs to no layer.

    Args:
        dtype: Of everything.
        pulled: Whether the forward pass takes its weights from placeholders, `pulled`.
    """

    def __init__(self, dtype=tf.float32, pulled=False):
        values = first_values(dtype.as_numpy_dtype)
        self.variables = {
            name: v1.get_variable(name, initializer=tf.constant(value, dtype), use_resource=True)
            for name, value in values.items()
        }
        self.x, self.y, self.noise = self.feeds = [
            v1.placeholder(dtype, shape) for shape in ([None, INPUTS], [None], [None])
        ]
        self.pulled = {
            name: v1.placeholder(dtype, value.shape) for name, value in values.items() if pulled
        }
        v = self.read = self.pulled or self.variables
        pre = tf.matmul(self.x, v["hidden/kernel"]) + v["hidden/bias"]
        hidden = tf.nn.relu(pre)
        out = tf.matmul(hidden, v["out/kernel"])
        prediction = tf.squeeze(out, axis=1) + v["shift"]
        self.loss = tf.reduce_mean(0.5 * tf.math.squared_difference(prediction, self.y))
        # As `sampled_loss(prediction, "normal")`, with noise that the test knows.
        labels = tf.stop_gradient(prediction + self.noise)
        self.fisher_loss = 0.5 * tf.math.squared_difference(prediction, labels)
        self.layers = [
            DenseLayer(self.variables["hidden/kernel"], self.variables["hidden/bias"], self.x, pre),
            DenseLayer(self.variables["out/kernel"], None, hidden, out),
        ]
        self.bare = [layer._replace(inputs=None, outputs=None) for layer in self.layers]

    def gradients(self):
        gradients = v1.gradients(self.loss, list(self.read.values()))
        return list(zip(gradients, self.variables.values(), strict=True))


class Oracle:
    """The same training in NumPy."""

    def __init__(
        self, values, *, damping, decay=0.95, inverse_every=10, covariance_every=1, burn_in=1,
        cap=None, momentum=MOMENTUM, empirical=False,
    ):  # fmt: skip
        self.values = {name: value.copy() for name, value in values.items()}
        self.velocity = {name: np.zeros_like(value) for name, value in values.items()}
        self.damping, self.decay, self.cap, self.momentum = damping, decay, cap, momentum
        self.inverse_every, self.covariance_every = inverse_every, covariance_every
        self.burn_in, self.empirical = burn_in, empirical
        self.updates, self.steps, self.inverted = 0, 0, -1
        self.scale, self.norm = 1.0, np.nan
        sizes = {"hidden": (INPUTS + 1, HIDDEN), "out": (HIDDEN, 1)}
        self.covariances, self.inverses = (
            {
                layer: [np.zeros((n, n), values["shift"].dtype) for n in pair]
                for layer, pair in sizes.items()
            }
            for _ in range(2)
        )

    def forward(self, x, values):
        v = values
        hidden = np.maximum(x @ v["hidden/kernel"] + v["hidden/bias"], 0)
        return hidden, (hidden @ v["out/kernel"])[:, 0] + v["shift"]

    def gradients(self, x, y, values=None):
        """The gradients at `values`, as they were pulled; None: as they are."""
        values = values or self.values
        hidden, prediction = self.forward(x, values)
        error = ((prediction - y) / len(x)).astype(x.dtype)[:, None]
        inner = (error @ values["out/kernel"].T) * (hidden > 0)
        return {
            "hidden/kernel": x.T @ inner, "hidden/bias": inner.sum(axis=0),
            "out/kernel": hidden.T @ error, "shift": error.sum(axis=0),
        }  # fmt: skip

    def take_batch(self, x, y, noise, values=None):
        values = values or self.values
        hidden, prediction = self.forward(x, values)
        single = ((prediction - y) if self.empirical else -noise)[:, None].astype(x.dtype)
        inner = (single @ values["out/kernel"].T) * (hidden > 0)
        rows = {
            "hidden": (np.hstack([x, np.ones_like(x[:, :1])]), inner),
            "out": (hidden, single),
        }
        self.updates += 1
        for layer, pair in rows.items():
            self.covariances[layer] = [
                rules.average_covariance(c, r, updates=self.updates, decay=self.decay)[0]
                for c, r in zip(self.covariances[layer], pair, strict=True)
            ]

    def invert(self):
        self.inverses = {
            layer: rules.invert_covariances(*pair, damping=self.damping)
            for layer, pair in self.covariances.items()
        }
        self.inverted = self.steps

    def invert_when_due(self):
        old = self.inverted < 0 or self.steps - self.inverted >= self.inverse_every
        if self.updates >= self.burn_in and old:
            self.invert()

    def apply(self, grads):
        grads = dict(grads)
        active = self.inverted >= 0 and self.updates >= self.burn_in
        matrices, deltas = {}, {}
        for layer, (kernel, bias) in LAYERS.items():
            rows = [grads[kernel]] + ([grads[bias][None]] if bias else [])
            matrices[layer] = deltas[layer] = np.vstack(rows)
            if active:
                (deltas[layer],) = rules.precondition(matrices[layer], *self.inverses[layer])
        self.scale, norm = rules.fisher_step_scale(
            list(deltas.values()), list(matrices.values()),
            learning_rate=RATE, norm_constraint=self.cap,
        )  # fmt: skip
        self.norm = norm if active else np.nan
        for layer, (kernel, bias) in LAYERS.items():
            delta = deltas[layer] * deltas[layer].dtype.type(self.scale)
            grads[kernel] = delta[:-1] if bias else delta
            if bias:
                grads[bias] = delta[-1]
        for name, grad in grads.items():
            self.values[name], self.velocity[name] = rules.momentum_step(
                self.values[name], self.velocity[name], grad,
                learning_rate=RATE, momentum=self.momentum,
            )  # fmt: skip
        self.steps += 1

    def step(self, x, y, noise):
        """One step of the single process."""
        grads = self.gradients(x, y)
        if self.steps % self.covariance_every == 0:
            self.take_batch(x, y, noise)
        self.invert_when_due()
        self.apply(grads)


def fetches(optimizer, network):
    """All that the oracle knows, under the same names."""
    slots = {
        (layer, name): optimizer.get_slot(network.layers[place].kernel, name).read_value()
        for place, layer in enumerate(LAYERS)
        for name in SLOTS
    }
    values = {name: variable.read_value() for name, variable in network.variables.items()}
    return {"slots": slots, "values": values, "counters": optimizer.state.read_counters()}


def assert_state(found, expected, tolerance):
    assert found["counters"] == (expected.updates, expected.steps, expected.inverted)
    arrays = {
        (layer, name): array
        for layer in LAYERS
        for name, array in zip(
            SLOTS, (*expected.covariances[layer], *expected.inverses[layer]), strict=True
        )
    }
    for ours, theirs in ((found["values"], expected.values), (found["slots"], arrays)):
        assert set(ours) == set(theirs)
        for name, array in theirs.items():
            assert ours[name].dtype == array.dtype
            np.testing.assert_allclose(ours[name], array, rtol=tolerance, atol=tolerance)
