"""Read one segment file, at any moment of its life."""

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from deepinsight.traces._superblock import is_unclosed, stored_eof
from deepinsight.traces.errors import SegmentError
from deepinsight.traces.schema import FORMAT_VERSION, SEGMENT_FORMAT, STEP_FILL, StreamInfo

# What h5py raises on damaged files, text and JSON inside them included.
READ_ERRORS = (OSError, RuntimeError, LookupError, ValueError, TypeError, AttributeError)
DATASETS = ("step", "wall_time_s", "values")


class SegmentReader:
    """Read one segment, live or finished.

    Args:
        path: The segment file.

    Raises:
        SegmentError: If the file is cut, foreign, of a newer version or not HDF5.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # HDF5 under SWMR reads zeros past the end of a cut file; such a file is not for it.
            # Asked in this order: a writer extends the file before it stores the new end.
            end, size = stored_eof(path), path.stat().st_size
            if size < end:
                raise SegmentError(
                    f"{path}: the file is cut ({size} of {end} bytes). 'deepinsight repair RUN' "
                    "saves the rows that are still there.",
                    damaged=True,
                )
            self._file, self._growing = _open(path)
        except SegmentError:
            raise
        except READ_ERRORS as error:
            raise SegmentError(
                f"{path}: not readable as HDF5 ({error}). 'deepinsight repair RUN' saves what "
                "can be read and sets the file aside.",
                damaged=True,
            ) from error
        self._names: list[str] | None = None
        try:
            self._check_format()
            self.life = int(self._file.attrs["life"])
        except SegmentError:
            self._file.close()
            raise
        except READ_ERRORS as error:
            self._file.close()
            raise self._damaged("its attributes", error) from error

    def _check_format(self) -> None:
        attributes = self._file.attrs
        found = attributes.get("format")
        if not isinstance(found, str) or found != SEGMENT_FORMAT:
            raise SegmentError(
                f"{self.path}: a foreign HDF5 file, not a DeepInsight segment. Move it out of the "
                "run's folder."
            )
        version = int(attributes.get("format_version", 0))
        if version > FORMAT_VERSION:
            raise SegmentError(
                f"{self.path}: trace format version {version}; this DeepInsight reads up to "
                f"version {FORMAT_VERSION}. Install a newer DeepInsight to read it."
            )

    def _damaged(self, what: str, error: Exception) -> SegmentError:
        return SegmentError(
            f"{self.path}: {what} cannot be read ({error}). 'deepinsight repair RUN' saves the "
            "rows that are still there.",
            damaged=True,
        )

    def stream_names(self) -> list[str]:
        """Return the names of all streams of the segment."""
        if self._names is None:
            found: list[str] = []
            try:
                collect_streams(self._file.id, "", found)
            except READ_ERRORS as error:
                raise self._damaged("the list of streams", error) from error
            self._names = found
        return self._names

    def __contains__(self, name: str) -> bool:
        if self._names is not None:
            return name in self._names
        try:
            return f"{name}/step" in self._file
        except READ_ERRORS as error:
            raise self._damaged(f"stream {name!r}", error) from error

    def info(self, name: str) -> StreamInfo:
        """Return what the stream's attributes say."""
        try:
            group = self._file[name]
            values = group["values"]
            return StreamInfo.from_attributes(
                name, values.shape[1:], values.dtype.name, dict(group.attrs)
            )
        except READ_ERRORS as error:
            raise self._damaged(f"stream {name!r}", error) from error

    def layout(self, name: str) -> tuple[tuple[int, ...], "np.dtype[Any]"]:
        """Return shape and dtype of one value of the stream."""
        try:
            values = self._file[f"{name}/values"]
            return values.shape[1:], values.dtype
        except READ_ERRORS as error:
            raise self._damaged(f"stream {name!r}", error) from error

    def steps(self, name: str) -> np.ndarray:
        """Return the steps of all complete rows, int64 [n]."""
        try:
            step, wall, values = (self._dataset(name, part) for part in DATASETS)
            rows = min(len(step), len(wall), len(values))
            steps = np.empty(rows, dtype=np.int64)
            if rows:
                step.read_direct(steps, np.s_[:rows])
        except READ_ERRORS as error:
            raise self._damaged(f"stream {name!r}", error) from error
        unset = steps == STEP_FILL
        return steps[: int(np.argmax(unset))] if unset.any() else steps

    def read(self, name: str, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return wall times and values of rows ``start`` to ``stop``."""
        try:
            group = self._file[name]
            return group["wall_time_s"][start:stop], group["values"][start:stop]
        except READ_ERRORS as error:
            raise self._damaged(f"stream {name!r}", error) from error

    def _dataset(self, name: str, part: str) -> h5py.Dataset:
        """Open a dataset; of a growing file, as it is now and not as it once was cached.

        HDF5 shares one cache between all openings of a file in a process, so that opening it again
        would not show what is new while somebody else has it open.
        """
        dataset = self._file[f"{name}/{part}"]
        if self._growing:
            dataset.id.refresh()
        return dataset

    def close(self) -> None:
        """Release the file."""
        self._file.close()


def _open(path: Path) -> tuple[h5py.File, bool]:
    """Open a segment, under SWMR only where it is being written or its writer died.

    Under SWMR, HDF5 takes damage for a write under way and tries again for as good as ever.
    """
    if not is_unclosed(path):
        # A writer in this process, or one that closes just now, makes this attempt fail.
        with contextlib.suppress(OSError):
            return h5py.File(path, "r", libver="latest", locking=False), False
    return h5py.File(path, "r", libver="latest", swmr=True, locking=False), True


def collect_streams(
    group: Any, prefix: str, found: list[str], unreadable: list[str] | None = None
) -> None:
    """Walk the groups below an h5py low-level group and collect the paths that hold a ``step``.

    Where ``unreadable`` is given, what cannot be opened is collected there instead of raising.
    """
    names: Iterable[bytes] = list(group)
    if b"step" in names:
        found.append(prefix)
    for raw in names:
        if raw in (b"step", b"wall_time_s", b"values"):
            continue
        path = f"{prefix}/" * bool(prefix) + raw.decode(errors="replace")
        try:
            child = h5py.h5o.open(group, raw)
            if isinstance(child, h5py.h5g.GroupID):
                collect_streams(child, path, found, unreadable)
        except READ_ERRORS:
            if unreadable is None:
                raise
            unreadable.append(path)
