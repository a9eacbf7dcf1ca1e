"""What the apply ops refuse, by the message; no variable changes then."""

import re

import numpy as np
import pytest
import tensorflow as tf

NAMES = ["dc", "adaptive", "gradient_descent", "momentum", "adagrad", "adam", "lars"]
WITH_BACKUP = NAMES[:-1]
InvalidArgument = tf.errors.InvalidArgumentError
ONES = np.ones((4, 3), np.float32)

POSITIVE = ("finite and > 0", [0.0, -1.0, np.inf, np.nan])
NON_NEGATIVE = ("finite and >= 0", [-1.0, np.inf, np.nan])
SHARE = (">= 0 and < 1", [-0.1, 1.0, np.nan])
RANGES = {
    "learning_rate": POSITIVE,
    "variance_parameter": NON_NEGATIVE,
    "decay": SHARE,
    "epsilon": NON_NEGATIVE,
    "boost": SHARE,
    "staleness": (">= 0", [-1]),
    "staleness_scale": POSITIVE,
    "momentum": SHARE,
    "accum_epsilon": NON_NEGATIVE,
    "adam_epsilon": NON_NEGATIVE,
    "beta1": SHARE,
    "beta2": SHARE,
    "beta1_power": SHARE,
    "beta2_power": SHARE,
    "eeta": POSITIVE,
    "weight_decay": NON_NEGATIVE,
}


@pytest.fixture(params=["dense", "sparse"])
def indices(request):
    return None if request.param == "dense" else [0, 3, 2, 3]


@pytest.fixture
def refuse(apply_ops):
    """Check that an op refuses some inputs, and that every bit of the variables is as before."""

    def check(applied, match, sparse, kind=InvalidArgument, **inputs):
        before = applied.bytes()
        given = applied.inputs(ONES, [0, 1, 2, 3] if sparse else None) | inputs
        with pytest.raises(kind, match=match):
            applied.op(sparse)(**given)
        assert applied.bytes() == before

    return check


@pytest.fixture
def make(apply_ops):
    def made(name, **how):
        return apply_ops.Applied(apply_ops.CASES[name], ONES, **how)

    return made


@pytest.mark.parametrize("name", NAMES)
def test_every_scalar_has_its_range(apply_ops, make, refuse, name, indices):
    applied = make(name)
    for scalar in applied.case.hyper:
        must, values = RANGES[scalar]
        dtype = tf.int64 if scalar == "staleness" else tf.float32
        for value in values:
            match = rf"`{scalar}` must be {re.escape(must)}\. Received: {value:g}\."
            given = {scalar: tf.constant(value, dtype)}
            refuse(applied, match, indices is not None, **given)
        match = rf"`{scalar}` must be a scalar\. Received: shape \[2\]"
        refuse(applied, match, indices is not None, **{scalar: tf.constant([1, 1], dtype)})


@pytest.mark.parametrize("name", NAMES)
def test_shapes_that_differ(apply_ops, make, refuse, name):
    applied = make(name)
    wrong = np.ones((3, 4), np.float32)
    match = r"`grad` must have the shape of `var`, \[4,3\]\. Received: shape|Received: \[3,4\]"
    refuse(applied, match, False, grad=wrong)
    match = r"`grad` must have the shape of the rows of `var` at `indices`, \[2,3\]\."
    refuse(applied, match, True, indices=[0, 1])
    refuse(applied, "`indices` must be a vector", True, indices=[[0, 1], [2, 3]])
    scalar = apply_ops.Applied(applied.case, np.float32(1))
    refuse(scalar, "`var` must have rows to take a sparse gradient. Received: a scalar", True)
    for slot in applied.slots:
        handle = tf.Variable(np.ones((4, 2), np.float32)).handle
        match = rf"`{slot}` must have the shape of `var`, \[4,3\]\. Received: \[4,2\]"
        for sparse in (False, True):
            refuse(applied, match, sparse, **{slot: handle})


@pytest.mark.parametrize("name", WITH_BACKUP)
def test_a_backup_that_does_not_fit(make, refuse, name, indices):
    applied, sparse = make(name), indices is not None
    handle = tf.Variable(np.ones((4, 2), np.float32)).handle
    refuse(applied, r"`backup` must have the shape of `var`, \[4,3\]", sparse, backup=handle)
    wrong = tf.ones((2, 3))
    refuse(applied, r"`backup` must have the shape of `grad`, \[4,3\]", sparse, backup=wrong)
    wrong = tf.ones((4, 3), tf.float64)
    match = "`backup` must have the dtype of `grad`, float. Received: double"
    refuse(applied, match, sparse, backup=wrong)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("name", NAMES)
def test_indices_out_of_range(make, refuse, name, dtype):
    for bad in (-1, 4, np.iinfo(dtype).max, np.iinfo(dtype).min):
        match = (
            rf"`indices` must be in \[0, 4\), the rows of `var`\. Received: indices\[2\] = {bad}\."
        )
        given = np.array([0, 1, bad, 2], dtype)
        refuse(make(name), match, True, indices=given)


@pytest.mark.parametrize("name", NAMES)
def test_variables_of_another_kind(make, refuse, name, indices):
    applied, sparse = make(name), indices is not None
    integers = tf.Variable(np.ones((4, 3), np.int32))
    match = "`var` must have dtype float. Received: int32"
    refuse(applied, match, sparse, var=integers.handle)
    with pytest.raises((TypeError, InvalidArgument), match="int32"):
        applied.op(sparse)(**applied.inputs(integers, indices))
    unmade = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=(4, 3), shared_name=f"none_{name}")
    names = ["var", *applied.case.slots]
    for slot in names:
        kind = tf.errors.FailedPreconditionError
        match = f"`{slot}` must be an initialized variable. Received: .* Run its initializer"
        refuse(applied, match, sparse, kind, **{slot: unmade})
    match = "must be different variables"
    refuse(applied, match, sparse, **{names[1]: applied.var.handle})
    wide = tf.Variable(np.ones((4, 3)))
    for slot in names:
        match = f"`{slot}` must have dtype float. Received: double"
        refuse(applied, match, sparse, **{slot: wide.handle})


@pytest.mark.parametrize("name", NAMES)
def test_graphs_refuse_when_they_are_built(apply_ops, make, name, indices):
    applied, sparse = make(name), indices is not None
    wrong = [{"grad": tf.TensorSpec((4, 2))}, {"learning_rate": tf.TensorSpec((1,))}]
    wrong += [{"indices": tf.TensorSpec((4, 1), tf.int32)}] if sparse else []
    wrong += [{"backup": tf.TensorSpec((3, 3))}] if applied.case.has_backup else []
    for given in wrong:
        (changed,) = given

        @tf.function(input_signature=[*given.values()])
        def function(value, changed=changed):
            return applied.op(sparse)(**applied.inputs(ONES, indices) | {changed: value})

        with pytest.raises(ValueError, match=r"must have the shape of|must be rank"):
            function.get_concrete_function()

    @tf.function
    def mixed():
        inputs = applied.inputs(ONES, indices)
        scalars = {k: tf.cast(v, tf.float64) for k, v in inputs.items()
                   if k in applied.case.hyper and k != "staleness"}  # fmt: skip
        return applied.op(sparse)(**inputs | scalars)

    with pytest.raises(ValueError, match=r"of a float variable must be float\. Received: double"):
        mixed()
