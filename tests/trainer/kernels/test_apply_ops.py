"""What holds for every apply op: it follows its rule, and leaves other memory alone."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

NAMES = ["dc", "adaptive", "gradient_descent", "momentum", "nesterov", "adagrad", "adam"]
NAMES += ["lars", "lars_nesterov"]
WITH_BACKUP = NAMES[:7]
DTYPES = ["float32", "float64", "half", "bfloat16"]
STEPS = 25
few = settings(max_examples=3, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)
interleavings = st.integers(1, 4).flatmap(
    lambda workers: st.lists(st.integers(0, workers - 1), min_size=STEPS, max_size=STEPS)
)


def staleness(case, order, t):
    """Updates by others since this worker's last one."""
    last = max((k for k in range(t) if order[k] == order[t]), default=-1)
    return {"staleness": t - last - 1} if "staleness" in case.hyper else {}


@pytest.mark.parametrize("snapshot", [False, True], ids=["slot", "snapshot"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
@few
@given(seed=seeds, order=interleavings)
def test_dense_steps_of_workers_in_turn_follow_the_rule(
    apply_ops, name, dtype, snapshot, seed, order
):
    case, rng = apply_ops.CASES[name], np.random.default_rng(seed)
    shape = (3, 701)  # two full blocks and a tail
    value = apply_ops.random(rng, shape, apply_ops.DTYPES[dtype])
    applied = apply_ops.Applied(case, value, workers=max(order) + 1, snapshot=snapshot)
    for t, worker in enumerate(order):
        grad = apply_ops.random(rng, shape, applied.dtype)
        applied.step(grad, worker=worker, **staleness(case, order, t))


@pytest.mark.parametrize("snapshot", [False, True], ids=["slot", "snapshot"])
@pytest.mark.parametrize("indices", ["int32", "int64"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
@few
@given(seed=seeds, order=interleavings, width=st.sampled_from([1, 3, 16, 1030]))
def test_sparse_steps_of_workers_in_turn_follow_the_rule(
    apply_ops, name, dtype, indices, snapshot, seed, order, width
):
    case, rng = apply_ops.CASES[name], np.random.default_rng(seed)
    value = apply_ops.random(rng, (9, width), apply_ops.DTYPES[dtype])
    applied = apply_ops.Applied(case, value, workers=max(order) + 1, snapshot=snapshot)
    for t, worker in enumerate(order):
        if t % 2:  # unsorted, some twice
            rows = rng.integers(0, 9, rng.integers(0, 12)).astype(indices)
        else:
            rows = np.sort(rng.permutation(9)[: rng.integers(0, 10)]).astype(indices)
        grad = apply_ops.random(rng, (len(rows), width), applied.dtype)
        applied.step(grad, rows, worker, **staleness(case, order, t))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_duplicates_equal_the_summed_gradient(apply_ops, name, dtype):
    case, rng = apply_ops.CASES[name], np.random.default_rng(1)
    value = apply_ops.random(rng, (8, 20), apply_ops.DTYPES[dtype])
    twice, once = (apply_ops.Applied(case, value) for _ in range(2))
    for _ in range(5):
        rows = rng.permutation(8)[:5]
        # Multiples of 1/8 below 4: every dtype holds them and their sums.
        grad = (rng.integers(-15, 16, (5, 20)) / 8).astype(value.dtype)
        more = (rng.integers(-8, 9, (2, 20)) / 8).astype(value.dtype)
        summed = grad.copy()
        summed[[1, 3]] += more
        given_twice = np.concatenate([grad, more]), np.concatenate([rows, rows[[1, 3]]])
        np.testing.assert_array_equal(twice.apply(*given_twice), once.apply(summed, rows))
        assert twice.bytes() == once.bytes()


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_are_not_named_keep_every_bit(apply_ops, name):
    rng = np.random.default_rng(2)
    applied = apply_ops.Applied(apply_ops.CASES[name], apply_ops.random(rng, (9, 4), tf.float32))
    before = [variable.numpy() for variable in applied.variables]
    applied.apply(apply_ops.random(rng, (3, 4), tf.float32), [7, 2, 7])
    for old, variable in zip(before, applied.variables, strict=True):
        changed = (old != variable.numpy()).any(axis=1)
        assert set(np.flatnonzero(changed)) <= {2, 7}


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_what_was_read_before_keeps_its_values(apply_ops, name, sparse):
    value = np.ones((6, 3), np.float32)
    applied = apply_ops.Applied(apply_ops.CASES[name], value)
    for _ in range(3):
        reads = [variable.read_value() for variable in applied.variables]
        copies = [read.numpy().copy() for read in reads]
        applied.apply(value[:2] if sparse else value, [0, 5] if sparse else None)
        assert applied.var.numpy()[5, 0] != copies[0][5, 0]
        for read, copied in zip(reads, copies, strict=True):
            np.testing.assert_array_equal(read.numpy(), copied)


@pytest.mark.parametrize("name", NAMES)
def test_empty_and_scalar_variables(apply_ops, name):
    case, one = apply_ops.CASES[name], np.float32
    empty = np.zeros((0, 3), one)
    applied = apply_ops.Applied(case, empty)
    for indices in (None, np.zeros(0, np.int32)):
        statistics = applied.apply(empty, indices).numpy()
        assert statistics[0] == (1 if case.op == "lars" else 0)
        assert not statistics[1:].any()
    no_columns = apply_ops.Applied(case, np.zeros((3, 0), one))
    no_columns.apply(np.zeros((2, 0), one), [2, 2])
    scalar = apply_ops.Applied(case, one(2))
    for _ in range(3):
        scalar.step(one(0.5))
    table = apply_ops.Applied(case, np.ones((2, 2), one))
    before = table.bytes()
    table.apply(np.zeros((0, 2), one), np.zeros(0, np.int64))
    assert table.bytes() == before


@pytest.mark.parametrize("name", WITH_BACKUP)
def test_a_snapshot_is_not_modified(apply_ops, name):
    value = np.ones((4, 3), np.float32)
    applied = apply_ops.Applied(apply_ops.CASES[name], value, snapshot=True)
    snapshot = tf.constant(value * 2)
    for indices in (None, [3, 1, 3, 0]):
        inputs = applied.inputs(value, indices) | {"backup": snapshot}
        applied.op(indices is not None)(**inputs)
        np.testing.assert_array_equal(snapshot.numpy(), value * 2)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_graphs_and_functions_give_what_eager_steps_give(apply_ops, name, sparse):
    case, rng = apply_ops.CASES[name], np.random.default_rng(3)
    value, grad = (apply_ops.random(rng, (4, 3), tf.float32) for _ in range(2))
    indices = [2, 0, 2, 1] if sparse else None
    eager, traced = (apply_ops.Applied(case, value) for _ in range(2))
    function = tf.function(lambda g: traced.apply(g, indices))
    for _ in range(2):
        np.testing.assert_array_equal(eager.apply(grad, indices), function(grad))
    assert eager.bytes() == traced.bytes()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        names = ("var", *case.slots)
        fills = [value if n in ("var", "backup") else np.full_like(value, 0.1) for n in names]
        made = [tf.compat.v1.get_variable(n, initializer=f, use_resource=True)
                for n, f in zip(names, fills, strict=True)]  # fmt: skip
        handles = {n: v.handle for n, v in zip(names, made, strict=True)}
        given = eager.inputs(grad, indices)
        update = eager.op(sparse)(**given | handles)
        assert update.shape == (4 if case.op == "lars" else 3,)
        session.run(tf.compat.v1.global_variables_initializer())
        for _ in range(2):
            session.run(update)
        final = dict(zip(names, session.run([v.value() for v in made]), strict=True))
    np.testing.assert_array_equal(final["var"], eager.var.numpy())
    for slot, variable in eager.slots.items():
        np.testing.assert_array_equal(final[slot], variable.numpy())
