"""Read traces: live or finished, one process or many."""

import difflib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd

from deepinsight.traces._processes import ProcessInfo, process_info
from deepinsight.traces._run_files import (
    RUN_FILE,
    check_run_file,
    is_segment_name,
    process_folders,
    read_json,
    segment_paths,
)
from deepinsight.traces._segment_reader import SegmentReader
from deepinsight.traces._selection import StoredRows, column_names, without_superseded
from deepinsight.traces.errors import (
    RunNotFoundError,
    SegmentError,
    StreamNotFoundError,
    TraceNotFoundError,
)
from deepinsight.traces.schema import StreamInfo

_STATUSES = ("live", "crashed", "finished")
_REPAIR = "'deepinsight repair RUN' saves the rows that are still there."


class TraceArray(NamedTuple):
    """Rows of a stream: steps int64 [n], Unix wall times float64 [n] in s, values [n, ...]."""

    steps: np.ndarray
    wall_times_s: np.ndarray
    values: np.ndarray


class Run:
    """One run, live or finished; `open_run` makes it.

    Frames and arrays stand process by process, each in the order in which it was recorded. What
    cannot be read, or does not fit the newest shape of its stream, is left out and named in
    `warnings`. What a live run has written since it was opened shows after `refresh`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._metadata = self._read_metadata()
        self._readers: dict[str, list[SegmentReader]] = {}
        self._warnings: list[str] = []

    def _read_metadata(self) -> dict[str, Any]:
        path = self.path / RUN_FILE
        try:
            metadata = read_json(path)
        except FileNotFoundError as error:
            raise TraceNotFoundError(f"{str(path)!r} is not there (any more).") from error
        check_run_file(path, metadata)
        return metadata

    def __repr__(self) -> str:
        warnings = f", {len(self.warnings)} warnings" if self.warnings else ""
        return f"<Run {self.name!r}: {self.status}, {len(self.processes)} processes{warnings}>"

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return self.path.resolve().name

    @property
    def run_id(self) -> str:
        """The run's identity, 32 hexadecimal digits."""
        return str(self._metadata.get("run_id", ""))

    @property
    def created_time_s(self) -> float:
        """Unix time at which the run began, seconds."""
        return float(self._metadata.get("created_time_s", np.nan))

    @property
    def config(self) -> dict[str, Any]:
        """The run's settings."""
        return dict(self._metadata.get("config", {}))

    @property
    def feature_groups(self) -> dict[str, Any]:
        """Group -> variable -> [start, stop]; `deepinsight.traces.group_slices` resolves it."""
        return dict(self._metadata.get("feature_groups", {}))

    @property
    def variables(self) -> dict[str, Any]:
        """Name -> {"shape", "dtype", "device"}."""
        return dict(self._metadata.get("variables", {}))

    @property
    def status(self) -> str:
        """``"live"`` if a process is, else ``"crashed"`` if one is, ``"finished"``, ``"empty"``."""
        found = {process.status for process in self.processes}
        return next((status for status in _STATUSES if status in found), "empty")

    @property
    def processes(self) -> tuple[ProcessInfo, ...]:
        """The run's processes, by name."""
        return tuple(process_info(folder) for folder in process_folders(self.path))

    @property
    def warnings(self) -> tuple[str, ...]:
        """What of the run cannot be read, and what to do about it."""
        self._segments()
        return tuple(self._warnings)

    def stream_names(self) -> list[str]:
        """Return the distinct names of all streams, sorted."""
        return sorted({n for s in self._segments().values() for n in self._names(s)})

    def stream(self, name: str, process: str | None = None) -> StreamInfo:
        """Return the description of a stream, from its newest segment.

        Raises:
            StreamNotFoundError: If no process, or not this one, has the stream.
        """
        for _, segment in reversed(self._holders(name, process)):
            try:
                return segment.info(name)
            except SegmentError as error:
                self._warn(error)
        raise SegmentError(f"{self.path}: stream {name!r} is damaged wherever it is. {_REPAIR}")

    def streams(self) -> pd.DataFrame:
        """Return one row per stream and process.

        Returns:
            DataFrame of name, process, shape, dtype, unit, rows, first_step and last_step (NA where
            there is no row yet).
        """
        table = []
        for process, segments in self._segments().items():
            for name in sorted(self._names(segments)):
                try:
                    info = self.stream(name, process)
                except SegmentError as error:
                    self._warn(error)
                    continue
                steps = self.steps(name, process)
                bounds = (steps[0], steps[-1]) if len(steps) else (pd.NA, pd.NA)
                table.append(
                    (name, process, info.shape, info.dtype, info.unit, len(steps), *bounds)
                )
        columns = ["name", "process", "shape", "dtype", "unit", "rows", "first_step", "last_step"]
        frame = pd.DataFrame(table, columns=columns)
        return frame.astype({"first_step": "Int64", "last_step": "Int64"})

    def steps(self, name: str, process: str | None = None) -> np.ndarray:
        """Return the steps of all rows of a stream, int64 [n]; reads no values.

        Raises:
            StreamNotFoundError: If there is no such stream.
        """
        parts = self._rows(name, process, superseded=True)
        return np.concatenate([p.steps for p in parts]) if parts else np.empty(0, np.int64)

    def frame(
        self, name: str, process: str | None = None, *, superseded: bool = True
    ) -> pd.DataFrame:
        """Return a stream of scalars or vectors as a table.

        Args:
            name: Name of the stream.
            process: Only this process; all, if None.
            superseded: False leaves out what a process had recorded before it was restarted, from
                the step on at which the restarted process went on.

        Returns:
            DataFrame of step, wall_time_s, process and value; a vector stream has one column per
            axis label, or value_0, value_1, ..., in place of value.

        Raises:
            StreamNotFoundError: If there is no such stream.
            ValueError: If a value has more than one dimension.
        """
        info = self.stream(name, process)
        if len(info.shape) > 1:
            raise ValueError(
                f"Stream {name!r} holds values of shape {info.shape}; a table takes scalars and "
                f"vectors. Use run.array({name!r})."
            )
        parts = self._rows(name, process, superseded)
        steps, times, values = self._read(name, info, parts, 0, sum(len(p.steps) for p in parts))
        names = list(dict.fromkeys(part.process for part in parts))
        codes = np.repeat(
            [names.index(part.process) for part in parts], [len(part.steps) for part in parts]
        )
        columns: dict[str, Any] = {
            "step": steps,
            "wall_time_s": times,
            "process": pd.Categorical.from_codes(
                codes.astype(np.int16), categories=pd.Index(names)
            ),
        }
        if info.shape:
            for i, label in enumerate(column_names(info)):
                columns[label] = values[:, i]
        else:
            columns["value"] = values
        return pd.DataFrame(columns, copy=False)

    def array(
        self,
        name: str,
        process: str | None = None,
        *,
        superseded: bool = True,
        first: int | None = None,
        last: int | None = None,
    ) -> TraceArray:
        """Return rows of a stream as arrays.

        Args:
            name: Name of the stream.
            process: Only this process; all, if None.
            superseded: As in `frame`.
            first: Only so many rows from the beginning, >= 0.
            last: Only so many rows from the end, >= 0; only these are read.

        Returns:
            Steps, wall times and values.

        Raises:
            StreamNotFoundError: If there is no such stream.
            ValueError: If both ``first`` and ``last`` are given, or one is negative.
        """
        if first is not None and last is not None:
            raise ValueError("Give `first` or `last`, not both.")
        if min(first or 0, last or 0) < 0:
            raise ValueError(f"`first` and `last` must be >= 0. Received: {first}, {last}.")
        info = self.stream(name, process)
        parts = self._rows(name, process, superseded)
        total = sum(len(p.steps) for p in parts)
        start = 0 if last is None else max(total - last, 0)
        stop = total if first is None else min(first, total)
        return self._read(name, info, parts, start, stop)

    def row(self, name: str, step: int, process: str | None = None) -> TraceArray:
        """Return the newest row at or before ``step`` (none, if all are later); reads only it.

        Raises:
            StreamNotFoundError: If there is no such stream.
        """
        info = self.stream(name, process)
        parts = self._rows(name, process, superseded=False)
        steps = np.concatenate([p.steps for p in parts]) if parts else np.empty(0, np.int64)
        candidates = np.flatnonzero(steps <= step)
        if not len(candidates):
            return self._read(name, info, parts, 0, 0)
        newest = int(candidates[np.flatnonzero(steps[candidates] == steps[candidates].max())[-1]])
        return self._read(name, info, parts, newest, newest + 1)

    def refresh(self) -> None:
        """Look at the files again: new rows, segments, processes and metadata."""
        self.close()
        self._metadata = self._read_metadata()

    def close(self) -> None:
        """Release the files; the run opens them again when it is asked."""
        for segments in self._readers.values():
            for segment in segments:
                segment.close()
        self._readers = {}
        self._warnings = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _segments(self) -> dict[str, list[SegmentReader]]:
        if not self._readers:
            for folder in process_folders(self.path):
                self._readers[folder.name] = []
                for path in segment_paths(folder):
                    try:
                        self._readers[folder.name].append(SegmentReader(path))
                    except FileNotFoundError:
                        continue  # removed a moment ago
                    except SegmentError as error:
                        self._warn(error)
                self._warn_of_strangers(folder)
            self._warn_of_strangers(self.path)
        return self._readers

    def _warn(self, error: SegmentError | str) -> None:
        if str(error) not in self._warnings:
            self._warnings.append(str(error))

    def _names(self, segments: list[SegmentReader]) -> set[str]:
        names: set[str] = set()
        for segment in segments:
            try:
                names.update(segment.stream_names())
            except SegmentError as error:
                self._warn(error)
        return names

    def _has(self, segment: SegmentReader, name: str) -> bool:
        try:
            return name in segment
        except SegmentError as error:
            self._warn(error)
            return False

    def _warn_of_strangers(self, folder: Path) -> None:
        # Judged by the name alone: a live process may add a segment between two listings.
        for path in sorted(folder.iterdir()):
            if path.suffix in {".h5", ".hdf5"} and not is_segment_name(path.name):
                self._warn(
                    f"{path}: not a segment of this run (segments are named 000001.h5, ...). It is "
                    "ignored; move it out of the run's folder."
                )

    def _holders(self, name: str, process: str | None) -> list[tuple[str, SegmentReader]]:
        """Return the segments that have the stream, with their process."""
        segments = self._segments()
        if process is not None and process not in segments:
            raise StreamNotFoundError(
                f"Run {self.name!r} has no process {process!r}. It has: {', '.join(segments)}."
            )
        found = [
            (owner, segment)
            for owner, readers in segments.items()
            if process in (None, owner)
            for segment in readers
            if self._has(segment, name)
        ]
        if not found:
            names = self.stream_names()
            close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
            hint = f"Close to it: {', '.join(close)}." if close else f"It has {len(names)} streams."
            where = f" in process {process!r}" if process else ""
            raise StreamNotFoundError(
                f"Run {self.name!r} has no stream {name!r}{where}. {hint} run.streams() lists them."
            )
        return found

    def _rows(self, name: str, process: str | None, superseded: bool) -> list[StoredRows]:
        """Return what of the stream each segment holds; unreadable streams become warnings."""
        parts: list[StoredRows] = []
        shape = self.stream(name, process).shape
        for owner, segment in self._holders(name, process):
            try:
                if segment.layout(name)[0] == shape:
                    parts.append(StoredRows(owner, segment, segment.steps(name)))
                else:
                    self._warn(
                        f"{segment.path}: stream {name!r} has another shape here than in the "
                        f"newest segment, {shape}; it is left out. Ask for one process at a time."
                    )
            except SegmentError as error:
                self._warn(error)
        return parts if superseded else without_superseded(parts)

    def _read(
        self, name: str, info: StreamInfo, parts: list[StoredRows], start: int, stop: int
    ) -> TraceArray:
        """Read rows ``start`` to ``stop`` of the parts laid end to end."""
        count = max(stop - start, 0)
        steps = np.empty(count, np.int64)
        times = np.empty(count)
        dtypes = [part.segment.layout(name)[1] for part in parts]
        dtype = np.result_type(*dtypes) if dtypes else np.dtype(info.dtype)
        values = np.empty((count, *info.shape), dtype=dtype)
        offset = 0  # of the part within all rows
        for part in parts:
            low, high = max(start - offset, 0), min(stop - offset, len(part.steps))
            if low < high:
                target = slice(offset + low - start, offset + high - start)
                steps[target] = part.steps[low:high]
                times[target], values[target] = part.read(name, low, high)
            offset += len(part.steps)
        return TraceArray(steps, times, values)


def open_run(path: str | os.PathLike[str]) -> Run:
    """Open a run, live or finished, of one process or many.

    Args:
        path: Folder of the run, which holds ``run.json``.

    Returns:
        The run; nothing but ``run.json`` is read yet.

    Raises:
        TraceNotFoundError: If there is no run at ``path``.
        TraceError: If ``run.json`` is damaged or of a newer version.
    """
    folder = Path(path)
    if not (folder / RUN_FILE).is_file():
        below = list(open_runs(folder)) if folder.is_dir() else []
        hint = (
            f"Runs below it: {', '.join(below[:5])}."
            if below
            else "A recorder makes a run: deepinsight.Recorder(run_dir)."
        )
        raise TraceNotFoundError(f"{str(folder)!r} is not a run (it has no {RUN_FILE}). {hint}")
    return Run(folder)


class _Runs(Mapping[str, Run]):
    """Every run below a folder, opened when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._paths = {
            path.relative_to(folder).as_posix(): path for path in _run_folders(folder, ())
        }

    def __getitem__(self, name: str) -> Run:
        if name not in self._paths:
            raise RunNotFoundError(
                f"There is no run {name!r} in {str(self.folder)!r}. "
                f"There are: {', '.join(self._paths) or 'none'}."
            )
        return open_run(self._paths[name])

    def __contains__(self, name: object) -> bool:
        return name in self._paths

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __repr__(self) -> str:
        return f"<{len(self)} runs in {str(self.folder)!r}>"


def _run_folders(folder: Path, above: tuple[str, ...]) -> Iterator[Path]:
    """Yield the runs at and below a folder, through links but in no circle."""
    here = os.path.realpath(folder)
    if here in above:
        return
    try:
        with os.scandir(folder) as entries:
            below = sorted(e.name for e in entries if e.name[0] != "." and e.is_dir())
    except OSError:
        return  # not for this user, or removed a moment ago
    if (folder / RUN_FILE).is_file():
        yield folder
    for name in below:
        yield from _run_folders(folder / name, (*above, here))


def open_runs(folder: str | os.PathLike[str]) -> Mapping[str, Run]:
    """Find every run below a folder.

    Args:
        folder: Where to look.

    Returns:
        A mapping from the path of each run relative to ``folder`` (``"."`` for the folder itself)
        to the run, which is opened when it is asked for.

    Raises:
        TraceNotFoundError: If there is no such folder.
    """
    root = Path(folder).absolute()
    if not root.is_dir():
        raise TraceNotFoundError(f"There is no folder {str(root)!r}.")
    return _Runs(root)
