"""Which rows of which segment make up a stream, and how its columns are called."""

from typing import NamedTuple

import numpy as np

from deepinsight.traces._segment_reader import SegmentReader
from deepinsight.traces.schema import StreamInfo


class StoredRows(NamedTuple):
    """Rows of one stream in one segment: their steps, and which of the segment's rows they are."""

    process: str
    segment: SegmentReader
    steps: np.ndarray
    chosen: np.ndarray | None = None  # None: all, in order

    def read(self, name: str, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return wall times and values of the rows ``start`` to ``stop`` of these."""
        if self.chosen is None:
            return self.segment.read(name, start, stop)
        chosen = self.chosen[start:stop]
        times, values = self.segment.read(name, int(chosen[0]), int(chosen[-1]) + 1)
        return times[chosen - chosen[0]], values[chosen - chosen[0]]


def without_superseded(parts: list[StoredRows]) -> list[StoredRows]:
    """Cut from each life of a process what a later life recorded again."""
    kept: list[StoredRows] = []
    begin: dict[
        str, tuple[int, float, float]
    ] = {}  # life, where it begins, where the later ones do
    for part in reversed(parts):
        life, first, limit = begin.get(part.process, (part.segment.life, np.inf, np.inf))
        if part.segment.life != life:
            life, first, limit = part.segment.life, np.inf, min(first, limit)
        rows = np.flatnonzero(part.steps < limit)
        if len(part.steps):
            first = float(part.steps[0])
        begin[part.process] = (life, first, limit)
        whole = len(rows) == len(part.steps)
        kept.append(part if whole else part._replace(steps=part.steps[rows], chosen=rows))
    return kept[::-1]


def column_names(info: StreamInfo) -> list[str]:
    """Return one name per entry of a vector, each once and none of those of the other columns."""
    count = info.shape[0]
    labels = info.axes[0].labels if info.axes else None
    names: dict[str, None] = {}
    for i, label in enumerate(labels or [f"value_{i}" for i in range(count)]):
        taken = label in names or label in {"step", "wall_time_s", "process"}
        names[f"{label} ({i})" if taken else label] = None
    return list(names)
