"""run.json, process.json and the lock of a process folder."""

import contextlib
import fcntl
import json
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from deepinsight.traces.errors import ProcessNameInUseError, TraceError
from deepinsight.traces.schema import (
    FORMAT_VERSION,
    RUN_FORMAT,
    normalize_feature_groups,
    plain,
)

RUN_FILE = "run.json"
PROCESS_FILE = "process.json"
LOCK_FILE = ".lock"
_LOCK_PATIENCE_S = 1.0


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object, or raise TraceError naming the file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TraceError(
            f"{path}: not valid JSON ({error}). Restore or remove the file."
        ) from error
    if not isinstance(content, dict):
        raise TraceError(f"{path}: must hold a JSON object. Received: {type(content).__name__}.")
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a JSON file atomically."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.new")
    try:
        hidden.write_text(json.dumps(content, indent=1, default=plain) + "\n", encoding="utf-8")
        os.replace(hidden, path)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise


def _require_json(**arguments: Mapping[str, Any] | None) -> None:
    """Raise TypeError that names the entry which JSON cannot hold."""
    for argument, content in arguments.items():
        for key, value in (content or {}).items():
            try:
                json.dumps({key: value}, default=plain)
            except (TypeError, ValueError) as error:
                raise TypeError(
                    f"`{argument}` must be JSON: strings, numbers, booleans, lists and mappings. "
                    f"Received: {argument}[{key!r}] = {value!r} ({error})."
                ) from error


def update_run_file(
    run_dir: Path,
    config: Mapping[str, Any] | None = None,
    feature_groups: Mapping[str, Any] | None = None,
    variables: Mapping[str, Any] | None = None,
) -> str:
    """Create run.json or merge into it, under a lock that all processes of the run share.

    Returns:
        The run's id.

    Raises:
        TypeError: If ``config`` or ``variables`` is not JSON-serialisable.
        ValueError: If a feature group is not a range of rows.
        TraceError: If run.json is damaged, of something else or of a newer version.
    """
    _require_json(config=config, variables=variables)
    groups = normalize_feature_groups(feature_groups or {})
    run_dir.mkdir(parents=True, exist_ok=True)
    with open(run_dir / ".run.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = run_dir / RUN_FILE
        if path.exists():
            content = read_json(path)
            check_run_file(path, content)
        else:
            content = {
                "format": RUN_FORMAT,
                "format_version": FORMAT_VERSION,
                "run_id": uuid.uuid4().hex,
                "created_time_s": time.time(),
                "config": {},
                "feature_groups": {},
                "variables": {},
            }
        content.setdefault("config", {}).update(config or {})
        content.setdefault("feature_groups", {}).update(groups)
        content.setdefault("variables", {}).update(variables or {})
        write_json(path, content)
    return str(content["run_id"])


def check_run_file(path: Path, content: Mapping[str, Any]) -> None:
    """Raise TraceError unless ``content`` is a run.json of a version that is known here."""
    if content.get("format") != RUN_FORMAT:
        raise TraceError(f"{path}: not a DeepInsight run. Choose another folder for the run.")
    version = content.get("format_version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise TraceError(
            f"{path}: run format version {version!r}; this DeepInsight knows up "
            f"to version {FORMAT_VERSION}. Install a newer DeepInsight."
        )


class ProcessFolder:
    """A process's folder, held by one writer at a time.

    Raises:
        ProcessNameInUseError: If a live writer holds the folder.
    """

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._lock = self._acquire()
        previous = self._previous()
        self._record: dict[str, Any] = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started_time_s": time.time(),
            "life": int(previous.get("life", 0)) + 1,
            "ended_time_s": None,
        }
        write_json(path / PROCESS_FILE, self._record)

    def _acquire(self) -> IO[str]:
        lock = open(self.path / LOCK_FILE, "w")  # noqa: SIM115 - open as long as the lock
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return lock
            except BlockingIOError:
                # A reader that tests the lock holds it for microseconds; a writer keeps it.
                if time.monotonic() < deadline:
                    time.sleep(0.02)
                    continue
            lock.close()
            holder = self._previous()
            raise ProcessNameInUseError(
                f"Process {self.path.name!r} of run {str(self.path.parent)!r} is being written by "
                f"pid {holder.get('pid')} on {holder.get('host')}. Give each process its own "
                "name: Recorder(run_dir, process=...)."
            )

    def _previous(self) -> dict[str, Any]:
        with contextlib.suppress(FileNotFoundError, TraceError):
            return read_json(self.path / PROCESS_FILE)
        return {}

    @property
    def life(self) -> int:
        """1 for the first writer of this process name, 2 after the first restart, ..."""
        return int(self._record["life"])

    def next_segment(self) -> tuple[int, Path]:
        """Return number and path of the first segment that is not there yet."""
        taken = [int(p.name.split(".")[0]) for p in segment_paths(self.path, damaged=True)]
        number = max(taken, default=0) + 1
        return number, self.path / f"{number:06d}.h5"

    def release(self, ended: bool) -> None:
        """Give the folder back; ``ended`` says that the process came to its proper end."""
        try:
            if ended:
                write_json(self.path / PROCESS_FILE, {**self._record, "ended_time_s": time.time()})
        finally:
            # Unlocked, not only closed: a forked child may hold a copy of the descriptor.
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            self._lock.close()

    def forget(self) -> None:
        """Close the lock file in a forked child; the parent goes on holding the lock."""
        self._lock.close()


def segment_paths(folder: Path, damaged: bool = False) -> list[Path]:
    """Return the segments of a process folder in order; ``damaged`` adds those set aside."""
    pattern = "[0-9]" * 6 + (".h5*" if damaged else ".h5")
    return sorted(folder.glob(pattern))


def is_segment_name(name: str) -> bool:
    """Say whether a file of this name is a segment, one that is being made, or one set aside."""
    return name.startswith(".") or re.match(r"\d{6}\.h5", name) is not None


def is_held(folder: Path) -> bool:
    """Say whether a live writer holds a process folder."""
    try:
        with open(folder / LOCK_FILE) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def process_folders(run_dir: Path) -> Iterator[Path]:
    """Yield the folders of a run that belong to a process."""
    for path in sorted(run_dir.iterdir()):
        if path.is_dir() and ((path / PROCESS_FILE).exists() or segment_paths(path)):
            yield path
