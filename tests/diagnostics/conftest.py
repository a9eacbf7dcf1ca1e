from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score


def _exact_auc(
    labels: NDArray[np.generic],
    scores: NDArray[np.floating],
    weights: NDArray[np.float64] | None = None,
) -> float:
    """Exact weighted AUC by scikit-learn, NaN if a class has no weight."""
    labels, scores = np.ravel(labels), np.ravel(scores).astype(np.float64)
    weights = np.ones(labels.size) if weights is None else np.ravel(weights)
    used = weights > 0
    labels, weights = labels[used].astype(bool), weights[used]
    if labels.all() or not labels.any():
        return float("nan")
    _, ranks = np.unique(scores[used], return_inverse=True)  # it refuses infinities
    return float(roc_auc_score(labels, ranks, sample_weight=weights))


@pytest.fixture(scope="session")
def exact_auc() -> Callable[..., float]:
    return _exact_auc
