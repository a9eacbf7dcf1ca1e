"""The chief's look at who still pushes, for a synchronization in which nobody waits."""

import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from deepinsight.trainer.cluster.members import Members, Patience

v1 = tf.compat.v1
LOOKS = 8  # per time-out


class Silence:
    """Who has not moved for how long.

    Time counts only as far as it was watched: if the one who looks has slept, the others may have
    slept with it.

    Args:
        timeout_s: Seconds after which a worker counts as lost.
        clock: Returns seconds.
    """

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s, self._clock = timeout_s, clock
        self._pause_s = timeout_s / LOOKS
        self._looked_s = clock()
        self._progress: np.ndarray | None = None
        self._silent_s = np.zeros(0)

    @property
    def is_due(self) -> bool:
        """Whether it is time for another look."""
        return self._clock() >= self._looked_s + self._pause_s

    def look(self, live: np.ndarray, progress: np.ndarray) -> list[int]:
        """Who is lost.

        Args:
            live: `Members.live`.
            progress: `Members.progress`.

        Returns:
            Live workers without progress for the time-out, while another one had progress.
        """
        now = self._clock()
        watched_s, self._looked_s = min(now - self._looked_s, 2 * self._pause_s), now
        if self._progress is None:
            self._progress, self._silent_s = np.zeros_like(progress), np.zeros(len(progress))
        moved, self._progress = progress != self._progress, progress
        if moved.any():
            self._silent_s += watched_s
        self._silent_s[moved | (live == 0)] = 0
        return [int(worker) for worker in np.flatnonzero(self._silent_s >= self._timeout_s)]


class SoftsyncHook(v1.train.SessionRunHook):
    """What a worker's session does for softsync beside training.

    Args:
        members: The list of members.
        patience: How long the chief gives a worker between two pushes.
        watches: Whether this one, the chief, takes silent workers off the list.
        start_op: What to run in a new session, or None.
        leave_op: What to run at a session's proper end, or None.
    """

    def __init__(
        self,
        members: Members,
        patience: Patience,
        *,
        watches: bool,
        start_op: tf.Operation | None = None,
        leave_op: tf.Operation | None = None,
    ) -> None:
        self._members, self._patience, self._watches = members, patience, watches
        self._start_op, self._leave_op = start_op, leave_op
        self._silence = Silence(patience.timeout_s)

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        """Begin a launch."""
        if self._start_op is not None:
            session.run(self._start_op)
        self._silence = Silence(self._patience.timeout_s)

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        """Now and then, look who has not moved."""
        if not self._watches or not self._silence.is_due:
            return
        seen = run_context.session.run([self._members.live, self._members.progress])
        lost = self._silence.look(*seen)
        if lost:
            self._members.lose(run_context.session, lost)

    def end(self, session: v1.Session) -> None:
        """Leave."""
        if self._leave_op is not None:
            session.run(self._leave_op)
