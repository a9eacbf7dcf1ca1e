"""What compiles the kernels and for which machine: TensorFlow's flags, compiler, architecture."""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from deepinsight.trainer.kernels.cpu import needed_cpu_flags, present_cpu_flags
from deepinsight.trainer.kernels.errors import CompilerNotFoundError

# Contraction is off because float32 has to equal TensorFlow's own kernels bit for bit.
FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fopenmp-simd",
    "-DNDEBUG",
    "-Wall",
    "-Wextra",
)
_LIBRARY_REMEDY = (
    "or set DEEPINSIGHT_KERNELS to a folder that `deepinsight kernels build --output DIR` wrote on "
    "a machine with a compiler"
)


@dataclass(frozen=True)
class TensorFlow:
    """The TensorFlow that a library is compiled against and loaded into.

    Attributes:
        version: Such as ``2.21.0``.
        build: Its source revision and compiler: two builds of one version may differ in ABI.
        compile_flags: As TensorFlow gives them, without the folders of headers.
        include_folders: Folders of headers.
        link_flags: As TensorFlow gives them.
    """

    version: str
    build: str
    compile_flags: tuple[str, ...]
    include_folders: tuple[str, ...]
    link_flags: tuple[str, ...]

    @property
    def abi(self) -> dict[str, object]:
        """What must be the same where a library is built and where it is loaded."""
        flags = list(self.compile_flags)
        return {"version": self.version, "build": self.build, "compile_flags": flags}


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler.

    Attributes:
        command: Program and its fixed arguments.
        name: Program without its folder, fixed arguments, version: such as ``g++ 12.2.0``.
        clang: Whether it is Clang.
        major: First number of its version.
    """

    command: tuple[str, ...]
    name: str
    clang: bool
    major: int


@dataclass(frozen=True)
class Target:
    """An architecture to compile for.

    Attributes:
        flags: Such as ``("-march=native",)``; empty for the compiler's default.
        macros: The preprocessor's definitions under these flags: they say what the flags mean
            on this machine.
    """

    flags: tuple[str, ...]
    macros: str

    @property
    def label(self) -> str:
        """The flags in words."""
        return " ".join(self.flags) or "the compiler's default architecture"

    @cached_property
    def cpu_flags(self) -> list[str]:
        """What the CPU must have, in the words of ``/proc/cpuinfo``; sorted.

        Of ``-march=native`` only what this machine's ``/proc/cpuinfo`` lists: the compiler asks
        the CPU itself, which may tell more than the kernel shows.
        """
        needed = needed_cpu_flags(self.macros)
        if "-march=native" in self.flags:
            needed &= present_cpu_flags()
        return sorted(needed)


@dataclass(frozen=True)
class Recipe:
    """Everything but the sources that decides what a build yields."""

    tensorflow: TensorFlow
    compiler: Compiler
    target: Target

    @property
    def flags(self) -> list[str]:
        """What the units are compiled with, without folders."""
        return [*FLAGS, *self.target.flags, *self.tensorflow.compile_flags]

    @property
    def digest(self) -> str:
        """Hash of all that counts, 64 hexadecimal digits."""
        parts = [
            repr(self.tensorflow.abi),
            repr([flag for flag in self.tensorflow.link_flags if not flag.startswith("-L")]),
            self.compiler.name,
            repr(self.flags),
            platform.machine(),
            self.target.macros,
        ]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def __str__(self) -> str:
        return (
            f"for TensorFlow {self.tensorflow.version} with {self.compiler.name}, "
            f"{self.target.label}"
        )


def find_tensorflow() -> TensorFlow:
    """Ask the installed TensorFlow how to compile against it; imports TensorFlow."""
    import tensorflow as tf

    flags = tf.sysconfig.get_compile_flags()
    return TensorFlow(
        version=tf.version.VERSION,
        build=f"{tf.version.GIT_VERSION} {tf.version.COMPILER_VERSION}",
        compile_flags=tuple(flag for flag in flags if not flag.startswith("-I")),
        include_folders=tuple(flag[2:] for flag in flags if flag.startswith("-I")),
        link_flags=tuple(tf.sysconfig.get_link_flags()),
    )


def find_compiler() -> Compiler:
    """Find the compiler that ``CXX`` names, or else g++, c++ or clang++ on the path.

    Raises:
        CompilerNotFoundError: If there is none, or it does not run.
    """
    given = os.environ.get("CXX", "").strip()
    if given:
        command = shlex.split(given)
        if shutil.which(command[0]) is None:
            raise CompilerNotFoundError(
                f"CXX must name a C++ compiler. Received: CXX={given!r}, which is not there. "
                f"Correct or unset it, {_LIBRARY_REMEDY}."
            )
        return _identify(command)
    for name in ("g++", "c++", "clang++"):
        if shutil.which(name):
            return _identify([name])
    raise CompilerNotFoundError(
        "The optimizer kernels are compiled on first use, and there is no C++ compiler on the "
        "PATH (g++, c++, clang++). Install one (apt-get install g++), name it in CXX, "
        f"{_LIBRARY_REMEDY}."
    )


def _identify(command: list[str]) -> Compiler:
    macros = predefined_macros(command, [])
    if macros is None or "__cplusplus" not in macros:
        raise CompilerNotFoundError(
            f"The C++ compiler must be GCC or Clang. Received: {shlex.join(command)!r}, which "
            f"does not run, or does not know -dM -E. Name another in CXX, {_LIBRARY_REMEDY}."
        )
    values = dict(line.split(" ", 2)[1:] for line in macros.splitlines() if line.count(" ") > 1)
    clang = "__clang_major__" in values
    prefix = ("__clang_major__", "__clang_minor__", "__clang_patchlevel__")
    names = prefix if clang else ("__GNUC__", "__GNUC_MINOR__", "__GNUC_PATCHLEVEL__")
    version = [values.get(name, "0") for name in names]
    name = f"{shlex.join([Path(command[0]).name, *command[1:]])} {'.'.join(version)}"
    return Compiler(tuple(command), name, clang, int(version[0]))


def predefined_macros(command: list[str] | tuple[str, ...], flags: list[str]) -> str | None:
    """What a compiler's preprocessor defines under some flags; None if it refuses them."""
    line = [*command, *flags, "-dM", "-E", "-x", "c++", os.devnull]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def targets(compiler: Compiler, march: str | None = None) -> list[Target]:
    """The architectures to try, the best first.

    Args:
        compiler: Who compiles.
        march: An architecture by name, such as ``x86-64-v3``: then only that.

    Raises:
        CompilerNotFoundError: If the compiler does not know the named architecture.
    """
    if march is not None:
        flags = [f"-march={march}"]
        macros = predefined_macros(compiler.command, flags)
        if macros is None:
            raise CompilerNotFoundError(
                f"The architecture must be one that {compiler.name} knows, such as x86-64-v3. "
                f"Received: {march!r}."
            )
        return [_without_fp16(compiler, flags, macros)]
    found = []
    for flags in (["-march=native"], ["-march=x86-64-v3"], []):
        macros = predefined_macros(compiler.command, flags)
        if macros is None:
            continue
        # A default is what the CPU runs already; a named architecture may be beyond this CPU.
        if flags and flags != ["-march=native"] and needed_cpu_flags(macros) - present_cpu_flags():
            continue
        found.append(_without_fp16(compiler, flags, macros))
    return found


def _without_fp16(compiler: Compiler, flags: list[str], macros: str) -> Target:
    """Leave AVX512-FP16 out where GCC is too old to compile TensorFlow's Eigen with it."""
    if "__AVX512FP16__" in macros and not compiler.clang and compiler.major < 13:
        flags = [*flags, "-mno-avx512fp16"]
        macros = predefined_macros(compiler.command, flags) or macros
    return Target(tuple(flags), macros)
