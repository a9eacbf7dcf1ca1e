r"""Live AUC of a training run: decayed, windowed and cumulative.

All three estimate the area under the ROC curve of weighted predictions, the chance that a
positive is scored above a negative, ties counting half:

.. math::

    \mathrm{AUC} = \frac{\sum_{i : y_i = 1} \sum_{j : y_j = 0} w_i w_j
        \left([s_i > s_j] + \tfrac12 [s_i = s_j]\right)}
        {\sum_{i : y_i = 1} w_i \; \sum_{j : y_j = 0} w_j}

with scores :math:`s`, labels :math:`y` and weights :math:`w`. They differ in the weights only:
how much of the past counts. If a class has no weight, the AUC is undefined: NaN, never 0.5.

Accuracy: exact up to 16,384 predictions (:class:`WindowedAUC`: up to 1,024 in each of its slices),
then a histogram whose buckets, at most 36,864, follow the distribution of the scores. Within a
bucket everything counts as tied, so a bucket that holds the shares :math:`p_b` and :math:`n_b` of
the two classes' weight moves the AUC by at most :math:`\tfrac12 p_b n_b`; when the distribution
moves and the grid is made anew, a bucket's weight is spread evenly over its range. Measured on
:math:`10^6` predictions (balanced, click rates of 3 % and 0.1 %, scores collapsed into
:math:`0.02 \pm 0.0001`, saturated; several seeds, with and without decay) the absolute error stays
below :math:`10^{-5}`, that of :class:`WindowedAUC`, whose slices have 12,288 buckets at most,
below :math:`5 \cdot 10^{-5}`. Scores are compared as float32; probabilities close to 1 as finely as
those close to 0. Scores that all lie within one part in :math:`10^4` of each other reach about
:math:`10^{-3}` only.

Cost: an update takes time in proportion to its batch; every 32,768 predictions are folded into
the histogram at once. A metric takes at most 2 MiB, :class:`WindowedAUC` 8 MiB; they pickle.

References:
    Fawcett, 2006, "An introduction to ROC analysis", Pattern Recognition Letters 27(8).
    Hanley and McNeil, 1982, "The meaning and use of the area under a receiver operating
    characteristic (ROC) curve", Radiology 143(1).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Self

from numpy.typing import ArrayLike

from deepinsight.diagnostics._inputs import (
    AUCInputError,
    Batch,
    checked_at,
    checked_batch,
    checked_length,
    checked_unit,
)
from deepinsight.diagnostics._sketch import ScoreSketch

RESOLUTION = 1 << 14
SLICES = 32  # of a window
WINDOW_RESOLUTION = 1 << 12  # of each slice, and of all together
SLICE_ROWS = 1 << 10  # kept as they are when a slice is over
MOST_GROWTH = 64.0  # half-lives that weights grow before everything is scaled down


class _StreamingAUC(ABC):
    """What the three metrics share: checks, the count of NaN scores, and the newest clock."""

    def __init__(self, from_logits: bool) -> None:
        self.from_logits = bool(from_logits)
        self.reset()

    def reset(self) -> None:
        """Forget everything but the settings."""
        self._nan_scores = 0
        self._newest = -math.inf
        self._clear()

    @property
    def nan_scores(self) -> int:
        """Predictions left out because their score was NaN, since the start; never decayed."""
        return self._nan_scores

    def update(
        self,
        labels: ArrayLike,
        scores: ArrayLike,
        at: float,
        sample_weight: ArrayLike | None = None,
    ) -> None:
        """Add the predictions of one batch.

        A NaN score has no place in the order: the prediction is left out and counted in
        :attr:`nan_scores`. An empty batch only advances the clock. A batch that is refused
        changes nothing.

        Args:
            labels: 0 or 1 (bool, integer or float), any shape.
            scores: Of the same shape. Probabilities in [0, 1], or with ``from_logits=True`` any
                number that ranks the predictions, infinities included.
            at: Step or Unix seconds of the batch, finite. Batches may come in any order.
            sample_weight: One number, or as many as labels; >= 0 and at most 1e100. Predictions
                of weight 0 are left out unseen, whatever their label and score.

        Raises:
            ValueError: If shapes differ, a label is neither 0 nor 1, a weight is negative, NaN or
                too large, a probability is outside [0, 1], or ``at`` is not a finite number.
        """
        at = checked_at(at)
        batch = checked_batch(labels, scores, sample_weight, self.from_logits)
        self._nan_scores += batch.nan_scores
        self._newest = max(self._newest, at)
        self._add(batch, at)

    def merge(self, other: Self) -> None:
        """Add what another metric has seen, for example another worker's; it stays as it is.

        The result is that of one metric that saw the batches of both.

        Args:
            other: A metric of the same kind and settings.

        Raises:
            ValueError: If kind or settings differ.
        """
        theirs = other._settings() if isinstance(other, _StreamingAUC) else type(other).__name__
        if theirs != self._settings():
            raise AUCInputError(
                "only metrics of the same settings can be merged; make both alike. "
                f"Received: {theirs} for {self._settings()}."
            )
        self._nan_scores += other._nan_scores
        self._newest = max(self._newest, other._newest)
        self._merge(other)

    def result(self) -> float:
        """Return the AUC in [0, 1], or NaN if a class has no weight. Changes nothing."""
        return self._total().auc()

    def class_weights(self) -> tuple[float, float]:
        """Return the summed weight of negatives and positives, as of the newest ``at`` seen."""
        negative, positive = self._total().class_weights()
        unit = self._unit_weight()
        return negative * unit, positive * unit

    def __repr__(self) -> str:
        return self._settings()

    def _unit_weight(self) -> float:
        """What a stored weight of 1 counts now."""
        return 1.0

    @abstractmethod
    def _clear(self) -> None: ...

    @abstractmethod
    def _settings(self) -> str: ...

    @abstractmethod
    def _add(self, batch: Batch, at: float) -> None: ...

    @abstractmethod
    def _merge(self, other: Self) -> None: ...

    @abstractmethod
    def _total(self) -> ScoreSketch: ...


class DecayedAUC(_StreamingAUC):
    r"""AUC in which a prediction counts half as much after every half-life.

    The AUC of the module's formula with the weights

    .. math::  w_i = v_i \, 2^{-(T - t_i) / h}

    where :math:`v_i` is the sample weight, :math:`t_i` the step or time of the prediction's batch,
    :math:`h` the half-life and :math:`T` the newest step or time. The weights do not depend on
    the order of the batches. Nothing is decayed in place: new weights grow instead, and all are
    scaled down once in 64 half-lives.

    What is about 1,000 half-lives old counts as absent. So a single batch stamped far into the
    future makes all others negligible, as the formula says; :meth:`reset` mends that.

    Args:
        half_life: :math:`h` in units of ``at``, at least 1e-9; None never forgets.
        unit: What ``at`` counts, "steps" or "seconds" (Unix time).
        from_logits: Whether scores may be any number instead of probabilities. Prefer logits:
            probabilities that a float32 sigmoid rounds to 0 or 1 are tied, their logits are not.

    Raises:
        ValueError: If ``half_life`` or ``unit`` is out of range.

    Examples:
        >>> auc = DecayedAUC(half_life=100)
        >>> auc.update([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8], at=0)
        >>> auc.result()
        0.75
        >>> auc.update([0, 1], [0.9, 0.2], at=100)  # one half-life later, ranked wrongly
        >>> auc.class_weights()
        (2.0, 2.0)
        >>> auc.result()
        0.3125
    """

    def __init__(
        self, half_life: float | None, unit: str = "steps", from_logits: bool = False
    ) -> None:
        self.half_life = None if half_life is None else checked_length("half_life", half_life)
        self.unit = checked_unit(unit)
        super().__init__(from_logits)

    def _clear(self) -> None:
        self._sketch = ScoreSketch(RESOLUTION, probabilities=not self.from_logits)
        self._reference: float | None = None  # weights are stored as of this step or time

    def _settings(self) -> str:
        return (
            f"DecayedAUC(half_life={self.half_life}, unit={self.unit!r}, "
            f"from_logits={self.from_logits})"
        )

    def _add(self, batch: Batch, at: float) -> None:
        weight = self._weight_of(at)
        if weight > 0.0:
            self._sketch.add(batch.scores, batch.positive, batch.weights * weight)

    def _weight_of(self, at: float) -> float:
        """Return the weight to store for a sample weight of 1, at most ``2 ** MOST_GROWTH``."""
        if self.half_life is None:
            return 1.0
        if self._reference is None:
            self._reference = at
        if (at - self._reference) / self.half_life > MOST_GROWTH:
            self._store_as_of(at)
        return float(2.0 ** ((at - self._reference) / self.half_life))

    def _store_as_of(self, at: float) -> None:
        if self.half_life is not None and self._reference is not None:
            self._sketch.scale(2.0 ** ((self._reference - at) / self.half_life))
            self._reference = at

    def _merge(self, other: Self) -> None:
        self._store_as_of(self._newest)  # no factor exceeds 1, however often metrics are merged
        factor = 1.0 if other._reference is None else self._weight_of(other._reference)
        self._sketch.absorb([other._sketch], factor)

    def _total(self) -> ScoreSketch:
        return self._sketch

    def _unit_weight(self) -> float:
        if self.half_life is None or self._reference is None:
            return 1.0
        return float(2.0 ** ((self._reference - self._newest) / self.half_life))


class CumulativeAUC(DecayedAUC):
    """AUC of everything seen so far: the module's formula with the sample weights alone.

    It computes what ``DecayedAUC(half_life=None)`` does.

    Args:
        from_logits: Whether scores may be any number instead of probabilities.

    Examples:
        >>> auc = CumulativeAUC(from_logits=True)
        >>> auc.update([0, 1, 1], [-2.0, -2.0, 3.0])
        >>> auc.result()
        0.75
    """

    def __init__(self, from_logits: bool = False) -> None:
        super().__init__(half_life=None, from_logits=from_logits)

    def _settings(self) -> str:
        return f"CumulativeAUC(from_logits={self.from_logits})"

    def update(
        self,
        labels: ArrayLike,
        scores: ArrayLike,
        at: float = 0.0,
        sample_weight: ArrayLike | None = None,
    ) -> None:
        """Add the predictions of one batch, as :meth:`DecayedAUC.update`; ``at`` is not used."""
        super().update(labels, scores, at, sample_weight)


class WindowedAUC(_StreamingAUC):
    r"""AUC of the last ``window`` steps or seconds.

    The AUC of the module's formula with the sample weights of the batches whose ``at`` lies in
    :math:`(T - W, T]`, :math:`T` being the newest and :math:`W` the window. Memory is bounded by
    keeping 32 slices of :math:`W / 32`, which begin at multiples of that length and are dropped
    whole. So nothing older than :math:`W` ever counts, and everything younger than
    :math:`\tfrac{31}{32} W` does. A window of at most 32 steps is exact to the step.

    A batch older than the window is left out. If the clock restarts for good, call :meth:`reset`.

    Args:
        window: :math:`W` in units of ``at``, at least 1e-9.
        unit: What ``at`` counts, "steps" or "seconds" (Unix time).
        from_logits: Whether scores may be any number instead of probabilities.

    Raises:
        ValueError: If ``window`` or ``unit`` is out of range.

    Examples:
        >>> auc = WindowedAUC(window=10)
        >>> auc.update([0, 1], [0.9, 0.2], at=0)
        >>> auc.update([0, 1], [0.3, 0.6], at=9)
        >>> auc.result()
        0.25
        >>> auc.update([], [], at=10)  # the first batch is 10 steps old now
        >>> auc.result()
        1.0
    """

    def __init__(self, window: float, unit: str = "steps", from_logits: bool = False) -> None:
        self.window = checked_length("window", window)
        self.unit = checked_unit(unit)
        super().__init__(from_logits)

    def _clear(self) -> None:
        self._slices: dict[int, ScoreSketch] = {}
        self._open: int | None = None  # the slice that has a buffer
        self._closed_total: ScoreSketch | None = None  # all others together, once asked for

    def _settings(self) -> str:
        return (
            f"WindowedAUC(window={self.window}, unit={self.unit!r}, from_logits={self.from_logits})"
        )

    def _index(self, at: float) -> int:
        return int(at * SLICES // self.window)

    def _new_sketch(self) -> ScoreSketch:
        return ScoreSketch(WINDOW_RESOLUTION, probabilities=not self.from_logits)

    def _add(self, batch: Batch, at: float) -> None:
        index = self._index(at)
        newest = self._index(self._newest)
        if index <= newest - SLICES:
            return
        if index != self._open:
            self._turn_to(index, newest)
        self._slices[index].add(batch.scores, batch.positive, batch.weights)

    def _turn_to(self, index: int | None, newest: int) -> None:
        """Close the open slice, drop what is too old, and open another slice."""
        if self._open is not None:
            self._slices[self._open].close(SLICE_ROWS)
        self._slices = {at: part for at, part in self._slices.items() if at > newest - SLICES}
        self._open = index
        self._closed_total = None
        if index is not None:
            self._slices.setdefault(index, self._new_sketch())

    def _merge(self, other: Self) -> None:
        if not other._slices:
            return
        newest = self._index(self._newest)
        self._turn_to(None, newest)
        for index, theirs in other._slices.items():
            if index > newest - SLICES:
                mine = self._slices.setdefault(index, self._new_sketch())
                mine.absorb([theirs])
                mine.close(SLICE_ROWS)

    def _total(self) -> ScoreSketch:
        newest = self._open
        if self._closed_total is None:
            self._closed_total = self._new_sketch()
            closed = [part for index, part in self._slices.items() if index != newest]
            self._closed_total.absorb(closed)
            self._closed_total.close(SLICE_ROWS * SLICES)
        total = self._new_sketch()
        total.absorb([self._closed_total])
        if newest is not None:
            total.absorb([self._slices[newest]])
        return total
