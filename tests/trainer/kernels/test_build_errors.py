"""Each way in which there is no library, by its message and its remedy."""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepinsight.errors import DeepInsightError
from deepinsight.trainer.kernels import (
    CompilerNotFoundError,
    KernelBuildError,
    KernelCacheError,
    KernelError,
    KernelLoadError,
    KernelMismatchError,
    build,
    cpu,
    library,
)

LIBRARY, DESCRIPTION = "deepinsight_kernels.so", "deepinsight_kernels.json"


@pytest.fixture
def given(tmp_path: Path, plain: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a built library that DEEPINSIGHT_KERNELS names."""
    build(tmp_path / "given", sources=plain)
    monkeypatch.setenv("DEEPINSIGHT_KERNELS", str(tmp_path / "given"))
    return tmp_path / "given"


def change(folder: Path, **values: Any) -> None:
    """Change the description of a library."""
    path = folder / DESCRIPTION
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_every_error_is_one_of_deepinsight_and_a_runtime_error() -> None:
    for error in (CompilerNotFoundError, KernelBuildError, KernelCacheError, KernelMismatchError):
        assert issubclass(error, KernelError)
    assert issubclass(KernelLoadError, KernelError)
    assert issubclass(KernelError, DeepInsightError)
    assert issubclass(KernelError, RuntimeError)


def test_no_compiler_on_the_path(
    plain: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    message = r"no C\+\+ compiler on the PATH .*apt-get install g\+\+.*DEEPINSIGHT_KERNELS"
    with pytest.raises(CompilerNotFoundError, match=message):
        library.load(plain)


def test_cxx_names_nothing(plain: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-g++ -m64")
    with pytest.raises(CompilerNotFoundError, match=r"CXX='no-such-g\+\+ -m64', which is not"):
        library.load(plain)


@pytest.mark.parametrize("program", ["true", "false"])
def test_cxx_names_no_compiler(
    program: str, plain: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", program)
    with pytest.raises(CompilerNotFoundError, match=f"GCC or Clang. Received: '{program}'"):
        library.load(plain)


def test_an_architecture_that_the_compiler_does_not_know(plain: Path, cache: Path) -> None:
    with pytest.raises(CompilerNotFoundError, match=r"such as x86-64-v3. Received: 'pdp11'"):
        build(sources=plain, march="pdp11")


def test_a_unit_that_does_not_compile(plain: Path, cache: Path) -> None:
    good = plain / "kernels/y.cc"
    text = good.read_text()
    good.write_text("int y() { return nonsense; }\n")
    with pytest.raises(KernelBuildError, match=r"unit kernels/y.cc does not compile") as raised:
        library.load(plain)
    message = str(raised.value)
    # The place is that of the user's file, and the log holds the command.
    assert f"{good}:1:18: error: 'nonsense' was not declared" in message
    log = Path(re.search(r"full log is (\S+)\. ", message)[1])
    assert "-ffp-contract=off" in log.read_text()
    assert "nonsense" in log.read_text()
    assert not list(cache.glob("*/*.so"))
    good.write_text(text)
    assert build(sources=plain).exists()


def test_an_error_in_an_ops_file_names_the_file(plain: Path, cache: Path) -> None:
    (plain / "ops/b.cc").write_text("nonsense\n")
    with pytest.raises(KernelBuildError, match=re.escape(f"{plain}/ops/b.cc:1:")):
        library.load(plain)


def test_headers_that_compile_for_no_architecture(
    plain: Path, compiler: Callable[..., object]
) -> None:
    refuse = 'echo "/tf/include/Eigen/Core.h:1:1: error: expected initializer" >&2; exit 1'
    compiler(f'case "$*" in *-E*) ;; *) {refuse};; esac')
    with pytest.raises(KernelBuildError, match=r"(?s)headers do not compile .*CXX"):
        library.load(plain)


def test_a_damaged_object_is_told_and_force_mends_it(plain: Path, cache: Path) -> None:
    made = build(sources=plain)
    made.unlink()
    next((cache / "objects").glob("*.o")).write_text("damaged")
    with pytest.raises(KernelBuildError, match=r"(?s)do not link .*build --force"):
        build(sources=plain)
    assert build(sources=plain, force=True) == made


def test_a_folder_without_sources(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(KernelBuildError, match=r"must hold ops/\*.cc or kernels/\*.cc. Received"):
        library.load(tmp_path)


def test_a_cache_that_cannot_be_written(
    plain: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("a file where a folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    message = r"must be writable .*Not a directory.*Set XDG_CACHE_HOME"
    with pytest.raises(KernelCacheError, match=message):
        library.load(plain)


def test_an_output_that_cannot_be_written(plain: Path, tmp_path: Path, cache: Path) -> None:
    (tmp_path / "file").write_text("a file where a folder should be")
    with pytest.raises(KernelCacheError, match=r"must be writable .*another folder in --output"):
        build(tmp_path / "file", sources=plain)


def test_a_user_without_a_home(plain: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(KernelCacheError, match=r"has no home. Set XDG_CACHE_HOME"):
        library.load(plain)


def test_a_given_folder_without_a_library(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPINSIGHT_KERNELS", str(tmp_path))
    message = rf"must name a folder with {LIBRARY}. Received: '{tmp_path}'.*build --output"
    with pytest.raises(KernelLoadError, match=message):
        library.load(plain)


def test_a_library_for_another_tensorflow(given: Path, plain: Path) -> None:
    built = json.loads((given / DESCRIPTION).read_text())["tensorflow"]
    change(given, tensorflow=built | {"version": "2.3.0"})
    message = r"installed TensorFlow 2.*Received: one for TensorFlow 2.3.0. Build it again"
    with pytest.raises(KernelMismatchError, match=message):
        library.load(plain)
    change(given, tensorflow=built | {"compile_flags": ["-D_GLIBCXX_USE_CXX11_ABI=0"]})
    with pytest.raises(KernelMismatchError, match=r", which differs in its compile_flags. Build"):
        library.load(plain)


def test_a_library_without_its_description(given: Path, plain: Path) -> None:
    (given / DESCRIPTION).unlink()
    with pytest.raises(KernelMismatchError, match=rf"description {DESCRIPTION} beside it.*unset"):
        library.load(plain)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"format": 2}'])
def test_a_description_that_is_none(text: str, given: Path, plain: Path) -> None:
    (given / DESCRIPTION).write_text(text)
    with pytest.raises(KernelMismatchError, match=r"description.*Build it again"):
        library.load(plain)


def test_a_library_from_other_sources(given: Path, plain: Path) -> None:
    (plain / "kernels/new.cc").write_text("")
    with pytest.raises(KernelMismatchError, match=r"installed sources .*Received: one from others"):
        library.load(plain)


def test_a_library_for_a_cpu_with_more_instructions(
    given: Path, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nflags\t\t: fpu sse sse2 pni\n")
    change(given, cpu_flags=["avx2", "avx512f", "pni"])
    monkeypatch.setattr(cpu, "CPUINFO", tmp_path / "cpuinfo")
    message = r"instructions that this CPU lacks: avx2, avx512f\. .*--march x86-64-v3"
    with pytest.raises(KernelMismatchError, match=message):
        library.load(plain)


def test_a_library_for_another_machine(given: Path, plain: Path) -> None:
    change(given, machine="pdp11")
    with pytest.raises(KernelMismatchError, match=r"must be built for .*one for pdp11"):
        library.load(plain)


@pytest.mark.parametrize("where", ["cache", "given"])
def test_a_damaged_library(
    where: str, given: Path, plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = given
    if where == "cache":
        monkeypatch.delenv("DEEPINSIGHT_KERNELS")
        folder = build(sources=plain).parent
    # To map half a library would end this process.
    content = (folder / LIBRARY).read_bytes()
    (folder / LIBRARY).write_bytes(content[: len(content) // 2])
    remedy = {"cache": "build --force", "given": "build --output"}[where]
    with pytest.raises(KernelLoadError, match=rf"damaged one \(\d+ bytes\).*{remedy}"):
        library.load(plain)


@pytest.mark.parametrize("content", [None, b"no library"])
def test_a_library_that_tensorflow_refuses(content: bytes | None, plain: Path, cache: Path) -> None:
    (plain / "kernels/y.cc").write_text("void missing();\nstruct Y { Y() { missing(); } } y;\n")
    folder = build(sources=plain).parent
    if content is not None:
        (folder / LIBRARY).write_bytes(content)
        described = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        change(folder, library=described)
    with pytest.raises(KernelLoadError, match=r"must be able to load .*build --force"):
        library.load(plain)
