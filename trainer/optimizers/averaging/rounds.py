"""Rounds in which workers exchange whole copies of the variables, without a thread of the chief.

A round of number r, as seen by worker m:

    push      its values, packed, into one accumulator per group of variables, with the number r: an
              accumulator that is past r drops them; then arrived[m] = r + 1
    look      poll (round, lock, arrived, live) until the round is over
    finish    by whoever sees first that every live worker has arrived: it takes the lock, takes the
              mean of what is there, changes the global variables, and sets round = r + 1
    pull      the global values

A worker whose number is older than the servers' has come too late: its values are in no mean,
and it pulls and goes on. Whoever does not move for longer than the others' patience is taken off
the list of members; with its next push or pull it is on it again. A lock whose owner died is taken
over likewise; the new owner ends the round with what the accumulators still hold.

`round` never falls while the servers live: a chief that begins a launch raises it by one, and
whoever is in the middle of a round then pulls what the chief has restored.
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from deepinsight.trainer.cluster.members import Patience
from deepinsight.trainer.errors import ClusterError
from deepinsight.trainer.optimizers.averaging.round_ops import RoundOps

v1 = tf.compat.v1
START_TIMEOUT_S = 60.0
FIRST_PAUSE_S = 0.001
BEATS = 4  # signs of life per time-out, while a worker trains on its own
_OWNER = -1  # whoever holds the lock, among those who are waited for


class Outcome(NamedTuple):
    """What became of a worker's turn.

    Attributes:
        finished: Whether the round ended; False if this process was told to stop.
        late: Whether the round had ended before this worker's values arrived.
        waited_s: Seconds between this worker's push and the end of the round.
    """

    finished: bool
    late: bool
    waited_s: float


class _Status(NamedTuple):
    round: int
    lock: int
    takeovers: int
    arrived: np.ndarray
    live: np.ndarray
    progress: np.ndarray

    def missing(self) -> list[int]:
        """The live workers that have not arrived in the round."""
        return np.flatnonzero((self.live > 0) & (self.arrived <= self.round)).tolist()


class Rounds(RoundOps):
    """The rounds of a worker: the ops of `RoundOps`, which has the same arguments, and their use.

    Attributes:
        round: The round this worker is in; None before `begin`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.round: int | None = None
        self._beat_s = time.monotonic()

    def begin(self, session: v1.Session, *, starts: bool, patience: Patience) -> None:
        """Take part from now on, beginning with the global values.

        Args:
            session: A session without hooks.
            starts: Whether to begin a launch; the others wait for that.
            patience: Its `stop` ends the waiting.

        Raises:
            ClusterError: If nobody begins a launch.
        """
        if starts:
            session.run(self.start_op)
        deadline = time.monotonic() + max(START_TIMEOUT_S, patience.timeout_s)
        while not session.run(self._started):
            if patience.stop.wait(patience.poll_s):
                return
            if time.monotonic() > deadline:
                raise ClusterError(
                    "The chief must begin the rounds. Received: nothing from it; give every "
                    "worker's session the optimizer's hook, with is_chief=True on one of them."
                )
        self._joined(session.run(self._join))

    def exchange(self, session: v1.Session, patience: Patience) -> Outcome:
        """Push, wait for the end of the round, and pull.

        Args:
            session: A session without hooks.
            patience: How long to wait for workers that do not move.
        """
        if self.round is None:
            return Outcome(False, False, 0.0)
        began_s = time.monotonic()
        found, *look = session.run(self._push, {self._expected: self.round})
        late = bool(found != self.round)
        status = self._wait(session, self._status(np.array(look)), patience)
        waited_s = time.monotonic() - began_s
        if status.round == self.round:
            return Outcome(False, late, waited_s)
        facts = {self._waited_s: waited_s}
        if self._late is not None:
            facts[self._late] = late
        self._joined(session.run(self._pull, facts))
        return Outcome(True, late, waited_s)

    def beat(self, session: v1.Session, patience: Patience) -> None:
        """Give a sign of life, if the last one is some time ago: a slow worker is not a dead one.

        Args:
            session: A session without hooks.
            patience: That of the others.
        """
        now_s = time.monotonic()
        if self.round is not None and now_s - self._beat_s > patience.timeout_s / BEATS:
            session.run(self._beat)
            self._beat_s = now_s

    def _joined(self, now: int) -> None:
        self.round, self._beat_s = int(now), time.monotonic()

    def _status(self, vector: np.ndarray) -> _Status:
        scalars = [int(number) for number in vector[:3]]
        return _Status(*scalars, *np.split(vector[3:], 3))

    def _wait(self, session: v1.Session, status: _Status, patience: Patience) -> _Status:
        """Look until the round is over, and end it oneself if it is complete."""
        seen: dict[int, tuple[int, float]] = {}
        pause_s = FIRST_PAUSE_S
        while status.round == self.round and not patience.stop.is_set():
            missing = status.missing()
            if missing or status.lock or not self._try_to_finish(session):
                seen = _still(status, missing, seen)
                now_s = time.monotonic()
                overdue = [w for w, (_, s) in seen.items() if now_s - s > patience.timeout_s]
                if overdue == [_OWNER]:
                    self._end_for_owner(session, status.takeovers)
                elif overdue:
                    self._members.lose(session, overdue)
                else:
                    patience.stop.wait(pause_s)
                    pause_s = min(1.5 * pause_s, patience.poll_s)
            status = self._status(session.run(self._look))
        return status

    def _try_to_finish(self, session: v1.Session) -> bool:
        """End the round, unless somebody else is doing it."""
        ticket, now = session.run(self._claim)
        if ticket:
            return False
        if now != self.round:
            session.run(self._release)
            return False
        try:
            session.run(self._finish, {self._expected: self.round})
        except tf.errors.InvalidArgumentError:
            if self._status(session.run(self._look)).round == self.round:
                raise
        return True

    def _end_for_owner(self, session: v1.Session, takeovers: int) -> None:
        """End the round of an owner of the lock that does not move, with what is still there."""
        if session.run(self._take_over) != takeovers:
            return
        counts = session.run(self._counts)
        expected = {self._expected: self.round}
        session.run([op for op, n in zip(self._ends, counts, strict=True) if n], expected)
        session.run(self._close, expected)


def _still(
    status: _Status, missing: Sequence[int], seen: dict[int, tuple[int, float]]
) -> dict[int, tuple[int, float]]:
    """Whom the round waits for: how far each was when last seen to move, and when that was."""
    now_s = time.monotonic()
    waited_for = {w: int(status.progress[w]) for w in missing} or {_OWNER: status.takeovers}
    return {
        who: seen[who] if who in seen and seen[who][0] == state else (state, now_s)
        for who, state in waited_for.items()
    }
