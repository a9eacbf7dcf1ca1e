"""What the sessions of SyncReplicas do beside training: begin, end rounds, watch and leave."""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from deepinsight.trainer.cluster.members import Members, Patience
from deepinsight.trainer.cluster.watch import START_TIMEOUT_S
from deepinsight.trainer.optimizers.sync_replicas.watch import RoundWait, State

v1 = tf.compat.v1
# What a call meets when its session is closed, or when its server has gone.
CLOSED = (tf.errors.CancelledError, tf.errors.UnavailableError, tf.errors.AbortedError)


_NOT_BEGUN = (
    "The chief must begin the synchronous rounds: its session needs the hook of "
    "make_session_run_hook(is_chief=True). Received: variables that are initialised, and no rounds."
)
_PUSHED_BEFORE = (
    "The round for which an earlier process of this worker has pushed must end. "
    "Received: no end; is the chief there?"
)


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
        worker: Index of the worker.
        is_chief: Whether this session ends the rounds.
        patience: How long a round waits for a worker that does not push.
        leaves: Whether to leave at the session's end, and as the chief to wait for the others.
    """

    def __init__(
        self,
        make_ops: Callable[[], Ops],
        members: Callable[[], Members],
        *,
        worker: int,
        is_chief: bool,
        patience: Patience,
        leaves: bool,
    ) -> None:
        self._make_ops, self._get_members = make_ops, members
        self._worker, self._is_chief = worker, is_chief
        self._patience, self._leaves = patience, leaves

    def begin(self) -> None:
        """Look for the ops."""
        self._ops, self._members = self._make_ops(), self._get_members()

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        """Begin the launch, or wait for its beginning, and take part."""
        self._coord = coord
        if self._is_chief:
            session.run(self._ops.start)
        else:
            self._wait_until(session, self._has_begun, _NOT_BEGUN)
            self._wait_until(session, self._may_push, _PUSHED_BEFORE)
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

    def _has_begun(self, session: v1.Session) -> bool:
        return bool(session.run(self._ops.is_open))

    def _may_push(self, session: v1.Session) -> bool:
        """Whether an earlier process of this worker has nothing in the round of the moment."""
        return self._worker not in State.parse(session.run(self._ops.state)).waiting

    def _wait_until(
        self, session: v1.Session, condition: Callable[[v1.Session], bool], message: str
    ) -> None:
        """Wait; the chief begins as soon as there are variables, and a round ends in time."""
        end_s, pause_s = time.monotonic() + START_TIMEOUT_S, 0.001
        while not condition(session):
            if self._patience.stop.wait(pause_s) or time.monotonic() > end_s:
                raise RuntimeError(message)
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
        wait = RoundWait(self._patience.timeout_s)
        try:
            while not coord.wait_for_stop(wait.pause_s):
                if self._patience.stop.is_set():
                    wait.hurry()
                missing = wait.look(State.parse(session.run(self._ops.state)), time.monotonic())
                if missing:
                    self._members.lose(session, missing)
        except (tf.errors.OpError, RuntimeError):
            return  # the session is closed, or training finds the same error

    def _wait_for_others(self, session: v1.Session) -> None:
        seen, seen_s = None, time.monotonic()
        pause_s = 0.001
        while not (self._patience.stop.wait(pause_s) or self._coord.should_stop()):
            state = State.parse(session.run(self._ops.state))
            if not state.live:
                return
            now_s = time.monotonic()
            if state != seen:
                seen, seen_s = state, now_s
            if now_s - seen_s > self._patience.timeout_s:
                return
            pause_s = min(2 * pause_s, self._patience.poll_s)


def _is_closed(session: v1.Session) -> bool:
    return bool(getattr(session, "_closed", False))
