"""The only way from a key that a browser sent to a run on disk."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deepinsight.dashboard.errors import UnknownRunError
from deepinsight.traces import Run, open_run, open_runs

_LONGEST_KEY = 1024


def resolve_run(folder: Path, key: object) -> Path:
    """Turn a key into the run's path, or refuse.

    A key is the run's path relative to the runs folder, with ``/`` between its parts; ``"."`` is
    the folder itself. Whatever leads out of the folder is refused: absolute paths, ``..``, a
    symbolic link that points elsewhere, and a run of which an entry is such a link.

    Args:
        folder: The runs folder.
        key: What the browser sent; anything at all.

    Returns:
        The resolved path.

    Raises:
        UnknownRunError: If the key is no such path or nothing is there. The message does not tell
            the two apart.
    """
    if not isinstance(key, str) or not key or len(key) > _LONGEST_KEY:
        raise UnknownRunError("No run is selected. Choose one of the list.")
    unknown = UnknownRunError(
        f"There is no run named {key!r} in this folder. It may have been moved or deleted; choose "
        "one of the list."
    )
    parts = [] if key == "." else key.split("/")
    if any(part in ("", ".", "..") or "\\" in part or "\0" in part for part in parts):
        raise unknown
    try:
        root = folder.resolve()
        path = root.joinpath(*parts).resolve(strict=True)
        if not path.is_relative_to(root) or not (path / "run.json").is_file():
            raise unknown
        if any(not target.is_relative_to(root) for target in _link_targets(path)):
            raise unknown
    except (OSError, RuntimeError, ValueError) as error:
        raise unknown from error
    return path


def _link_targets(run: Path) -> Iterator[Path]:
    """Where the symbolic links in a run and in its processes' folders lead."""
    for entry in _entries(run):
        if entry.is_symlink():
            yield Path(entry.path).resolve()
        if entry.is_dir():
            for inner in _entries(Path(entry.path)):
                if inner.is_symlink():
                    yield Path(inner.path).resolve()


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return sorted(entries, key=lambda entry: entry.name)


def run_keys(folder: Path) -> list[str]:
    """Keys of the runs that can be shown, the newest first."""
    if not folder.is_dir():
        return []
    found = []
    for key in open_runs(folder):
        try:
            path = resolve_run(folder, key)
            found.append((-(path / "run.json").stat().st_mtime, key))
        except (UnknownRunError, OSError):
            continue
    return [key for _, key in sorted(found)]


@contextmanager
def opened(folder: Path, key: object) -> Iterator[Run]:
    """Open the run of a key for the length of one callback.

    Raises:
        UnknownRunError: As `resolve_run` does.
        TraceError: If the run cannot be read.
    """
    with open_run(resolve_run(folder, key)) as run:
        yield run


def run_version(folder: Path, key: object) -> str:
    """A short text that changes whenever the run has changed: its files, or a process' status.

    Raises:
        UnknownRunError: As `resolve_run` does.
    """
    path = resolve_run(folder, key)
    digest = hashlib.blake2b(digest_size=12)
    for directory in [path, *sorted(p for p in path.iterdir() if p.is_dir())]:
        for entry in _entries(directory):
            if entry.is_file():
                stat = entry.stat()
                digest.update(f"{entry.name}:{stat.st_size}:{stat.st_mtime_ns};".encode())
    with open_run(path) as run:
        digest.update("".join(process.status for process in run.processes).encode())
    return f"{key}:{digest.hexdigest()}"
