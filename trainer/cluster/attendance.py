"""The chief's knowledge of the other workers: who is at work, who is done, who is lost."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import tensorflow as tf

from deepinsight.trainer.cluster.barriers import Barriers
from deepinsight.trainer.cluster.members import Members
from deepinsight.trainer.cluster.topology import Topology
from deepinsight.trainer.cluster.watch import POLL_S, Watch

v1 = tf.compat.v1
log = logging.getLogger(__name__)


class Attendance:
    """Watches the other workers in a thread, from `begin` on.

    A worker that says it is done is let go. One that does not answer any more without having said
    so is lost: rounds then no longer wait for it. One that is started again is at work again.

    Args:
        topology: The cluster.
        barriers: Where workers say that they are done.
        members: Who rounds wait for, or None.
        on_loss: Takes the name of a worker that was lost.
    """

    def __init__(
        self,
        topology: Topology,
        barriers: Barriers,
        members: Members | None,
        on_loss: Callable[[str], None],
    ) -> None:
        self._others = {k: a for k, a in enumerate(topology.workers) if k}
        self._watch = Watch({f"worker-{k}": address for k, address in self._others.items()})
        self._barriers, self._members, self._on_loss = barriers, members, on_loss
        self._lock = threading.Lock()
        self._done: set[int] = set()
        self._silent: set[int] = set()
        self._lost: set[int] = set()
        self._looked_s = float("-inf")

    def begin(self, session: v1.Session, stop: threading.Event, *, everyone: bool) -> None:
        """Start to watch.

        Args:
            session: A session without hooks.
            stop: Ends the thread.
            everyone: Whether all workers are known to be there; else those count that have been
                seen once.
        """
        if everyone:
            self._watch.expect_all()

        def run() -> None:
            while not stop.wait(POLL_S):
                # The session is closed before the thread ends.
                with suppress(tf.errors.OpError, RuntimeError):
                    self.look(session)

        threading.Thread(target=run, name="attendance", daemon=True).start()

    def look(self, session: v1.Session) -> bool:
        """Take in what has changed.

        Args:
            session: A session without hooks.

        Returns:
            Whether nobody else is at work any more.
        """
        with self._lock:
            if time.monotonic() - self._looked_s > POLL_S:
                self._watch.look()
                self._looked_s = time.monotonic()
            silent = {k for k in self._others if f"worker-{k}" in self._watch.lost}
            self._done -= self._silent - silent  # a new process has taken the place
            self._silent = silent
            self._done |= self._barriers.take_done(session)
            gone = silent - self._done
            lost, self._lost = gone - self._lost, gone
            if lost and self._members is not None:
                self._members.lose(session, sorted(lost))
        for worker in sorted(lost):
            self._on_loss(f"worker-{worker}")
        return self._others.keys() <= self._done | self._lost

    def wait_for_others(
        self, session: v1.Session, progress: tf.Variable, stop: threading.Event, timeout_s: float
    ) -> None:
        """Wait until no other worker is at work.

        Args:
            session: A session without hooks.
            progress: A variable that changes as long as others are at work.
            stop: Ends the wait.
            timeout_s: How long to wait without a sign of life.
        """
        seen, since = None, time.monotonic()
        while not stop.is_set() and not self.look(session):
            now = session.run(progress)
            if now != seen:
                seen, since = now, time.monotonic()
            if time.monotonic() - since > timeout_s:
                late = self._others.keys() - self._done - self._lost
                log.warning(
                    "%d of %d other workers did not finish, and the global step stands still for "
                    "%.0f s: going on without them.",
                    len(late), len(self._others), timeout_s,
                )  # fmt: skip
                return
            time.sleep(POLL_S / 20)
