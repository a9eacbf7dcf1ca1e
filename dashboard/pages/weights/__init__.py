"""The page weights: identifiers, layout, callbacks."""

from deepinsight.dashboard.pages.weights import callbacks, layout

__all__ = ["callbacks", "layout"]
