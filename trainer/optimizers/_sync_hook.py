"""What the sessions of SyncReplicas do beside training: begin, end rounds, watch and leave."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from deepinsight.trainer.cluster.members import Members, Patience
from deepinsight.trainer.cluster.watch import START_TIMEOUT_S
from deepinsight.trainer.optimizers._sync_rounds import State

v1 = tf.compat.v1
LOOKS = 8  # of the watch, per time-out
LONGEST_PAUSE_S = 1.0
# What a call meets when its session is closed, or when its server has gone.
CLOSED = (tf.errors.CancelledError, tf.errors.UnavailableError, tf.errors.AbortedError)


class Ops(NamedTuple):
    """What a session runs.

    Attributes:
        start: The chief begins a launch.
        join: A worker begins to take part.
        round: The chief ends one round.
        release: Everybody's wait ends, whatever the round.
        leave: A worker takes part no more.
        state: `Rounds.make_state`.
        is_open: `Rounds.is_open`.
    """

    start: tf.Operation
    join: tf.Operation
    round: tf.Operation
    release: tf.Operation
    leave: tf.Operation
    state: tf.Tensor
    is_open: tf.Tensor


class SyncReplicasHook(v1.train.SessionRunHook):
    """A session of SyncReplicas.

    Args:
        make_ops: Returns the ops; called when the session's graph is complete.
        members: Makes the list of members; as `make_ops`.
        is_chief: Whether this session ends the rounds.
        patience: How long a round waits for a worker that does not push.
        leaves: Whether to leave at the session's end, and as the chief to wait for the others.
    """

    def __init__(
        self,
        make_ops: Callable[[], Ops],
        members: Callable[[], Members],
        *,
        is_chief: bool,
        patience: Patience,
        leaves: bool,
    ) -> None:
        self._make_ops, self._get_members = make_ops, members
        self._is_chief, self._patience, self._leaves = is_chief, patience, leaves

    def begin(self) -> None:
        """Look for the ops."""
        self._ops, self._members = self._make_ops(), self._get_members()

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        """Begin the launch, or wait for its beginning, and take part."""
        if self._is_chief:
            session.run(self._ops.start)
        else:
            self._wait_for_start(session)
        session.run(self._ops.join)
        if self._is_chief:
            for work in (self._end_rounds, self._watch):
                threading.Thread(
                    target=work, args=(session, coord), name=work.__name__, daemon=True
                ).start()

    def end(self, session: v1.Session) -> None:
        """Leave; as the chief, go on ending rounds until nobody needs them any more."""
        if not self._leaves:
            return
        try:
            session.run(self._ops.leave)
            if self._is_chief:
                self._wait_for_others(session)
        except CLOSED:
            pass  # there is nobody to say it to

    def _wait_for_start(self, session: v1.Session) -> None:
        """Wait for the chief, which begins the launch as soon as the variables are there."""
        end_s, pause_s = time.monotonic() + START_TIMEOUT_S, 0.001
        while not session.run(self._ops.is_open):
            if time.monotonic() > end_s or self._patience.stop.is_set():
                raise RuntimeError(
                    "The chief must begin the synchronous rounds: its session needs the hook of "
                    "make_session_run_hook(is_chief=True). Received: variables that are "
                    "initialised, and no rounds."
                )
            self._patience.stop.wait(pause_s)
            pause_s = min(2 * pause_s, self._patience.poll_s)

    def _end_rounds(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        """End one round after the other, each in one call.

        The call that waits when the session is closed is cancelled: that is no error. Nobody waits
        for this thread, since only the session's end stops it.
        """
        try:
            while not coord.should_stop():
                session.run(self._ops.round)
        except Exception as error:
            if coord.should_stop() or _is_closed(session):
                return
            coord.request_stop(error)
            # The training thread finds the error when its step has ended.
            session.run(self._ops.release)

    def _watch(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        """Take workers for whom a round has waited too long off the list."""
        timeout_s = self._patience.timeout_s
        wait = _RoundWait(timeout_s)
        try:
            while not coord.wait_for_stop(min(timeout_s / LOOKS, LONGEST_PAUSE_S)):
                if self._patience.stop.is_set():
                    return
                missing = wait.look(State.parse(session.run(self._ops.state)), time.monotonic())
                if missing:
                    self._members.lose(session, missing)
        except (tf.errors.OpError, RuntimeError):
            return  # the session is closed, or training finds the same error

    def _wait_for_others(self, session: v1.Session) -> None:
        seen, seen_s = None, time.monotonic()
        pause_s = 0.001
        while not self._patience.stop.wait(pause_s):
            state = State.parse(session.run(self._ops.state))
            if not state.live:
                return
            now_s = time.monotonic()
            if state != seen:
                seen, seen_s = state, now_s
            if now_s - seen_s > self._patience.timeout_s:
                return
            pause_s = min(2 * pause_s, self._patience.poll_s)


class _RoundWait:
    """How long somebody has waited for the round of the moment.

    Time counts only as far as it was watched: if the watch has slept, the others may have slept
    with it.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._round: int | None = None
        self._waited_s = 0.0
        self._looked_s = 0.0

    def look(self, state: State, now_s: float) -> Sequence[int]:
        """Who is lost: those for whom others have waited for the time-out."""
        watched_s = min(now_s - self._looked_s, 2 * self._timeout_s / LOOKS)
        self._looked_s = now_s
        if state.round != self._round or not state.waiting:
            self._round, self._waited_s = (state.round if state.waiting else None), 0.0
            return ()
        self._waited_s += watched_s
        return state.missing if self._waited_s >= self._timeout_s else ()


def _is_closed(session: v1.Session) -> bool:
    return bool(getattr(session, "_closed", False))
