"""The root of every error that DeepInsight raises on purpose."""


class DeepInsightError(Exception):
    """Base class; each domain error also inherits from the matching builtin.

    Catch this to handle anything that DeepInsight itself reports, or the builtin
    (``ValueError``, ``FileNotFoundError``, ...) to handle it like any other library's.
    """
