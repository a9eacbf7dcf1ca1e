"""The machine's own speed: plain C++ loops over as many arrays as a rule has.

Compiled when the benchmark runs, with ``-O3 -march=native``, and run on as many threads as
TensorFlow's intra-op pool. The arrays come from ``malloc`` without huge pages, as TensorFlow's do.
"""

import ctypes
import subprocess
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SOURCE = Path(__file__).with_name("machine.cc")
FLAGS = ["-std=c++17", "-O3", "-march=native", "-ffast-math", "-fopenmp-simd", "-fPIC"]


class Streams(NamedTuple):
    """What one ideal pass of a rule moves.

    Attributes:
        updated: Arrays that are read and written.
        read: Arrays that are only read: 0 or 1.
        norms: Whether norms of the variable and the gradient are needed first: one more read each.
    """

    updated: int
    read: int = 1
    norms: bool = False

    @property
    def transfers(self) -> int:
        """Elements read or written per element of the variable."""
        return 2 * self.updated + self.read + (2 if self.norms else 0)


class Machine:
    """The compiled loops."""

    def __init__(self, compiler: tuple[str, ...], folder: Path, threads: int) -> None:
        self.threads = threads
        library = folder / "machine.so"
        command = [*compiler, *FLAGS, "-pthread", "-shared", "-o", str(library), str(SOURCE)]
        subprocess.run(command, check=True)
        self._loops = ctypes.CDLL(str(library))
        self._loops.make_array.restype = ctypes.c_void_p
        self._loops.stream.restype = self._loops.rows.restype = ctypes.c_double

    def arrays(self, streams: Streams, n: int, read: int | None = None) -> "Arrays":
        """Allocate the arrays of a rule: ``n`` elements each, ``read`` in the one only read."""
        return Arrays(self, streams, n, n if read is None else read)


class Arrays:
    """The arrays of one rule; a context, which frees them at its end."""

    def __init__(self, machine: Machine, streams: Streams, n: int, read: int) -> None:
        self._loops, self._threads = machine._loops, machine.threads
        self._streams, self._n = streams, n
        sizes = [n] * streams.updated + [read] * streams.read
        self._made = [self._make(size) for size in sizes]
        self._updated = (ctypes.c_void_p * streams.updated)(*self._made[: streams.updated])
        self._read = ctypes.c_void_p(self._made[-1] if streams.read else None)

    def _make(self, n: int) -> int:
        made = self._loops.make_array(ctypes.c_int64(n), self._threads)
        if not made:
            raise MemoryError(f"There must be memory for {n:,} floats.")
        return int(made)

    def __enter__(self) -> "Arrays":
        return self

    def __exit__(self, *_: object) -> None:
        for made in self._made:
            self._loops.free_array(ctypes.c_void_p(made))

    def stream(self, passes: int) -> float:
        """Seconds per pass over all elements."""
        updated, _, norms = self._streams
        n = ctypes.c_int64(self._n)
        seconds = self._loops.stream(
            self._updated, updated, self._read, n, int(norms), self._threads, passes
        )
        return float(seconds) / passes

    def rows(self, rows: list[NDArray[np.int64]], width: int, threads: int) -> float:
        """Seconds per pass over the rows of one set, after a first pass that is not counted.

        Args:
            rows: Row numbers of each pass, shape ``[n]`` each; the first set is used twice.
            width: Elements of a row.
            threads: How many take part.
        """
        updated, _, norms = self._streams
        pointers = (ctypes.c_void_p * len(rows))(*(one.ctypes.data for one in rows))
        count, wide = ctypes.c_int64(rows[0].size), ctypes.c_int64(width)
        sets = passes = len(rows)
        seconds = self._loops.rows(
            self._updated, updated, self._read, pointers, sets, count, wide, int(norms), threads,
            passes,
        )  # fmt: skip
        return float(seconds) / passes
