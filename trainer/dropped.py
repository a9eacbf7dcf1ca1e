"""The count of a worker's dropped gradients, from what SyncReplicas has decided."""

from collections import deque

import numpy as np
from numpy.typing import NDArray


class DroppedGradients:
    """Counts, exactly; `deepinsight.trainer.optimizers.sync_replicas` says how.

    Args:
        worker: Index of the worker.
        accepted_before: What `CountingSyncReplicas.accepted` says of it before its first push.

    Attributes:
        count: Gradients dropped so far.
        accepted: Gradients accepted so far. Pushes are either, or still undecided.
        round: The next round, as of the last update.
    """

    def __init__(self, worker: int, accepted_before: int) -> None:
        self._worker, self._accepted_before = worker, accepted_before
        self._undecided: deque[int] = deque()
        self._decided = 0
        self.count = 0
        self.accepted = 0
        self.round = 0

    def update(self, pushed_for: int, decided: NDArray[np.int64]) -> None:
        """Take in a push.

        Args:
            pushed_for: The round it was for.
            decided: `CountingSyncReplicas.decided` after it.
        """
        self._undecided.append(pushed_for)
        self.round = int(decided[-2])
        while self._undecided and self._undecided[0] < self.round:
            self._undecided.popleft()
            self._decided += 1
        self.accepted = int(decided[self._worker]) - self._accepted_before
        self.count = self._decided - self.accepted
