"""The Criteo click logs from a file of tab-separated values.

Each line holds 40 fields: the label (0 or 1), 13 integer features and 26 categorical ones of 8
hexadecimal digits; any feature may be empty. A ``.gz`` file is unpacked while it is read.

Every field is a feature group of its own with one slot (``I1`` … ``I13``, ``C1`` … ``C26``). ID 0
means "missing". An integer v falls into a bucket that widens with it: 4 + v for v in -3 … 2, then
``6 + floor(4 * log2(v / 2))``, at most 127. A categorical value is hashed into
``1 … buckets - 1``.

Line k (from 0) is held out if ``k % 10 == 9``; of the other lines, worker i of n trains on every
n-th, beginning with the i-th. Lines are shuffled within blocks of 8,192.
"""

import gzip
import io
import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from deepinsight.trainer.data.base import Batch, DataSet, FeatureGroup
from deepinsight.trainer.errors import DataError

INTEGERS = 13
CATEGORICALS = 26
FIELDS = 1 + INTEGERS + CATEGORICALS
INTEGER_BUCKETS = 128
LOWEST_INTEGER = -3
HELD_OUT_EVERY = 10
BLOCK = 8192


class Criteo(DataSet):
    """Criteo's format from a path; the file is streamed, only the evaluated part is kept.

    Args:
        path: The file.
        buckets: IDs per categorical feature, >= 2.
        held_out_limit: Held-out examples to keep at most, >= 2; as many of the training part are
            kept, at most, as its sample.

    Raises:
        DataError: If the file cannot be read, is malformed within the part that is kept, or has
            fewer than 10 lines.
    """

    name = "criteo"

    def __init__(self, path: str | Path, *, buckets: int = 10_000, held_out_limit: int = 4096):
        self._path, self._buckets = Path(path), buckets
        self.groups = (
            *(FeatureGroup(f"I{i + 1}", 1, INTEGER_BUCKETS) for i in range(INTEGERS)),
            *(FeatureGroup(f"C{i + 1}", 1, buckets) for i in range(CATEGORICALS)),
        )
        self._held_out = self._collect(held_out_limit, held_out=True)
        if not len(self._held_out.labels):
            raise DataError(
                f"{self._path}: at least {HELD_OUT_EVERY} lines are needed, so that one can be "
                f"held out. Give a longer file."
            )
        self._sample = self._collect(held_out_limit, held_out=False)

    def facts(self) -> dict[str, Any]:
        """The groups, the path and the number of held-out examples."""
        return {
            **super().facts(),
            "path": str(self._path),
            "held_out_examples": len(self._held_out.labels),
        }

    def _collect(self, limit: int, *, held_out: bool) -> Batch:
        lines = (pair for pair in self._lines() if (pair[0] % HELD_OUT_EVERY == 9) == held_out)
        return self._parse(list(islice(lines, limit)))

    def _lines(self) -> Iterator[tuple[int, str]]:
        """The lines with their index from 0."""
        try:
            with _open_text(self._path) as file:
                for index, line in enumerate(file):
                    yield index, line.rstrip("\r\n")
        except (OSError, UnicodeDecodeError, EOFError) as error:
            raise unreadable(self._path, error) from error

    def _parse(self, lines: list[tuple[int, str]]) -> Batch:
        ids = np.zeros((len(lines), FIELDS - 1), np.int32)
        labels = np.zeros(len(lines), np.float32)
        for row, (index, line) in enumerate(lines):
            try:
                labels[row], ids[row] = parse_line(line, self._buckets)
            except ValueError as error:
                raise DataError(f"{self._path}, line {index + 1}: {error}") from error
        return Batch(ids, labels)

    def batches(
        self,
        *,
        worker: int,
        workers: int,
        batch_size: int,
        seed: int,
        epochs: int | None = None,
        position: int = 0,
    ) -> Iterator[Batch]:
        """Every `workers`-th training line; see `DataSet.batches`."""
        rng = np.random.default_rng([seed, worker, position])
        if next(self._part(worker, workers), None) is None:
            raise DataError(
                f"{self._path}: the file has too few lines for {workers} workers. "
                f"Use fewer --workers."
            )
        return self._batches(worker, workers, batch_size, epochs, rng)

    def _part(self, worker: int, workers: int) -> Iterator[tuple[int, str]]:
        training = (pair for pair in self._lines() if pair[0] % HELD_OUT_EVERY != 9)
        return islice(training, worker, None, workers)

    def _batches(
        self,
        worker: int,
        workers: int,
        batch_size: int,
        epochs: int | None,
        rng: np.random.Generator,
    ) -> Iterator[Batch]:
        rest = Batch(np.zeros((0, FIELDS - 1), np.int32), np.zeros(0, np.float32))
        epoch = 0
        while epochs is None or epoch < epochs:
            lines = self._part(worker, workers)
            while block := list(islice(lines, BLOCK)):
                parsed = self._parse(block)
                order = rng.permutation(len(block))
                ids = np.concatenate([rest.ids, parsed.ids[order]])
                labels = np.concatenate([rest.labels, parsed.labels[order]])
                full = len(labels) // batch_size * batch_size
                for first in range(0, full, batch_size):
                    last = first + batch_size
                    yield Batch(ids[first:last], labels[first:last])
                rest = Batch(ids[full:], labels[full:])
            epoch += 1
        if len(rest.labels):
            yield rest

    def held_out(self, position: int = 0) -> Batch:
        """The first held-out lines."""
        return self._held_out

    def training_sample(self, position: int = 0) -> Batch:
        """The first training lines, at most as many as may be held out."""
        return self._sample


def check_file(path: str | Path) -> None:
    """Check that a file can be read and that its first line is one of Criteo's.

    Raises:
        DataError: If not.
    """
    try:
        with _open_text(Path(path)) as file:
            parse_line(file.readline().rstrip("\r\n"), 2)
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise unreadable(path, error) from error
    except ValueError as error:
        raise DataError(f"{path}, line 1: {error}") from error


def unreadable(path: str | Path, error: Exception) -> DataError:
    """The error for a file that cannot be read."""
    return DataError(
        f"{path}: the Criteo file cannot be read ({error}). --data-path must name a file of "
        f"tab-separated text."
    )


def parse_line(line: str, buckets: int) -> tuple[float, list[int]]:
    """Parse one line of 40 tab-separated fields.

    Args:
        line: The line without its end.
        buckets: IDs per categorical feature.

    Returns:
        The label, 0.0 or 1.0, and the 39 IDs.

    Raises:
        ValueError: If the line is malformed; the message says where.
    """
    fields = line.split("\t")
    if len(fields) != FIELDS:
        raise ValueError(
            f"a line must have {FIELDS} tab-separated fields (label, {INTEGERS} integers, "
            f"{CATEGORICALS} categoricals). Received: {len(fields)}."
        )
    if fields[0] not in ("0", "1"):
        raise ValueError(f"the label (field 1) must be 0 or 1. Received: {fields[0]!r}.")
    ids = [
        integer_bucket(_number(text, 10, position + 2))
        for position, text in enumerate(fields[1 : 1 + INTEGERS])
    ]
    for position, text in enumerate(fields[1 + INTEGERS :]):
        value = _number(text, 16, position + 2 + INTEGERS)
        ids.append(0 if value is None else 1 + _mix(value) % (buckets - 1))
    return float(fields[0]), ids


def integer_bucket(value: int | None) -> int:
    """The ID of an integer feature: 0 for None, else a bucket that grows with the value."""
    if value is None:
        return 0
    if value <= 2:
        return 1 + max(value, LOWEST_INTEGER) - LOWEST_INTEGER
    return min(6 + math.floor(4 * math.log2(value / 2)), INTEGER_BUCKETS - 1)


def _number(text: str, base: int, field: int) -> int | None:
    if not text:
        return None
    try:
        return int(text, base)
    except ValueError:
        kind = "an integer" if base == 10 else "a hexadecimal number"
        raise ValueError(f"field {field} must be {kind} or empty. Received: {text!r}.") from None


def _mix(value: int) -> int:
    """Spread a 32-bit value over 64 bits (the finaliser of MurmurHash3)."""
    value = (value ^ (value >> 33)) * 0xFF51AFD7ED558CCD & 0xFFFFFFFFFFFFFFFF
    value = (value ^ (value >> 33)) * 0xC4CEB9FE1A85EC53 & 0xFFFFFFFFFFFFFFFF
    return value ^ (value >> 33)


def _open_text(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return io.TextIOWrapper(gzip.open(path, "rb"), encoding="ascii", newline="\n")
    return path.open(encoding="ascii", newline="\n")
