"""Laws of delay compensation and of the boosted rules."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from deepinsight.trainer import rules

F = np.float32
RATE = {"learning_rate": 0.1}
MOMENTUM = RATE | {"momentum": 0.9}
ADAM = RATE | {"beta1_power": 0.9, "beta2_power": 0.999}
PLAIN = {
    "gradient_descent": (0, RATE),
    "momentum": (1, MOMENTUM),
    "momentum-nesterov": (1, MOMENTUM | {"use_nesterov": True}),
    "adagrad": (1, RATE),
    "adam": (2, ADAM),
}


def vectors(count, size=4):
    """Finite float32 vectors."""
    one = hnp.arrays(F, size, elements=st.floats(-1e6, 1e6, width=32))
    return st.tuples(*[one] * count)


def squares(count, size=4):
    return st.tuples(*[hnp.arrays(F, size, elements=st.floats(0, 1e6, width=32))] * count)


def same_bits(ours, theirs):
    assert [a.tobytes() for a in ours] == [a.tobytes() for a in theirs]


@given(vectors(3), squares(1))
@settings(deadline=None)
def test_without_variance_delay_compensation_is_gradient_descent(drawn, mean):
    param, backup, grad = drawn
    plain = rules.gradient_descent_step(param, grad, **RATE)
    for rule, state in (
        (rules.delay_compensated_step, ()),
        (rules.adaptive_delay_compensated_step, mean),
    ):
        new, kept, *_ = rule(param, backup, *state, grad, variance_parameter=0, **RATE)
        same_bits([new, kept], [*plain, *plain])


@given(st.lists(vectors(1), min_size=1, max_size=6))
@settings(deadline=None)
def test_one_worker_is_gradient_descent(grads):
    param = plain = np.ones(4, F)
    compensated, adapted = (param, param), (param, param, np.zeros(4, F))
    for (g,) in grads:
        compensated = rules.delay_compensated_step(*compensated, g, **RATE)
        adapted = rules.adaptive_delay_compensated_step(*adapted, g, **RATE)
        (plain,) = rules.gradient_descent_step(plain, g, **RATE)
        same_bits([*compensated, *adapted[:2]], [plain] * 4)


def test_compensation_after_the_first_step():
    # Two workers in turn, by hand in float64: the second one's gradient is stale.
    param, rate, variance = np.array([1.0]), 0.5, 2.0
    backups = [param, param]
    for worker, g in [(0, 1.0), (1, 0.5), (0, -1.0)]:
        expected = param - rate * (g + variance * g * g * (param - backups[worker]))
        param, backups[worker] = rules.delay_compensated_step(
            param, backups[worker], [g], learning_rate=rate, variance_parameter=variance
        )
        assert param == backups[worker] == expected
    # 1 -> 0.5; then 0.5 - 0.5 (0.5 - 0.25) = 0.375; then 0.375 - 0.5 (-1 - 0.25) = 1
    assert param == 1.0


def test_the_mean_square_is_updated_before_it_is_used():
    param, _, mean = rules.adaptive_delay_compensated_step(
        [2.0], [1.0], [4.0], [2.0], learning_rate=0.5, variance_parameter=1, decay=0.5, epsilon=0
    )
    assert mean == 4.0
    assert param == 2 - 0.5 * (2 + 0.5 * 4)


def test_without_epsilon_a_mean_square_of_zero_compensates_nothing():
    given_ = ([1.0], [1.0], [0.0], [0.0])
    param, *_ = rules.adaptive_delay_compensated_step(*given_, epsilon=0, **RATE)
    assert param == 1.0


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("sparse", ["", "sparse_"])
@given(drawn=vectors(3), state=squares(2), averages=squares(2), staleness=st.integers(0, 2**40))
@settings(max_examples=30, deadline=None)
def test_without_boost_a_boosted_rule_is_the_plain_rule(
    name, sparse, drawn, state, averages, staleness
):
    count, hyper = PLAIN[name]
    base, state = name.partition("-")[0], state[:count]
    param, backup, grad = drawn
    rows = (np.arange(4)[::-1],) if sparse else ()
    plain = getattr(rules, f"{sparse}{base}_step")(param, *state, grad, *rows, **hyper)
    correlation = param * 0
    new, *rest = getattr(rules, f"{sparse}boosted_{base}_step")(
        param, *state, backup, correlation, *averages, grad, *rows,
        boost=0, staleness=staleness, **hyper,
    )  # fmt: skip
    same_bits([new, *rest[: count + 1]], [*plain, plain[0]])


@given(vectors(4), squares(2), st.floats(0, 0.99), st.integers(0, 100), st.floats(0, 0.99))
@settings(deadline=None)
def test_a_boosted_gradient_keeps_its_sign_and_its_bounds(drawn, means, boost, staleness, decay):
    param, backup, correlation, grad = drawn
    boosted, rho, *_ = rules.boosted_gradient(
        param, backup, correlation, *means, grad, boost=boost, staleness=staleness, decay=decay
    )
    assert (np.abs(rho) <= 1).all()
    assert (np.signbit(boosted) == np.signbit(grad)).all()
    # One rounding of the factor and one of the product; the smallest subnormal for g near 0.
    slack = np.float64(1 + 2**-22)
    assert (np.abs(boosted) <= np.abs(np.float64(grad)) * (1 + boost) * slack + 2e-45).all()
    assert (np.abs(boosted) * slack + 2e-45 >= np.abs(np.float64(grad)) * (1 - boost)).all()


def test_a_boosted_gradient_follows_its_formula():
    boosted, rho, c, s, q = rules.boosted_gradient(
        [3.0], [1.0], [1.0], [3.0], [4.0], [-1.0],
        boost=0.5, staleness=10, staleness_scale=10, decay=0.5, epsilon=0,
    )  # fmt: skip
    assert (c, s, q) == (-0.5, 2.0, 4.0)
    np.testing.assert_allclose(rho, -0.5 / np.sqrt(8), rtol=1e-15)
    np.testing.assert_allclose(boosted, -(1 - 0.25 * 0.5 / np.sqrt(8)), rtol=1e-15)


def test_others_ahead_shrink_a_gradient_and_a_turn_makes_it_grow():
    zeros = np.zeros(2)
    param, backup, grad = [1.0, 3.0], [2.0, 2.0], [4.0, 4.0]
    near, *_ = rules.boosted_gradient(param, backup, zeros, zeros, zeros, grad)
    far, *_ = rules.boosted_gradient(param, backup, zeros, zeros, zeros, grad, staleness=90)
    np.testing.assert_allclose(near, [2, 6], rtol=1e-10)
    np.testing.assert_allclose(far, [3.8, 4.2], rtol=1e-10)


@pytest.mark.parametrize("name", PLAIN)
def test_a_boosted_step_is_the_plain_step_with_the_boosted_gradient(name):
    count, hyper = PLAIN[name]
    base = name.partition("-")[0]
    rng = np.random.default_rng(5)
    param, backup, grad, *arrays = rng.uniform(0.1, 1, size=(6 + count, 7)).astype(F)
    averages, state = arrays[:3], arrays[3:]
    boosted, _, *moved = rules.boosted_gradient(param, backup, *averages, grad, staleness=3)
    assert (boosted != grad).all()
    new, *rest = getattr(rules, f"{base}_step")(param, *state, boosted, **hyper)
    results = getattr(rules, f"boosted_{base}_step")(
        param, *state, backup, *averages, grad, staleness=3, **hyper
    )
    same_bits(results, [new, *rest, new, *moved])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_applied_as_it_is_and_what_follows_too(bad):
    state = [np.ones(1), np.ones(1), np.zeros(1), np.zeros(1), np.zeros(1)]
    boosted, rho, *averages = rules.boosted_gradient(*state, [bad])
    np.testing.assert_array_equal(boosted, [bad])
    assert rho == 0
    boosted, *_ = rules.boosted_gradient([2.0], [1.0], *averages, [3.0])
    assert boosted == 3.0
    for step, more in (
        (rules.delay_compensated_step, ()),
        (rules.adaptive_delay_compensated_step, (np.zeros(1),)),
    ):
        param, *_ = step([1.0], [1.0], *more, [bad], learning_rate=1.0)
        np.testing.assert_array_equal(param, [-bad])
