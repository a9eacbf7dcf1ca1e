"""scikit-learn's handwritten digits as a sparse click-through-like problem.

1,797 images of 8 x 8 pixels come with scikit-learn. A pixel's intensity 0 … 16 is a categorical
ID, each of the eight pixel rows is a feature group of eight slots, and the label is 1 where the
digit is 5 or more. A pixel's ID within its group is ``17 * column + intensity``, so a group has
a vocabulary of 136.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from deepinsight.trainer.data.base import Batch, DataSet, FeatureGroup, shuffled_batches
from deepinsight.trainer.errors import DataError

INTENSITIES = 17
SIDE = 8
HELD_OUT_SHARE = 0.25
SPLIT_SEED = 20210  # the split is the same in every run, so that runs can be compared


class Digits(DataSet):
    """The digits data set: 1,348 training and 449 held-out examples, 48 % of them positive."""

    name = "digits"
    groups = tuple(FeatureGroup(f"row_{row}", SIDE, SIDE * INTENSITIES) for row in range(SIDE))

    def __init__(self) -> None:
        from sklearn.datasets import load_digits

        pixels, digits = load_digits(return_X_y=True)
        offsets = INTENSITIES * (np.arange(SIDE * SIDE) % SIDE)
        ids = (pixels.astype(np.int32) + offsets).astype(np.int32)
        labels = (digits >= 5).astype(np.float32)
        order = np.random.default_rng(SPLIT_SEED).permutation(len(labels))
        split = round(len(labels) * HELD_OUT_SHARE)
        self._held_out = Batch(ids[order[:split]], labels[order[:split]])
        self._training = Batch(ids[order[split:]], labels[order[split:]])

    def facts(self) -> dict[str, Any]:
        """The groups and the sizes of both parts."""
        return {
            **super().facts(),
            "training_examples": len(self._training.labels),
            "held_out_examples": len(self._held_out.labels),
        }

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
        """Every `workers`-th example of a seeded order; see `DataSet.batches`."""
        order = np.random.default_rng(seed).permutation(len(self._training.labels))
        part = order[worker::workers]
        if not len(part):
            raise DataError(
                f"digits has {len(order)} training examples, too few for {workers} workers. "
                f"Use fewer --workers."
            )
        return shuffled_batches(
            self._training.ids[part],
            self._training.labels[part],
            batch_size=batch_size,
            epochs=epochs,
            rng=np.random.default_rng([seed, worker, position]),
        )

    def held_out(self, position: int = 0) -> Batch:
        """The 449 held-out examples."""
        return self._held_out

    def training_sample(self, position: int = 0) -> Batch:
        """As many training examples as are held out."""
        size = len(self._held_out.labels)
        return Batch(self._training.ids[:size], self._training.labels[:size])
