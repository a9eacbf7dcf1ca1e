"""The page auc: identifiers, layout, callbacks."""

from deepinsight.dashboard.pages.auc import callbacks, layout

__all__ = ["callbacks", "layout"]
