"""Identifiers of the page about weights."""

from enum import StrEnum


class Weights(StrEnum):
    """Components of the page."""

    RUN = "weights-run"
    VARIABLE = "weights-variable"
    COLOURS = "weights-colours"
    STATISTIC = "weights-statistic"
    SLIDER = "weights-slider"
    READOUT = "weights-readout"
    SNAPSHOT = "weights-snapshot"
    HEATMAP = "weights-heatmap"
    GROUPS = "weights-groups"
    DISTRIBUTION = "weights-distribution"
    GRADIENTS = "weights-gradients"
    VERSION = "weights-version"
    BANNER = "weights-banner"
    TICK = "weights-tick"
