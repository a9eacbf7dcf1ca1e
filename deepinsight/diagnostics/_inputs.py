"""What the AUC metrics accept: one place that checks a batch and says what is wrong with it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from deepinsight.errors import DeepInsightError

Floats = NDArray[np.float64]

LARGEST_WEIGHT = 1e100  # leaves room for growing weights and for their sums in float64
LARGEST_AT = 2.0**63
SHORTEST_LENGTH = 1e-9


class AUCInputError(DeepInsightError, ValueError):
    """A setting or a batch that an AUC metric cannot work with."""


class Batch(NamedTuple):
    """A checked batch: columns ``[n]``, and how many scores were NaN and are left out."""

    scores: Floats
    positive: NDArray[np.bool_]
    weights: Floats | float
    nan_scores: int


def checked_at(at: float) -> float:
    """Return the step or time of a batch as a float.

    Raises:
        AUCInputError: If it is not one finite number of at most 2**63 in magnitude.
    """
    try:
        value = float(at)
    except (TypeError, ValueError) as error:
        raise AUCInputError(
            f"`at` must be one number, the step or Unix time of the batch. Received: at={at!r}."
        ) from error
    if not abs(value) <= LARGEST_AT:
        raise AUCInputError(
            "`at` must be finite and at most 2**63 in magnitude: the step or the Unix time in "
            f"seconds of the batch. Received: at={at!r}."
        )
    return value


def checked_length(name: str, value: float) -> float:
    """Return a half-life or window as a float.

    Raises:
        AUCInputError: If it is not finite and at least 1e-9.
    """
    if not (value >= SHORTEST_LENGTH and math.isfinite(value)):
        raise AUCInputError(
            f"`{name}` must be finite and at least {SHORTEST_LENGTH:g}. Received: {name}={value!r}."
        )
    return float(value)


def checked_unit(unit: str) -> str:
    """Return the unit of `at`.

    Raises:
        AUCInputError: If it is neither "steps" nor "seconds".
    """
    if unit not in ("steps", "seconds"):
        raise AUCInputError(f'`unit` must be "steps" or "seconds". Received: unit={unit!r}.')
    return unit


def checked_batch(
    labels: ArrayLike, scores: ArrayLike, sample_weight: ArrayLike | None, from_logits: bool
) -> Batch:
    """Check a batch and flatten it.

    Predictions of weight 0 are left out unseen: padding may carry any label and score.

    Raises:
        AUCInputError: As described at :meth:`deepinsight.diagnostics.auc.DecayedAUC.update`.
    """
    given_labels, given_scores = _numbers("labels", labels), _numbers("scores", scores)
    if given_labels.shape != given_scores.shape:
        raise AUCInputError(
            "`labels` and `scores` must have the same shape; reshape one of them. Received: "
            f"labels of shape {given_labels.shape}, scores of shape {given_scores.shape}."
        )
    flat_labels = given_labels.ravel()
    values = given_scores.ravel().astype(np.float64, copy=False)
    weights: Floats | float = 1.0
    if sample_weight is not None:
        weights = _checked_weights(sample_weight, values.size)
        if not weights.all():
            used = weights > 0.0
            flat_labels, values, weights = flat_labels[used], values[used], weights[used]
    positive = _checked_labels(flat_labels)
    nan_scores = 0
    lowest = np.minimum.reduce(values) if values.size else 0.0
    if math.isnan(lowest):
        real = ~np.isnan(values)
        nan_scores = values.size - int(np.count_nonzero(real))
        values, positive = values[real], positive[real]
        weights = weights if isinstance(weights, float) else weights[real]
        lowest = values.min(initial=np.inf)
    if not from_logits and not (lowest >= 0.0 and values.max(initial=0.0) <= 1.0):
        wrong = values[(values < 0.0) | (values > 1.0)][0]
        raise AUCInputError(
            "`scores` must be probabilities in [0, 1]; for logits make the metric with "
            f"from_logits=True. Received: a score of {wrong:g}."
        )
    return Batch(values, positive, weights, nan_scores)


def _numbers(name: str, values: ArrayLike) -> NDArray[Any]:
    array: NDArray[Any] = np.asarray(values)
    if array.dtype.kind in "OSUMmc":
        raise AUCInputError(
            f"`{name}` must be an array of real numbers. Received: dtype {array.dtype}."
        )
    return array


def _checked_labels(labels: NDArray[Any]) -> NDArray[np.bool_]:
    if labels.dtype == np.bool_:
        return labels.astype(np.bool_, copy=False)
    positive = labels.astype(np.bool_)
    agrees = positive == labels
    if not np.logical_and.reduce(agrees):
        wrong = labels[~agrees][0]
        raise AUCInputError(
            "`labels` must be 0 or 1 (or bool); give predictions without a label the "
            f"sample weight 0. Received: a label of {wrong}."
        )
    return positive


def _checked_weights(sample_weight: ArrayLike, n: int) -> Floats:
    given = _numbers("sample_weight", sample_weight)
    weights = given.ravel().astype(np.float64, copy=False)
    if weights.size != n:
        if given.ndim:
            raise AUCInputError(
                "`sample_weight` must be one number or have as many values as `labels`. "
                f"Received: {weights.size} weights for {n} labels."
            )
        weights = np.full(n, weights[0])
    if weights.size and not (weights.min() >= 0.0 and weights.max() <= LARGEST_WEIGHT):
        wrong = weights[~((weights >= 0.0) & (weights <= LARGEST_WEIGHT))][0]
        raise AUCInputError(
            f"`sample_weight` must be >= 0 and at most {LARGEST_WEIGHT:g}. "
            f"Received: a weight of {wrong:g}."
        )
    return weights
