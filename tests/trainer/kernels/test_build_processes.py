"""Many processes at once, killed builders, and machines without a compiler; all of it real."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deepinsight.trainer.kernels import KernelBuildError, build
from deepinsight.trainer.kernels.library import make_plan

from .conftest import OP, write

RUN_THE_OP = """\
import sys
from pathlib import Path
from deepinsight.trainer.kernels import library
print(int(library.load(Path(sys.argv[1])).deep_insight_test_seven()))
"""
# Processes that differ from ten freshly started ones only in that TensorFlow is imported once.
TEN_TIMES = """\
import os
import sys
import tensorflow
code, folder = sys.argv[2:]
children = []
for place in range(10):
    child = os.fork()
    if child:
        children.append(child)
        continue
    for stream, kind in ((1, "out"), (2, "told")):
        os.dup2(os.open(f"{folder}/{place}.{kind}", os.O_CREAT | os.O_WRONLY), stream)
    exec(code)
    sys.stdout.flush()
    os._exit(0)
print(*[(child, os.waitpid(child, 0)[1])[0] for child in children])
"""
BUILD = """\
import sys
from pathlib import Path
from deepinsight.trainer.kernels import build
print(build(sources=Path(sys.argv[1])))
"""
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start Python processes; what is left of them at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def run(code: str, *arguments: object, **more: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", code, *map(str, arguments)]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", **more}
        process = subprocess.Popen(
            command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def wait_for(what: Callable[[], object], timeout_s: float = 30) -> None:
    end = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def test_ten_processes_at_once_compile_once_and_a_machine_without_compiler_uses_it(
    tmp_path: Path, cache: Path, start: Start
) -> None:
    sources = write(tmp_path / "cc", {"kernels/seven.cc": OP})
    folder = tmp_path / "told"
    folder.mkdir()
    out, told = start(TEN_TIMES, sources, RUN_THE_OP, folder).communicate(timeout=100)
    assert [(folder / f"{place}.out").read_text() for place in range(10)] == ["7\n"] * 10, told
    messages = [(folder / f"{place}.told").read_text() for place in range(10)]
    (builder,) = [
        pid for pid, message in zip(out.split(), messages, strict=True) if "Compiled" in message
    ]
    # Who comes when the library is there has nobody to wait for; on an idle machine all nine do.
    waiting = re.findall(r"Waiting for process (\d+), which", "".join(messages))
    assert set(waiting) == {builder}
    assert len(list(cache.glob("*/*.so"))) == 1

    build(tmp_path / "out", sources=sources)
    environment = {"DEEPINSIGHT_KERNELS": str(tmp_path / "out"), "PATH": str(tmp_path)}
    elsewhere = start(RUN_THE_OP, sources, XDG_CACHE_HOME="/dev/null", **environment)
    out, told = elsewhere.communicate(timeout=60)
    assert out == "7\n", told


def test_a_killed_builder_blocks_nobody_and_leaves_nothing_that_is_used(
    plain: Path, tmp_path: Path, cache: Path, compiler: Callable[..., object], start: Start
) -> None:
    slow, pid_file = tmp_path / "slow", tmp_path / "compiler.pid"
    # The object is half written when the compiler stops for as long as the file is there.
    half = f'echo half > "$out"; echo $$ > {pid_file}; while test -e {slow}; do sleep 0.1; done'
    last = 'for word; do out="$word"; done'
    compiler(f'{last}; case "$*" in *kernels/y.cc*) if test -e {slow}; then {half}; fi;; esac')
    slow.write_text("")
    plan = make_plan(plain)
    builder = start(BUILD, plain)
    wait_for(pid_file.exists)
    waiter = start(BUILD, plain)
    expected = f"Waiting for process {builder.pid}, which compiles the optimizer kernels.\n"
    assert expected in iter(waiter.stderr.readline, "")
    assert not plan.is_built
    builder.kill()
    builder.wait()
    orphan = int(pid_file.read_text())
    # The next builder starts while the killed one's compiler still runs.
    wait_for(lambda: pid_file.read_text().strip() not in {"", str(orphan)})
    assert not plan.is_built
    slow.unlink()
    out, told = waiter.communicate(timeout=60)
    assert out == f"{plan.folder / 'deepinsight_kernels.so'}\n", told
    assert not list(plan.folder.glob("work-*"))


def test_who_waited_for_a_build_that_failed_is_told_so_without_compiling(
    plain: Path, compiler: Callable[..., Callable[[], list[str]]], tmp_path: Path
) -> None:
    slow = tmp_path / "slow"
    slow.write_text("")
    compiled = compiler(
        f'case "$*" in *kernels/y.cc*) while test -e {slow}; do sleep 0.05; done;; esac'
    )
    (plain / "kernels/y.cc").write_text("int y() { return nonsense; }\n")
    errors: list[str] = []

    def attempt() -> None:
        with pytest.raises(KernelBuildError, match="nonsense") as raised:
            build(sources=plain)
        errors.append(str(raised.value))

    threads = [threading.Thread(target=attempt) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    slow.unlink()
    for thread in threads:
        thread.join()
    assert len(set(errors)) == 1
    assert compiled().count("y.cc") == 1
    attempt()  # a later one tries again
    assert compiled().count("y.cc") == 1


def test_an_interrupted_builder_takes_its_compilers_with_it(
    plain: Path, tmp_path: Path, compiler: Callable[..., object], start: Start
) -> None:
    pid_file = tmp_path / "compiler.pid"
    compiler(f'case "$*" in *kernels/y.cc*) sleep 300 & echo $! > {pid_file}; wait;; esac')
    builder = start(BUILD, plain)
    wait_for(lambda: pid_file.exists() and pid_file.read_text().strip())
    builder.send_signal(signal.SIGINT)
    _, told = builder.communicate(timeout=30)
    assert "KeyboardInterrupt" in told
    wait_for(lambda: _ended(int(pid_file.read_text())))
    assert not list(make_plan(plain).folder.glob("work-*"))


def _ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except FileNotFoundError:
        return True
