"""The optimizer kernels in C++: compiled against the installed TensorFlow on first use.

Importing this package loads no TensorFlow; `ops` and `build` do.
"""

from deepinsight.trainer.kernels.errors import (
    CompilerNotFoundError,
    KernelBuildError,
    KernelCacheError,
    KernelError,
    KernelLoadError,
    KernelMismatchError,
)
from deepinsight.trainer.kernels.library import build, ops

__all__ = [
    "CompilerNotFoundError",
    "KernelBuildError",
    "KernelCacheError",
    "KernelError",
    "KernelLoadError",
    "KernelMismatchError",
    "build",
    "ops",
]
