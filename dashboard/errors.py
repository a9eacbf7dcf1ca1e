"""What can go wrong between a browser and the dashboard."""

from deepinsight.errors import DeepInsightError


class UnknownRunError(DeepInsightError, LookupError):
    """The key that the browser sent names no run below the runs folder."""


class ServeError(DeepInsightError, OSError):
    """The dashboard cannot be served at the address asked for."""


class TokenRequiredError(DeepInsightError, ValueError):
    """The address can be reached from other machines, and no token protects it."""
