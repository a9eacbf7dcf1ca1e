"""The Dash app that shows traces in a browser while they are written."""

from deepinsight.dashboard.app import create_app

__all__ = ["create_app"]
