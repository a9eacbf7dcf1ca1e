"""The op library: found or built once, checked, and loaded into TensorFlow."""

import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from deepinsight.trainer.kernels.cache import builder_lock, cache_folder, prune_objects, writing
from deepinsight.trainer.kernels.compile import (
    HeadersError,
    Workshop,
    compile_units,
    default_jobs,
    link,
    object_path,
)
from deepinsight.trainer.kernels.description import (
    DESCRIPTION,
    LIBRARY,
    check_fit,
    describe,
    read_description,
    write_description,
)
from deepinsight.trainer.kernels.errors import KernelBuildError, KernelLoadError
from deepinsight.trainer.kernels.sources import SOURCES, Snapshot, read_sources, units
from deepinsight.trainer.kernels.toolchain import (
    Recipe,
    TensorFlow,
    find_compiler,
    find_tensorflow,
    targets,
)

FOLDER_VARIABLE = "DEEPINSIGHT_KERNELS"
LOG = "build.log"
FAILURE = "failure.txt"
_CACHE_REMEDY = "Set XDG_CACHE_HOME to a folder that is."
_FOLDER_REMEDY = (
    f"Build it again with `deepinsight kernels build --output DIR`, or unset {FOLDER_VARIABLE} to "
    "have it compiled here on first use."
)
_REBUILD_REMEDY = "Build it again with `deepinsight kernels build --force`."
_PROGRESS_S = 15.0

_loaded: dict[Path, ModuleType] = {}
_loading = threading.Lock()


@dataclass(frozen=True)
class Plan:
    """What this process would build and use.

    Attributes:
        snapshot: The sources.
        recipes: How to compile them, the best architecture first.
        folder: Where the library is, or will be.
    """

    snapshot: Snapshot
    recipes: list[Recipe]
    folder: Path

    @property
    def is_built(self) -> bool:
        """Whether the library is there."""
        return (self.folder / LIBRARY).exists()


def ops() -> ModuleType:
    """Load the optimizer kernels; the first time on a machine, compile them.

    The library lies in the user's cache, or where ``DEEPINSIGHT_KERNELS`` says: a folder that
    ``deepinsight kernels build --output`` wrote. Processes that start at once compile it once.
    Safe to call from several threads.

    Returns:
        The module of generated wrappers, one function per op, such as
        ``resource_apply_boosted_momentum``; the same one each time.

    Raises:
        KernelError: If it cannot be built or loaded; the message says what to do.
    """
    return load(SOURCES)


def load(sources: Path) -> ModuleType:
    """As `ops`, from given sources."""
    with _loading:
        if sources not in _loaded:
            _loaded[sources] = _load(sources)
        return _loaded[sources]


def _load(sources: Path) -> ModuleType:
    given = os.environ.get(FOLDER_VARIABLE, "")
    tensorflow = find_tensorflow()
    if given:
        return _load_from(given_folder(given), tensorflow, read_sources(sources), _FOLDER_REMEDY)
    plan = make_plan(sources, tensorflow)
    if not plan.is_built:
        build_plan(plan)
    return _load_from(plan.folder, tensorflow, plan.snapshot, _REBUILD_REMEDY)


def given_folder(given: str) -> Path:
    """The folder of ``DEEPINSIGHT_KERNELS``.

    Raises:
        KernelLoadError: If it holds no library.
    """
    folder = Path(given)
    if not (folder / LIBRARY).is_file():
        raise KernelLoadError(
            f"{FOLDER_VARIABLE} must name a folder with {LIBRARY}. Received: {given!r}, which "
            f"holds none. Write it with `deepinsight kernels build --output {given}`, or unset "
            f"{FOLDER_VARIABLE}."
        )
    return folder.resolve()


def _load_from(folder: Path, tensorflow: TensorFlow, snapshot: Snapshot, remedy: str) -> ModuleType:
    import tensorflow as tf

    check_fit(folder, read_description(folder, remedy), tensorflow, snapshot, remedy)
    try:
        module: ModuleType = tf.load_op_library(str(folder / LIBRARY))
    except (tf.errors.OpError, RuntimeError, OSError) as error:
        raise KernelLoadError(
            f"TensorFlow {tensorflow.version} must be able to load {folder / LIBRARY}. "
            f"Received: {error}. {remedy}"
        ) from error
    return module


def make_plan(
    sources: Path, tensorflow: TensorFlow | None = None, march: str | None = None
) -> Plan:
    """Find out what would be built, and where.

    Args:
        sources: Folder of the C++ sources.
        tensorflow: What to build against; the installed one, if None.
        march: An architecture by name; the best one for this machine, if None.

    Raises:
        CompilerNotFoundError: If there is no compiler.
    """
    tensorflow = tensorflow or find_tensorflow()
    compiler = find_compiler()
    snapshot = read_sources(sources)
    recipes = [Recipe(tensorflow, compiler, target) for target in targets(compiler, march)]
    # The key is that of the best architecture, also where only a lesser one compiles: so the next
    # process finds the library without trying again.
    key = f"{recipes[0].digest[:16]}{snapshot.digest[:16]}"
    return Plan(snapshot, recipes, cache_folder() / key)


def build(
    output: str | os.PathLike[str] | None = None,
    *,
    force: bool = False,
    march: str | None = None,
    jobs: int | None = None,
    sources: Path = SOURCES,
) -> Path:
    """Compile the kernels ahead of time.

    Args:
        output: Folder for the library and its description, for ``DEEPINSIGHT_KERNELS``; only the
            user's cache, if None.
        force: Compile also what is there already.
        march: An architecture that the compiler knows, such as ``x86-64-v3``, for machines other
            than this one; the best for this one, if None.
        jobs: Compilers at the same time, >= 1; as many as cores and memory allow, if None.
        sources: Folder of the C++ sources.

    Returns:
        Path of the library.

    Raises:
        KernelError: If it cannot be built; the message says what to do.
    """
    plan = make_plan(sources, march=march)
    if force or not plan.is_built:
        build_plan(plan, force=force, jobs=jobs)
    if output is None:
        return plan.folder / LIBRARY
    folder = Path(output)
    with writing(folder, "Name another folder in --output."):
        folder.mkdir(parents=True, exist_ok=True)
        # The description first: a library that has none yet is refused, not misread.
        for name in (DESCRIPTION, LIBRARY):
            _copy(plan.folder / name, folder / name)
    return folder / LIBRARY


def _copy(source: Path, target: Path) -> None:
    handle, partial = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(handle)
    shutil.copy(source, partial)
    os.replace(partial, target)


def build_plan(plan: Plan, *, force: bool = False, jobs: int | None = None) -> None:
    """Build a plan's library, or wait for the process that does.

    Raises:
        KernelBuildError: If it does not compile or link.
        KernelCacheError: If the cache cannot be written.
    """
    with writing(plan.folder, _CACHE_REMEDY):
        plan.folder.mkdir(parents=True, exist_ok=True)
        with builder_lock(plan.folder) as waited:
            if plan.is_built and not force:
                return
            failure = plan.folder / FAILURE
            if waited and failure.exists():
                # Nobody's sources get better by compiling them again ten times.
                raise KernelBuildError(failure.read_text())
            failure.unlink(missing_ok=True)
            for left in plan.folder.glob("work-*"):
                shutil.rmtree(left, ignore_errors=True)
            # A compiler may outlive a killed builder: it must find no folder of ours by its name.
            with tempfile.TemporaryDirectory(
                prefix="work-", dir=plan.folder, ignore_cleanup_errors=True
            ) as work:
                try:
                    _build(plan, Path(work), force, jobs or default_jobs())
                except KernelBuildError as error:
                    failure.write_text(str(error))
                    raise


def _build(plan: Plan, work: Path, force: bool, jobs: int) -> None:
    began = time.monotonic()
    objects = plan.folder.parent / "objects"
    log = plan.folder / LOG
    log.write_text("")
    shop = Workshop(plan.snapshot, objects, work, log, jobs, _progress())
    recipe, made = _compile_for_the_best(plan, shop, force)
    link(recipe, shop, made, work / LIBRARY)
    write_description(work, describe(recipe, plan.snapshot, work / LIBRARY))
    for name in (DESCRIPTION, LIBRARY):  # the library last: where it is, all is
        (work / name).replace(plan.folder / name)
    prune_objects(objects)
    warnings = log.read_text(errors="replace").count(" warning: ")
    noted = f" ({warnings} warnings in {LOG})" if warnings else ""
    _say(f"Compiled in {time.monotonic() - began:.0f} s: {plan.folder / LIBRARY}{noted}")


def _compile_for_the_best(plan: Plan, shop: Workshop, force: bool) -> tuple[Recipe, list[Path]]:
    """Compile for the best architecture that TensorFlow's headers compile for."""
    for recipe, following in zip(plan.recipes, [*plan.recipes[1:], None], strict=True):
        _announce(recipe, plan.snapshot, shop, force)
        try:
            return recipe, compile_units(recipe, shop, force=force)
        except HeadersError:
            if following is None:
                raise
            _say(
                f"TensorFlow's headers do not compile with {recipe.target.label}; trying "
                f"{following.target.label}."
            )
    raise KernelBuildError("There is no architecture to compile for.")


def _announce(recipe: Recipe, snapshot: Snapshot, shop: Workshop, force: bool) -> None:
    everything = units(snapshot)
    new = [u for u in everything if force or not object_path(shop.objects, recipe, u).exists()]
    if not new:
        _say(f"Linking the optimizer kernels {recipe}.")
    elif len(new) == len(everything):
        _say(f"Compiling the optimizer kernels {recipe}; once per machine, about a minute.")
    else:
        _say(f"Compiling {len(new)} of {len(everything)} units of the optimizer kernels {recipe}.")


def _progress() -> Callable[[int, int], None]:
    """Tell the units done: on one line of a terminal, else now and then."""
    told = [time.monotonic()]

    def show(done: int, total: int) -> None:
        if sys.stderr.isatty():
            end = "\n" if done == total else ""
            print(f"\r{done}/{total} units compiled", end=end, file=sys.stderr, flush=True)
        elif time.monotonic() - told[0] > _PROGRESS_S and done < total:
            told[0] = time.monotonic()
            _say(f"{done}/{total} units compiled")

    return show


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
