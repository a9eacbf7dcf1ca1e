"""Rounds without a chief's thread: who ends them, who is late, who is dead, who begins again."""

import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from deepinsight.trainer.cluster.members import Members, Patience
from deepinsight.trainer.errors import ClusterError
from deepinsight.trainer.optimizers.averaging import local_copies
from deepinsight.trainer.optimizers.averaging import rounds as rounds_module
from deepinsight.trainer.optimizers.averaging.local_copies import group_variables
from deepinsight.trainer.optimizers.averaging.rounds import Rounds

from .averaging_workers import TIMEOUT_S, Place, start_cluster, together

v1 = tf.compat.v1
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def cluster():
    """Two parameter servers and three workers in this process."""
    return start_cluster(2, 3)


class Turns:
    """A worker that takes turns: variables of several dtypes and servers, averaged."""

    def __init__(self, place, index, timeout_s=30.0, **more):
        self.graph, self.index = tf.Graph(), index
        self.patience = Patience(timeout_s, threading.Event())
        here = f"/job:worker/task:{index}"
        with self.graph.as_default(), self.graph.container(place.container):
            with tf.device("/job:ps/task:0"):
                self.step = v1.train.get_or_create_global_step()
                self.members = Members(place.workers)
            self.targets, self.locals = [], []
            for number, dtype in enumerate((tf.float32, tf.float64, tf.float16, tf.float32)):
                with tf.device(f"/job:ps/task:{number % 2}"):
                    self.targets.append(self._variable(f"target{number}", dtype))
                with tf.device(here):
                    self.locals.append(self._variable(f"local{number}", dtype))
            with tf.device(here):
                self._value = v1.placeholder(tf.float64, [])
                self._fill = tf.group(
                    *(
                        v.assign(tf.fill(v.shape, tf.cast(self._value, v.dtype)))
                        for v in self.locals
                    )
                )
                self.rounds = Rounds(
                    self.locals, self.targets, self._finish, self._receive,
                    members=self.members, worker=index, global_step=self.step, **more,
                )  # fmt: skip
            self.session = v1.Session(place.targets[index])
            if index == 0:
                self.session.run(v1.variables_initializer([*self.targets, self.step]))
            self.session.run(v1.variables_initializer(self.locals))

    @staticmethod
    def _variable(name, dtype):
        return v1.get_variable(name, [2, 3], dtype, v1.zeros_initializer(), use_resource=True)

    def _finish(self, pairs):
        return [t.assign(tf.cast(mean, t.dtype), read_value=False) for t, mean in pairs]

    def _receive(self, values, means, waited_s):
        return [v.assign(x, read_value=False) for v, x in zip(self.locals, values, strict=True)]

    def begin(self, starts=None):
        starts = self.index == 0 if starts is None else starts
        self.rounds.begin(self.session, starts=starts, patience=self.patience)
        return self

    def turn(self, value):
        """Set all variables to a value, and take part in a round with it."""
        self.session.run(self._fill, {self._value: value})
        return self.rounds.exchange(self.session, self.patience)

    def have(self):
        """The value that all variables have, here and on the servers."""
        found = [np.unique(value) for value in self.session.run([*self.locals, *self.targets])]
        assert all(len(value) == 1 for value in found)
        values = {float(value[0]) for value in found}
        assert len(values) == 1, values
        return values.pop()

    def look(self):
        return self.rounds._status(self.session.run(self.rounds._look))

    def background(self, value):
        """Take a turn in a thread; returns once the values have been pushed."""
        result = []
        thread = threading.Thread(target=lambda: result.append(self.turn(value)), daemon=True)
        thread.start()
        deadline = time.monotonic() + TIMEOUT_S
        while self.look().arrived[self.index] <= self.rounds.round:
            assert time.monotonic() < deadline, "the values never arrived"
            time.sleep(0.005)

        def join():
            thread.join(TIMEOUT_S)
            assert not thread.is_alive(), "the turn did not end"
            return result[0]

        return join


def start(cluster, workers=2, **how):
    place = Place(cluster, workers)
    return [Turns(place, index, **how) for index in range(workers)]


def test_every_variable_gets_the_mean_whatever_its_dtype_and_server(cluster):
    workers = [worker.begin() for worker in start(cluster, 3)]
    for number, values in enumerate([(1, 2, 6), (0, 0, 0), (-1.5, 8, 4)]):
        turns = [lambda w=w, v=v: w.turn(v) for w, v in zip(workers, values, strict=True)]
        outcomes = together(*turns)
        assert [o.finished for o in outcomes] == [True] * 3
        assert [o.late for o in outcomes] == [False] * 3
        expected = sum(values) / 3
        for worker in workers:
            assert worker.have() == pytest.approx(expected, rel=1e-3)  # one is float16
            assert worker.rounds.round == number + 1
        assert workers[0].session.run(workers[0].step) == number + 1


def test_of_two_workers_that_see_the_round_complete_one_ends_it(cluster):
    """Both push, both look, both claim at the same moment: over and over."""
    workers = [worker.begin() for worker in start(cluster)]
    for number in range(25):
        for value, worker in enumerate(workers):
            worker.session.run(worker._fill, {worker._value: value})
            worker.session.run(worker.rounds._push, {worker.rounds._expected: number})
        assert workers[0].look().missing() == []
        barrier = threading.Barrier(2)

        def claim(worker, barrier=barrier):
            barrier.wait(TIMEOUT_S)
            return worker.rounds._try_to_finish(worker.session)

        ended = together(*(lambda w=w: claim(w) for w in workers))
        assert sum(ended) == 1
        assert workers[0].session.run(workers[0].step) == number + 1
        status = workers[1].look()
        assert (status.round, status.lock) == (number + 1, 0)
        for worker in workers:
            worker.rounds._joined(worker.session.run(worker.rounds._pull))
            assert worker.have() == 0.5


def test_a_claim_that_comes_after_the_round_ends_nothing(cluster):
    workers = [worker.begin() for worker in start(cluster)]
    together(*(lambda w=w: w.turn(1) for w in workers))
    workers[0].rounds.round = 0  # as if it had looked before the other one ended the round
    assert not workers[0].rounds._try_to_finish(workers[0].session)
    assert workers[0].session.run(workers[0].step) == 1
    assert workers[0].look().lock == 0


def test_a_worker_that_has_left_is_not_waited_for(cluster):
    workers = [worker.begin() for worker in start(cluster)]
    waiting = workers[0].background(3)
    workers[1].session.run(workers[1].rounds.leave_op)
    assert waiting().finished
    assert workers[0].have() == 3


def test_a_worker_that_does_not_move_is_left_behind_and_comes_back(cluster):
    quick, slow = (worker.begin() for worker in start(cluster, timeout_s=0.4))
    outcome = quick.turn(3)
    assert outcome.finished
    assert outcome.waited_s >= 0.4
    assert quick.look().live.tolist() == [1, 0]
    assert quick.turn(5).finished
    assert quick.look().live.tolist() == [1, 0]
    outcome = slow.turn(100)
    assert outcome.late
    assert slow.have() == 5  # its values are in no mean
    assert slow.rounds.round == 2
    assert quick.look().live.tolist() == [1, 1]
    assert not any(o.late for o in together(lambda: quick.turn(1), lambda: slow.turn(2)))
    assert quick.have() == 1.5


def test_a_slow_worker_that_gives_signs_of_life_is_waited_for(cluster):
    quick, slow = (worker.begin() for worker in start(cluster, timeout_s=0.6))
    waiting = quick.background(3)
    deadline = time.monotonic() + 1.5
    while time.monotonic() < deadline:
        slow.rounds.beat(slow.session, slow.patience)
        time.sleep(0.01)
    assert not slow.turn(5).late
    assert waiting().waited_s > 1.2
    assert quick.have() == 4


def test_signs_of_life_are_rare(cluster):
    (worker,) = start(cluster, 1)
    worker.begin()
    before = worker.look().progress[0]
    for _ in range(20):
        worker.rounds.beat(worker.session, worker.patience)
    assert worker.look().progress[0] == before


def test_who_arrives_in_time_is_not_late_if_the_round_ends_before_it_looks(cluster, monkeypatch):
    place, may_look = Place(cluster), threading.Event()
    may_look.set()

    def arrive_slowly(members, worker, arrive=Members.arrive):
        arrived = arrive(members, worker)
        if worker == 0:
            return arrived
        with tf.device(members.live.device), tf.control_dependencies([arrived]):
            waited = tf.numpy_function(lambda: may_look.wait(TIMEOUT_S), [], tf.bool)
            return tf.group(waited)

    monkeypatch.setattr(Members, "arrive", arrive_slowly)
    first, second = (Turns(place, index).begin() for index in range(2))
    may_look.clear()
    turn = second.background(6)
    try:
        assert first.turn(2) == (True, False, pytest.approx(0, abs=TIMEOUT_S))
    finally:
        may_look.set()
    assert turn().late is False
    assert second.have() == first.have() == 4


def test_a_lock_whose_owner_died_is_taken_over(cluster):
    workers = [worker.begin() for worker in start(cluster, 3, timeout_s=0.4)]
    dead = workers[2]
    dead.session.run(dead._fill, {dead._value: 9})
    dead.session.run(dead.rounds._push, {dead.rounds._expected: 0})
    assert dead.session.run(dead.rounds._claim).tolist() == [0, 0]
    outcomes = together(lambda: workers[0].turn(0), lambda: workers[1].turn(3))
    assert [o.finished for o in outcomes] == [True, True]
    assert min(o.waited_s for o in outcomes) >= 0.4
    assert workers[0].have() == workers[1].have() == 4
    assert workers[0].session.run(workers[0].step) == 1
    # Should the owner only have been asleep: it ends no later round.
    with pytest.raises(tf.errors.InvalidArgumentError, match="ended by another worker"):
        dead.session.run(dead.rounds._finish, {dead.rounds._expected: 0})
    assert workers[0].look().round == 1


def test_what_a_dead_owner_had_already_taken_stays_as_it_is(cluster):
    alone, dead = (worker.begin() for worker in start(cluster, timeout_s=0.4))
    dead.session.run(dead.rounds._push, {dead.rounds._expected: 0})
    dead.session.run(dead.rounds._claim)
    waiting = alone.background(6)
    dead.session.run(dead.rounds._ends[0], {dead.rounds._expected: 0})  # and then it died
    assert waiting().finished
    assert alone.have() == 3
    together(lambda: alone.turn(1), lambda: dead.turn(2))  # nothing was left over
    assert alone.session.run(alone.step) == 2


def test_waiting_ends_when_the_process_is_to_end(cluster):
    worker, _ = (worker.begin() for worker in start(cluster))
    waiting = worker.background(3)
    worker.patience.stop.set()
    outcome = waiting()
    assert not outcome.finished
    assert worker.rounds.round == 0


def test_a_launch_frees_whoever_waits_and_drops_what_is_there(cluster):
    """The chief comes back: the other one, in the middle of a round, takes what it restored."""
    chief, other = (worker.begin() for worker in start(cluster))
    together(lambda: chief.turn(1), lambda: other.turn(1))
    waiting = other.background(50)
    with chief.graph.as_default():
        chief.session.run(
            [t.assign(tf.cast(tf.fill([2, 3], 7), t.dtype)).op for t in chief.targets]
        )
    chief.begin()
    assert waiting().finished
    assert other.have() == 7
    assert chief.rounds.round == other.rounds.round == 2
    together(lambda: chief.turn(1), lambda: other.turn(2))
    assert chief.have() == other.have() == 1.5  # 50 is in no mean
    assert chief.session.run(chief.step) == 2


def test_a_launch_expects_everybody_again(cluster):
    chief, other = (worker.begin() for worker in start(cluster))
    other.session.run(other.rounds.leave_op)
    assert chief.look().live.tolist() == [1, 0]
    chief.begin()
    assert chief.look().live.tolist() == [1, 1]


def test_workers_wait_for_the_launch(cluster):
    chief, other = start(cluster)
    thread = threading.Thread(target=other.begin, daemon=True)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    assert other.rounds.round is None
    chief.begin()
    thread.join(TIMEOUT_S)
    assert other.rounds.round == 0


def test_without_a_launch_a_worker_says_what_is_missing(cluster, monkeypatch):
    monkeypatch.setattr(rounds_module, "START_TIMEOUT_S", 0.2)
    _, other = start(cluster, timeout_s=0.1)
    with pytest.raises(ClusterError, match=r"chief must begin the rounds.*is_chief=True"):
        other.begin()


def test_a_worker_that_is_told_to_stop_before_the_launch_takes_no_turn(cluster):
    _, other = start(cluster)
    other.patience.stop.set()
    other.begin()
    assert other.turn(1) == (False, False, 0.0)


def test_values_are_read_before_what_follows_the_push(cluster):
    class Moving(Turns):
        def __init__(self, place):
            super().__init__(place, 0, after_push=self._move)

        def _move(self):
            return self.locals[0].assign(tf.fill([2, 3], -1.0), read_value=False)

    worker = Moving(Place(cluster, 1)).begin()
    worker.session.run(worker._fill, {worker._value: 4})
    worker.session.run(worker.rounds._push, {worker.rounds._expected: 0})
    assert np.unique(worker.session.run(worker.locals[0])).tolist() == [-1]
    assert worker.rounds._try_to_finish(worker.session)
    worker.session.run(worker.rounds._pull)
    assert worker.have() == 4


def test_the_means_are_there_for_whoever_wants_them(cluster):
    place, seen = Place(cluster, 1), {}

    class Curious(Turns):
        def _finish(self, pairs):
            return [t.assign(tf.cast(2 * mean, t.dtype), read_value=False) for t, mean in pairs]

        def _receive(self, values, means, waited_s):
            seen["means"] = means
            return super()._receive(values, means, waited_s)

    worker = Curious(place, 0, keep_mean=True).begin()
    assert worker.turn(3).finished
    assert worker.have() == 6
    means = worker.session.run(seen["means"])
    assert [np.unique(mean).tolist() for mean in means] == [[3]] * 4
    assert [mean.dtype for mean in means] == [np.float32, np.float64, np.float32, np.float32]


def test_variables_travel_by_server_and_dtype_and_not_too_many_at_once(monkeypatch):
    with tf.Graph().as_default():
        made = []
        for number, dtype in enumerate([tf.float32] * 3 + [tf.float64]):
            with tf.device(f"/job:ps/task:{number % 2}"):
                made.append(v1.Variable(tf.zeros([4], dtype), use_resource=True))
        groups = group_variables(made)
        assert [group.places for group in groups] == [[0, 2], [1], [3]]
        assert [group.size for group in groups] == [8, 4, 4]
        monkeypatch.setattr(local_copies, "LARGEST_BYTES", 31)
        assert [group.places for group in group_variables(made)] == [[0], [1], [2], [3]]


def test_a_worker_out_of_range_is_refused():
    with tf.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        members = Members(2)
        with pytest.raises(ValueError, match=r"`worker` must be in \[0, 2\).*worker=2"):
            Rounds([], [], list, list, members=members, worker=2, global_step=step)
