"""Identifiers of the page about the AUC."""

from enum import StrEnum


class Auc(StrEnum):
    """Components of the page."""

    RUN = "auc-run"
    TILES = "auc-tiles"
    HISTORY = "auc-history"
    TRAIN_LOSS = "auc-train-loss"
    EVAL_LOSS = "auc-eval-loss"
    VERSION = "auc-version"
    BANNER = "auc-banner"
    TICK = "auc-tick"
