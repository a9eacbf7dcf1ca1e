"""What a compiled library was built from, in a file beside it, and whether it fits here.

``deepinsight_kernels.json`` is one JSON object:

- ``format``: 1.
- ``tensorflow``: object of ``version``, ``build`` (source revision and compiler) and
  ``compile_flags``.
- ``compiler``: name and version, such as ``g++ 12.2.0``.
- ``flags``: list of the compile flags, without folders.
- ``architecture``: the flags that chose the instructions, such as ``-march=native``.
- ``machine``: such as ``x86_64``.
- ``cpu_flags``: sorted list of the instructions needed, in the words of ``/proc/cpuinfo``.
- ``sources``: SHA-256 of the sources' names and contents.
- ``library``: object of ``sha256`` and ``bytes`` of the shared library.
"""

import hashlib
import json
import platform
from pathlib import Path
from typing import Any

from deepinsight.trainer.kernels.cpu import missing_cpu_flags
from deepinsight.trainer.kernels.errors import KernelLoadError, KernelMismatchError
from deepinsight.trainer.kernels.sources import Snapshot
from deepinsight.trainer.kernels.toolchain import Recipe, TensorFlow

FORMAT = 1
LIBRARY = "deepinsight_kernels.so"
DESCRIPTION = "deepinsight_kernels.json"


def describe(recipe: Recipe, snapshot: Snapshot, library: Path) -> dict[str, Any]:
    """The description of a library that was just built."""
    content = library.read_bytes()
    return {
        "format": FORMAT,
        "tensorflow": recipe.tensorflow.abi,
        "compiler": recipe.compiler.name,
        "flags": recipe.flags,
        "architecture": recipe.target.label,
        "machine": platform.machine(),
        "cpu_flags": recipe.target.cpu_flags,
        "sources": snapshot.digest,
        "library": {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)},
    }


def write_description(folder: Path, description: dict[str, Any]) -> None:
    """Write the file into a folder that nobody reads yet."""
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n")


def read_description(folder: Path, remedy: str) -> dict[str, Any]:
    """Read the file.

    Raises:
        KernelMismatchError: If it is missing, is no description, or of another format.
    """
    path = folder / DESCRIPTION
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise KernelMismatchError(
            f"The library {folder / LIBRARY} must have its description {DESCRIPTION} beside it, "
            f"which says what it was built for. Received: {error}. {remedy}"
        ) from error
    known = {"tensorflow", "machine", "cpu_flags", "sources", "library", "architecture", "compiler"}
    if not isinstance(found, dict) or found.get("format") != FORMAT or known - set(found):
        raise KernelMismatchError(
            f"{path} must be a description of format {FORMAT}. Received something else. {remedy}"
        )
    return found


def check_fit(
    folder: Path, description: dict[str, Any], here: TensorFlow, snapshot: Snapshot, remedy: str
) -> None:
    """Check, before it is loaded, that a library fits TensorFlow, sources and CPU.

    Raises:
        KernelMismatchError: Naming what differs.
        KernelLoadError: If the library is not the file that was described.
    """
    library = folder / LIBRARY
    built = description["tensorflow"]
    if built != here.abi:
        differs = next(key for key in here.abi if built.get(key) != here.abi[key])
        raise KernelMismatchError(
            f"The library {library} must be built for the installed TensorFlow {here.version}. "
            f"Received: one for TensorFlow {built.get('version')}"
            f"{'' if differs == 'version' else f', which differs in its {differs}'}. {remedy}"
        )
    if description["sources"] != snapshot.digest:
        raise KernelMismatchError(
            f"The library {library} must be built from the installed sources of the kernels "
            f"({snapshot.digest[:12]}). Received: one from others "
            f"({description['sources'][:12]}). {remedy}"
        )
    _check_cpu(library, description, remedy)
    _check_content(library, description["library"], remedy)


def _check_cpu(library: Path, description: dict[str, Any], remedy: str) -> None:
    if description["machine"] != platform.machine():
        raise KernelMismatchError(
            f"The library {library} must be built for {platform.machine()}. Received: one for "
            f"{description['machine']}. {remedy}"
        )
    missing = missing_cpu_flags(description["cpu_flags"])
    if missing:
        raise KernelMismatchError(
            f"The library {library} (built with {description['architecture']}) needs instructions "
            f"that this CPU lacks: {', '.join(missing)}. {remedy} For machines of several kinds "
            "add --march and what all of them have, such as --march x86-64-v3."
        )


def _check_content(library: Path, described: dict[str, Any], remedy: str) -> None:
    # A truncated library would end the process when it is mapped.
    content = library.read_bytes()
    if hashlib.sha256(content).hexdigest() != described["sha256"]:
        raise KernelLoadError(
            f"The library {library} must be the file that its description names "
            f"({described['bytes']} bytes). Received: another or a damaged one "
            f"({len(content)} bytes). {remedy}"
        )
