"""Whom the chief of synchronous rounds takes for lost, and when."""

import pytest

from deepinsight.trainer.optimizers.sync_replicas.watch import LOOKS, RoundWait, State


def state(*, number=5, pushed=(5, 4), live=(1, 1), progress=(2, 1)):
    return State.parse([number, *pushed, *live, *progress])


def test_a_state_says_who_waits_for_whom():
    assert state() == State(5, waiting=[0], missing=[1], live=[0, 1], progress=(2, 1))
    assert state(live=(1, 0)).missing == []
    assert state(live=(0, 1)).waiting == [0]  # pushed and left


def looks(wait, *, end_s, begin_s=0.0, **of):
    """Look as often as the watch does; what was found, and when."""
    now_s = begin_s
    while now_s < end_s:
        now_s += wait.pause_s
        found = wait.look(state(**of), now_s)
        if found:
            return list(found), now_s
    return [], now_s


def test_who_lets_others_wait_for_the_time_out_is_lost():
    found, when_s = looks(RoundWait(4.0), end_s=100)
    assert found == [1]
    assert 4.0 <= when_s <= 4.0 * (1 + 2 / LOOKS)


@pytest.mark.parametrize("of", [{"pushed": (4, 4)}, {"pushed": (5, 5)}, {"live": (1, 0)}])
def test_nobody_is_lost_for_whom_nobody_waits(of):
    assert looks(RoundWait(1.0), end_s=20, **of)[0] == []


def test_each_round_has_the_whole_time():
    wait, now_s = RoundWait(4.0), 0.0
    for number in range(5, 15):
        found, now_s = looks(
            wait, begin_s=now_s, end_s=now_s + 3, number=number, pushed=(number, 0)
        )
        assert found == []


def test_what_was_slept_through_does_not_count():
    """After a night in which the machine was asleep everybody gets time to wake."""
    wait = RoundWait(4.0)
    assert looks(wait, end_s=1)[0] == []
    assert list(wait.look(state(), 30_000.0)) == []
    assert looks(wait, begin_s=30_000.0, end_s=30_010.0)[0] == [1]


def test_who_is_to_end_waits_a_second_at_most():
    wait = RoundWait(1000.0)
    assert looks(wait, end_s=20)[0] == []
    wait.hurry()
    assert looks(wait, begin_s=20, end_s=22)[0] == [1]
