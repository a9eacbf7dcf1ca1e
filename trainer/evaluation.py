"""Loss and AUC of logits, and the evaluation of a model in a session."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from deepinsight.trainer.data.base import Batch

CHUNK = 4096  # examples per pass through the model


class Evaluation(NamedTuple):
    """Mean binary cross-entropy in nat, and AUC (NaN if only one class occurs)."""

    loss: float
    auc: float


def log_loss(labels: ArrayLike, logits: ArrayLike) -> float:
    r"""Mean binary cross-entropy, in nat.

    .. math:: \frac1n \sum_i \max(z_i, 0) - z_i y_i + \log(1 + e^{-|z_i|})

    Args:
        labels: y, 0 or 1, shape ``[n]``.
        logits: z, shape ``[n]``.

    Returns:
        The loss; NaN for no examples.
    """
    y, z = np.asarray(labels, np.float64), np.asarray(logits, np.float64)
    if not len(y):
        return float("nan")
    return float(np.mean(np.maximum(z, 0) - z * y + np.log1p(np.exp(-np.abs(z)))))


def exact_auc(labels: ArrayLike, scores: ArrayLike) -> float:
    """The area under the ROC curve, exact, ties counted half.

    Args:
        labels: 0 or 1, shape ``[n]``.
        scores: Any increasing function of P(y = 1), shape ``[n]``.

    Returns:
        The AUC; NaN if a class is missing or a score is NaN.
    """
    y, s = np.asarray(labels) > 0.5, np.asarray(scores, np.float64)
    positives = int(y.sum())
    if not positives or positives == len(y) or np.isnan(s).any():
        return float("nan")
    _, place, counts = np.unique(s, return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(counts) - (counts - 1) / 2
    wins = mean_ranks[place[y]].sum() - positives * (positives + 1) / 2
    return float(wins / (positives * (len(y) - positives)))


def evaluate(
    logits: Callable[[NDArray[np.int32]], NDArray[np.float32]], batch: Batch
) -> Evaluation:
    """Evaluate a model on a batch of any size.

    Args:
        logits: The model, IDs ``[n, slots]`` to logits ``[n]``.
        batch: The examples.
    """
    starts = range(0, len(batch.labels), CHUNK)
    values = np.concatenate([logits(batch.ids[i : i + CHUNK]) for i in starts])
    return Evaluation(log_loss(batch.labels, values), exact_auc(batch.labels, values))
