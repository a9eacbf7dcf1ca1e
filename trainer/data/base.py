"""What every data set offers: examples as categorical IDs in feature groups, and a label.

An example is a row of IDs, one per *slot*; the slots of a feature group lie side by side, in the
order of `DataSet.groups`, and share the group's vocabulary. Every slot always holds an ID
(a missing value has an ID of its own), so that a batch is two plain arrays.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class FeatureGroup(NamedTuple):
    """One feature group: `slots` IDs per example out of ``0 … vocabulary - 1``."""

    name: str
    slots: int
    vocabulary: int


class Batch(NamedTuple):
    """Examples: `ids` int32 ``[n, slots]``, `labels` float32 ``[n]`` of 0 and 1."""

    ids: NDArray[np.int32]
    labels: NDArray[np.float32]


class DataSet(ABC):
    """A training part that is dealt out to workers, and a held-out part."""

    name: str
    groups: tuple[FeatureGroup, ...]

    @property
    def slots(self) -> int:
        """The number of IDs per example, over all groups."""
        return sum(group.slots for group in self.groups)

    def facts(self) -> dict[str, Any]:
        """What is known about the data and worth keeping with a run, as JSON values."""
        return {"groups": {g.name: [g.slots, g.vocabulary] for g in self.groups}}

    @abstractmethod
    def batches(
        self,
        *,
        worker: int,
        workers: int,
        batch_size: int,
        seed: int,
        epochs: int | None = None,
        position: int = 0,
    ) -> Iterator[Batch]:
        """Deal out one worker's part of the training data.

        Args:
            worker: Index of the worker, ``0 … workers - 1``; the parts of two workers are disjoint.
            workers: Number of workers.
            batch_size: Examples per batch, >= 1. Only the last batch of a finite run is smaller.
            seed: Seed of the order (and, for a stream, of the examples).
            epochs: Passes over the worker's part; None for endless.
            position: Number of training examples that all workers have drawn before: a resumed
                run draws other examples, or the same in another order, than its first part did.

        Returns:
            An iterator of batches that ends when the data has run out.

        Raises:
            DataError: If `epochs` is given and the data set has no end, or a worker's part is
                empty.
        """

    @abstractmethod
    def held_out(self, position: int = 0) -> Batch:
        """Examples that no worker trains on.

        Args:
            position: Number of training examples drawn by all workers so far; only data that
                drifts depends on it.
        """

    @abstractmethod
    def training_sample(self, position: int = 0) -> Batch:
        """A fixed sample of the training part, to compare with the held-out part."""


def shuffled_batches(
    ids: NDArray[np.int32],
    labels: NDArray[np.float32],
    *,
    batch_size: int,
    epochs: int | None,
    rng: np.random.Generator,
) -> Iterator[Batch]:
    """Batches out of arrays that fit in memory, shuffled anew for every epoch.

    Batches run over the border of an epoch; what is left at the very end is a smaller batch.
    """
    rows = len(labels)
    order = np.empty(0, np.int64)
    epoch = 0
    while True:
        while len(order) < batch_size and (epochs is None or epoch < epochs):
            order = np.concatenate([order, rng.permutation(rows)])
            epoch += 1
        if not len(order):
            return
        take, order = order[:batch_size], order[batch_size:]
        yield Batch(ids[take], labels[take])
