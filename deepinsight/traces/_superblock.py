"""What the first bytes of an HDF5 file say, without HDF5."""

import os
import struct
from pathlib import Path


def stored_eof(path: Path) -> int:
    """Return the size that an HDF5 file says it has (superblock versions 2 and 3), else 0."""
    with open(path, "rb") as raw:
        return stored_end(raw.fileno())


def stored_end(descriptor: int) -> int:
    """Return the same of an open file."""
    head = os.pread(descriptor, 48, 0)
    if len(head) < 48 or head[:8] != b"\x89HDF\r\n\x1a\n" or head[8] not in (2, 3):
        return 0
    return int(struct.unpack_from("<Q", head, 28)[0])


def is_unclosed(path: Path) -> bool:
    """Say whether an HDF5 file is being written, or was when its writer died."""
    with open(path, "rb") as raw:
        head = raw.read(12)
    return len(head) == 12 and head[8] >= 3 and head[11] != 0
