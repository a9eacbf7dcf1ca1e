"""What holds for every rule with a gradient, dense and sparse; and for the package."""

import doctest
import importlib
import inspect
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinsight.trainer import rules

RATE = {"learning_rate": 0.1}
AVERAGES = ("correlation", "gradient_square", "movement_square")
ADAM = {"beta1_power": 0.9, "beta2_power": 0.999}


class Case(NamedTuple):
    """A rule, the arrays before its gradient, its scalars, what it returns besides arrays."""

    name: str
    arrays: tuple[str, ...]
    hyper: dict[str, float]
    tail: int = 0  # results after the updated arrays that have no row per row

    @property
    def dense(self):
        return getattr(rules, self.name)

    @property
    def sparse(self):
        return getattr(rules, f"sparse_{self.name}")


BOOSTED = [
    Case(f"boosted_{rule}_step", ("param", *state, "backup", *AVERAGES), hyper)
    for rule, state, hyper in [
        ("gradient_descent", (), RATE),
        ("momentum", ("velocity",), RATE | {"momentum": 0.9}),
        ("adagrad", ("accum",), RATE),
        ("adam", ("m", "v"), RATE | ADAM),
    ]
]
CASES = [
    Case("gradient_descent_step", ("param",), RATE),
    Case("momentum_step", ("param", "velocity"), RATE | {"momentum": 0.9}),
    Case("adagrad_step", ("param", "accum"), RATE),
    Case("adam_step", ("param", "m", "v"), RATE | ADAM),
    Case("delay_compensated_step", ("param", "backup"), RATE),
    Case("adaptive_delay_compensated_step", ("param", "backup", "mean_square"), RATE),
    *BOOSTED,
    Case("lars_step", ("param", "velocity"), RATE, tail=1),
    Case("accumulate_for_compression", ("velocity", "residual"), {"momentum": 0.9}),
    Case("weighted_accumulation", ("total",), {"weight": 0.25}),
]


def arrays_of(case, shape, dtype=np.float32, seed=0):
    """Random arrays for a rule; all positive, since some of them are means of squares."""
    rng = np.random.default_rng(seed)
    return [rng.uniform(0.1, 2, size=shape).astype(dtype) for _ in case.arrays]


every_rule = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def same_bits(ours, theirs):
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == other.dtype
        assert mine.shape == other.shape
        assert mine.tobytes() == other.tobytes()


@every_rule
@DTYPES
def test_inputs_are_not_modified_and_results_share_nothing_with_them(case, dtype):
    arrays, grad = arrays_of(case, (4, 3), dtype), np.ones((4, 3), dtype)
    copies = [a.copy() for a in (*arrays, grad)]
    for results in (
        case.dense(*arrays, grad, **case.hyper),
        case.sparse(*arrays, grad, np.arange(4), **case.hyper),
    ):
        assert isinstance(results, tuple)
        assert len(results) == len(arrays) + case.tail
        for i, result in enumerate(results):
            assert isinstance(result, np.ndarray)
            assert result.dtype == dtype
            others = [*arrays, grad, *results[:i]]
            assert not any(np.shares_memory(result, other) for other in others)
    same_bits([*arrays, grad], copies)


@every_rule
@pytest.mark.parametrize("shape", [(), (0,), (1,), (0, 3), (2, 1, 2)])
def test_any_shape_will_do(case, shape):
    results = case.dense(*arrays_of(case, shape), np.ones(shape, np.float32), **case.hyper)
    assert [r.shape for r in results[: len(case.arrays)]] == [shape] * len(case.arrays)
    assert all(np.isfinite(r).all() for r in results)


@every_rule
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_flows_through_without_a_warning(case, bad):
    arrays, grad = arrays_of(case, 3), np.array([1, bad, 1], np.float32)
    first, *_ = case.dense(*arrays, grad, **case.hyper)
    assert not np.isfinite(first[1])
    if "lars" not in case.name:  # there the norm spreads it
        assert np.isfinite(first[[0, 2]]).all()


@every_rule
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 6), width=st.integers(1, 3))
@settings(max_examples=15, deadline=None)
def test_all_rows_once_is_the_dense_rule(case, seed, rows, width):
    arrays = arrays_of(case, (rows, width), seed=seed)
    rng = np.random.default_rng(seed)
    grad, order = rng.normal(size=(rows, width)).astype(np.float32), rng.permutation(rows)
    dense = case.dense(*arrays, grad, **case.hyper)
    sparse = case.sparse(*arrays, grad[order], order, **case.hyper)
    same_bits(dense, sparse)


@every_rule
@given(
    seed=st.integers(0, 2**32 - 1),
    indices=st.lists(st.integers(0, 5), max_size=9),
    kind=st.sampled_from([np.int32, np.int64]),
)
@settings(max_examples=15, deadline=None)
def test_duplicates_are_summed_and_other_rows_keep_their_bits(case, seed, indices, kind):
    indices = np.array(indices, kind)
    arrays = arrays_of(case, (6, 2), seed=seed)
    # Small integers: their sums are exact in any order.
    grad = np.random.default_rng(seed).integers(-9, 9, size=(len(indices), 2)).astype(np.float32)
    unique = np.unique(indices)
    summed = np.array([grad[indices == i].sum(axis=0) for i in unique], np.float32).reshape(-1, 2)
    results = case.sparse(*arrays, grad, indices, **case.hyper)
    same_bits(results, case.sparse(*arrays, summed, unique, **case.hyper))
    others = np.setdiff1d(np.arange(6), indices)
    same_bits([r[others] for r in results[: len(arrays)]], [a[others] for a in arrays])


@every_rule
def test_arrays_that_differ_are_refused(case):
    *first, last = arrays_of(case, (4, 3))
    grad = np.ones((4, 3), np.float32)
    halves = [a.astype(np.float16) for a in (*first, last, grad)]
    with pytest.raises(ValueError, match=r"`grad` must have the shape of `\w+`, \(4, 3\)\. Rec"):
        case.dense(*first, last, grad[:3], **case.hyper)
    with pytest.raises(ValueError, match=r"`grad` must be float32 as .* of dtype float64"):
        case.dense(*first, last, grad.astype(np.float64), **case.hyper)
    with pytest.raises(ValueError, match=r"`\w+` must be float32 or float64; .*dtype float16"):
        case.dense(*halves, **case.hyper)
    if first:
        with pytest.raises(ValueError, match=rf"`{case.arrays[-1]}` must have the shape of"):
            case.sparse(*first, last[:3], grad, np.arange(4), **case.hyper)


@every_rule
@pytest.mark.parametrize("index", [-1, 4])
def test_an_index_out_of_range_is_named(case, index):
    arrays, grad = arrays_of(case, (4, 3)), np.ones((2, 3), np.float32)
    with pytest.raises(ValueError, match=rf">= 0 and < 4, .*Received: indices\[1\] = {index}\."):
        case.sparse(*arrays, grad, [0, index], **case.hyper)


@every_rule
def test_a_sparse_gradient_that_does_not_fit_is_refused(case):
    arrays, grad = arrays_of(case, (4, 3)), np.ones((2, 3), np.float32)
    with pytest.raises(ValueError, match=r"one row per index.*\(3, 3\)\. Received.*\(2, 3\)"):
        case.sparse(*arrays, grad, [0, 1, 2], **case.hyper)
    with pytest.raises(ValueError, match=r"vector of integers. Received: .* float64"):
        case.sparse(*arrays, grad, [0.0, 1.0], **case.hyper)
    with pytest.raises(ValueError, match=r"vector of integers. Received: shape \(1, 2\)"):
        case.sparse(*arrays, grad, [[0, 1]], **case.hyper)
    with pytest.raises(ValueError, match=r"`grad` must be float32 as the other arrays"):
        case.sparse(*arrays, grad.astype(np.float64), [0, 1], **case.hyper)
    with pytest.raises(ValueError, match=r"at least one dimension. Received: shape \(\)"):
        case.sparse(*arrays_of(case, ()), np.float32(1), [], **case.hyper)


POSITIVE = ("finite and > 0", [0, -1, np.nan, np.inf, 1e-60, 1e60])
NON_NEGATIVE = ("finite and >= 0", [-1, np.nan, np.inf])
SHARE = (">= 0 and < 1", [-0.1, 1, np.nan, 1 - 1e-12])  # the last one is 1 in float32
RANGES = {
    **dict.fromkeys(["learning_rate", "staleness_scale", "eeta"], POSITIVE),
    **dict.fromkeys(["variance_parameter", "epsilon", "accum_epsilon"], NON_NEGATIVE),
    **dict.fromkeys(["adam_epsilon", "weight_decay", "weight"], NON_NEGATIVE),
    **dict.fromkeys(["momentum", "decay", "boost", "beta1", "beta2"], SHARE),
    **dict.fromkeys(["beta1_power", "beta2_power"], SHARE),
    "staleness": ("an integer >= 0", [-1, 0.5, True, np.nan]),
}


def scalars(case):
    """The scalars a rule takes, those of the rules that it wraps included."""
    wrapped = case.name.removeprefix("boosted_")
    functions = [case.dense, getattr(rules, wrapped)]
    functions += [rules.boosted_gradient] if wrapped != case.name else []
    names = {
        name
        for f in functions
        for name, p in inspect.signature(f).parameters.items()
        if p.kind is p.KEYWORD_ONLY
    }
    return sorted(names - {"use_nesterov"})


@pytest.mark.parametrize(
    ("case", "name"), [(case, name) for case in CASES for name in scalars(case)],
    ids=lambda value: getattr(value, "name", value),
)  # fmt: skip
def test_a_scalar_out_of_range_is_named(case, name):
    arrays, grad = arrays_of(case, (4, 3)), np.ones((4, 3), np.float32)
    must, values = RANGES[name]
    for value in values:
        hyper = case.hyper | {name: value}
        with pytest.raises(ValueError, match=rf"`{name}` must be {must}.* Received: {name}="):
            case.dense(*arrays, grad, **hyper)
        with pytest.raises(ValueError, match=rf"`{name}` must be {must}"):
            case.sparse(*arrays, grad, np.arange(4), **hyper)


def test_a_scalar_is_one_number():
    with pytest.raises(ValueError, match=r"`learning_rate` must be a number. Received: .*'0.1'"):
        rules.gradient_descent_step([1.0], [1.0], learning_rate="0.1")
    with pytest.raises(ValueError, match=r"`learning_rate` must be a scalar. .* shape \(1,\)"):
        rules.gradient_descent_step([1.0], [1.0], learning_rate=np.array([0.1]))


def test_a_lost_sign_of_zero_is_not_ours():
    (param,) = rules.sparse_gradient_descent_step([-0.0], [-0.0], [0], learning_rate=1.0)
    (dense,) = rules.gradient_descent_step([-0.0], [-0.0], learning_rate=1.0)
    same_bits([param], [dense])


def test_public_names_are_sorted_and_resolve():
    assert rules.__all__ == sorted(rules.__all__)
    assert all(callable(getattr(rules, name)) for name in rules.__all__)


def test_importing_the_rules_pulls_in_numpy_only():
    code = (
        "import sys, deepinsight.trainer.rules;"
        "print([m for m in ('tensorflow', 'keras', 'pandas', 'h5py') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_docstring_examples_hold():
    modules = {getattr(rules, name).__module__ for name in rules.__all__}
    found = [doctest.testmod(importlib.import_module(module)) for module in sorted(modules)]
    assert sum(result.failed for result in found) == 0
    assert sum(result.attempted for result in found) >= 9
