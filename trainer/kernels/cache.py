"""The per-user folder of compiled kernels, and the lock that has one process build.

Layout, below ``$XDG_CACHE_HOME/deepinsight/kernels`` (``~/.cache`` without the variable)::

    objects/HASH.o                  one translation unit, by content, flags and compiler
    KEY/deepinsight_kernels.so      the library; moved here whole, and last
    KEY/deepinsight_kernels.json    what it was built from (see `description`)
    KEY/build.log                   what the compiler said, of the last build
    KEY/lock                        held (flock) by the process that builds; names it
    KEY/failure.txt                 why the last build failed; only where it did
    KEY/work-*/                     what is not finished; cleared by the next builder

The lock ends with its process, however that ends, so a killed builder blocks nobody. Nothing that
is not finished lies under a name that anybody reads.
"""

import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from deepinsight.trainer.kernels.errors import KernelCacheError

PATIENCE_S = 1.0  # how long a process waits without a word
KEEP_OBJECTS_S = 30 * 86400.0


def cache_folder() -> Path:
    """Where this user's compiled kernels are.

    Raises:
        KernelCacheError: If the user has no home, and ``XDG_CACHE_HOME`` is not set.
    """
    given = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification has relative paths ignored.
    try:
        base = Path(given) if os.path.isabs(given) else Path.home() / ".cache"
    except RuntimeError as error:
        raise KernelCacheError(
            "The compiled kernels need a folder to be kept in, and this user has no home. Set "
            "XDG_CACHE_HOME to a folder that is writable."
        ) from error
    return base / "deepinsight" / "kernels"


@contextmanager
def writing(folder: Path, remedy: str) -> Iterator[None]:
    """Turn what the file system refuses below a folder into a message with a remedy.

    Raises:
        KernelCacheError: For any OSError inside.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise KernelCacheError(
            f"The folder {folder} must be writable for the compiled kernels: {reason}"
            f"{f' ({error.filename})' if error.filename else ''}. {remedy}"
        ) from error


@contextmanager
def builder_lock(folder: Path) -> Iterator[bool]:
    """Hold a folder's lock; while another process has it, wait, and say for whom.

    Yields:
        Whether it had to wait: then another process has built, has failed, or was killed.
    """
    with (folder / "lock").open("a+") as file:
        waited = _acquire(file)
        file.truncate(0)
        json.dump({"pid": os.getpid(), "host": socket.gethostname()}, file)
        file.flush()
        try:
            yield waited
        finally:
            file.truncate(0)


def _acquire(file: IO[str]) -> bool:
    began, told, waited = time.monotonic(), False, False
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return waited
        except BlockingIOError:
            waited = True
            if not told and time.monotonic() - began > PATIENCE_S:
                told = True
                print(
                    f"Waiting for {_holder(file)}, which compiles the optimizer kernels.",
                    file=sys.stderr,
                    flush=True,
                )
            time.sleep(0.1)


def _holder(file: IO[str]) -> str:
    try:
        file.seek(0)
        found = json.load(file)
        where = "" if found["host"] == socket.gethostname() else f" on {found['host']}"
        return f"process {found['pid']}{where}"
    except (ValueError, KeyError, TypeError):
        return "another process"


def prune_objects(folder: Path) -> None:
    """Remove objects that no build has used for 30 days."""
    for path in folder.glob("*.o"):
        try:
            if time.time() - path.stat().st_mtime > KEEP_OBJECTS_S:
                path.unlink()
        except FileNotFoundError:
            continue  # another builder was faster
