"""Identifiers of the page about the optimizer."""

from enum import StrEnum


class Optimizer(StrEnum):
    """Components of the page."""

    RUNS = "optimizer-runs"
    AGAINST = "optimizer-against"
    FIGURE = "optimizer-figure"
    TABLE = "optimizer-table"
    VERSION = "optimizer-version"
    BANNER = "optimizer-banner"
    TICK = "optimizer-tick"
