"""The page staleness: identifiers, layout, callbacks."""

from deepinsight.dashboard.pages.staleness import callbacks, layout

__all__ = ["callbacks", "layout"]
