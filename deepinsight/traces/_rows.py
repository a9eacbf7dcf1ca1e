"""Rows on their way from the training thread to a segment."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from deepinsight.traces.schema import StreamInfo

Block = tuple[np.ndarray, np.ndarray, np.ndarray]  # steps [n], wall times [n], values [n, ...]


_SPARE_BYTES = 16 << 20


@dataclass(slots=True)
class Stream:
    """A stream as the writer knows it.

    Attributes:
        info: Its description.
        rows: How many rows have been written.
        spare: Buffers of written arrays; fresh memory costs more than the copy into it.
    """

    info: StreamInfo
    rows: int = 0
    spare: list[np.ndarray] = field(default_factory=list)

    def copied(self, value: Any) -> np.ndarray:
        """Copy one value of the stream into a buffer of its own."""
        array = checked(value, self.info, self.info.shape)
        try:
            buffer = self.spare.pop()
        except IndexError:
            buffer = np.empty(array.shape, self.info.dtype)
        if array.dtype == buffer.dtype:
            np.copyto(buffer, array)
        else:
            with np.errstate(over="ignore", under="ignore"):
                np.copyto(buffer, array, casting="unsafe")
        return buffer

    def give_back(self, buffer: np.ndarray) -> None:
        """Keep a buffer that nobody uses any more for the next value."""
        if (len(self.spare) + 1) * buffer.nbytes <= _SPARE_BYTES:
            self.spare.append(buffer)


Item = tuple[Stream, Any, Any, Any]  # stream and one row, or stream and a block of rows


@dataclass(slots=True)
class _Parts:
    info: StreamInfo
    steps: list[Any] = field(default_factory=list)
    wall_times_s: list[Any] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)


def numbers(value: Any, name: str) -> np.ndarray:
    """Return ``value`` as an array of booleans, integers or floats, or say why it is none."""
    array = np.asarray(value)
    if array.dtype.kind == "V" and array.dtype.name.startswith(("bfloat", "float")):
        return array.astype(np.float32)  # TensorFlow's short floats; float32 holds them exactly
    if array.dtype.kind not in "biuf":
        raise TypeError(
            f"Stream {name!r} takes numbers. Received: {type(value).__name__} of dtype "
            f"{array.dtype}."
        )
    return array


def as_float(value: Any, info: StreamInfo) -> float:
    """Return a scalar as a Python float, or say why it is none."""
    if isinstance(value, np.generic | int) and not isinstance(value, np.character):
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            pass
    return float(fitting(value, info, ()))


def fitting(value: Any, info: StreamInfo, shape: tuple[int, ...]) -> np.ndarray:
    """Copy ``value`` into the stream's dtype, or say why it does not fit."""
    with np.errstate(over="ignore", under="ignore"):  # out of a float's range is infinity or 0
        return np.array(checked(value, info, shape), dtype=info.dtype)


def checked(value: Any, info: StreamInfo, shape: tuple[int, ...]) -> np.ndarray:
    """Return ``value`` as an array that the stream can hold, or say why it cannot."""
    array = numbers(value, info.name)
    if array.shape != shape:
        received = array.shape[len(shape) - len(info.shape) :]
        raise ValueError(
            f"Stream {info.name!r} takes values of shape {info.shape}. Received: shape {received}. "
            "A stream's shape is fixed by its first value; record other shapes under another name."
        )
    target = np.dtype(info.dtype)
    if array.dtype == target or target.kind == "f":
        return array
    fits = array.dtype.kind != "f"
    if fits and array.size:
        limits = (0, 1) if target.kind == "b" else (np.iinfo(target).min, np.iinfo(target).max)
        fits = limits[0] <= int(array.min()) and int(array.max()) <= limits[1]
    if not fits:
        raise ValueError(
            f"Stream {info.name!r} holds {target.name}. Received: {array.dtype}, which does not "
            "fit without loss. Declare the stream with a wider or floating dtype."
        )
    return array


def gather(queue: Sequence[Item]) -> dict[str, Block]:
    """Sort queued rows by stream, in their order, into one block each."""
    streams: dict[str, _Parts] = {}
    for stream, step, wall_time_s, value in queue:
        name = stream.info.name
        part = streams.get(name)
        if part is None:
            part = streams[name] = _Parts(stream.info)
        part.steps.append(step)
        part.wall_times_s.append(wall_time_s)
        part.values.append(value)
    blocks = {name: _block(part) for name, part in streams.items()}
    for stream, step, _, value in queue:
        if stream.info.shape and not isinstance(step, np.ndarray):
            stream.give_back(value)  # _block has copied it
    return blocks


def _block(rows: _Parts) -> Block:
    info = rows.info
    is_block = [isinstance(steps, np.ndarray) for steps in rows.steps]
    if not any(is_block):
        return (
            np.array(rows.steps, dtype=np.int64),
            np.array(rows.wall_times_s, dtype=np.float64),
            np.array(rows.values, dtype=info.dtype).reshape(len(rows.steps), *info.shape),
        )
    parts = [
        (np.atleast_1d(s), np.atleast_1d(t), np.reshape(v, (np.size(s), *info.shape)))
        for s, t, v in zip(rows.steps, rows.wall_times_s, rows.values, strict=True)
    ]
    if len(parts) == 1:
        return parts[0]
    steps, times, values = zip(*parts, strict=True)
    return np.concatenate(steps), np.concatenate(times), np.concatenate(values)
