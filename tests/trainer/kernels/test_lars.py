"""LARS: trust ratio, norms, decay."""

import numpy as np
import pytest
import tensorflow as tf

F = np.float32
DTYPES = ["float32", "float64", "half", "bfloat16"]


def norm(array):
    return np.sqrt((array.astype(np.float64) ** 2).sum())


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_statistics(apply_ops, dtype, sparse):
    case, rng = apply_ops.CASES["lars"], np.random.default_rng(1)
    storage = apply_ops.DTYPES[dtype]
    value = apply_ops.random(rng, (60, 700), storage)  # three units of work
    applied = apply_ops.Applied(case, value)
    rows = np.array([7, 3, 7, 59, 0]) if sparse else None
    grad = apply_ops.random(rng, value.shape, storage)
    if sparse:
        grad = grad[:5]
        touched, summed = value[[7, 3, 59, 0]], apply_ops.wide(grad[[0, 1, 3, 4]], storage)
        summed[0] += apply_ops.wide(grad[2], storage)
    else:
        touched, summed = value, grad
    trust, weights, gradients, nonfinite = applied.apply(grad, rows).numpy()
    assert weights == pytest.approx(norm(touched), rel=1e-12)
    assert gradients == pytest.approx(norm(summed), rel=1e-12)
    hyper = {k: float(apply_ops.wide(v, storage)) for k, v in case.hyper.items()}
    bound = gradients + hyper["weight_decay"] * weights + hyper["epsilon"]
    assert trust == pytest.approx(hyper["eeta"] * weights / bound, rel=1e-12)
    assert nonfinite == 0


@pytest.mark.parametrize(("w", "g"), [(0, 1), (1, 0), (0, 0)])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_norm_of_zero_means_full_trust(apply_ops, w, g, sparse):
    case = apply_ops.CASES["lars"]
    applied = apply_ops.Applied(case, np.full((3, 2), w, F))
    rows = [1, 2, 0] if sparse else None
    statistics = applied.step(np.full((3, 2), g, F), rows, weight_decay=0.25)
    assert statistics[0] == 1
    accum = 0.09 + 0.05 * (g + 0.25 * w)
    np.testing.assert_allclose(applied.slots["accum"], np.full((3, 2), accum), rtol=1e-6)


def test_only_touched_rows_count_and_decay(apply_ops):
    value = np.array([[3, 4], [1e9, 1e9], [0, 0]], F)
    applied = apply_ops.Applied(apply_ops.CASES["lars"], value)
    _, weights, gradients, _ = applied.apply(np.array([[6, 0], [0, 8]], F), [0, 2]).numpy()
    assert (weights, gradients) == (5, 10)
    np.testing.assert_array_equal(applied.var[1], value[1])


@pytest.mark.parametrize("value", [1e30, 1e-30])
def test_squares_beyond_float32_neither_overflow_nor_vanish(apply_ops, value):
    array = np.full(10_000, value, F)
    applied = apply_ops.Applied(apply_ops.CASES["lars"], array)
    trust, weights, *_ = applied.apply(array, weight_decay=0.0, epsilon=0.0).numpy()
    assert weights == pytest.approx(100 * float(F(value)))
    assert trust == pytest.approx(0.1)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_norm_does_not_depend_on_the_threads(apply_ops, threads):
    rng = np.random.default_rng(2)
    value, grad = (apply_ops.random(rng, 200_000, tf.float32) for _ in range(2))
    expected = apply_ops.Applied(apply_ops.CASES["lars"], value).apply(grad).numpy()
    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=threads, use_per_session_threads=True
    )
    with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
        var, accum = (
            tf.compat.v1.get_variable(n, initializer=v, use_resource=True)
            for n, v in (("var", value), ("accum", np.full_like(value, 0.1)))
        )
        scalars = apply_ops.CASES["lars"].hyper
        update = apply_ops.kernels.ops().resource_apply_lars(
            var=var.handle, accum=accum.handle, grad=grad, **scalars
        )
        session.run(tf.compat.v1.global_variables_initializer())
        np.testing.assert_array_equal(session.run(update), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_flows_through_the_norm_and_is_counted(apply_ops, bad, dtype):
    value = np.ones((3, 700), apply_ops.DTYPES[dtype].as_numpy_dtype)
    for rows in (None, [2, 0, 1]):
        applied = apply_ops.Applied(apply_ops.CASES["lars"], value)
        grad = value.copy()
        grad[1, 5] = grad[2, 699] = bad
        trust, weights, gradients, nonfinite = applied.apply(grad, rows).numpy()
        assert nonfinite == 2
        assert weights == pytest.approx(np.sqrt(2100))
        assert not np.isfinite(gradients)
        assert np.isnan(trust) if np.isnan(bad) else trust == 0
        finite = np.isfinite(applied.var.numpy().astype(F))
        assert not finite[
            ~np.isfinite(grad.astype(F))[slice(None) if rows is None else [1, 2, 0]]
        ].any()
