"""``deepinsight kernels``: compile the optimizer kernels ahead of time, or say what is used."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deepinsight.trainer.kernels import library
from deepinsight.trainer.kernels.compile import object_path
from deepinsight.trainer.kernels.description import LIBRARY, check_fit, read_description
from deepinsight.trainer.kernels.errors import KernelError
from deepinsight.trainer.kernels.sources import SOURCES, read_sources, units
from deepinsight.trainer.kernels.toolchain import TensorFlow, find_tensorflow

DESCRIPTION = """\
The optimizer kernels are C++, compiled against the installed TensorFlow on first use into
~/.cache/deepinsight/kernels (or $XDG_CACHE_HOME). Where there is no compiler, build them on a
machine that has one, and name their folder:

  deepinsight kernels build --output DIR --march x86-64-v3
  DEEPINSIGHT_KERNELS=DIR deepinsight train ...
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        "deepinsight kernels",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    build = commands.add_parser("build", help="compile now")
    build.add_argument(
        "--output", metavar="DIR", help="write the library and its description there, too"
    )
    build.add_argument("--force", action="store_true", help="compile also what is there already")
    build.add_argument(
        "--march",
        metavar="NAME",
        help="with --output: the least CPU that it runs on, such as x86-64-v3 (default: this one)",
    )
    build.add_argument(
        "--jobs", type=_positive, metavar="N", help="compilers at once (default: one per core)"
    )
    commands.add_parser("status", help="say what would be used, and whether it is there")
    return top


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number >= 1. Received: {text!r}")
    return int(text)


def main(argv: Sequence[str] | None = None, *, sources: Path = SOURCES) -> int:
    """Run the command.

    Args:
        argv: Arguments; those of the process, if None.
        sources: Folder of the C++ sources.

    Returns:
        Exit status.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    top = parser()
    options = top.parse_args(sys.argv[1:] if argv is None else argv)
    if options.command == "status":
        print("\n".join(f"{name + ':':<14}{value}" for name, value in status(sources).items()))
        return 0
    if options.march and not options.output:
        top.error("--march needs --output: on this machine the best architecture is used")
    made = library.build(
        options.output,
        force=options.force,
        march=options.march,
        jobs=options.jobs,
        sources=sources,
    )
    print(made)
    return 0


def status(sources: Path = SOURCES) -> dict[str, Any]:
    """What `ops` would use in this environment.

    Returns:
        Name -> value, in the order to be shown; ``state`` says whether it can be loaded.

    Raises:
        KernelError: If there is nothing that could be used.
    """
    tensorflow = find_tensorflow()
    given = os.environ.get(library.FOLDER_VARIABLE, "")
    if given:
        folder = library.given_folder(given)
        found = {"from": f"{library.FOLDER_VARIABLE}={given}"}
        return found | _described(folder, tensorflow, sources)
    plan = library.make_plan(sources, tensorflow)
    found = {"from": f"the cache, {plan.folder.parent}"}
    if plan.is_built:
        return found | _described(plan.folder, tensorflow, sources)
    objects, recipe = plan.folder.parent / "objects", plan.recipes[0]
    everything = units(plan.snapshot)
    new = [unit for unit in everything if not object_path(objects, recipe, unit).exists()]
    return found | {
        "state": f"not compiled yet: {len(new)} of {len(everything)} units on first use",
        "library": plan.folder / LIBRARY,
        "TensorFlow": tensorflow.version,
        "compiler": recipe.compiler.name,
        "architecture": recipe.target.label,
        "sources": plan.snapshot.digest[:12],
    }


def _described(folder: Path, tensorflow: TensorFlow, sources: Path) -> dict[str, Any]:
    description = read_description(folder, "")
    try:
        check_fit(folder, description, tensorflow, read_sources(sources), "")
        state = "ready"
    except KernelError as error:
        state = f"cannot be used. {error}".rstrip()
    return {
        "state": state,
        "library": folder / LIBRARY,
        "TensorFlow": description["tensorflow"]["version"],
        "compiler": description["compiler"],
        "architecture": description["architecture"],
        "CPU flags": " ".join(description["cpu_flags"]) or "none",
        "sources": description["sources"][:12],
    }
