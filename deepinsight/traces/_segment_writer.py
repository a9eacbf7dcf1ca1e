"""Write one segment file, once, under SWMR."""

import contextlib
import functools
import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from deepinsight.traces._rows import Block
from deepinsight.traces._superblock import stored_end
from deepinsight.traces.schema import FORMAT_VERSION, SEGMENT_FORMAT, STEP_FILL, StreamInfo

_MIN_CHUNK_ROWS = 32
_MAX_CHUNK_ROWS = 65_536
_YOUNG_ROWS = 4096
_YOUNG_CHUNK_BYTES = 4096
_CHUNK_BYTES = 1 << 20
# A segment whose chunks turn out too small for its rows is followed by one with larger chunks.
_CHUNKS_PER_SEGMENT = 64

_FLOAT64 = np.dtype("float64")
_INT64 = np.dtype("int64")
_STEP_FILL = np.array(STEP_FILL)


def chunk_rows(row_bytes: int, rows_so_far: int) -> int:
    """Choose a chunk length from the rows that a stream has had so far.

    Short streams get small chunks, because a chunk takes its full size on disk; long ones get
    large chunks, because reading costs a step per chunk.
    """
    wanted = 1 << max(rows_so_far // 4, 1).bit_length()
    limit = _YOUNG_CHUNK_BYTES if rows_so_far <= _YOUNG_ROWS else _CHUNK_BYTES
    bounded = min(max(wanted, _MIN_CHUNK_ROWS), _MAX_CHUNK_ROWS)
    return min(bounded, max(1, limit // max(row_bytes, 1)))


class _StreamDatasets:
    """The three datasets of one stream, appended to through h5py's low-level interface.

    They are opened by the first rows: each open dataset costs as SWMR begins.
    """

    def __init__(self, file: h5py.File, info: StreamInfo, rows_so_far: int) -> None:
        self.rows = 0
        self.row_bytes = np.dtype(info.dtype).itemsize * math.prod(info.shape)
        self.chunk_rows = chunk_rows(self.row_bytes, rows_so_far)
        self._file = file
        self._name = info.name
        self._open: dict[str, Any] = {}
        try:
            group = file.create_group(info.name)
        except ValueError:  # it is there already: ``loss/aux`` came before ``loss``
            group = file[info.name]
        group.attrs.update(info.attributes())
        scalar_rows = chunk_rows(8, rows_so_far)
        value_chunk = (self.chunk_rows, *(max(n, 1) for n in info.shape))
        _create_dataset(group, "values", info.shape, value_chunk, np.dtype(info.dtype))
        _create_dataset(group, "wall_time_s", (), (scalar_rows,), _FLOAT64)
        _create_dataset(group, "step", (), (scalar_rows,), _INT64, fill=_STEP_FILL)

    def append_values(self, wall_times_s: np.ndarray, values: np.ndarray) -> None:
        _append(self._dataset("values"), self.rows, values)
        _append(self._dataset("wall_time_s"), self.rows, wall_times_s)

    def append_steps(self, steps: np.ndarray) -> None:
        _append(self._dataset("step"), self.rows, steps)
        self.rows += len(steps)

    def _dataset(self, part: str) -> Any:
        if part not in self._open:
            path = f"{self._name}/{part}".encode()
            self._open[part] = h5py.h5d.open(self._file.id, path)
        return self._open[part]


def _create_dataset(
    group: h5py.Group,
    name: str,
    shape: tuple[int, ...],
    chunk: tuple[int, ...],
    dtype: np.dtype,
    *,
    fill: np.ndarray | None = None,
) -> None:
    """Create an empty dataset; h5py's own interface takes twice as long, and there are many."""
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settings.set_chunk(chunk)
    if fill is not None:
        settings.set_fill_value(fill)
    # A chunk must fit into the dataset, so a dimension of length 0 has to be extendable.
    limits = tuple(n or h5py.h5s.UNLIMITED for n in (0, *shape))
    space = h5py.h5s.create_simple((0, *shape), limits)
    kind = h5py.h5t.py_create(dtype, logical=True)
    h5py.h5d.create(group.id, name.encode(), kind, space, settings)


def _append(dataset: Any, start: int, rows: np.ndarray) -> None:
    """Write ``rows`` at ``start``, growing the dataset first."""
    dataset.set_extent((start + len(rows), *rows.shape[1:]))
    if not rows.size:
        return
    target = dataset.get_space()
    target.select_hyperslab((start,) + (0,) * (rows.ndim - 1), rows.shape)
    dataset.write(h5py.h5s.create_simple(rows.shape), target, np.ascontiguousarray(rows))


class SegmentWriter:
    """Create and fill one segment file.

    The file is written under a temporary name until SWMR has begun and then renamed, so that a
    reader never meets a file that it cannot open, and a kill before that leaves no segment.

    Args:
        path: Final name, ``.../worker-0/000001.h5``.
        attributes: Root attributes beside format and version.
        streams: Each stream with the rows it has had so far, from which its chunk length follows.
    """

    def __init__(
        self,
        path: Path,
        attributes: Mapping[str, Any],
        streams: Sequence[tuple[StreamInfo, int]],
    ) -> None:
        self.path = path
        self._streams: dict[str, _StreamDatasets] = {}
        hidden = path.with_name(f".{path.name}.new")
        self._file = _create(hidden)
        try:
            self._file.attrs.update(
                {
                    "format": SEGMENT_FORMAT,
                    "format_version": FORMAT_VERSION,
                    "created_time_s": time.time(),
                    **attributes,
                }
            )
            self._streams = {
                info.name: _StreamDatasets(self._file, info, rows) for info, rows in streams
            }
            self._file.swmr_mode = True
            self._file.flush()
            os.replace(hidden, path)
        except BaseException:
            self.abandon()
            hidden.unlink(missing_ok=True)
            raise

    def __contains__(self, name: str) -> bool:
        return name in self._streams

    @property
    def bytes(self) -> int:
        """Size of the file so far."""
        return int(self._file.id.get_filesize())

    def outgrown(self) -> bool:
        """Say whether a stream holds so many rows that larger chunks would serve it better."""
        return any(
            s.rows > _CHUNKS_PER_SEGMENT * s.chunk_rows
            and chunk_rows(s.row_bytes, s.rows) > s.chunk_rows
            for s in self._streams.values()
        )

    def append(self, blocks: Mapping[str, Block]) -> None:
        """Append one block per stream and flush.

        Values reach the file before steps, so that a row whose step is there is complete.
        """
        for name, (_, wall_times_s, values) in blocks.items():
            self._streams[name].append_values(wall_times_s, values)
        self._file.flush()
        for name, (steps, _, _) in blocks.items():
            self._streams[name].append_steps(steps)
        self._file.flush()

    def close(self) -> None:
        """Close the file; raises OSError if what is left cannot be written."""
        try:
            self._file.flush()
        except BaseException:
            self.abandon()
            raise
        self._close()

    def abandon(self) -> None:
        """Let go of a file after a failed write and leave it on disk as if the writer had died.

        HDF5 crashes as it closes a file after a failed write. So the file stays open, for HDF5's
        own end too, and whatever it still writes goes nowhere.
        """
        if not self._file:
            return
        held = _held_by_parent()
        with held.lock:
            descriptor = self._file.id.get_vfd_handle()
            with contextlib.suppress(OSError):  # HDF5 may have stored an end that it did not reach
                os.ftruncate(descriptor, max(stored_end(descriptor), os.fstat(descriptor).st_size))
            _send_nowhere(descriptor)
            held.abandoned.append((self._file, self._streams))

    def _close(self) -> None:
        held = _held_by_parent()
        with held.lock:
            descriptor = self._file.id.get_vfd_handle() if self._file else -1
            self._file.close()
            held.descriptors.discard(descriptor)


def _send_nowhere(descriptor: int) -> None:
    """Let a descriptor point to a file of its own in memory instead of the one on disk."""
    nowhere = os.memfd_create("deepinsight")
    os.dup2(nowhere, descriptor, inheritable=False)
    os.close(nowhere)


class _HeldByParent:
    """The files being written, which a forked child must not touch.

    When a child ends, HDF5 would write what it had cached at the fork and cut the file to the
    length that it had then, below its parent. So the child's descriptors come to point to nowhere.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.descriptors: set[int] = set()
        self.abandoned: list[Any] = []
        os.register_at_fork(
            before=self._before, after_in_parent=self._in_parent, after_in_child=self._in_child
        )

    def _before(self) -> None:
        self.lock.acquire()

    def _in_parent(self) -> None:
        self.lock.release()

    def _in_child(self) -> None:
        for descriptor in self.descriptors:
            _send_nowhere(descriptor)
        self.descriptors.clear()
        self.lock.release()


@functools.cache
def _held_by_parent() -> _HeldByParent:
    return _HeldByParent()


def _create(path: Path) -> h5py.File:
    """Create a file for SWMR in the format of HDF5 1.10."""
    held = _held_by_parent()
    with held.lock:
        # Our own lock file guards the process folder; HDF5's would stand in the way of readers.
        file = h5py.File(path, "w", libver=("v110", "v110"), locking=False)
        held.descriptors.add(file.id.get_vfd_handle())
    return file
