"""K-FAC in one process: step by step as its oracle, and what it refuses."""

import doctest

import numpy as np
import pytest
import tensorflow as tf

from deepinsight.collectors.collection import traced_tensors
from deepinsight.trainer.optimizers.kfac import optimizer as module
from deepinsight.trainer.optimizers.kfac.optimizer import DenseLayer, KFACOptimizer, sampled_loss
from deepinsight.trainer.optimizers.kfac.state import Counters, Schedule

from .kfac_cases import (
    MOMENTUM,
    RATE,
    Network,
    Oracle,
    assert_state,
    batch,
    fetches,
    first_values,
)

v1 = tf.compat.v1
# float32: 24 bits, inverses of condition up to 10^4, 30 steps. float64: 53 bits.
TOLERANCES = {tf.float32: 1e-4, tf.float64: 1e-9}
SETTINGS = {
    "plain": {"damping": 0.5},
    "burn-in": {"damping": 0.5, "burn_in": 7},
    "cap": {"damping": 0.5, "norm_constraint": 1e-5},
    "cap-burn-in": {"damping": 0.5, "norm_constraint": 1e-5, "burn_in": 25},
    "rarely": {"damping": 0.5, "covariance_every": 3, "inverse_every": 4, "burn_in": 2},
    "fast-decay": {"damping": 0.5, "covariance_decay": 0.5, "inverse_every": 1},
}


@pytest.fixture(autouse=True)
def fresh_graph():
    with tf.Graph().as_default():
        yield


def oracle(values, settings, **more):
    names = {"covariance_decay": "decay", "norm_constraint": "cap"}
    given = {"burn_in": 1} | {names.get(key, key): value for key, value in settings.items()}
    return Oracle(values, **given, **more)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("empirical", [False, True])
def test_every_step_is_that_of_the_oracle(kind, dtype, empirical):
    settings = {"burn_in": 1} | SETTINGS[kind]
    network, step = Network(dtype), v1.train.get_or_create_global_step()
    loss = {"empirical": True} if empirical else {"fisher_loss": network.fisher_loss}
    optimizer = KFACOptimizer(RATE, network.layers, momentum=MOMENTUM, **loss, **settings)
    train = optimizer.minimize(network.loss, step)
    streams = {t.stream.name: t.tensor for t in traced_tensors(v1.get_default_graph())}
    expected = oracle(first_values(dtype.as_numpy_dtype), settings, empirical=empirical)
    capped, used, read = 0, 0, fetches(optimizer, network)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for number in range(30):
            feeds = batch(number, dtype=dtype.as_numpy_dtype)
            _, told = session.run([train, streams], dict(zip(network.feeds, feeds, strict=True)))
            before = expected.steps
            expected.step(*feeds)
            assert_state(session.run(read), expected, TOLERANCES[dtype])
            tolerance = {"rel": TOLERANCES[dtype], "nan_ok": True}
            age = before - expected.inverted if expected.inverted >= 0 else np.nan
            assert told == {
                "sync/damping": 0.5,
                "sync/covariance_updates": expected.updates,
                "sync/inverse_age": pytest.approx(age, nan_ok=True),
                "sync/fisher_norm": pytest.approx(expected.norm, **tolerance),
                "sync/step_scale": pytest.approx(expected.scale, **tolerance),
            }
            capped += expected.scale < 1
            used += expected.inverted >= 0
        assert session.run(step) == 30
    assert used == 30 - {"burn-in": 6, "rarely": 3, "cap-burn-in": 24}.get(kind, 0)
    assert (capped > 5) == ("cap" in kind)


def test_until_the_burn_in_is_over_steps_are_those_of_the_base():
    network = Network()
    optimizer = KFACOptimizer(
        v1.train.MomentumOptimizer(RATE, MOMENTUM), network.layers,
        fisher_loss=network.fisher_loss, burn_in=6,
    )  # fmt: skip
    train = optimizer.minimize(network.loss)
    with tf.Graph().as_default():
        plain = Network()
        step = v1.train.MomentumOptimizer(RATE, MOMENTUM).minimize(plain.loss)
        other = v1.Session()
        other.run(v1.global_variables_initializer())
    seen = []
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for number in range(8):
            feeds = batch(number)
            session.run(train, dict(zip(network.feeds, feeds, strict=True)))
            other.run(step, dict(zip(plain.feeds, feeds, strict=True)))
            seen.append(
                np.array_equal(
                    session.run(network.variables["hidden/kernel"]),
                    other.run(plain.variables["hidden/kernel"]),
                )
            )
    other.close()
    assert seen == [True] * 5 + [False] * 3


def test_variables_of_no_layer_take_the_plain_rule_dense_and_sparse():
    network = Network()
    table = v1.get_variable("table", initializer=tf.ones([4, 2]), use_resource=True)
    rows = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([2]), tf.constant([4, 2]))
    optimizer = KFACOptimizer(
        v1.train.GradientDescentOptimizer(0.5), network.layers, fisher_loss=network.fisher_loss,
        burn_in=0, norm_constraint=1e-12,
    )  # fmt: skip
    pairs = [*network.gradients(), (rows, table)]
    train = optimizer.apply_gradients(pairs)
    feeds = dict(zip(network.feeds, batch(1), strict=True))
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        (before, grads) = session.run([network.variables, [g for g, _ in pairs[:4]]], feeds)
        session.run(train, feeds)
        after = session.run(network.variables)
        np.testing.assert_array_equal(after["shift"], before["shift"] - np.float32(0.5) * grads[3])
        assert session.run(table).tolist() == [[1, 1], [1, 1], [0.5, 0.5], [1, 1]]
        # The cap holds for the layers, which hardly move.
        for name, value in before.items():
            moved = np.abs(after[name] - value).max()
            assert 0 < moved < 1e-3 or name == "shift"


def test_a_layer_without_gradients_is_left_alone():
    network = Network()
    optimizer = KFACOptimizer(0.5, network.layers, fisher_loss=network.fisher_loss, burn_in=0)
    pairs = [(g if v is network.layers[1].kernel else None, v) for g, v in network.gradients()]
    train = optimizer.apply_gradients(pairs)
    feeds = dict(zip(network.feeds, batch(1), strict=True))
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        before = session.run(network.variables)
        session.run(train, feeds)
        after = session.run(network.variables)
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {"out/kernel"}


def test_a_checkpoint_continues_to_the_bit(tmp_path):
    def build():
        network = Network()
        optimizer = KFACOptimizer(
            RATE, network.layers, fisher_loss=network.fisher_loss, inverse_every=4, burn_in=2
        )
        return network, optimizer, optimizer.minimize(network.loss), v1.train.Saver()

    path, results = str(tmp_path / "model"), []
    for first, last in ((0, 9), (6, 9)):
        with tf.Graph().as_default(), v1.Session() as session:
            network, optimizer, train, saver = build()
            session.run(v1.global_variables_initializer())
            if first:
                saver.restore(session, path)
            for number in range(first, last):
                session.run(train, dict(zip(network.feeds, batch(number), strict=True)))
                if not first and number == 5:
                    saver.save(session, path)
            results.append(session.run(fetches(optimizer, network)))
    assert results[0]["counters"] == results[1]["counters"] == (9, 9, 5)
    for kind in ("slots", "values"):
        for name, value in results[0][kind].items():
            np.testing.assert_array_equal(results[1][kind][name], value)


def regression(optimizer, steps, seed=3):
    """Linear regression with inputs of very different sizes; the excess losses."""
    rng = np.random.default_rng(seed)
    mix = rng.normal(size=(6, 6)) * np.logspace(0, -1.5, 6)
    truth = rng.normal(size=(6, 2))
    with tf.Graph().as_default(), v1.Session() as session:
        x, y = v1.placeholder(tf.float32, [None, 6]), v1.placeholder(tf.float32, [None, 2])
        kernel = v1.get_variable("w", [6, 2], initializer=v1.zeros_initializer(), use_resource=True)
        bias = v1.get_variable("b", [2], initializer=v1.zeros_initializer(), use_resource=True)
        outputs = tf.matmul(x, kernel) + bias
        loss = tf.reduce_mean(0.5 * tf.reduce_sum(tf.math.squared_difference(outputs, y), axis=1))
        train = optimizer(DenseLayer(kernel, bias, x, outputs), outputs).minimize(loss)
        session.run(v1.global_variables_initializer())
        losses = []
        for _ in range(steps):
            inputs = rng.normal(size=(64, 6)) @ mix
            losses.append(session.run([loss, train], {x: inputs, y: inputs @ truth + 1})[0])
    return losses


def test_it_needs_far_fewer_steps_than_gradient_descent_where_curvature_differs():
    def second_order(layer, outputs):
        return KFACOptimizer(
            0.3, [layer], fisher_loss=sampled_loss(outputs, "normal", seed=5), momentum=0.0,
            damping=1e-4, burn_in=5, inverse_every=5, norm_constraint=0.5,
        )  # fmt: skip

    ours = regression(second_order, 60)
    plain = {
        rate: regression(lambda *_, rate=rate: v1.train.GradientDescentOptimizer(rate), 60)
        for rate in (0.01, 0.03, 0.1, 0.3)
    }
    best = min(np.mean(losses[-5:]) for losses in plain.values() if np.isfinite(losses).all())
    assert np.mean(ours[-5:]) < 0.1 * best


@pytest.mark.parametrize("distribution", ["bernoulli", "categorical", "normal"])
def test_sampled_labels_follow_the_model(distribution):
    """The mean gradient is 0 and its covariance the Fisher matrix of the distribution."""
    z = np.array([[0.5, -1.0, 0.2]])
    logits = tf.constant(np.repeat(z, 20_000, axis=0))
    loss = sampled_loss(logits, distribution, seed=7)
    (gradient,) = v1.gradients(loss, logits)
    with v1.Session() as session:
        losses, s = session.run([loss, gradient])
    assert losses.shape == (20_000,)
    p = np.exp(z[0]) / np.exp(z[0]).sum()
    q = 1 / (1 + np.exp(-z[0]))
    fisher = {
        "bernoulli": np.diag(q * (1 - q)),
        "categorical": np.diag(p) - np.outer(p, p),
        "normal": np.eye(3),
    }[distribution]
    # Standard errors are below 0.01.
    np.testing.assert_allclose(s.mean(axis=0), 0, atol=0.04)
    np.testing.assert_allclose(s.T @ s / len(s), fisher, atol=0.05)
    if distribution == "bernoulli":
        assert losses.mean() == pytest.approx(
            np.sum(-q * np.log(q) - (1 - q) * np.log(1 - q)), abs=0.04
        )


def test_no_gradient_flows_through_sampled_labels():
    logits = tf.constant([[0.3], [-0.2]])
    labels_free = sampled_loss(logits, "normal", seed=1)
    (gradient,) = v1.gradients(labels_free, logits)
    with v1.Session() as session:
        loss, s = session.run([labels_free, gradient])
    np.testing.assert_allclose(loss, 0.5 * s[:, 0] ** 2, rtol=1e-5)  # z - y, not 0


def test_a_covariance_that_is_not_positive_definite_is_named_and_replaces_nothing():
    network = Network()
    optimizer = KFACOptimizer(0.1, network.layers, fisher_loss=network.fisher_loss, damping=1e-6)
    invert = optimizer.inverse_op(when_due=False)
    kernel = network.layers[1].kernel
    covariance = optimizer.get_slot(kernel, "input_covariance")
    inverse = optimizer.get_slot(network.layers[0].kernel, "input_inverse")
    bad = np.eye(4, dtype=np.float32)
    with v1.Session() as session:
        for entry in (-2.0, np.nan, np.inf):
            session.run(v1.global_variables_initializer())
            bad[3, 3] = entry
            covariance.load(bad, session)
            with pytest.raises(
                tf.errors.InvalidArgumentError,
                match=r"covariance of the inputs of the layer of out/kernel:0 must be finite, "
                r"and positive definite.*Raise the damping",
            ):
                session.run(invert)
            assert not session.run(inverse).any()
            assert session.run(optimizer.state.read_counters()).inverted == -1


def test_a_batch_without_examples_is_refused():
    network = Network()
    optimizer = KFACOptimizer(0.1, network.layers, fisher_loss=network.fisher_loss)
    statistics = optimizer.statistics_op()
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        with pytest.raises(tf.errors.InvalidArgumentError, match="at least one example in every"):
            session.run(statistics, dict(zip(network.feeds, batch(0, rows=0), strict=True)))


def test_a_second_optimizer_of_the_graph_leaves_the_streams_to_the_first():
    network = Network()
    for name in ("one", "two"):
        KFACOptimizer(0.1, network.layers, fisher_loss=network.fisher_loss, name=name).minimize(
            network.loss
        )
    traced = [t.stream.name for t in traced_tensors(v1.get_default_graph())]
    assert sorted(traced) == sorted(set(traced))
    assert "sync/fisher_norm" in traced


@pytest.mark.parametrize(
    ("base", "message"),
    [
        (v1.train.AdamOptimizer(0.1), r"scales or corrects it once more .*Received: .*AdamOpt"),
        (v1.train.AdagradOptimizer(0.1), r"must be a learning rate, or a .*AdagradOptimizer"),
        ("fast", r"must be a learning rate, or a .*Received: builtins\.str"),
        (0.0, r"`opt_or_learning_rate` must be a finite number > 0\. Received: .*=0\.0"),
        (float("nan"), r"`opt_or_learning_rate` must be a finite number > 0"),
        (True, r"must be a learning rate.*builtins\.bool"),
    ],
)
def test_a_base_that_makes_no_sense_is_refused(base, message):
    network = Network()
    with pytest.raises(ValueError, match=message):
        KFACOptimizer(base, network.layers, fisher_loss=network.fisher_loss)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"damping": 0}, r"`damping` must be a finite number > 0\. Received: damping=0\."),
        ({"damping": float("inf")}, r"`damping` must be a finite number > 0"),
        ({"covariance_decay": 1.0}, r"`covariance_decay` must be a finite number in \[0, 1\)"),
        ({"momentum": 1.0}, r"`momentum` must be a finite number in \[0, 1\)"),
        ({"norm_constraint": 0.0}, r"`norm_constraint` must be a finite number > 0"),
        ({"inverse_every": 0}, r"`inverse_every` must be >= 1\. Received: .*=0"),
        ({"covariance_every": 1.5}, r"`covariance_every` must be an int"),
        ({"burn_in": -1}, r"`burn_in` must be >= 0"),
        ({"role": "boss"}, r"`role` must be one of all, gradient, .*Received: 'boss'"),
        ({"empirical": True}, r"`empirical` must be False where `fisher_loss` is given"),
    ],
)
def test_an_option_out_of_range_is_named(options, message):
    network = Network()
    with pytest.raises(ValueError, match=message):
        KFACOptimizer(0.1, network.layers, fisher_loss=network.fisher_loss, **options)


def test_momentum_beside_an_optimizer_is_refused():
    base = v1.train.GradientDescentOptimizer(0.1)
    with pytest.raises(ValueError, match=r"`momentum` must be None where an optimizer is given"):
        KFACOptimizer(base, Network().layers, empirical=True, momentum=0.5)


def test_layers_that_do_not_fit_are_refused():
    network = Network()
    hidden, out = network.layers
    half = v1.get_variable("half", [3, 4], tf.float16, use_resource=True)
    for layers, message in [
        ([], r"at least one DenseLayer\. Received: none"),
        ([tuple(hidden)], r"must hold DenseLayer tuples\. Received: tuple"),
        ([hidden, hidden], r"must not share variables.*'hidden/kernel:0' in two layers"),
        ([hidden._replace(kernel=hidden.bias)], r"`kernel` must be .*\[in, out\].*'hidden/bias:0'"),
        ([hidden._replace(kernel=half)], r"must be float32 or float64.*float16 for 'half:0'"),
        ([hidden._replace(bias=out.kernel)], r"`bias` must be None or .*shape \[4\]"),
        (
            [hidden._replace(inputs=None)],
            r"`inputs` must be a graph's tensor of the shape \[n, 3\]",
        ),
        ([hidden._replace(outputs=out.outputs)], r"`outputs` must be .*shape \[n, 4\].*hidden"),
        ([hidden._replace(inputs=tf.cast(hidden.inputs, tf.float64))], r"the dtype float32"),
    ]:
        with pytest.raises(ValueError, match=message):
            KFACOptimizer(0.1, layers, fisher_loss=network.fisher_loss)


def test_gradients_that_do_not_fit_are_refused():
    network = Network()
    optimizer = KFACOptimizer(0.1, network.layers, fisher_loss=network.fisher_loss)
    (kernel, bias, _, shift) = network.gradients()
    rows = tf.IndexedSlices(tf.ones([1, 4]), tf.constant([0]), tf.constant([3, 4]))
    for pairs, message in [
        ([shift], r"the gradient of at least one layer\. Received: none for 'hidden/kernel:0', "),
        ([kernel, (None, bias[1])], r"both or neither.*one for 'hidden/kernel:0' only"),
        ([(rows, kernel[1]), bias], r"must be a dense tensor\. Received: IndexedSlices for 'hid"),
    ]:
        with pytest.raises(ValueError, match=message):
            optimizer.apply_gradients(pairs)


def test_a_fisher_loss_that_does_not_fit_is_refused():
    network = Network()
    with pytest.raises(ValueError, match=r"must know what its covariances are of.*neither"):
        KFACOptimizer(0.1, network.layers).minimize(network.loss)
    optimizer = KFACOptimizer(0.1, network.layers)
    with pytest.raises(ValueError, match=r"no dependence for the layer of 'out/kernel:0'"):
        optimizer.statistics_op(tf.reduce_mean(network.layers[0].outputs))
    with pytest.raises(ValueError, match=r"a scalar, or the loss of each example.*shape \(.*, 1\)"):
        optimizer.statistics_op(network.layers[1].outputs)
    with pytest.raises(ValueError, match=r"`distribution` must be one of bernoulli, .*'poisson'"):
        sampled_loss(network.layers[1].outputs, "poisson")
    with pytest.raises(ValueError, match=r"`logits` must be .*\[n, classes\]\. Received: float32"):
        sampled_loss(network.fisher_loss, "categorical")
    with pytest.raises(ValueError, match=r"`logits` must be float32 or float64 .*int32"):
        sampled_loss(tf.constant([1, 2]))


def test_roles_without_gradients_apply_none():
    network = Network()
    optimizer = KFACOptimizer(0.1, network.bare, role="inverse")
    with pytest.raises(ValueError, match=r"needs the role 'all' or 'gradient'.*role='inverse'"):
        optimizer.apply_gradients(network.gradients())
    with pytest.raises(ValueError, match=r"`inputs` must be a graph's tensor"):
        optimizer.statistics_op(network.fisher_loss)


def test_the_example_of_the_documentation_holds():
    results = doctest.testmod(module)
    assert (results.failed, results.attempted > 0) == (0, True)


@pytest.mark.parametrize(
    ("updates", "steps", "inverted", "due"),
    [
        (4, 30, -1, False),  # burn-in
        (5, 0, -1, True),  # never inverted
        (5, 19, 10, False),
        (5, 20, 10, True),
        (5, 3, 10, True),  # the steps are those of an older checkpoint
        (4, 3, 10, False),
    ],
)
def test_when_inverses_are_due(updates, steps, inverted, due):
    assert Counters(updates, steps, inverted).due(Schedule(1, 10, 5)) == due
