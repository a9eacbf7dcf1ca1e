"""Write a trace from a training process, without ever holding it up or taking it down."""

import atexit
import functools
import operator
import os
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from deepinsight.traces._output import DROPPED_ROWS, WRITE_ERRORS, Losses, Output, TraceWarning
from deepinsight.traces._rows import Item, Stream, as_float, fitting, numbers
from deepinsight.traces._run_files import ProcessFolder, update_run_file
from deepinsight.traces.errors import TraceError, TraceWriteError
from deepinsight.traces.schema import Axis, StreamInfo

__all__ = ["TraceWarning", "TraceWriter"]

_ROW_BYTES = 200  # what a queued scalar costs in Python objects
_WAKE_BYTES = 8 << 20  # queued, before the writing thread is woken ahead of time
_MAX_STEP = (1 << 63) - 1


class TraceWriter:
    """Write the streams of one process into a run.

    `record` and `record_block` only queue; a background thread writes and flushes every
    ``flush_interval_s``. A writer killed at any moment loses at most what came since the last
    flush. Rows that do not fit into the queue are dropped, rows that cannot be written are lost;
    both are counted in the trace (`recorder/dropped_rows`, `recorder/write_errors`) and warned of
    once, and neither raises in the training. While the disk is full, rows wait in the queue.

    In a forked child the writer is closed; a child that records makes a writer of its own.

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
        if not process or "/" in process or "\0" in process or process.startswith("."):
            raise ValueError(
                "`process` must be a folder name such as 'worker-0', without '/' and a leading "
                f"'.'. Received: process={process!r}."
            )
        self.run_dir = Path(run_dir).absolute()  # the training may change its directory
        self.process = process
        try:
            run_id = update_run_file(self.run_dir, config, feature_groups, variables)
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
        self._lock = threading.Lock()  # guards the queue and the streams
        self._write_lock = threading.Lock()  # one drain at a time
        self._queue: list[Item] = []
        self._queued_bytes = 0
        self._streams: dict[str, Stream] = {}
        self._losses = Losses(f"process {process!r} in {str(self.run_dir)!r}")
        self._output = Output(
            self._folder,
            run_id,
            self._streams,
            self._losses,
            segment_bytes=segment_bytes,
            first_backoff_s=flush_interval_s,
        )
        self._closed = False
        for name, unit in ((DROPPED_ROWS, "rows"), (WRITE_ERRORS, "errors")):
            self.declare(name, dtype="int64", unit=unit, description="Cumulative count.")
        self._wake = threading.Event()
        self._thread = threading.Thread(
            target=self._write_forever, name=f"deepinsight-{process}", daemon=True
        )
        self._thread.start()
        atexit.register(self._close_at_exit)
        _live_writers().add(self)

    @property
    def dropped_rows(self) -> int:
        """Rows that were recorded but are not in the trace."""
        return self._losses.dropped_rows

    @property
    def write_errors(self) -> int:
        """Failed attempts to write to the trace."""
        return self._losses.write_errors

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

        Only needed for a scalar that is not to be stored as float64. Streams that are declared
        before the first flush share one segment.

        Raises:
            ValueError: If name, shape, dtype or axes are malformed, or shape or dtype differ from
                what the stream already has.
            TypeError: If a text is not text or ``details`` is not JSON-serialisable.
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
        with self._lock:
            known = self._streams.setdefault(name, Stream(info))
        if (known.info.shape, known.info.dtype) != (info.shape, info.dtype):
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
            TypeError: If the value is not numeric or the step not an integer.
            RuntimeError: If the writer is closed.
        """
        if type(step) is not int:
            step = _as_step(step, name)
        if not 0 <= step <= _MAX_STEP:
            raise ValueError(f"`step` must be >= 0. Received: step={step} for stream {name!r}.")
        wall_time_s = time.time() if wall_time_s is None else float(wall_time_s)
        stream = self._streams.get(name)
        if stream is None:
            array = numbers(value, name)
            self.declare(
                name,
                shape=array.shape,
                dtype=array.dtype if array.shape else "float64",
                unit=unit,
                description=description,
                axes=axes,
                reduction=reduction,
                details=details,
            )
            stream = self._streams[name]
        info = stream.info
        size = _ROW_BYTES
        if info.shape:
            value = stream.copied(value)
            size += value.nbytes
        elif info.dtype != "float64":
            value = fitting(value, info, ())
        elif type(value) is not float:
            value = as_float(value, info)
        self._enqueue((stream, step, wall_time_s, value), size, 1)

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
        array = numbers(values, name)
        steps = np.array(steps, ndmin=1)
        if array.ndim == 0 or steps.shape != (len(array),):
            raise ValueError(
                f"`steps` must hold one step per row of `values`. Received: steps of shape "
                f"{steps.shape} and values of shape {array.shape} for stream {name!r}."
            )
        whole = steps.dtype.kind in "iu" or not len(steps)
        if not whole or (len(steps) and not 0 <= steps.min() <= steps.max() <= _MAX_STEP):
            raise ValueError(
                f"`steps` must be integers >= 0. Received: {steps.dtype}, {steps} for stream "
                f"{name!r}."
            )
        times = np.empty(len(steps))
        times[:] = time.time() if wall_times_s is None else wall_times_s
        stream = self._streams.get(name)
        if stream is None:
            self.declare(
                name,
                shape=array.shape[1:],
                dtype=array.dtype,
                unit=unit,
                description=description,
                axes=axes,
                reduction=reduction,
                details=details,
            )
            stream = self._streams[name]
        array = fitting(array, stream.info, (len(steps), *stream.info.shape))
        if len(steps):
            item = (stream, steps.astype(np.int64, copy=False), times, array)
            self._enqueue(item, array.nbytes + 16 * len(steps) + _ROW_BYTES, len(steps))

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
            self._losses.fail(error)

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
            return self._drain()
        finally:
            self._write_lock.release()

    def close(self, *, ended: bool = True) -> None:
        """Write what is queued and end the process's part of the run; idempotent.

        Args:
            ended: False leaves the process marked as crashed: it did not come to its proper end.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self._close_at_exit)
        self._wake.set()
        self._thread.join()
        with self._write_lock:
            self._drain(final=True)
            for end in (self._output.close, lambda: self._folder.release(ended)):
                try:
                    end()
                except Exception as error:
                    self._losses.fail(error)

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
                    f"The recorder of process {self.process!r} is closed, by close() or because "
                    "this is a forked child. Make a new one, in a child under a name of its own."
                )
            if self._queued_bytes + size <= self._queue_bytes:
                self._queue.append(item)
                self._queued_bytes += size
                if self._queued_bytes > min(self._queue_bytes // 4, _WAKE_BYTES):
                    self._wake.set()
                return
        self._losses.drop(rows, self._queue_bytes)

    def _write_forever(self) -> None:
        while not self._closed:
            self._wake.wait(self._flush_interval_s)
            self._wake.clear()
            with self._write_lock:
                if not self._closed:
                    self._drain()

    def _drain(self, final: bool = False) -> bool:
        """Write everything queued; the caller holds the write lock."""
        if self._closed and not final:
            return not self._queue
        if not self._output.ready(self._queued_bytes, at_once=final):
            if final:
                with self._lock:
                    queue, self._queue = self._queue, []
                self._losses.lose(queue)
            return False
        with self._lock:
            queue, self._queue, self._queued_bytes = self._queue, [], 0
        return self._output.write(queue, final=final)

    def _leave_to_parent(self) -> None:
        """In a forked child: let go of everything, so that only the parent writes."""
        self._lock, self._write_lock = threading.Lock(), threading.Lock()
        if not self._closed:
            self._closed = True
            self._queue = []
            atexit.unregister(self._close_at_exit)
            self._folder.forget()


@functools.cache
def _live_writers() -> "weakref.WeakSet[TraceWriter]":
    """Return the writers that a forked child has to leave to its parent."""
    writers: weakref.WeakSet[TraceWriter] = weakref.WeakSet()

    def leave() -> None:
        for writer in list(writers):
            writer._leave_to_parent()

    os.register_at_fork(after_in_child=leave)
    return writers


def _as_step(step: Any, name: str) -> int:
    try:
        return operator.index(step)
    except TypeError:
        raise TypeError(
            f"`step` must be an integer >= 0. Received: step={step!r} for stream {name!r}."
        ) from None


def _require_positive(**arguments: float) -> None:
    for name, value in arguments.items():
        if not value > 0:
            raise ValueError(f"`{name}` must be > 0. Received: {name}={value}.")
