"""Identifiers of the page about staleness."""

from enum import StrEnum


class Staleness(StrEnum):
    """Components of the page."""

    RUN = "staleness-run"
    DISTRIBUTION = "staleness-distribution"
    TIMELINE = "staleness-timeline"
    VARIABLES = "staleness-variables"
    THROUGHPUT = "staleness-throughput"
    VERSION = "staleness-version"
    BANNER = "staleness-banner"
    TICK = "staleness-tick"
