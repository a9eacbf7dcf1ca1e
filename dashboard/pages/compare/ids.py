"""Identifiers of the page that compares runs."""

from enum import StrEnum


class Compare(StrEnum):
    """Components of the page."""

    RUNS = "compare-runs"
    STREAM = "compare-stream"
    AGAINST = "compare-against"
    FIGURE = "compare-figure"
    TABLE = "compare-table"
    VERSION = "compare-version"
    BANNER = "compare-banner"
    TICK = "compare-tick"
