r"""Weights: block maxima, moments, percentiles and feature groups of every variable."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from deepinsight.collectors import arrays as arrays_module
from deepinsight.collectors.probes.base import WEIGHT, Part, Probe, Stream, Variable
from deepinsight.traces import Axis

MOMENTS = ("mean", "std", "min", "max", "share_of_zeros")
PERCENTILES = (1, 5, 25, 50, 75, 95, 99)


@dataclass(frozen=True)
class TilePlan:
    """How a variable is seen as a matrix and cut into blocks.

    A scalar is [1, 1], a vector [R, 1], a matrix itself; more dimensions become
    [product of all but the last, last], so that axis 0 stays slowest and units stay columns.

    Attributes:
        rows: Rows of the matrix.
        columns: Columns of the matrix.
        block_rows: Rows of a block; the last block may have fewer.
        block_columns: Columns of a block; the last block may have fewer.
    """

    rows: int
    columns: int
    block_rows: int
    block_columns: int

    @classmethod
    def of(cls, shape: tuple[int, ...], max_tiles: int) -> "TilePlan":
        """The plan with at most `max_tiles` blocks along each axis."""
        columns = shape[-1] if len(shape) > 1 else 1
        rows = math.prod(shape) // columns if columns else 0
        ceil = (-(-rows // max_tiles), -(-columns // max_tiles))
        return cls(rows, columns, max(1, ceil[0]), max(1, ceil[1]))

    @property
    def tiles(self) -> tuple[int, int]:
        """Shape of the tile matrix."""
        return -(-self.rows // self.block_rows), -(-self.columns // self.block_columns)


class Weights(Probe):
    r"""Summaries of every trainable floating-point variable, made where the variable lives.

    Per variable ``weights/<var>/…``:

    - ``tiles``: maximum of \|w\| over blocks, at most `max_tiles` along each axis; the block shape
      is in the stream's details. NaN in a block makes its tile NaN.
    - ``moments``: mean, standard deviation (of the population), minimum, maximum, share of zeros.
    - ``percentiles``: 1, 5, 25, 50, 75, 95, 99, linearly interpolated; exact up to `max_sample`
      elements, above that of a strided subsample, which ``reduction`` then states.
    - ``group_rms``, ``group_max``: root mean square and maximum of \|w\| over the rows of each
      feature group, where feature groups name the variable.
    - ``raw``: the tensor itself, up to `max_raw` elements.

    float16 and bfloat16 are summarised in float32.

    Args:
        include: Regular expression searched in the variable's name; None takes all.
        max_tiles: Blocks along an axis, 1 to 4096.
        max_sample: Elements that percentiles are computed from, >= 1.
        max_raw: Elements up to which a tensor is also stored as it is, >= 0.
        every_n_steps: See :class:`Probe`.
        every_n_seconds: See :class:`Probe`.

    Raises:
        ValueError: If an argument is out of range.
    """

    name = "weights"

    def __init__(
        self,
        include: str | None = None,
        *,
        max_tiles: int = 512,
        max_sample: int = 4096,
        max_raw: int = 256,
        every_n_steps: int | None = None,
        every_n_seconds: float | None = None,
    ) -> None:
        super().__init__(every_n_steps=every_n_steps, every_n_seconds=every_n_seconds)
        if not 1 <= max_tiles <= 4096:
            raise ValueError(f"`max_tiles` must be 1 to 4096. Received: max_tiles={max_tiles}.")
        if not max_sample >= 1:
            raise ValueError(f"`max_sample` must be >= 1. Received: max_sample={max_sample}.")
        if not max_raw >= 0:
            raise ValueError(f"`max_raw` must be >= 0. Received: max_raw={max_raw}.")
        self.include = re.compile(include) if include is not None else None
        self.max_tiles = max_tiles
        self.max_sample = max_sample
        self.max_raw = max_raw

    def parts(self) -> tuple[Part, ...]:
        """One part: everything from one pass over the weights."""
        return (Part(frozenset({WEIGHT}), self.measure),)

    def accepts(self, variable: Variable) -> bool:
        """Variables with at least one element whose name matches `include`."""
        named = self.include is None or self.include.search(variable.name) is not None
        return named and variable.elements > 0

    def stride(self, variable: Variable) -> int:
        """Stride of the subsample in row-major order, prime to the number of columns."""
        plan = TilePlan.of(variable.shape, self.max_tiles)
        if variable.elements <= max(self.max_sample, self.max_raw):
            return 1
        stride = -(-variable.elements // self.max_sample)
        while math.gcd(stride, plan.columns) > 1:
            stride += 1
        return stride

    def measure(self, xp: Any, variable: Variable, *, weight: Any) -> dict[str, Any]:
        """Tiles, moments, sample and group statistics of one variable."""
        plan = TilePlan.of(variable.shape, self.max_tiles)
        measured = _measure_matrix(xp, weight, variable, plan)
        sample = xp.every(weight, self.stride(variable), variable.elements, plan.columns)
        measured["sample"] = xp.floating(sample)
        if variable.groups:
            statistics = [
                _group_statistics(xp, weight, rows, variable) for rows in variable.groups.values()
            ]
            measured["group_rms"] = xp.stack([rms for rms, _ in statistics])
            measured["group_max"] = xp.stack([peak for _, peak in statistics])
        return measured

    def finish(self, variable: Variable, measured: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Percentiles and the raw tensor from the sample; the rest as measured."""
        base = f"weights/{variable.name}"
        sample = measured["sample"]
        if np.isnan(sample).any():
            percentiles = np.full(len(PERCENTILES), np.nan, sample.dtype)
        else:
            with np.errstate(invalid="ignore"):
                percentiles = np.percentile(sample, PERCENTILES).astype(sample.dtype)
        values = {f"{base}/percentiles": percentiles}
        for key in ("tiles", "moments", "group_rms", "group_max"):
            if key in measured:
                values[f"{base}/{key}"] = measured[key]
        if variable.elements <= self.max_raw:
            values[f"{base}/raw"] = sample.reshape(variable.shape)
        return values

    def variable_streams(self, variable: Variable, offered: frozenset[str]) -> Iterable[Stream]:
        """The streams of one variable, with the block shape and the subsample stated."""
        if WEIGHT not in offered:
            return
        base, dtype = f"weights/{variable.name}", variable.dtype
        plan = TilePlan.of(variable.shape, self.max_tiles)
        block = f"{plan.block_rows} x {plan.block_columns}"
        yield Stream(
            f"{base}/tiles",
            plan.tiles,
            dtype,
            description="Largest absolute weight of each block.",
            axes=(Axis("row block"), Axis("column block")),
            reduction=f"maximum of |w| over blocks of {block}",
            details={
                "block_shape": [plan.block_rows, plan.block_columns],
                "full_shape": list(variable.shape),
                "matrix_shape": [plan.rows, plan.columns],
            },
        )
        moments = Axis("moment", MOMENTS)
        yield Stream(f"{base}/moments", (5,), dtype, axes=(moments,), reduction="over all elements")
        yield Stream(
            f"{base}/percentiles",
            (len(PERCENTILES),),
            dtype,
            axes=(Axis("percentile", tuple(f"p{p}" for p in PERCENTILES)),),
            reduction=self._sample_in_words(variable),
        )
        if variable.groups:
            axes = (Axis("feature group", tuple(variable.groups)),)
            shape = (len(variable.groups),)
            over = "over the rows of each feature group"
            yield Stream(
                f"{base}/group_rms", shape, dtype, axes=axes, reduction=f"root mean square {over}"
            )
            yield Stream(
                f"{base}/group_max", shape, dtype, axes=axes, reduction=f"maximum of |w| {over}"
            )
        if variable.elements <= self.max_raw:
            yield Stream(f"{base}/raw", variable.shape, dtype, description="The tensor itself.")

    def _sample_in_words(self, variable: Variable) -> str:
        stride = self.stride(variable)
        if stride == 1:
            return "percentiles of all elements"
        taken = -(-variable.elements // stride)
        return (
            f"percentiles of a subsample: every {stride}th of {variable.elements} elements "
            f"in row-major order, {taken} in all"
        )


def _measure_matrix(xp: Any, weight: Any, variable: Variable, plan: TilePlan) -> dict[str, Any]:
    """Tiles and moments; in chunks of whole tile rows where the variable is large."""
    chunk_rows = max(1, arrays_module.CHUNK_ELEMENTS // (plan.block_rows * plan.columns))
    chunk_rows *= plan.block_rows
    if plan.rows <= chunk_rows or len(variable.shape) > 2:
        matrix = xp.reshape(xp.floating(weight), (plan.rows, plan.columns))
        tiles, moments = _block_maxima(xp, matrix, plan), _partial_moments(xp, matrix)
        return {"tiles": tiles, "moments": _merge_moments(xp, [moments], [matrix_size(plan)])}
    count, rest = divmod(plan.rows, chunk_rows)

    def chunk(start: Any, rows: int) -> tuple[Any, Any]:
        part = xp.floating(xp.rows(weight, start, rows))
        matrix = xp.reshape(part, (rows, plan.columns))
        return _block_maxima(xp, matrix, plan), xp.stack(_partial_moments(xp, matrix))

    tiles, partials = xp.map_chunks(lambda i: chunk(i * chunk_rows, chunk_rows), count)
    all_tiles = [xp.reshape(tiles, (count * chunk_rows // plan.block_rows, plan.tiles[1]))]
    moments = [partials[i] for i in range(count)]
    sizes = [chunk_rows * plan.columns] * count
    if rest:
        last_tiles, last = chunk(count * chunk_rows, rest)
        all_tiles.append(last_tiles)
        moments.append(last)
        sizes.append(rest * plan.columns)
    return {"tiles": xp.concat(all_tiles), "moments": _merge_moments(xp, moments, sizes)}


def matrix_size(plan: TilePlan) -> int:
    """Number of elements of the matrix."""
    return plan.rows * plan.columns


def _block_maxima(xp: Any, matrix: Any, plan: TilePlan) -> Any:
    """Maximum of the absolute values per block of a matrix [r, columns]."""
    peaks = xp.abs(matrix)
    rows, columns = (int(n) for n in matrix.shape)
    if plan.block_rows > 1:
        peaks = _fold(xp, peaks, (rows, columns), plan.block_rows, axis=0)
        rows = -(-rows // plan.block_rows)
    if plan.block_columns > 1:
        peaks = _fold(xp, peaks, (rows, columns), plan.block_columns, axis=1)
    return peaks


def _fold(xp: Any, x: Any, shape: tuple[int, int], block: int, axis: int) -> Any:
    """Maximum over runs of `block` along an axis; the last run may be shorter."""
    rows, columns = shape
    length = columns if axis else rows
    whole = length // block
    folded = []
    if whole:
        if axis:
            runs = xp.reshape(x[:, : whole * block], (rows, whole, block))
            folded.append(xp.max(runs, 2))
        else:
            runs = xp.reshape(x[: whole * block], (whole, block, columns))
            folded.append(xp.max(runs, 1))
    if whole * block < length:
        tail = x[:, whole * block :] if axis else x[whole * block :]
        shape = (rows, 1) if axis else (1, columns)
        folded.append(xp.reshape(xp.max(tail, axis), shape))
    return xp.concat(folded, axis)


def _partial_moments(xp: Any, matrix: Any) -> tuple[Any, ...]:
    """Mean, sum of squared deviations, minimum, maximum and share of zeros."""
    size = math.prod(int(n) for n in matrix.shape)
    mean = xp.sum(matrix) / size
    deviations = xp.sum_of_squares(xp.subtract(matrix, mean))
    return mean, deviations, xp.min(matrix), xp.max(matrix), xp.share_of_zeros(matrix)


def _merge_moments(xp: Any, partials: list[Any], sizes: list[int]) -> Any:
    """[5] moments of the whole from the partial moments of its pieces (Chan et al., 1979)."""
    total = sum(sizes)
    if len(partials) == 1:
        mean, deviations, low, high, zeros = (partials[0][i] for i in range(5))
        return xp.stack([mean, xp.sqrt(deviations / total), low, high, zeros])
    columns = [xp.stack([p[i] for p in partials]) for i in range(5)]
    shares = np.asarray([n / total for n in sizes], np.dtype(columns[0].dtype.name))
    mean = xp.sum(columns[0] * shares)
    spread = xp.subtract(columns[0], mean)
    variance = xp.sum(columns[1]) / total + xp.sum(spread * spread * shares)
    zeros = xp.sum(columns[4] * shares)
    return xp.stack([mean, xp.sqrt(variance), xp.min(columns[2]), xp.max(columns[3]), zeros])


def _group_statistics(xp: Any, weight: Any, rows: slice, variable: Variable) -> tuple[Any, Any]:
    """Root mean square and maximum of the absolute values over rows of axis 0."""
    start, stop, _ = rows.indices(variable.shape[0])
    inner = variable.elements // variable.shape[0]
    if stop <= start:
        nothing = xp.floating(np.full((), np.nan, variable.dtype))
        return nothing, nothing
    per_chunk = max(1, arrays_module.CHUNK_ELEMENTS // inner)
    if variable.elements <= arrays_module.CHUNK_ELEMENTS or len(variable.shape) > 2:
        part = xp.floating(weight[start:stop])
        return xp.sqrt(xp.sum_of_squares(part) / ((stop - start) * inner)), xp.max(xp.abs(part))

    def chunk(first: Any, count: int) -> tuple[Any, Any]:
        part = xp.floating(xp.rows(weight, first, count))
        return xp.sum_of_squares(part), xp.max(xp.abs(part))

    count, rest = divmod(stop - start, per_chunk)
    squares, peaks = [], []
    if count:
        square, peak = xp.map_chunks(lambda i: chunk(start + i * per_chunk, per_chunk), count)
        squares.append(xp.reshape(square, (count,)))
        peaks.append(xp.reshape(peak, (count,)))
    if rest:
        square, peak = chunk(start + count * per_chunk, rest)
        squares.append(xp.reshape(square, (1,)))
        peaks.append(xp.reshape(peak, (1,)))
    mean_square = xp.sum(xp.concat(squares)) / ((stop - start) * inner)
    return xp.sqrt(mean_square), xp.max(xp.concat(peaks))
