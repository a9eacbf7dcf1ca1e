"""Diagnostics: one question per module, data in, evidence out."""

from deepinsight.diagnostics.auc import CumulativeAUC, DecayedAUC, WindowedAUC

__all__ = ["CumulativeAUC", "DecayedAUC", "WindowedAUC"]
