"""Notices that a process that others depend on is gone; no TensorFlow.

TensorFlow waits for a lost process for ever: a worker does not talk to the chief, and a parameter
server talks to nobody. So addresses are asked for a connection now and then. One that has answered
before and then does not for `LOST_AFTER_S` is lost; one that has never answered may still be
starting (`START_TIMEOUT_S` bounds that).
"""

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

POLL_S = 1.0
LOST_AFTER_S = 5.0
START_TIMEOUT_S = 600.0


def answers(address: str, timeout_s: float = 2.0) -> bool:
    """Whether a connection to ``host:port`` can be made."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s).close()
    except OSError:
        return False
    return True


class Watch:
    """What is known about the processes that this one depends on; call `look` now and then.

    Args:
        addresses: Address ``host:port`` by the process's name.
        lost_after_s: Seconds of silence after which a process is lost.
    """

    def __init__(self, addresses: Mapping[str, str], lost_after_s: float = LOST_AFTER_S) -> None:
        self._addresses, self._lost_after_s = dict(addresses), lost_after_s
        self._answered_s: dict[str, float] = {}
        self._silent: set[str] = set(addresses)  # at the last look

    def look(self) -> None:
        """Ask every process for a connection."""
        for name, address in self._addresses.items():
            if answers(address):
                self._answered_s[name] = time.monotonic()
                self._silent.discard(name)
            else:
                self._silent.add(name)

    def expect_all(self) -> None:
        """Take every process for one that has answered: it is known to be there."""
        self._answered_s |= dict.fromkeys(self._addresses, time.monotonic())

    def seen(self, name: str) -> bool:
        """Whether the process has ever answered."""
        return name in self._answered_s

    @property
    def lost(self) -> list[str]:
        """The processes that have answered, and are silent for too long now.

        A look at silent machines takes seconds; who has answered in it is not lost meanwhile.
        """
        now = time.monotonic()
        silent = [(n, s) for n, s in self._answered_s.items() if n in self._silent]
        return [name for name, since_s in silent if now - since_s > self._lost_after_s]

    def describe(self, names: Sequence[str]) -> str:
        """The processes with their addresses, for a message."""
        return " and ".join(f"{name} ({self._addresses[name]})" for name in names)

    def silent(self) -> list[str]:
        """The processes that do not answer at this moment."""
        return [name for name, address in self._addresses.items() if not answers(address, 1.0)]


def appear(address: str, others: Watch, names: Sequence[str], limit_s: float = 60.0) -> None:
    """Answer at an address until all others are there to see it, and no more after that.

    A chief that refuses to start does so: the others then find it lost instead of waiting for it.

    Args:
        address: The address to answer at.
        others: The other processes.
        names: Their names.
        limit_s: Longest wait for them.
    """
    host, _, port = address.rpartition(":")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host.strip("[]"), int(port)))
        except OSError:
            return  # somebody else answers there
        listening.listen(len(names) + 16)
        listening.settimeout(POLL_S / 4)
        end = time.monotonic() + limit_s
        seen_all_s: float | None = None
        while time.monotonic() < (end if seen_all_s is None else seen_all_s + 3 * POLL_S):
            with suppress(OSError):
                listening.accept()[0].close()
            if seen_all_s is None:
                others.look()
                if all(others.seen(name) for name in names):
                    seen_all_s = time.monotonic()


def watch_others(watch: Watch, stop: threading.Event, on_loss: Callable[[str], None]) -> None:
    """Have a thread look; when a process is lost, call `on_loss` with what to say, and end.

    Args:
        watch: The processes.
        stop: Ends the thread.
        on_loss: Takes the message.
    """

    def run() -> None:
        while not stop.wait(POLL_S):
            watch.look()
            if watch.lost:
                on_loss(f"{watch.describe(watch.lost)} is gone")
                return

    threading.Thread(target=run, name="watch", daemon=True).start()
