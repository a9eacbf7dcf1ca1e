r"""A seeded, endless stream of clicks whose best possible AUC is known exactly.

Every slot of an example draws an ID from a Zipf law, :math:`P(k) \propto (k + 1)^{-z}`, on its
own. Each ID of a group has a hidden weight; the click is drawn from

.. math:: P(y = 1 \mid x) = \sigma(s(x)), \qquad s(x) = b + \sum_{slots} w_{group}[x_{slot}]

No model can rank better than :math:`s` itself. The weights are multiples of 1/64, so the
distribution of :math:`s` is a convolution of finite ones and the Bayes-optimal AUC

.. math:: AUC^* = P(s_+ > s_-) + \tfrac12 P(s_+ = s_-)

is computed, not estimated.

*Drift* turns the hidden weights on a circle between two independent draws, one full turn per
`drift_period` examples, in 64 stages; the difficulty stays about the same, the answer moves.
A *leak* adds a group ``leak`` with one slot whose ID equals the label with probability
(1 + leak) / 2 in training, and is a fair coin in the held-out part: a model that trusts it looks
good in training only.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deepinsight.trainer.data.base import Batch, DataSet, FeatureGroup
from deepinsight.trainer.errors import DataError

GRID = 64  # hidden weights are multiples of 1 / GRID
DRIFT_STAGES = 64
BLOCK = 8192  # examples drawn at a time, for speed
WEIGHTS_SEED = 7919  # the problem is the same for every --seed; only the examples differ
HELD_OUT_SEED = 104729
SAMPLE_SEED = 1299709


class ClickStream(DataSet):
    """The stream; see the module for what it draws.

    Args:
        groups: Number of feature groups, >= 1.
        slots: IDs per group and example, >= 1.
        vocabulary: IDs per group, >= 2.
        zipf: Exponent z of the Zipf law, >= 0; 0 is uniform.
        click_rate: Wanted P(y = 1), in (0, 1); the bias is set so that it holds to 1e-3 relative.
        signal: Standard deviation of the score over examples, > 0.
        drift_period: Training examples per full turn of the weights; 0 for no drift.
        leak: Strength of the leaking group, in [0, 1]; 0 for no such group.
        held_out: Number of held-out examples, >= 2.
    """

    name = "ctr"

    def __init__(
        self,
        *,
        groups: int = 8,
        slots: int = 2,
        vocabulary: int = 1000,
        zipf: float = 1.1,
        click_rate: float = 0.2,
        signal: float = 1.5,
        drift_period: int = 0,
        leak: float = 0.0,
        held_out: int = 4096,
    ) -> None:
        self._honest = tuple(FeatureGroup(f"group_{i}", slots, vocabulary) for i in range(groups))
        self.groups = (*self._honest, FeatureGroup("leak", 1, 2)) if leak else self._honest
        self._drift_period, self._leak, self._held_out = drift_period, leak, held_out
        law = (np.arange(vocabulary) + 1.0) ** -zipf
        self._law = law / law.sum()
        self._cumulative = np.cumsum(self._law)[:-1]
        rng = np.random.default_rng(WEIGHTS_SEED)
        scale = signal / np.sqrt(groups * slots)
        self._ends = tuple(
            self._standardised(rng.standard_normal((groups, vocabulary))) * scale for _ in range(2)
        )
        self._bias = self._find_bias(click_rate)

    def _standardised(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Weights with mean 0 and variance 1 under the Zipf law, per group."""
        weights = weights - (weights @ self._law)[:, None]
        spread = np.sqrt((weights**2) @ self._law)
        return np.asarray(weights / spread[:, None])

    def _stage(self, position: Any) -> Any:
        """The stage of the drift at a position, or at each of an array of them."""
        if not self._drift_period:
            return 0
        return position * DRIFT_STAGES // self._drift_period % DRIFT_STAGES

    def _grid_weights(self, stage: int) -> NDArray[np.int64]:
        """The hidden weights at a stage of the drift, in 1/64, int64 ``[groups, vocabulary]``."""
        angle = 2 * np.pi * stage / DRIFT_STAGES
        weights = np.cos(angle) * self._ends[0] + np.sin(angle) * self._ends[1]
        return np.rint(weights * GRID).astype(np.int64)

    def _score_distribution(self, stage: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The scores without bias that occur, ascending, and their probabilities."""
        total, lowest = np.ones(1), 0
        slots = self._honest[0].slots
        for weights in self._grid_weights(stage):
            low = int(weights.min())
            one = np.bincount(weights - low, weights=self._law)
            for _ in range(slots):
                total, lowest = np.convolve(total, one), lowest + low
        return (lowest + np.arange(len(total))) / GRID, total

    def _find_bias(self, click_rate: float) -> float:
        scores, probabilities = self._score_distribution(0)
        low, high = -40.0, 40.0
        while high - low > 1e-6:
            bias = (low + high) / 2
            if probabilities @ _sigmoid(scores + bias) < click_rate:
                low = bias
            else:
                high = bias
        return (low + high) / 2

    @lru_cache(maxsize=DRIFT_STAGES)  # noqa: B019 - a data set lives as long as its process
    def _bayes_auc(self, stage: int) -> float:
        scores, probabilities = self._score_distribution(stage)
        clicks = probabilities * _sigmoid(scores + self._bias)
        others = probabilities - clicks
        below = np.cumsum(others) - others
        return float(clicks @ (below + others / 2) / (clicks.sum() * others.sum()))

    def bayes_auc(self, position: int = 0) -> float:
        """The best AUC that any model can have on held-out data, exactly.

        Args:
            position: Number of training examples drawn so far; matters only under drift.
        """
        return self._bayes_auc(self._stage(position))

    def facts(self) -> dict[str, Any]:
        """The groups and the Bayes-optimal AUC at the start."""
        return {
            **super().facts(),
            "bayes_auc": self.bayes_auc(),
            "held_out_examples": self._held_out,
        }

    def _draw(
        self,
        rng: np.random.Generator,
        rows: int,
        position: int | NDArray[np.int64],
        *,
        leaking: bool,
    ) -> tuple[Batch, NDArray[np.float64]]:
        """Draw examples, at one position or one each; also their scores, float64 ``[rows]``."""
        groups, slots = len(self._honest), self._honest[0].slots
        ids = np.searchsorted(self._cumulative, rng.random((rows, groups * slots)), side="right")
        group = np.repeat(np.arange(groups), slots)
        stages = np.broadcast_to(self._stage(position), [rows])
        scores = np.empty(rows)
        for stage in np.unique(stages):
            now = stages == stage
            weights = self._grid_weights(int(stage))
            scores[now] = weights[group, ids[now]].sum(axis=1) / GRID + self._bias
        labels = rng.random(rows) < _sigmoid(scores)
        if self._leak:
            tells = rng.random(rows) < (self._leak if leaking else 0.0)
            leak = np.where(tells, labels, rng.random(rows) < 0.5)
            ids = np.concatenate([ids, leak[:, None]], axis=1)
        return Batch(ids.astype(np.int32), labels.astype(np.float32)), scores

    def scored_examples(
        self, rows: int, *, seed: int, position: int = 0
    ) -> tuple[Batch, NDArray[np.float64]]:
        """Fresh held-out examples with their true scores, to check a figure by simulation."""
        return self._draw(np.random.default_rng(seed), rows, position, leaking=False)

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
        """An endless stream of its own for each worker; see `DataSet.batches`."""
        if epochs is not None:
            raise DataError("ctr is an endless stream and has no epochs. Leave out --epochs.")
        return self._stream(
            np.random.default_rng([seed, worker, position]), workers, batch_size, position
        )

    def _stream(
        self, rng: np.random.Generator, workers: int, batch_size: int, position: int
    ) -> Iterator[Batch]:
        per_block = max(1, BLOCK // batch_size)
        # While this worker draws a batch, each of the others draws one, too.
        ahead = np.repeat(np.arange(per_block) * workers * batch_size, batch_size)
        while True:
            block, _ = self._draw(rng, len(ahead), position + ahead, leaking=True)
            for first in range(0, per_block * batch_size, batch_size):
                last = first + batch_size
                yield Batch(block.ids[first:last], block.labels[first:last])
            position += workers * per_block * batch_size

    def held_out(self, position: int = 0) -> Batch:
        """The same draw at every position, labelled by the weights that hold there."""
        return self.scored_examples(self._held_out, seed=HELD_OUT_SEED, position=position)[0]

    def training_sample(self, position: int = 0) -> Batch:
        """Examples from the law of the training part, the leak included."""
        rng = np.random.default_rng(SAMPLE_SEED)
        return self._draw(rng, self._held_out, position, leaking=True)[0]


def _sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The logistic function, without overflow for large -x."""
    return 0.5 * (1.0 + np.tanh(0.5 * x))
