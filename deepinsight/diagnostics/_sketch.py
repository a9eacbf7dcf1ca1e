"""A bounded, mergeable summary of weighted scores of two classes, made for their AUC.

Scores are mapped to 32-bit integers of the same order. The top bits choose one of 4,096 fixed
cells (an eighth of a power of two each); a cell is divided into :math:`2^L` equal buckets, where
:math:`L` follows the share of the weight that falls into the cell. So buckets gather where the
scores are, and finding a score's bucket takes two table look-ups, no search and no sort.

New rows wait in a buffer and are folded in together. The grid is adapted to them *before* they
are binned: a sudden change of the distribution costs them no accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Keys = NDArray[np.uint32]

KEY_BITS = 32
CELL_BITS = 12  # sign, 8 bits of exponent, 3 bits of mantissa
CELLS = 1 << CELL_BITS
LOW_BITS = KEY_BITS - CELL_BITS
PENDING_ROWS = 1 << 15  # rows buffered between two folds: 544 KiB
EXACT_ROWS = 1 << 14  # up to so many are sorted for a result, which stays below a millisecond
CHUNK_ROWS = 1 << 12  # binned at a time: larger temporaries cost page faults
SLACK_LEVELS = 2  # a cell may lack this many levels before the grid is made anew


class Rows(NamedTuple):
    """Predictions as they came: scores, whether positive, weights; each ``[n]``."""

    scores: Floats
    positive: Bools
    weights: Floats

    def part(self, start: int, stop: int) -> Rows:
        """Return a range of the rows as views."""
        return Rows(self.scores[start:stop], self.positive[start:stop], self.weights[start:stop])

    def copy(self) -> Rows:
        """Return the rows in memory of their own."""
        return Rows(self.scores.copy(), self.positive.copy(), self.weights.copy())


NO_ROWS = Rows(np.empty(0), np.empty(0, dtype=np.bool_), np.empty(0))


def ordered_keys(scores: Floats, probabilities: bool) -> Keys:
    """Map scores to unsigned integers of the same order.

    The key is the bit pattern of the float32 score, negative values flipped. For probabilities
    above 0.5 it is the flipped pattern of :math:`1 - p`, so that values close to 1 are told apart
    as finely as values close to 0.

    Args:
        scores: Scores without NaN, shape ``[n]``, float64; infinities are fine.
        probabilities: Whether the scores are probabilities in [0, 1].

    Returns:
        Keys, shape ``[n]``, uint32.
    """
    if probabilities:
        nearest_end = np.minimum(scores, 1.0 - scores).astype(np.float32)
        flip = np.negative((scores > 0.5).astype(np.int32))
        return (nearest_end.view(np.int32) ^ flip).view(np.uint32)
    with np.errstate(over="ignore"):  # beyond float32 is infinity
        bits = (scores + 0.0).astype(np.float32).view(np.int32)  # -0.0 and 0.0 are one score
    return (bits ^ ((bits >> 31) | np.int32(-(2**31)))).view(np.uint32)


@dataclass(frozen=True, eq=False)
class Grid:
    """Cell ``c`` divided into ``2 ** levels[c]`` buckets; ``levels`` is int64 ``[CELLS]``."""

    levels: NDArray[np.int64]

    @classmethod
    def for_weights(cls, cell_weights: Floats, resolution: int) -> Grid:
        """Give every cell buckets in proportion to its share of the two classes' weight.

        Args:
            cell_weights: Weight per class and cell, shape ``[2, CELLS]``.
            resolution: Number of buckets handed out by share; with one for every cell and the
                rounding up, a grid has at most ``2 * resolution + CELLS``.
        """
        totals = cell_weights.sum(axis=1, keepdims=True)
        shares = np.divide(
            cell_weights, 2.0 * totals, out=np.zeros_like(cell_weights), where=totals > 0.0
        )
        _, exponents = np.frexp(shares.sum(axis=0) * resolution)
        return cls(np.clip(exponents, 0, LOW_BITS).astype(np.int64))

    @cached_property
    def first(self) -> NDArray[np.int64]:
        """The first bucket of every cell, shape ``[CELLS]``."""
        return np.cumsum(self.sizes) - self.sizes

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """The number of buckets of every cell, shape ``[CELLS]``."""
        return np.int64(1) << self.levels

    @cached_property
    def size(self) -> int:
        """The number of buckets."""
        return int(self.sizes.sum())

    @cached_property
    def edges(self) -> Floats:
        """Keys at which buckets begin, and the end of the last, shape ``[size + 1]``."""
        cells = np.repeat(np.arange(CELLS), self.sizes)
        within = np.arange(self.size) - self.first[cells]
        starts = (cells << LOW_BITS) + (within << (LOW_BITS - self.levels[cells]))
        return np.append(starts, 1 << KEY_BITS).astype(np.float64)

    @cached_property
    def _lookup(self) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        shifts = LOW_BITS - self.levels
        offsets = self.first - (np.arange(CELLS, dtype=np.int64) << self.levels)
        return shifts.astype(np.uint32), offsets

    def bucket_of(self, keys: Keys) -> NDArray[np.int64]:
        """Return the bucket of every key, shape ``[n]``."""
        shifts, offsets = self._lookup
        cells = (keys >> np.uint32(LOW_BITS)).astype(np.intp)
        buckets: NDArray[np.int64] = offsets.take(cells)
        buckets += keys >> shifts.take(cells)
        return buckets


CELL_GRID = Grid(np.zeros(CELLS, dtype=np.int64))  # every cell one bucket


@dataclass(frozen=True, eq=False)
class ScoreHistogram:
    """Weight per class (negative, positive) and bucket, float64 ``[2, grid.size]``."""

    grid: Grid
    weights: Floats

    def cell_weights(self) -> Floats:
        """Weight per class and cell, shape ``[2, CELLS]``."""
        sums: Floats = np.add.reduceat(self.weights, self.grid.first, axis=1)
        return sums

    def onto(self, grid: Grid) -> Floats:
        """Return the weights on another grid; a bucket that is cut spreads evenly over its keys."""
        if grid is self.grid:
            return self.weights
        moved = np.empty((2, grid.size))
        below = np.zeros(self.grid.size + 1)
        for label in (0, 1):
            np.cumsum(self.weights[label], out=below[1:])
            moved[label] = np.diff(np.interp(grid.edges, self.grid.edges, below))
        return np.maximum(moved, 0.0, out=moved)  # interpolation rounds

    def plus(self, rows: Rows, probabilities: bool) -> ScoreHistogram:
        """Return the histogram with rows added."""
        weights = self.weights.copy()
        slots = weights.reshape(-1)
        for start in range(0, rows.scores.size, CHUNK_ROWS):
            scores, positive, row_weights = rows.part(start, start + CHUNK_ROWS)
            buckets = self.grid.bucket_of(ordered_keys(scores, probabilities))
            buckets += self.grid.size * positive
            np.add.at(slots, buckets, row_weights)
        return ScoreHistogram(self.grid, weights)

    def scaled(self, factor: float) -> ScoreHistogram:
        """Return the histogram with all weights multiplied."""
        return ScoreHistogram(self.grid, self.weights * factor)


def fold(
    histograms: Sequence[ScoreHistogram], rows: Rows, resolution: int, probabilities: bool
) -> ScoreHistogram:
    """Add histograms and rows on one grid; the inputs are not modified.

    Several histograms meet on a grid no finer than theirs: buckets are joined rather than cut, so
    that many equal scores, as saturation makes them, stay equal. A single histogram keeps its
    grid unless some cell has come to hold more than four times the share of the weight that its
    buckets were made for.
    """
    if len(histograms) == 1:
        together = histograms[0].plus(rows, probabilities)
        wanted = Grid.for_weights(together.cell_weights(), resolution)
        if np.all(wanted.levels <= together.grid.levels + SLACK_LEVELS):
            return together
    else:
        cells = ScoreHistogram(CELL_GRID, np.zeros((2, CELLS))).plus(rows, probabilities)
        for histogram in histograms:
            cells.weights[...] += histogram.cell_weights()
        wanted = Grid.for_weights(cells.weights, resolution)
        if histograms:
            wanted = Grid(np.minimum(wanted.levels, _mean_levels(histograms)))
    weights = np.zeros((2, wanted.size))
    for histogram in histograms:
        weights += histogram.onto(wanted)
    return ScoreHistogram(wanted, weights).plus(rows, probabilities)


def _mean_levels(histograms: Sequence[ScoreHistogram]) -> NDArray[np.int64]:
    """Return the cells' levels, averaged by the weight that each histogram holds there."""
    held = np.array([histogram.cell_weights() for histogram in histograms])
    totals = held.sum(axis=(0, 2), keepdims=True)
    held = np.divide(held, totals, out=np.zeros_like(held), where=totals > 0.0).sum(axis=1)
    levels = np.array([histogram.grid.levels for histogram in histograms])
    weight = held.sum(axis=0)
    means = np.divide((held * levels).sum(axis=0), weight, out=np.zeros(CELLS), where=weight > 0.0)
    floors: NDArray[np.int64] = means.astype(np.int64)
    return floors


def auc_of_weights(weights: Floats) -> float:
    """Return the AUC of two classes' weights over ascending scores; a shared score counts half.

    Args:
        weights: Weight of the negatives and of the positives per score, shape ``[2, n]``.

    Returns:
        The AUC in [0, 1]; NaN if a class has no weight.
    """
    totals = weights.sum(axis=1, keepdims=True)
    if not (totals > 0.0).all():
        return float("nan")
    negative, positive = weights / totals
    below = np.cumsum(negative)
    below -= 0.5 * negative
    return min(1.0, max(0.0, float(positive @ below)))


class ScoreSketch:
    """Scores of two classes with weights: add, scale, merge, AUC.

    Exact up to 16,384 rows; from then on a histogram with adapted buckets.

    Args:
        resolution: Buckets handed out by share of the weight, see :meth:`Grid.for_weights`.
        probabilities: Whether the scores are probabilities in [0, 1].
    """

    def __init__(self, resolution: int, probabilities: bool) -> None:
        self.resolution = resolution
        self.probabilities = probabilities
        self.histogram: ScoreHistogram | None = None
        self._scores, self._positive, self._weights = NO_ROWS
        self._pending = 0

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the used part of the buffer only, and grids without what they cache."""
        histogram = self.histogram
        return {
            "resolution": self.resolution,
            "probabilities": self.probabilities,
            "rows": tuple(self.rows().copy()),
            "histogram": histogram and (histogram.grid.levels, histogram.weights),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.resolution = state["resolution"]
        self.probabilities = state["probabilities"]
        self._scores, self._positive, self._weights = state["rows"]
        self._pending = self._scores.size
        saved = state["histogram"]
        self.histogram = saved and ScoreHistogram(Grid(saved[0]), saved[1])

    def rows(self) -> Rows:
        """The rows that are not folded yet, as views."""
        return Rows(self._scores, self._positive, self._weights).part(0, self._pending)

    def parts(self) -> list[ScoreHistogram]:
        """The histogram in a list, empty if there is none yet."""
        return [] if self.histogram is None else [self.histogram]

    def folded(self) -> ScoreHistogram:
        """Return everything as one histogram; the sketch is not modified."""
        return fold(self.parts(), self.rows(), self.resolution, self.probabilities)

    def add(self, scores: Floats, positive: Bools, weights: Floats | float) -> None:
        """Add rows; ``weights`` is ``[n]`` or one weight for all."""
        if self._scores.size < PENDING_ROWS:
            self._allocate()
        start, n = 0, scores.size
        while start < n:
            at = self._pending
            taken = min(n - start, PENDING_ROWS - at)
            to, end = at + taken, start + taken
            self._scores[at:to] = scores[start:end]
            self._positive[at:to] = positive[start:end]
            self._weights[at:to] = weights if isinstance(weights, float) else weights[start:end]
            start, self._pending = end, to
            if to == PENDING_ROWS:
                self.histogram = self.folded()
                self._pending = 0

    def _allocate(self) -> None:
        rows, n = self.rows(), self._pending
        self._scores = np.empty(PENDING_ROWS)
        self._positive = np.empty(PENDING_ROWS, dtype=np.bool_)
        self._weights = np.empty(PENDING_ROWS)
        self._scores[:n], self._positive[:n], self._weights[:n] = rows

    def close(self, most_rows: int) -> None:
        """Give the buffer back; more than ``most_rows`` pending rows are folded."""
        if self._pending > most_rows:
            self.histogram = self.folded()
            self._pending = 0
        self._scores, self._positive, self._weights = self.rows().copy()
        if self.histogram is not None:  # also what the grid caches
            self.histogram = ScoreHistogram(
                Grid(self.histogram.grid.levels), self.histogram.weights
            )

    def scale(self, factor: float) -> None:
        """Multiply all weights."""
        self.rows().weights[...] *= factor
        if self.histogram is not None:
            self.histogram = self.histogram.scaled(factor)

    def absorb(self, others: Sequence[ScoreSketch], factor: float = 1.0) -> None:
        """Add other sketches, their weights multiplied by ``factor``; they stay as they are."""
        rows = [other.rows().copy() for other in others]  # `others` may hold this very sketch
        parts = self.parts()
        parts += [part.scaled(factor) for other in others for part in other.parts()]
        if len(parts) > 1:
            parts = [fold(parts, NO_ROWS, self.resolution, self.probabilities)]
        self.histogram = parts[0] if parts else None
        for scores, positive, weights in rows:
            self.add(scores, positive, weights * factor)

    def class_weights(self) -> tuple[float, float]:
        """Return the summed weight of the negatives and of the positives."""
        rows = self.rows()
        sums = np.array([rows.weights[~rows.positive].sum(), rows.weights[rows.positive].sum()])
        for part in self.parts():
            sums += part.weights.sum(axis=1)
        return float(sums[0]), float(sums[1])

    def auc(self) -> float:
        """Return the AUC, NaN if a class has no weight; the sketch is not modified."""
        if self.histogram is not None or self._pending > EXACT_ROWS:
            return auc_of_weights(self.folded().weights)
        rows = self.rows()
        distinct, ranks = np.unique(rows.scores, return_inverse=True)
        weights = np.zeros((2, distinct.size))
        np.add.at(weights, (rows.positive.astype(np.intp), ranks), rows.weights)
        return auc_of_weights(weights)
