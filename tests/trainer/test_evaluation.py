import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss as sklearn_loss
from sklearn.metrics import roc_auc_score

from deepinsight.trainer.data import Batch
from deepinsight.trainer.evaluation import CHUNK, evaluate, exact_auc, log_loss


@given(
    st.lists(st.tuples(st.booleans(), st.integers(-3, 3)), min_size=2, max_size=40).filter(
        lambda pairs: len({label for label, _ in pairs}) == 2
    )
)
def test_auc_agrees_with_scikit_learn_ties_included(pairs):
    labels, scores = zip(*pairs, strict=True)
    assert exact_auc(labels, scores) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


@pytest.mark.parametrize("labels", [[], [1.0], [0.0, 0.0]])
def test_auc_of_one_class_is_undefined(labels):
    assert math.isnan(exact_auc(labels, np.zeros(len(labels))))


def test_auc_of_scores_that_are_no_numbers_is_undefined():
    assert math.isnan(exact_auc([0, 1], [0.0, math.nan]))
    assert exact_auc([0, 1], [-math.inf, math.inf]) == 1.0


def test_loss_agrees_with_scikit_learn_and_survives_large_logits():
    rng = np.random.default_rng(1)
    labels, logits = rng.integers(0, 2, 500), rng.normal(0, 4, 500)
    expected = sklearn_loss(labels, 1 / (1 + np.exp(-logits)))
    assert log_loss(labels, logits) == pytest.approx(expected, rel=1e-9)
    assert log_loss([1, 0], [1000.0, 1000.0]) == 500.0
    assert math.isnan(log_loss([], []))


def test_evaluation_in_chunks_is_the_same_as_whole():
    rng = np.random.default_rng(1)
    rows = 2 * CHUNK + 17
    ids = rng.integers(0, 9, (rows, 1)).astype(np.int32)
    labels = rng.integers(0, 2, rows).astype(np.float32)
    sizes = []

    def logits(part):
        sizes.append(len(part))
        return part[:, 0] / 9 - 0.5

    result = evaluate(logits, Batch(ids, labels))
    assert sizes == [CHUNK, CHUNK, 17]
    assert result.auc == exact_auc(labels, ids[:, 0])
    assert result.loss == pytest.approx(log_loss(labels, ids[:, 0] / 9 - 0.5))
