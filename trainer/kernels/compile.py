"""Run the compiler: units in parallel, objects that are kept, one library at the end."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from deepinsight.trainer.kernels.errors import KernelBuildError
from deepinsight.trainer.kernels.sources import Snapshot, Unit, units, write_sources
from deepinsight.trainer.kernels.toolchain import Recipe

MEMORY_PER_UNIT = 3 << 29  # bytes; a unit takes about 1 GiB while it compiles
_SHOWN_LINES = 20
_POLL_S = 0.02
# Cheap and telling: where a compiler cannot translate TensorFlow's headers, it is Eigen's part.
_PROBE = '#include "tensorflow/core/framework/op_kernel.h"\n'


class HeadersError(KernelBuildError):
    """TensorFlow's own headers do not compile for the architecture; another may do."""


@dataclass
class _Running:
    """A compiler at work."""

    unit: Unit
    process: subprocess.Popen[bytes]
    output: Path
    made: Path


@dataclass(frozen=True)
class Workshop:
    """Where one build happens.

    Attributes:
        snapshot: The sources.
        objects: Folder of objects, shared by all builds of the user.
        work: Folder of this build alone, empty.
        log: File that collects what the compiler says.
        jobs: Compilers at the same time, >= 1.
        progress: Called with the number of units done and of all.
    """

    snapshot: Snapshot
    objects: Path
    work: Path
    log: Path
    jobs: int
    progress: Callable[[int, int], None]

    @property
    def sources(self) -> Path:
        """The copy of the sources that is compiled."""
        return self.work / "cc"


def default_jobs() -> int:
    """One compiler per core that this process may use, as far as the free memory goes."""
    cores = len(os.sched_getaffinity(0))
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) << 10 for line in lines if "MemAvailable" in line)
    except (OSError, StopIteration, ValueError):
        return cores
    return max(1, min(cores, free // MEMORY_PER_UNIT))


def object_path(objects: Path, recipe: Recipe, unit: Unit) -> Path:
    """Where the object of a unit is kept; the name holds all that it depends on."""
    return objects / f"{unit.digest[:32]}{recipe.digest[:32]}.o"


def compile_units(recipe: Recipe, shop: Workshop, *, force: bool = False) -> list[Path]:
    """Compile what is not there yet.

    Args:
        recipe: Compiler, flags and architecture.
        shop: Where.
        force: Compile also what is there.

    Returns:
        The objects of all units, sorted.

    Raises:
        HeadersError: If TensorFlow's headers do not compile for this architecture.
        KernelBuildError: If a unit does not compile.
    """
    shop.sources.mkdir(parents=True, exist_ok=True)
    write_sources(shop.snapshot, shop.sources)
    shop.objects.mkdir(parents=True, exist_ok=True)
    everything = units(shop.snapshot)
    paths = {unit.name: object_path(shop.objects, recipe, unit) for unit in everything}
    waiting = [unit for unit in everything if force or not paths[unit.name].exists()]
    for unit in everything:
        if unit not in waiting:
            os.utime(paths[unit.name])  # in use: not to be pruned
    done, running = len(everything) - len(waiting), list[_Running]()
    try:
        while waiting or running:
            while waiting and len(running) < shop.jobs:
                running.append(_start(recipe, shop, waiting.pop(0)))
            time.sleep(_POLL_S)
            for ended in [one for one in running if one.process.poll() is not None]:
                running.remove(ended)
                _finish(recipe, shop, ended)
                ended.made.replace(paths[ended.unit.name])
                done += 1
                shop.progress(done, len(everything))
    finally:
        for left in running:
            _kill(left.process)
    return sorted(paths.values())


def _command(recipe: Recipe, shop: Workshop, name: str) -> list[str]:
    system = [part for folder in recipe.tensorflow.include_folders for part in ("-isystem", folder)]
    # Objects are shared: __FILE__ shows neither the folder of the build nor that of TensorFlow.
    folders = {str(shop.sources): "kernels/cc"}
    folders |= dict.fromkeys(recipe.tensorflow.include_folders, "tensorflow/include")
    mapped = [f"-ffile-prefix-map={folder}={name}" for folder, name in folders.items()]
    command = [*recipe.compiler.command, *recipe.flags, *mapped, f"-I{shop.sources}", *system]
    return [*command, "-pipe", "-c", str(shop.sources / name)]


def _start(recipe: Recipe, shop: Workshop, unit: Unit) -> _Running:
    made = shop.work / f"{unit.digest[:32]}.o"
    output = shop.work / f"{unit.digest[:32]}.txt"
    command = [*_command(recipe, shop, unit.name), "-o", str(made)]
    with output.open("wb") as file:
        process = _spawn(command, shop, file)
    return _Running(unit, process, output, made)


def _spawn(command: list[str], shop: Workshop, file: IO[bytes]) -> subprocess.Popen[bytes]:
    file.write(f"$ {' '.join(command)}\n".encode())
    file.flush()
    # The compiler's temporary files go where the next builder clears up after a killed one.
    environment = {**os.environ, "TMPDIR": str(shop.work), "LC_ALL": "C"}
    # A group of its own: a compiler is a driver and the processes that do its work.
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=file,
        stderr=file,
        env=environment,
        process_group=0,
    )


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _finish(recipe: Recipe, shop: Workshop, ended: _Running) -> None:
    text = ended.output.read_text(errors="replace")
    text = text.replace(str(shop.sources), str(shop.snapshot.folder))
    with shop.log.open("a") as log:
        log.write(text)
    if ended.process.returncode == 0:
        return
    if _may_be_the_headers(text, shop) and not _headers_compile(recipe, shop):
        raise HeadersError(
            f"TensorFlow {recipe.tensorflow.version}'s headers do not compile with "
            f"{recipe.compiler.name} and {recipe.target.label}. {_tail(text, shop)}"
        )
    raise KernelBuildError(
        f"The kernel unit {ended.unit.name} does not compile with {recipe.compiler.name} and "
        f"{recipe.target.label}. {_tail(text, shop)}"
    )


def _tail(text: str, shop: Workshop) -> str:
    lines = text.splitlines()[1:][-_SHOWN_LINES:]
    shown = "\n".join(f"    {line}" for line in lines)
    return (
        f"The compiler's last lines:\n{shown}\nThe full log is {shop.log}. Another compiler can be "
        "named in CXX."
    )


def _may_be_the_headers(text: str, shop: Workshop) -> bool:
    """Whether some error is told about a place that is not ours."""
    ours = str(shop.snapshot.folder)
    errors = [line for line in text.splitlines() if "error:" in line.lower()]
    return not errors or any(not line.startswith(ours) for line in errors)


def _headers_compile(recipe: Recipe, shop: Workshop) -> bool:
    (shop.sources / "probe.cc").write_text(_PROBE)
    output = shop.work / "probe.txt"
    with output.open("wb") as file:
        command = [*_command(recipe, shop, "probe.cc"), "-o", str(shop.work / "probe.o")]
        process = _spawn(command, shop, file)
        try:
            status = process.wait()
        finally:
            _kill(process)
    with shop.log.open("a") as log:
        log.write(output.read_text(errors="replace"))
    return status == 0


def link(recipe: Recipe, shop: Workshop, objects: list[Path], library: Path) -> None:
    """Link objects to a shared library.

    Raises:
        KernelBuildError: If the linker refuses.
    """
    command = [*recipe.compiler.command, "-shared", "-o", str(library), *map(str, objects)]
    output = shop.work / "link.txt"
    with output.open("wb") as file:
        process = _spawn([*command, *recipe.tensorflow.link_flags], shop, file)
        try:
            status = process.wait()
        finally:
            _kill(process)
    text = output.read_text(errors="replace")
    with shop.log.open("a") as log:
        log.write(text)
    if status:
        raise KernelBuildError(
            f"The kernels do not link with {recipe.compiler.name}. {_tail(text, shop)} If an "
            "object is damaged: `deepinsight kernels build --force` compiles all again."
        )
