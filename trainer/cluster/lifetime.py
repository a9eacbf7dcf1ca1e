"""How a process of a run ends when it is told to, or when its run has failed; no TensorFlow.

What a trace says afterwards: SIGINT and SIGTERM (Ctrl-C, a scheduler's stop) are an asked-for end,
and a process that then stops by itself has ``finished``. `FAILED` says that the run has failed
elsewhere: another process died, or the launcher. Then, and where a process has to be ended by
force, its trace stays marked as ``crashed``.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

PARENT_VARIABLE = "DEEPINSIGHT_PARENT_PID"
GRACE_S = 2.0
PR_SET_PDEATHSIG = 1
FAILED = signal.SIGUSR1  # from the launcher, and from the kernel when the launcher is gone
SIGNALS = (signal.SIGTERM, signal.SIGINT, FAILED)


def die_with_parent() -> None:
    """Have the kernel end this process when its launcher ends, however that ends (Linux).

    Does nothing in a process that was not started by the launcher.
    """
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is None:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, FAILED)
    if os.getppid() != int(parent):
        os._exit(1)  # the launcher was gone before the kernel was asked


class Termination:
    """Turns SIGINT, SIGTERM and `FAILED` into a request to stop, also while TensorFlow blocks.

    A Python handler runs only when ``Session.run`` returns, which it may never do once another
    process is gone. So the interpreter's C handler wakes a thread of its own: it sets `requested`,
    and when the process is still there `GRACE_S` later, it runs the last acts and ends the process.

    Make it in the main thread. A signal that the process was started to ignore stays ignored.

    Attributes:
        requested: Set when this process is to stop.
        signal: The signal that asked for it, or None.
        failure: What went wrong, if `fail` was called.
    """

    def __init__(self) -> None:
        self.requested = threading.Event()
        self.signal: int | None = None
        self.failure: str | None = None
        self._last_acts: list[Callable[[], None]] = []
        self._woken, waking = os.pipe()
        os.set_blocking(waking, False)
        signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda number, frame: None)
        threading.Thread(target=self._wait, name="termination", daemon=True).start()

    def before_forced_end(self, act: Callable[[], None]) -> None:
        """Add something to do before the process is ended by force."""
        self._last_acts.append(act)

    @property
    def exit_status(self) -> int:
        """1 after a failure; 128 + the signal's number, as a shell has it; else 0."""
        if self.failure is not None:
            return 1
        return 0 if self.signal is None else 128 + self.signal

    @property
    def failed(self) -> bool:
        """Whether this process stops because something went wrong, here or elsewhere."""
        return self.failure is not None or self.signal == FAILED

    def fail(self, message: str) -> None:
        """Ask for a stop because of a failure, and enforce it as after a signal.

        Args:
            message: What went wrong; printed if the process has to be ended by force.
        """
        if self.failure is None:
            self.failure = message
            self.requested.set()
            threading.Thread(target=self._enforce, name="failure", daemon=True).start()

    def _wait(self) -> None:
        number = 0
        while number not in SIGNALS:
            number = os.read(self._woken, 1)[0]
        self.signal = number
        self.requested.set()
        self._enforce()

    def _enforce(self) -> None:
        time.sleep(GRACE_S)
        if self.failure is not None:
            print(f"deepinsight train: {self.failure}", file=sys.stderr, flush=True)
        helper = threading.Thread(target=self._act, daemon=True)
        helper.start()
        helper.join(GRACE_S / 2)
        os._exit(self.exit_status)

    def _act(self) -> None:
        for act in self._last_acts:
            act()
