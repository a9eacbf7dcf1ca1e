"""What surrounds every page: the address, the navigation, and the way from one to the other."""

from deepinsight.dashboard.shell import callbacks, layout

__all__ = ["callbacks", "layout"]
