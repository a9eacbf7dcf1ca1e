"""The page runs: identifiers, layout, callbacks."""

from deepinsight.dashboard.pages.runs import callbacks, layout

__all__ = ["callbacks", "layout"]
