"""What can go wrong with a trace, each error also the builtin that it resembles."""

from deepinsight.errors import DeepInsightError


class TraceError(DeepInsightError):
    """A trace cannot be written or read as asked."""


class TraceNotFoundError(TraceError, FileNotFoundError):
    """There is no run at the given path."""


class RunNotFoundError(TraceNotFoundError, KeyError):
    """The folder holds no run of that name."""


class StreamNotFoundError(TraceError, KeyError):
    """The run has no stream of that name."""

    def __str__(self) -> str:
        # KeyError shows the repr of its argument, which would quote the whole sentence.
        return str(self.args[0])


class TraceWriteError(TraceError, OSError):
    """The trace folder cannot be written."""


class ProcessNameInUseError(TraceWriteError):
    """Another writer holds the process name in this run."""


class SegmentError(TraceError, OSError):
    """A segment file cannot be read; the message names the file and the remedy.

    Attributes:
        damaged: True if the file is broken, False if it is foreign or of a newer version.
    """

    def __init__(self, message: str, damaged: bool = False) -> None:
        super().__init__(message)
        self.damaged = damaged
