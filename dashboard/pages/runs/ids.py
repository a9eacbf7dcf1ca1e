"""Identifiers of the page of all runs."""

from enum import StrEnum


class Runs(StrEnum):
    """Components of the page."""

    TABLE = "runs-table"
    VERSION = "runs-version"
    TICK = "runs-tick"
