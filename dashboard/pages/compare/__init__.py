"""The page compare: identifiers, layout, callbacks."""

from deepinsight.dashboard.pages.compare import callbacks, layout

__all__ = ["callbacks", "layout"]
