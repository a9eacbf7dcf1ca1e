"""Write a trace from a training process, without ever holding it up or taking it down."""

import atexit
import os
import shutil
import sys
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from deepinsight.traces._rows import Block, Item, Stream, fitting, gather
from deepinsight.traces._run_files import ProcessFolder, update_run_file
from deepinsight.traces._segment import SegmentWriter
from deepinsight.traces.errors import TraceError, TraceWriteError
from deepinsight.traces.schema import Axis, StreamInfo

DROPPED_ROWS = "recorder/dropped_rows"
WRITE_ERRORS = "recorder/write_errors"

_ROW_BYTES = 200  # what a queued scalar costs in Python objects
_SPARE_BYTES = 16 << 20  # left free on the disk, because HDF5 does not recover from a full one
_MAX_BACKOFF_S = 60.0
_WAKE_BYTES = 8 << 20  # queued, before the writing thread is woken ahead of time


class TraceWarning(UserWarning):
    """Something of a trace was lost; training went on."""


class TraceWriter:
    """Write the streams of one process into a run.

    `record` and `record_block` only queue; a background thread writes and flushes every
    ``flush_interval_s``. A writer killed at any moment loses at most what came since the last flush.
    Rows that do not fit into the queue are dropped, rows that cannot be written are lost; both are
    counted in the trace (`recorder/dropped_rows`, `recorder/write_errors`) and warned of once,
    and neither raises in the training.

    Args:
        run_dir: Folder of the run; made if missing. A second writer with the same ``process`` after
            the first one has ended or died continues the run.
        process: Name of this process in the run, ``"worker-0"``; one writer at a time.
        config: JSON-serialisable settings of the run, merged into ``run.json``.
        feature_groups: Group -> rows of axis 0, see `deepinsight.traces.group_slices`.
        variables: Name -> {"shape", "dtype", "device"}.
        flush_interval_s: Longest time a row waits before it is written, seconds, > 0.
        queue_bytes: Bound on the queued rows, > 0.
        segment_bytes: Size at which a new segment begins, > 0.

    Raises:
        TraceWriteError: If the folder cannot be written.
        ProcessNameInUseError: If a live writer has this process name.
        ValueError: If an argument is out of range.
        TypeError: If ``config`` or ``variables`` is not JSON-serialisable.

    Example:
        >>> import tempfile
        >>> run_dir = tempfile.mkdtemp()
        >>> with TraceWriter(run_dir, "worker-0") as writer:
        ...     writer.record("loss", 0.69, step=1, unit="nat")
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str],
        process: str = "main",
        *,
        config: Mapping[str, Any] | None = None,
        feature_groups: Mapping[str, Any] | None = None,
        variables: Mapping[str, Any] | None = None,
        flush_interval_s: float = 1.0,
        queue_bytes: int = 256 << 20,
        segment_bytes: int = 1 << 30,
    ) -> None:
        _require_positive(
            flush_interval_s=flush_interval_s, queue_bytes=queue_bytes, segment_bytes=segment_bytes
        )
        if not process or "/" in process or process.startswith("."):
            raise ValueError(
                "`process` must be a folder name such as 'worker-0', without '/' and a leading "
                f"'.'. Received: process={process!r}."
            )
        self.run_dir = Path(run_dir)
        self.process = process
        try:
            self._run_id = update_run_file(self.run_dir, config, feature_groups, variables)
            self._folder = ProcessFolder(self.run_dir / process)
        except TraceError:
            raise
        except OSError as error:
            raise TraceWriteError(
                f"The run folder {str(self.run_dir)!r} cannot be written: {error}. Choose a folder "
                "that this user may write to, on a disk with free space."
            ) from error
        self._flush_interval_s = flush_interval_s
        self._queue_bytes = queue_bytes
        self._segment_bytes = segment_bytes
        self._lock = threading.Lock()  # guards the queue
        self._write_lock = threading.Lock()  # one drain at a time
        self._queue: list[Item] = []
        self._queued_bytes = 0
        self._streams: dict[str, Stream] = {}
        self._segment: SegmentWriter | None = None
        self._last_step = 0
        self._dropped_rows = 0
        self._write_errors = 0
        self._counted = (0, 0)
        self._retry_at = 0.0
        self._backoff_s = flush_interval_s
        self._warned: set[str] = set()
        self._closed = False
        self._pid = os.getpid()
        for name, unit in ((DROPPED_ROWS, "rows"), (WRITE_ERRORS, "errors")):
            self.declare(name, dtype="int64", unit=unit, description="Cumulative count.")
        self._wake = threading.Event()
        self._thread = threading.Thread(
            target=self._write_forever, name=f"deepinsight-{process}", daemon=True
        )
        self._thread.start()
        atexit.register(self._close_at_exit)

    @property
    def dropped_rows(self) -> int:
        """Rows that were recorded but are not in the trace."""
        return self._dropped_rows

    @property
    def write_errors(self) -> int:
        """Failed attempts to write to the trace."""
        return self._write_errors

    def declare(
        self,
        name: str,
        *,
        shape: Sequence[int] = (),
        dtype: Any = "float64",
        unit: str = "",
        description: str = "",
        axes: Sequence[Axis] = (),
        reduction: str = "",
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Describe a stream before its first row; see `deepinsight.traces.StreamInfo`.

        Only needed for a scalar that is not to be stored as float64. Streams that are declared before
        the first flush share one segment.

        Raises:
            ValueError: If the description is malformed, or differs in shape or dtype from what the
                stream already has.
        """
        info = StreamInfo(
            name,
            tuple(int(n) for n in shape),
            np.dtype(dtype).name,
            unit,
            description,
            tuple(axes),
            reduction,
            dict(details or {}),
        )
        known = self._streams.get(name)
        if known is None:
            self._streams[name] = Stream(info)
        elif (known.info.shape, known.info.dtype) != (info.shape, info.dtype):
            raise ValueError(
                f"Stream {name!r} holds {known.info.dtype} values of shape {known.info.shape}. "
                f"Received: {info.dtype}, {info.shape}. Record it under another name."
            )

    def record(
        self,
        name: str,
        value: Any,
        *,
        step: int,
        unit: str = "",
        wall_time_s: float | None = None,
        description: str = "",
        axes: Sequence[Axis] = (),
        reduction: str = "",
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Queue one row of a stream.

        Args:
            name: Name of the stream; the first call declares it with the description given there.
            value: A scalar (stored as float64 unless declared otherwise) or an array of any shape
                and numeric dtype, both fixed by the first. It is copied. NaN and infinity are data.
            step: Global step (optimizer updates so far), >= 0.
            unit: Unit of the value; ``"1"`` for a pure number.
            wall_time_s: Unix time of the value in seconds; now, if None.
            description: One sentence for whoever reads the trace.
            axes: One `Axis` per dimension of the value.
            reduction: How the value was reduced, in words.
            details: JSON-serialisable facts.

        Raises:
            ValueError: If the shape differs from the stream's, a value does not fit its dtype, the
                step is negative or the name is malformed.
            TypeError: If the value is not numeric.
            RuntimeError: If the writer is closed.
        """
        stream = self._streams.get(name)
        if stream is None:
            array = value if np.ndim(value) == 0 else np.asarray(value)
            shape, dtype = np.shape(array), getattr(array, "dtype", None)
            self.declare(
                name,
                shape=shape,
                dtype=dtype if shape else "float64",
                unit=unit,
                description=description,
                axes=axes,
                reduction=reduction,
                details=details,
            )
            stream = self._streams[name]
        if not step >= 0:
            raise ValueError(f"`step` must be >= 0. Received: step={step} for stream {name!r}.")
        info = stream.info
        if info.shape:
            value = stream.copied(value)
            size = value.nbytes + _ROW_BYTES
        else:
            if info.dtype == "float64":
                try:
                    value = float(value)
                except (TypeError, ValueError):
                    value = fitting(value, info, ())
            else:
                value = fitting(value, info, ())
            size = _ROW_BYTES
        self._enqueue(
            (stream, step, time.time() if wall_time_s is None else wall_time_s, value), size, 1
        )

    def record_block(
        self,
        name: str,
        values: Any,
        *,
        steps: Any,
        wall_times_s: Any = None,
        unit: str = "",
        description: str = "",
        axes: Sequence[Axis] = (),
        reduction: str = "",
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Queue many rows of a stream at once.

        Args:
            name: Name of the stream.
            values: Shape ``[n, ...]``; the stream's shape and dtype are fixed by the first block.
            steps: Global steps, int64 ``[n]``, >= 0.
            wall_times_s: Unix times in seconds, float64 ``[n]`` or one for all; now, if None.
            unit: As in `record`; likewise the rest.
            description: As in `record`.
            axes: As in `record`.
            reduction: As in `record`.
            details: As in `record`.

        Raises:
            ValueError: As `record`, or if the lengths differ.
            TypeError: If the values are not numeric.
            RuntimeError: If the writer is closed.
        """
        array = np.asarray(values)
        steps = np.array(steps, dtype=np.int64, ndmin=1)
        if array.ndim == 0 or steps.shape != (len(array),):
            raise ValueError(
                f"`steps` must hold one step per row of `values`. Received: steps of shape "
                f"{steps.shape} and values of shape {array.shape} for stream {name!r}."
            )
        if len(steps) and steps.min() < 0:
            raise ValueError(f"`steps` must be >= 0. Received: {steps.min()} for stream {name!r}.")
        stream = self._streams.get(name)
        if stream is None:
            self.declare(
                name,
                shape=array.shape[1:],
                dtype=array.dtype if array.ndim > 1 or array.dtype.kind != "O" else "float64",
                unit=unit,
                description=description,
                axes=axes,
                reduction=reduction,
                details=details,
            )
            stream = self._streams[name]
        times = np.empty(len(steps))
        times[:] = time.time() if wall_times_s is None else wall_times_s
        array = fitting(array, stream.info, (len(steps), *stream.info.shape))
        if len(steps):
            self._enqueue((stream, steps, times, array), array.nbytes + 16 * len(steps), len(steps))

    def update_metadata(
        self,
        *,
        config: Mapping[str, Any] | None = None,
        feature_groups: Mapping[str, Any] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        """Merge what became known later into ``run.json``; an I/O error is counted, not raised."""
        try:
            update_run_file(self.run_dir, config, feature_groups, variables)
        except OSError as error:
            self._count_error(error, rows=0)

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Wait until everything queued so far is in the file.

        Args:
            timeout_s: Longest wait, seconds.

        Returns:
            False if the time was not enough or the disk does not take the rows.
        """
        if not self._write_lock.acquire(timeout=timeout_s):
            return False
        try:
            self._drain()
        finally:
            self._write_lock.release()
        return not self._queue

    def close(self, *, ended: bool = True) -> None:
        """Write what is queued and end the process's part of the run; idempotent.

        Args:
            ended: False leaves the process marked as crashed: it did not come to its proper end.
        """
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        atexit.unregister(self._close_at_exit)
        self._wake.set()
        self._thread.join()
        try:
            with self._write_lock:
                self._retry_at = 0.0
                self._drain(final=True)
                self._close_segment()
            self._folder.release(ended)
        except OSError as error:
            self._count_error(error, rows=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(ended=error is None)

    def _close_at_exit(self) -> None:
        # An interpreter that ends on an uncaught exception leaves it here: that run has crashed.
        self.close(ended=not hasattr(sys, "last_value"))

    def _enqueue(self, item: Item, size: int, rows: int) -> None:
        with self._lock:
            if self._closed:
                raise RuntimeError(
                    f"The recorder of process {self.process!r} is closed; record before close()."
                )
            if self._queued_bytes + size > self._queue_bytes:
                self._dropped_rows += rows
            else:
                self._queue.append(item)
                self._queued_bytes += size
                if self._queued_bytes > min(self._queue_bytes // 4, _WAKE_BYTES):
                    self._wake.set()
                return
        self._warn(
            "dropped",
            f"The recorder of process {self.process!r} drops rows: they come faster than the disk "
            f"takes them (queue_bytes={self._queue_bytes}). Record less often or raise queue_bytes.",
        )

    def _write_forever(self) -> None:
        while not self._closed:
            self._wake.wait(self._flush_interval_s)
            self._wake.clear()
            with self._write_lock:
                self._drain()

    def _drain(self, final: bool = False) -> None:
        """Write everything queued; the caller holds the write lock."""
        if time.monotonic() < self._retry_at:
            return
        with self._lock:
            queue, self._queue, self._queued_bytes = self._queue, [], 0
        blocks = gather(queue)
        if blocks:
            self._last_step = max(int(block[0][-1]) for block in blocks.values())
        counts = (self._dropped_rows, self._write_errors)
        if counts != self._counted or (final and self._streams_have_rows(blocks)):
            now = np.array([time.time()])
            for name, count in zip((DROPPED_ROWS, WRITE_ERRORS), counts, strict=True):
                blocks[name] = (np.array([self._last_step]), now, np.array([count]))
        if not blocks:
            return
        try:
            self._segment_for(blocks).append(blocks)
        except Exception as error:  # whatever HDF5 raises: training goes on
            self._count_error(error, sum(len(block[0]) for block in blocks.values()))
            self._abandon_segment()
            return
        self._counted = counts
        self._backoff_s = self._flush_interval_s
        for name, block in blocks.items():
            self._streams[name].rows += len(block[0])

    def _streams_have_rows(self, blocks: Mapping[str, Block]) -> bool:
        return bool(blocks) or self._segment is not None

    def _segment_for(self, blocks: Mapping[str, Block]) -> SegmentWriter:
        """Return the segment to write to, a new one where the current one does not fit."""
        need = sum(values.nbytes + 16 * len(steps) for steps, _, values in blocks.values())
        free = shutil.disk_usage(self._folder.path).free
        if free < need + _SPARE_BYTES:
            raise OSError(f"the disk is full: {free >> 20} MiB left, {_SPARE_BYTES >> 20} MiB kept")
        segment = self._segment
        if (
            segment is None
            or any(name not in segment for name in blocks)
            or segment.bytes > self._segment_bytes
            or segment.outgrown()
        ):
            self._close_segment()
            number, path = self._folder.next_segment()
            attributes = {
                "run_id": self._run_id,
                "process": self.process,
                "segment": number,
                "life": self._folder.life,
            }
            rows = {
                name: stream.rows + (len(blocks[name][0]) if name in blocks else 0)
                for name, stream in list(self._streams.items())
            }
            streams = [(self._streams[name].info, count) for name, count in rows.items()]
            self._segment = SegmentWriter(path, attributes, streams)
        assert self._segment is not None
        return self._segment

    def _close_segment(self) -> None:
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.close()

    def _abandon_segment(self) -> None:
        """Leave a segment that failed; the next attempt, after a while, begins a new one."""
        try:
            self._close_segment()
        except Exception as error:
            self._count_error(error, rows=0)
        self._retry_at = time.monotonic() + self._backoff_s
        self._backoff_s = min(2 * self._backoff_s, _MAX_BACKOFF_S)

    def _count_error(self, error: Exception, rows: int) -> None:
        self._write_errors += 1
        self._dropped_rows += rows
        self._warn(
            "write",
            f"The trace of process {self.process!r} in {str(self.run_dir)!r} cannot be written: "
            f"{error}. Training goes on; what is lost is counted, and writing is tried again.",
        )

    def _warn(self, kind: str, message: str) -> None:
        """Warn once per kind; a warning that is turned into an error must not end the training."""
        if kind in self._warned:
            return
        self._warned.add(kind)
        try:
            warnings.warn(message, TraceWarning, stacklevel=3)
        except TraceWarning:
            print(f"TraceWarning: {message}", file=sys.stderr)


def _require_positive(**arguments: float) -> None:
    for name, value in arguments.items():
        if not value > 0:
            raise ValueError(f"`{name}` must be > 0. Received: {name}={value}.")
