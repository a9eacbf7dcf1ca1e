"""What can go wrong between the C++ sources and the loaded op library."""

from deepinsight.errors import DeepInsightError


class KernelError(DeepInsightError, RuntimeError):
    """The optimizer kernels cannot be built or loaded; the message says what to do."""


class CompilerNotFoundError(KernelError):
    """There is no C++ compiler, or the one that ``CXX`` names does not run."""


class KernelBuildError(KernelError):
    """The kernels do not compile or link; the message names the unit and the log."""


class KernelCacheError(KernelError):
    """A folder that the build has to write to cannot be written."""


class KernelMismatchError(KernelError):
    """A library was built for another TensorFlow, other sources or another CPU."""


class KernelLoadError(KernelError):
    """A library is missing, damaged, or refused by TensorFlow."""
