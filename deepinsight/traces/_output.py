"""What the background thread does: bring queued rows into segments and outlive I/O trouble."""

import shutil
import sys
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from deepinsight.traces._rows import Block, Item, Stream, gather
from deepinsight.traces._run_files import ProcessFolder
from deepinsight.traces._segment_writer import SegmentWriter

DROPPED_ROWS = "recorder/dropped_rows"
WRITE_ERRORS = "recorder/write_errors"

_SPARE_BYTES = 16 << 20  # left free on the disk, because HDF5 does not recover from a full one
_MAX_BACKOFF_S = 60.0


class TraceWarning(UserWarning):
    """Something of a trace was lost; training went on."""


class Losses:
    """What was lost: counted under a lock, warned of once per kind."""

    def __init__(self, trace: str) -> None:
        self._trace = trace
        self._lock = threading.Lock()
        self._warned: set[str] = set()
        self.dropped_rows = 0
        self.write_errors = 0

    @property
    def counts(self) -> tuple[int, int]:
        """Dropped rows and write errors."""
        return self.dropped_rows, self.write_errors

    def drop(self, rows: int, queue_bytes: int) -> None:
        """Count rows that did not fit into the queue."""
        with self._lock:
            self.dropped_rows += rows
        self._warn(
            "dropped",
            f"The recorder of {self._trace} drops rows: they come faster than the disk takes them "
            f"(queue_bytes={queue_bytes}). Record less often or raise queue_bytes.",
        )

    def lose(self, queue: Sequence[Item]) -> None:
        """Count rows that waited in vain; the failure itself has been told."""
        with self._lock:
            self.dropped_rows += _count(queue)

    def fail(self, error: Exception, rows: int = 0) -> None:
        """Count a failed attempt to write and the rows that went with it."""
        with self._lock:
            self.dropped_rows += rows
            self.write_errors += 1
        self._warn(
            "write",
            f"The trace of {self._trace} cannot be written: {error}. Training goes on; what is "
            "lost is counted, and writing is tried again.",
        )

    def _warn(self, kind: str, message: str) -> None:
        """Warn once per kind; a warning that is turned into an error must not end the training."""
        with self._lock:
            if kind in self._warned:
                return
            self._warned.add(kind)
        try:
            warnings.warn(message, TraceWarning, stacklevel=5)
        except TraceWarning:
            print(f"TraceWarning: {message}", file=sys.stderr)


class Output:
    """Write blocks of rows into the segments of one process folder; not thread-safe.

    Args:
        folder: The process's folder, held.
        run_id: Identity of the run.
        streams: All declared streams by name; grows while this is used.
        losses: Where failures are counted.
        segment_bytes: Size at which a new segment begins.
        first_backoff_s: Pause after the first failure; it doubles with every further one.
    """

    def __init__(
        self,
        folder: ProcessFolder,
        run_id: str,
        streams: Mapping[str, Stream],
        losses: Losses,
        *,
        segment_bytes: int,
        first_backoff_s: float,
    ) -> None:
        self._folder = folder
        self._run_id = run_id
        self._streams = streams
        self._losses = losses
        self._segment_bytes = segment_bytes
        self._first_backoff_s = self._backoff_s = first_backoff_s
        self._segment: SegmentWriter | None = None
        self._retry_at = 0.0
        self._written_counts = (0, 0)
        self._last_step = 0
        self._began = False

    def ready(self, need_bytes: int, *, at_once: bool = False) -> bool:
        """Say whether to try to write: there is room, and no failure was a moment ago."""
        if not at_once and time.monotonic() < self._retry_at:
            return False
        try:
            _require_room(self._folder.path, need_bytes)
        except Exception as error:
            self._losses.fail(error)
            self._wait()
            return False
        return True

    def write(self, queue: Sequence[Item], *, final: bool = False) -> bool:
        """Write the queued rows; on failure they are lost and counted.

        Args:
            queue: Rows in the order in which they were recorded.
            final: Also write the counts of what was lost, even if they are zero.

        Returns:
            Whether everything is in the file.
        """
        counts = self._losses.counts
        try:
            blocks = gather(queue)
            if blocks:
                self._last_step = max(int(block[0].max()) for block in blocks.values())
            if counts != self._written_counts or (final and (self._began or blocks)):
                blocks.update(self._count_blocks(counts))
            if not blocks:
                return True
            self._segment_for(blocks).append(blocks)
        except Exception as error:  # whatever HDF5 raises: training goes on
            self._losses.fail(error, _count(queue))
            self._abandon_segment()
            return False
        self._began = True
        self._written_counts = counts
        self._backoff_s = self._first_backoff_s
        for name, block in blocks.items():
            self._streams[name].rows += len(block[0])
        return True

    def close(self) -> None:
        """Close the segment; raises if what is left cannot be written."""
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.close()

    def _count_blocks(self, counts: tuple[int, int]) -> dict[str, Block]:
        step, now = np.array([self._last_step]), np.array([time.time()])
        return {
            name: (step, now, np.array([count]))
            for name, count in zip((DROPPED_ROWS, WRITE_ERRORS), counts, strict=True)
        }

    def _segment_for(self, blocks: Mapping[str, Block]) -> SegmentWriter:
        """Return the segment to write to, a new one where the current one does not fit."""
        segment = self._segment
        if (
            segment is not None
            and all(name in segment for name in blocks)
            and segment.bytes <= self._segment_bytes
            and not segment.outgrown()
        ):
            return segment
        self.close()
        number, path = self._folder.next_segment()
        attributes = {
            "run_id": self._run_id,
            "process": self._folder.path.name,
            "segment": number,
            "life": self._folder.life,
        }
        streams = [
            (stream.info, stream.rows + (len(blocks[name][0]) if name in blocks else 0))
            for name, stream in list(self._streams.items())
        ]
        self._segment = SegmentWriter(path, attributes, streams)
        return self._segment

    def _abandon_segment(self) -> None:
        """Leave a segment that failed; the next attempt, after a while, begins a new one."""
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.abandon()
        self._wait()

    def _wait(self) -> None:
        self._retry_at = time.monotonic() + self._backoff_s
        self._backoff_s = min(2 * self._backoff_s, _MAX_BACKOFF_S)


def _count(queue: Sequence[Item]) -> int:
    return sum(np.size(item[1]) for item in queue)


def _require_room(folder: Path, need_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < need_bytes + _SPARE_BYTES:
        raise OSError(f"the disk is full: {free >> 20} MiB left, {_SPARE_BYTES >> 20} MiB kept")
