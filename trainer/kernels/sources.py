"""The C++ sources: which files there are, what is compiled together, and what names a state.

All of ``ops/*.cc`` is one translation unit, since they share an expensive header; each
``kernels/*.cc`` is its own, so that a change of one kernel compiles one unit.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from deepinsight.trainer.kernels.errors import KernelBuildError

SOURCES = Path(__file__).resolve().parent / "cc"
OPS_UNIT = "ops.cc"


@dataclass(frozen=True)
class Snapshot:
    """The sources as they were read once; later changes on disk are not seen.

    Attributes:
        folder: Where they were read.
        texts: Path inside the folder -> content, of every ``.cc`` and ``.h``; sorted.
    """

    folder: Path
    texts: dict[str, bytes]

    @property
    def digest(self) -> str:
        """Hash of all names and contents, 64 hexadecimal digits."""
        return _digest(self.texts.items())


@dataclass(frozen=True)
class Unit:
    """One translation unit.

    Attributes:
        name: Path of the file that is compiled, inside the folder of the sources.
        digest: Hash of the unit and of all headers.
        size: Bytes of source, without headers.
    """

    name: str
    digest: str
    size: int


def read_sources(folder: Path) -> Snapshot:
    """Read every ``.cc`` and ``.h`` below a folder.

    Raises:
        KernelBuildError: If there is no ``.cc`` in ``ops/`` or ``kernels/``.
    """
    paths = sorted(path for path in folder.rglob("*") if path.suffix in {".cc", ".h"})
    texts = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    snapshot = Snapshot(folder, texts)
    if not units(snapshot):
        raise KernelBuildError(
            f"The folder of the kernels' sources must hold ops/*.cc or kernels/*.cc. Received: "
            f"{folder}. Reinstall DeepInsight."
        )
    return snapshot


def units(snapshot: Snapshot) -> list[Unit]:
    """What is compiled, the largest first: started first, they do not end last."""
    headers = [(name, text) for name, text in snapshot.texts.items() if name.endswith(".h")]
    ops = [(name, text) for name, text in snapshot.texts.items() if _directly_in("ops", name)]
    found = [
        Unit(name, _digest([(name, text), *headers]), len(text))
        for name, text in snapshot.texts.items()
        if _directly_in("kernels", name)
    ]
    if ops:
        found.append(Unit(OPS_UNIT, _digest([*ops, *headers]), sum(len(text) for _, text in ops)))
    return sorted(found, key=lambda unit: (-unit.size, unit.name))


def write_sources(snapshot: Snapshot, folder: Path) -> None:
    """Write the sources, and the file that includes all of ``ops/``, where they are compiled."""
    for name, text in snapshot.texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    includes = [f'#include "{name}"\n' for name in snapshot.texts if _directly_in("ops", name)]
    (folder / OPS_UNIT).write_text("".join(includes))


def _directly_in(folder: str, name: str) -> bool:
    return name.endswith(".cc") and name.split("/")[:-1] == [folder]


def _digest(files: Iterable[tuple[str, bytes]]) -> str:
    total = hashlib.sha256()
    for name, text in files:
        total.update(f"{name}\0{len(text)}\0".encode())
        total.update(text)
    return total.hexdigest()
