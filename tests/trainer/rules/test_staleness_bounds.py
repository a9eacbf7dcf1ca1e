import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinsight.trainer import rules

CLOCKS = st.lists(st.tuples(st.integers(0, 50), st.booleans()), min_size=1, max_size=8)


@given(step=st.integers(0, 1000), age=st.integers(0, 50), bound=st.integers(-2, 50))
def test_a_gradient_is_accepted_up_to_the_bound(step, age, bound):
    assert rules.accepts_gradient(step + age, step, bound=bound) == (age <= bound)


def test_a_gradient_from_the_future_or_before_the_start_is_refused():
    with pytest.raises(ValueError, match=r"`local_step` must be <= `global_step`"):
        rules.accepts_gradient(3, 4, bound=1)
    with pytest.raises(ValueError, match=r"`local_step` must be an integer >= 0"):
        rules.accepts_gradient(3, -1, bound=1)


@given(clocks=CLOCKS, data=st.data())
def test_the_lead_is_never_negative_and_0_for_the_slowest(clocks, data):
    times, live = zip(*clocks, strict=True)
    worker = data.draw(st.integers(0, len(times) - 1))
    lead = rules.clock_lead(times, live, worker)
    assert lead >= 0
    behind = [t for t, alive in clocks if alive and t < times[worker]]
    assert (lead == 0) == (not behind)


@given(clocks=CLOCKS, data=st.data())
def test_who_joins_makes_nobody_wait_and_never_goes_back(clocks, data):
    times, live = zip(*clocks, strict=True)
    worker = data.draw(st.integers(0, len(times) - 1))
    joined = rules.joined_clock(times, live, worker)
    assert joined >= times[worker]
    after = [joined if k == worker else t for k, t in enumerate(times)]
    for other, alive in enumerate(live):
        if alive and other != worker:
            without = [a and k != worker for k, a in enumerate(live)]
            together = [a or k == worker for k, a in enumerate(live)]
            assert rules.clock_lead(after, together, other) <= rules.clock_lead(
                times, without, other
            )


def test_a_negative_clock_is_refused():
    for function in (rules.clock_lead, rules.joined_clock):
        with pytest.raises(ValueError, match=r"`clock` must be an integer >= 0"):
            function([1, -1], [True, True], 0)
