"""The trace format, version 1.

A run is a directory with one sub-directory per process, so that no two processes write one file::

    runs/ctr-async/
      run.json                     identity, configuration, feature groups, variables
      worker-0/process.json        who writes: host, pid, start, and the end once it was closed
      worker-0/000001.h5 ...       append-only segments, never reopened for writing
      worker-1/ ...  ps-0/ ...

**run.json** is one JSON object, replaced atomically: ``format`` ("deepinsight-run"),
``format_version`` (1), ``run_id`` (32 hexadecimal digits), ``created_time_s`` (Unix seconds),
``config`` (any JSON object), ``feature_groups`` (group -> variable -> [start, stop] rows of axis 0,
stop exclusive, null for "to the end"; the variable ``*`` stands for every variable whose first
dimension equals the largest stop, which must be stated), ``variables`` (name -> {"shape", "dtype",
"device"}).

**process.json** holds ``host``, ``pid``, ``started_time_s``, ``life`` (1 for the first writer of
this process name, 2 after the first restart, ...) and ``ended_time_s`` (null until the writer
closed). A live writer holds an exclusive ``flock`` on the file ``.lock`` beside it.

**A segment** is an HDF5 file (superblock 3, readable by HDF5 1.10 and later) written under SWMR. It
appears under its name only once SWMR has begun. Root attributes:

==================  =======  ==========================================================
``format``          string   "deepinsight-trace"
``format_version``  int64    1
``run_id``          string   as in run.json
``process``         string   name of the sub-directory
``segment``         int64    number in the file name, from 1
``life``            int64    as in process.json; rows of a later life continue the run
``created_time_s``  float64  Unix seconds
==================  =======  ==========================================================

**A stream** is a group at the path of its name, for example ``/weights/fc1/kernel/tiles``, with

=================  =======  ============  ==================================================
``step``           int64    [n]           global step (optimizer updates), >= 0; fill value -1
``wall_time_s``    float64  [n]           Unix seconds
``values``         any      [n, *shape]   fixed shape; bool, integer or floating dtype
=================  =======  ============  ==================================================

and the string attributes ``unit`` ("" = none stated, "1" = a pure number), ``description``,
``reduction`` (how the value was reduced, in words; "" = as it is), ``axes`` (JSON list of {"name",
"labels", "unit"}, one per dimension of ``shape``) and ``details`` (JSON object). An attribute that
would be empty is left out.

Row i of the three datasets belongs together. A row counts once its ``step`` is there: the writer
flushes ``values`` and ``wall_time_s`` before it writes ``step``, so readers cut at the first step
of -1 and at the shortest of the three. Rows stand in the order in which they were recorded; steps
may repeat or go back (a restart from a checkpoint). A stream may have zero rows. NaN and infinity
are data. All streams of a segment exist before SWMR begins; a stream that comes later opens a new
segment. Datasets are chunked and not compressed.

Two streams belong to the writer itself: ``recorder/dropped_rows`` and ``recorder/write_errors``,
cumulative counts, with a row when a count changes and one at close.
"""

import json
import math
import operator
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

RUN_FORMAT = "deepinsight-run"
SEGMENT_FORMAT = "deepinsight-trace"
FORMAT_VERSION = 1
STEP_FILL = -1
ANY_VARIABLE = "*"

_RESERVED = frozenset({"step", "wall_time_s", "values"})
_COMPONENT = re.compile(r"[A-Za-z0-9_.:+\-= ()\[\]%]+")
_MAX_NAME_LENGTH = 1024
_MAX_RANK = 31  # HDF5 knows 32 dimensions, and the rows are one
_MAX_VALUE_BYTES = (1 << 32) - 1  # a value lies in one HDF5 chunk

FeatureGroups = Mapping[str, Any]


@dataclass(frozen=True)
class Axis:
    """One dimension of a stream's value.

    Attributes:
        name: What the dimension counts, for example ``"feature group"``.
        labels: One label per index, or None where the index itself says it.
        unit: Unit of the index, if it has one.
    """

    name: str
    labels: tuple[str, ...] | None = None
    unit: str = ""


@dataclass(frozen=True)
class StreamInfo:
    """What a stream's attributes say.

    Attributes:
        name: Components joined by ``/``.
        shape: Shape of one value; ``()`` for a scalar.
        dtype: NumPy name of the stored dtype.
        unit: Unit of the values; ``""`` = not stated, ``"1"`` = a pure number.
        description: One sentence for whoever reads the trace.
        axes: One `Axis` per dimension of ``shape``, or empty.
        reduction: How the value was reduced, in words; ``""`` = as it is.
        details: JSON-serialisable facts, such as the block shape of tiles.
    """

    name: str
    shape: tuple[int, ...] = ()
    dtype: str = "float64"
    unit: str = ""
    description: str = ""
    axes: tuple[Axis, ...] = ()
    reduction: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_stream_name(self.name)
        try:
            dtype = np.dtype(self.dtype)
        except TypeError as error:
            raise TypeError(
                f"Stream {self.name!r}: `dtype` must be a NumPy dtype. Received: {self.dtype!r}."
            ) from error
        if dtype.kind not in "biuf":
            raise ValueError(
                f"Stream {self.name!r} must hold booleans, integers or floats. Received: "
                f"dtype={self.dtype}. Record text in the run's config instead."
            )
        self._check_shape(dtype)
        self._check_text()

    def _check_shape(self, dtype: "np.dtype[Any]") -> None:
        shape = self.shape
        size = dtype.itemsize * math.prod(shape)
        if len(shape) > _MAX_RANK or min(shape, default=0) < 0 or size > _MAX_VALUE_BYTES:
            raise ValueError(
                f"Stream {self.name!r}: `shape` must have at most {_MAX_RANK} dimensions, each "
                f">= 0, and a value less than 4 GiB. Received: shape={shape} of {dtype.name}. "
                "Record a summary of the tensor."
            )
        if self.axes and len(self.axes) != len(shape):
            raise ValueError(
                f"Stream {self.name!r}: `axes` must name each dimension of shape {shape}. "
                f"Received: {len(self.axes)} axes."
            )
        for axis, count in zip(self.axes, shape, strict=False):
            if axis.labels is not None and len(axis.labels) != count:
                raise ValueError(
                    f"Stream {self.name!r}: axis {axis.name!r} has {count} entries. Received: "
                    f"{len(axis.labels)} labels."
                )

    def _check_text(self) -> None:
        """Refuse what could not be stored, here, where its author sees it."""
        texts = [self.unit, self.description, self.reduction]
        for axis in self.axes:
            texts += [axis.name, axis.unit, *(axis.labels or ())]
        for text in texts:
            if not isinstance(text, str) or "\0" in text or not _encodable(text):
                raise TypeError(
                    f"Stream {self.name!r}: unit, description, reduction, names and labels of axes "
                    f"must be text without NUL. Received: {text!r}."
                )
        try:
            json.dumps(dict(self.details), default=plain)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"Stream {self.name!r}: `details` must be JSON: strings, numbers, booleans, lists "
                f"and mappings. Received: {self.details!r}."
            ) from error

    @property
    def row_bytes(self) -> int:
        """Size of one row with its step and wall time, bytes."""
        return 16 + np.dtype(self.dtype).itemsize * math.prod(self.shape)

    def attributes(self) -> dict[str, str]:
        """Return the HDF5 attributes of the stream's group."""
        axes = [vars(axis) for axis in self.axes]
        attributes = {
            "unit": self.unit,
            "description": self.description,
            "reduction": self.reduction,
            "axes": json.dumps(axes) if axes else "",
            "details": json.dumps(dict(self.details), default=plain) if self.details else "",
        }
        return {name: text for name, text in attributes.items() if text}

    @classmethod
    def from_attributes(
        cls, name: str, shape: Sequence[int], dtype: str, attributes: Mapping[str, Any]
    ) -> "StreamInfo":
        """Rebuild the description from a group's attributes; the inverse of `attributes`."""
        axes = tuple(
            Axis(a["name"], None if a["labels"] is None else tuple(a["labels"]), a["unit"])
            for a in json.loads(attributes.get("axes", "[]"))
        )
        return cls(
            name=name,
            shape=tuple(shape),
            dtype=dtype,
            unit=attributes.get("unit", ""),
            description=attributes.get("description", ""),
            axes=axes,
            reduction=attributes.get("reduction", ""),
            details=json.loads(attributes.get("details", "{}")),
        )


def plain(value: Any) -> Any:
    """Turn NumPy scalars and arrays and paths into what JSON knows; a ``default`` of json.dumps."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"not JSON: {type(value).__name__} {value!r}")


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_stream_name(name: str) -> None:
    """Raise ValueError unless ``name`` can be the path of a stream."""
    components = name.split("/") if isinstance(name, str) else [""]
    if not all(_COMPONENT.fullmatch(c) and c not in {".", ".."} for c in components):
        raise ValueError(
            "A stream name must be components of letters, digits, spaces and _.:+-=()[]% joined "
            f"by '/'. Received: {name!r}. stream_name() makes a valid name of any string."
        )
    if len(name) > _MAX_NAME_LENGTH:
        raise ValueError(
            f"A stream name must have at most {_MAX_NAME_LENGTH} characters. Received: "
            f"{len(name)}, {name[:40]!r}... stream_name() shortens it."
        )
    if reserved := _RESERVED.intersection(components):
        raise ValueError(
            f"A component of a stream name must not be {sorted(reserved)[0]!r}: the format uses it "
            f"for a dataset. Received: {name!r}."
        )


def stream_name(raw: str) -> str:
    """Make a valid stream name of any string, such as a TensorFlow variable's name.

    The output index of a TensorFlow name (``:0``) is dropped, empty components vanish, every other
    character that the format does not allow becomes ``_``, a reserved component gets a ``_``, and
    a checksum stands for the end of a name beyond 1024 characters.

    Example:
        >>> stream_name("fc1/kernel:0")
        'fc1/kernel'
        >>> stream_name("größe//step")
        'gr__e/step_'
    """
    raw = re.sub(r"(?:/|:[0-9]+)+\Z", "", raw)
    components = [re.sub(r"[^A-Za-z0-9_.:+\-= ()\[\]%]", "_", c) for c in raw.split("/") if c]
    safe = [c + "_" if c in _RESERVED or c in {".", ".."} else c for c in components]
    name = "/".join(safe) or "_"
    if len(name) > _MAX_NAME_LENGTH:
        name = f"{name[: _MAX_NAME_LENGTH - 16]}_{zlib.crc32(name.encode()):08x}"
    return name


def normalize_feature_groups(groups: FeatureGroups) -> dict[str, dict[str, list[int | None]]]:
    """Bring feature groups into the form in which run.json holds them.

    Args:
        groups: Group -> rows, or group -> {variable -> rows}; rows are a ``slice`` with step 1 or a
            ``(start, stop)`` pair. Plain rows go to the variable ``*``.

    Returns:
        Group -> variable -> ``[start, stop]``; a stop of None means "to the end".

    Raises:
        ValueError: If rows are not a forward range.
    """
    return {
        str(group): (
            {str(variable): _rows(group, rows) for variable, rows in spec.items()}
            if isinstance(spec, Mapping)
            else {ANY_VARIABLE: _rows(group, spec, open_end=False)}
        )
        for group, spec in groups.items()
    }


def _rows(group: str, rows: Any, open_end: bool = True) -> list[int | None]:
    """Return ``[start, stop]``; a stop of None only where ``open_end`` allows it."""
    pair = [rows.start or 0, rows.stop] if isinstance(rows, slice) else rows
    if (
        isinstance(pair, list | tuple)
        and len(pair) == 2
        and getattr(rows, "step", None) in (None, 1)
    ):
        try:
            start = operator.index(pair[0])
            stop = None if pair[1] is None else operator.index(pair[1])
        except TypeError:
            start, stop = -1, None
        if start >= 0 and (open_end if stop is None else stop > start):
            return [start, stop]
    raise ValueError(
        f"Feature group {group!r} must be a slice or a (start, stop) pair of rows with 0 <= start "
        f"< stop; only where the variable is named may stop be None. Received: {rows!r}."
    )


def group_slices(groups: FeatureGroups, variable: str, rows: int) -> dict[str, slice]:
    """Say which rows of a variable belong to which feature group.

    Args:
        groups: Feature groups as a user gives them or as ``Run.feature_groups`` returns them.
        variable: Name of the variable as in the trace, ``"fc1/kernel"``.
        rows: Its first dimension.

    Returns:
        Group -> slice within ``[0, rows)``, ordered by start; empty if no group covers it.

    Example:
        >>> group_slices({"user": slice(0, 8), "ad": (8, 12)}, "fc1/kernel", 12)
        {'user': slice(0, 8, None), 'ad': slice(8, 12, None)}
        >>> group_slices({"user": {"fc1/kernel": slice(0, 8)}}, "fc2/kernel", 12)
        {}
    """
    normal = normalize_feature_groups(groups)
    width = max((v[ANY_VARIABLE][1] or 0 for v in normal.values() if ANY_VARIABLE in v), default=0)
    found = {}
    for group, variables in normal.items():
        bounds = variables.get(variable)
        if bounds is None and rows == width:
            bounds = variables.get(ANY_VARIABLE)
        if bounds is None:
            continue
        start, stop = bounds[0] or 0, rows if bounds[1] is None else min(bounds[1], rows)
        if start < stop:
            found[group] = slice(start, stop)
    return dict(sorted(found.items(), key=lambda item: item[1].start))
