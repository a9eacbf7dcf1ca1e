"""What can go wrong before or during a training run, each error also the matching builtin."""

from deepinsight.errors import DeepInsightError


class TrainerError(DeepInsightError):
    """A training run cannot be started or carried on as asked."""


class OptionError(TrainerError, ValueError):
    """An option has a value that cannot be used; the message names the option."""


class DataError(TrainerError, ValueError):
    """A data set cannot be read; the message names the file and the line where there is one."""


class ClusterError(TrainerError, RuntimeError):
    """The processes of a run cannot be brought together, or one of them was lost."""
