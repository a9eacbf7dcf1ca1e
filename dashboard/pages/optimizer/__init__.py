"""The page optimizer: identifiers, layout, callbacks."""

from deepinsight.dashboard.pages.optimizer import callbacks, layout

__all__ = ["callbacks", "layout"]
