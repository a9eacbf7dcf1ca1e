"""Copy the readable rows of a damaged segment; run as a process of its own, see `repair`."""

import json
import os
import shutil
import struct
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from deepinsight.traces._segment_reader import DATASETS, READ_ERRORS, collect_streams
from deepinsight.traces._segment_writer import SegmentWriter
from deepinsight.traces._superblock import is_unclosed, stored_eof
from deepinsight.traces.schema import STEP_FILL, StreamInfo

_BLOCK_BYTES = 64 << 20
_SUPERBLOCK_BYTES = 44  # before its checksum


def salvage(source: Path, target: Path) -> dict[str, Any]:
    """Write the readable rows of ``source`` to the new segment ``target``.

    Returns:
        ``rows`` saved, ``lost_rows`` as far as known, names of ``unreadable`` streams.
    """
    file = _open(source, target.with_suffix(".extended"))
    size = source.stat().st_size
    names: list[str] = []
    unreadable: list[str] = []
    collect_streams(file.id, "", names, unreadable)
    found: dict[str, tuple[StreamInfo, int]] = {}
    lost_rows = 0
    for name in names:
        try:
            group = file[name]
            values = group["values"]
            info = StreamInfo.from_attributes(
                name, values.shape[1:], values.dtype.name, dict(group.attrs)
            )
            datasets = [group[part] for part in DATASETS]
            written = min(len(dataset) for dataset in datasets)
            rows = min(_rows_within(dataset, size) for dataset in datasets)
            lost = max(written - rows, 0)
            # Rows without a step were never complete: their writer died before it flushed them.
            unset = group["step"][:rows] == STEP_FILL
            rows = int(np.argmax(unset)) if unset.any() else rows
        except READ_ERRORS:
            unreadable.append(name)
            continue
        found[name] = (info, rows)
        lost_rows += lost
    writer = SegmentWriter(target, _attributes(file, source), list(found.values()))
    for name, (info, rows) in found.items():
        group = file[name]
        at_once = max(1, _BLOCK_BYTES // info.row_bytes)
        for start in range(0, rows, at_once):
            part = slice(start, min(start + at_once, rows))
            block = (group["step"][part], group["wall_time_s"][part], group["values"][part])
            writer.append({name: block})
    writer.close()
    file.close()
    return {
        "rows": sum(rows for _, rows in found.values()),
        "lost_rows": lost_rows,
        "unreadable": unreadable,
    }


def _open(source: Path, extended: Path) -> h5py.File:
    """Open the source for reading what is left.

    A cut or unclosed file is opened through a copy that has its full length, zeros at the end, and
    says that it was closed: under SWMR HDF5 takes damage for a write under way and waits for it.
    """
    end = stored_eof(source)
    if is_unclosed(source) or source.stat().st_size < end:
        shutil.copyfile(source, extended)
        os.truncate(extended, max(end, source.stat().st_size))
        _mark_closed(extended)
        source = extended
    return h5py.File(source, "r", libver="latest", locking=False)


def _mark_closed(path: Path) -> None:
    """Clear the consistency flags of a version 3 superblock and renew its checksum."""
    with open(path, "r+b") as file:
        head = bytearray(file.read(_SUPERBLOCK_BYTES))
        head[11] = 0
        file.seek(0)
        file.write(head + struct.pack("<I", _lookup3(bytes(head))))


def _lookup3(data: bytes) -> int:
    """Return Bob Jenkins' lookup3 hash, HDF5's checksum of metadata (hashlittle, seed 0)."""
    mask = 0xFFFFFFFF
    words: list[int] = list(struct.unpack(f"<{len(data) // 4}I", data))
    a = b = c = (0xDEADBEEF + len(data)) & mask

    def rotate(x: int, k: int) -> int:
        return ((x << k) | (x >> (32 - k))) & mask

    while len(words) > 3:
        a, b, c = (a + words[0]) & mask, (b + words[1]) & mask, (c + words[2]) & mask
        del words[:3]
        for k, m, n in ((4, 6, 8), (16, 19, 4)):
            a = (a - c) & mask ^ rotate(c, k)
            c = (c + b) & mask
            b = (b - a) & mask ^ rotate(a, m)
            a = (a + c) & mask
            c = (c - b) & mask ^ rotate(b, n)
            b = (b + a) & mask
    words += [0] * (3 - len(words))
    a, b, c = (a + words[0]) & mask, (b + words[1]) & mask, (c + words[2]) & mask
    for k, m, n in ((14, 11, 25), (16, 4, 14)):
        c = ((c ^ b) - rotate(b, k)) & mask
        a = ((a ^ c) - rotate(c, m)) & mask
        b = ((b ^ a) - rotate(a, n)) & mask
    return int(((c ^ b) - rotate(b, 24)) & mask)


def _rows_within(dataset: h5py.Dataset, size: int) -> int:
    """Count the leading rows whose chunks lie whole within the first ``size`` bytes."""
    rows_per_chunk = dataset.chunks[0]
    zeros = (0,) * (dataset.ndim - 1)
    for start in range(0, len(dataset), rows_per_chunk):
        try:
            chunk = dataset.id.get_chunk_info_by_coord((start, *zeros))
        except READ_ERRORS:
            return start
        if chunk.byte_offset is None or chunk.byte_offset + chunk.size > size:
            return start
    return len(dataset)


def _attributes(file: h5py.File, source: Path) -> dict[str, Any]:
    """Return the root attributes of the new segment; from the path, where they are unreadable."""
    attributes = {
        "run_id": "",
        "process": source.parent.name,
        "segment": int(source.name.split(".")[0]),
        "life": 1,
    }
    for key in (*attributes, "created_time_s"):
        try:
            attributes[key] = file.attrs[key]
        except READ_ERRORS:
            continue
    return attributes


if __name__ == "__main__":
    print(json.dumps(salvage(Path(sys.argv[1]), Path(sys.argv[2]))))
