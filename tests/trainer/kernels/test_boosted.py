"""The boosted family: the bits of TensorFlow's kernels without boost, signs, statistics."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinsight.trainer import rules

NAMES = ["gradient_descent", "momentum", "nesterov", "adagrad", "adam"]
RAW = tf.raw_ops
F = np.float32


def tensorflow_step(name, made, grad, indices, t):
    """TensorFlow's own kernel; sparse Adam and gradient descent are the dense one on the rows."""
    rows = {} if indices is None else {"indices": indices}
    kind = "ResourceApply" if indices is None else "ResourceSparseApply"
    var, *slots = (variable.handle for variable in made)
    given = {"var": var, "lr": 0.05, "grad": grad}
    if name in ("momentum", "nesterov"):
        more = {"momentum": 0.9, "use_nesterov": name == "nesterov"}
        getattr(RAW, f"{kind}Momentum")(**given, **more, **rows, accum=slots[0])
    elif name == "adagrad":
        getattr(RAW, f"{kind}AdagradV2")(**given, **rows, accum=slots[0], epsilon=1e-7)
    elif indices is not None:
        parts = [tf.Variable(tf.gather(variable, indices)) for variable in made]
        tensorflow_step(name, parts, grad, None, t)
        for variable, part in zip(made, parts, strict=True):
            variable.scatter_update(tf.IndexedSlices(part, indices))
    elif name == "adam":
        powers = {"beta1_power": 0.9**t, "beta2_power": 0.999**t, "beta1": 0.9, "beta2": 0.999}
        RAW.ResourceApplyAdam(**given, **powers, m=slots[0], v=slots[1], epsilon=1e-7)
    else:
        RAW.ResourceApplyGradientDescent(var=var, alpha=0.05, delta=grad)


@pytest.mark.parametrize("sparse", [False, True])
# A tail, a block and one more, rows as wide as no vector, several threads.
@pytest.mark.parametrize("shape", [(1,), (7,), (1025,), (50, 17), (300, 301)])
@pytest.mark.parametrize("name", NAMES)
def test_without_boost_it_is_tensorflows_kernel_to_the_bit(apply_ops, name, shape, sparse):
    rng = np.random.default_rng(7)
    applied = apply_ops.Applied(apply_ops.CASES[name], apply_ops.random(rng, shape, tf.float32))
    own = [s for n, s in applied.slots.items() if n not in apply_ops.AVERAGES]
    theirs = [tf.Variable(x) for x in (applied.var, *own)]
    for t in range(1, 21):
        # From tiny to large, so that no term is negligible for ever.
        grad = apply_ops.random(rng, shape, tf.float32) * F(10) ** F(rng.integers(-3, 2))
        rows = rng.permutation(shape[0])[: (shape[0] + 1) // 2] if sparse else None
        grad = grad if rows is None else grad[: len(rows)]
        applied.backups[0].assign(apply_ops.random(rng, shape, tf.float32))
        powers = {"beta1_power": 0.9**t, "beta2_power": 0.999**t} if name == "adam" else {}
        change = applied.apply(grad, rows, boost=0.0, staleness=t, **powers).numpy()[1]
        assert change == 0
        tensorflow_step(name, theirs, grad, rows, t)
        for mine, their in zip((applied.var, *own), theirs, strict=True):
            assert mine.numpy().tobytes() == their.numpy().tobytes()


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    boost=st.sampled_from([0.5, 1 - 2.0**-24]),
    scale=st.sampled_from([1e-18, 1e-6, 1.0, 1e6, 1e18]),
)
def test_no_gradient_changes_its_sign_or_grows_beyond_the_boost(apply_ops, seed, boost, scale):
    # With learning rate 1 and w = 0, gradient descent leaves minus the boosted gradient.
    rng = np.random.default_rng(seed)
    applied = apply_ops.Applied(apply_ops.CASES["gradient_descent"], np.zeros(2000, F))
    for _ in range(5):
        grad = apply_ops.random(rng, 2000, tf.float32) * F(scale)
        applied.backups[0].assign(apply_ops.random(rng, 2000, tf.float32) * F(scale))
        applied.var.assign(tf.zeros(2000))
        applied.apply(grad, learning_rate=1.0, boost=boost)
        boosted = -applied.var.numpy()
        assert (np.sign(boosted) == np.sign(grad)).all()
        assert (np.abs(boosted) <= np.abs(grad) * F(1 + boost) * F(1 + 1e-6)).all()


def test_movement_along_the_gradient_grows_it_and_against_it_shrinks_it(apply_ops):
    case = apply_ops.CASES["gradient_descent"]
    grad = np.array([2, 2, -2, -2], F)
    moved = np.array([3, -3, 3, -3], F)
    for staleness, share in ((0, 1), (10, 0.5), (90, 0.1)):
        applied = apply_ops.Applied(case, np.zeros(4, F))
        for average in apply_ops.AVERAGES:
            applied.slots[average].assign(tf.zeros(4))
        applied.backups[0].assign(-moved)
        given = {"learning_rate": 1.0, "boost": 0.5, "staleness": staleness}
        applied.apply(grad, **given)
        sign = np.array([1, -1, -1, 1])
        np.testing.assert_allclose(-applied.var, grad * (1 + 0.5 * share * sign), rtol=1e-6)


def test_averages_belong_to_the_workers_together_and_the_backup_to_one(apply_ops):
    rng = np.random.default_rng(8)
    applied = apply_ops.Applied(apply_ops.CASES["adam"], np.ones((6, 3)), workers=3)
    for worker in (0, 1, 2, 1):
        applied.step(rng.standard_normal((6, 3)), worker=worker)
    np.testing.assert_array_equal(applied.backups[1], applied.var)
    assert (applied.backups[0].numpy() != applied.var.numpy()).all()


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_statistics(apply_ops, name, sparse):
    case, rng = apply_ops.CASES[name], np.random.default_rng(9)
    w, backup, grad = (apply_ops.random(rng, (40, 100), tf.float32) for _ in range(3))
    applied = apply_ops.Applied(case, w)
    applied.backups[0].assign(backup)
    rows = np.r_[np.arange(40), 3, 5]  # two rows come twice, in halves
    given = np.r_[grad, grad[[3, 5]]]
    given[[3, 5, 40, 41]] /= 2
    averages = [applied.slots[average].numpy() for average in apply_ops.AVERAGES]
    boost = apply_ops.BOOST | {"staleness": 4}
    boosted, rho, *_ = rules.boosted_gradient(w, backup, *averages, grad, **boost)
    rows = rows if sparse else None
    statistics = applied.apply(given if sparse else grad, rows, staleness=4).numpy()
    change = np.abs(np.float64(boosted) - grad).sum() / np.abs(np.float64(grad)).sum()
    # Sums of 1024 float32 numbers at a time.
    np.testing.assert_allclose(statistics, [np.mean(rho, dtype=float), change, 0], rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64", "half", "bfloat16"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_finite_reaches_its_element_only_and_is_counted(apply_ops, name, bad, dtype):
    value = np.ones((3, 700), apply_ops.DTYPES[dtype].as_numpy_dtype)
    for rows in (None, [2, 0, 1]):
        applied = apply_ops.Applied(apply_ops.CASES[name], value)
        grad = value.copy()
        grad[1, 5] = grad[2, 699] = bad
        statistics = applied.apply(grad, rows).numpy()
        assert statistics[2] == 2
        finite = np.isfinite(applied.var.numpy().astype(F))
        expected = np.isfinite(grad.astype(F))
        np.testing.assert_array_equal(finite if rows is None else finite[rows], expected)


def test_averages_that_overflow_boost_nothing(apply_ops):
    applied = apply_ops.Applied(apply_ops.CASES["gradient_descent"], np.zeros(40, F))
    applied.backups[0].assign(np.full(40, -1e30, F))
    grad = np.ones(40, F)
    grad[:20] = 1e30
    statistics = applied.apply(grad, learning_rate=1.0).numpy()
    assert abs(statistics[0]) <= 1
    new = applied.var.numpy()
    np.testing.assert_array_equal(new[:20], -grad[:20])  # infinity / infinity: as it is
    assert (np.abs(new[20:]) <= 1.5).all()
