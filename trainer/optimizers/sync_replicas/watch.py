"""How the chief finds workers for whom a round waits too long; no TensorFlow."""

from collections.abc import Sequence
from typing import NamedTuple

LOOKS = 8  # per time-out
LONGEST_PAUSE_S = 1.0
HURRY_S = 1.0


class State(NamedTuple):
    """The rounds as the chief's watch sees them.

    Attributes:
        round: The number of the round.
        waiting: Workers that have pushed for it.
        missing: Live workers that have not.
        live: Live workers.
        progress: Arrivals of each worker.
    """

    round: int
    waiting: list[int]
    missing: list[int]
    live: list[int]
    progress: tuple[int, ...]

    @classmethod
    def parse(cls, vector: Sequence[int]) -> "State":
        """Take `Rounds.make_state` apart."""
        number, workers = int(vector[0]), (len(vector) - 1) // 3
        rows = [[int(x) for x in vector[1 + k * workers :][:workers]] for k in range(3)]
        pushed, live, progress = rows
        waiting = [k for k in range(workers) if pushed[k] == number]
        missing = [k for k in range(workers) if live[k] and k not in waiting]
        return cls(
            number, waiting, missing, [k for k in range(workers) if live[k]], tuple(progress)
        )


class RoundWait:
    """How long somebody has waited for the round of the moment.

    Time counts only as far as it was watched: if the watch has slept, the others may have slept
    with it.

    Args:
        timeout_s: Seconds that a round waits for a worker.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._round: int | None = None
        self._waited_s = 0.0
        self._looked_s = 0.0

    @property
    def pause_s(self) -> float:
        """Seconds between two looks."""
        return min(self._timeout_s / LOOKS, LONGEST_PAUSE_S)

    def hurry(self) -> None:
        """Wait no longer than `HURRY_S`: this process is to end."""
        self._timeout_s = min(self._timeout_s, HURRY_S)

    def look(self, state: State, now_s: float) -> Sequence[int]:
        """Who is lost: those for whom others have waited for the time-out.

        Args:
            state: The rounds now.
            now_s: The time, on any clock.
        """
        watched_s = min(now_s - self._looked_s, 2 * self.pause_s)
        self._looked_s = now_s
        if state.round != self._round or not state.waiting:
            self._round, self._waited_s = (state.round if state.waiting else None), 0.0
            return ()
        self._waited_s += watched_s
        return state.missing if self._waited_s >= self._timeout_s else ()
