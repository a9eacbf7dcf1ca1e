"""What is compiled when, under which name it is kept, and for which machine."""

import dataclasses
import json
import os
import platform
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from deepinsight.trainer.kernels import build, command, compile, cpu, library, toolchain
from deepinsight.trainer.kernels.sources import SOURCES, read_sources, units

Compiler = Callable[..., Callable[[], list[str]]]


def test_ops_are_one_unit_and_each_kernel_is_its_own(plain: Path) -> None:
    names = [unit.name for unit in units(read_sources(plain))]
    assert sorted(names) == ["kernels/x.cc", "kernels/y.cc", "ops.cc"]
    assert names[0] == "ops.cc"  # the largest


def test_only_what_changed_is_compiled_again(
    plain: Path, compiler: Compiler, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled = compiler()
    first = build(sources=plain)
    assert compiled() == ["ops.cc", "x.cc", "y.cc"]
    assert "Compiling the optimizer kernels for TensorFlow 2." in capsys.readouterr().err

    assert build(sources=plain) == first
    assert compiled() == []
    assert capsys.readouterr().err == ""

    (plain / "kernels/y.cc").write_text("int y() { return 4; }\n")
    second = build(sources=plain)
    assert second != first
    assert first.exists()
    assert compiled() == ["y.cc"]
    assert "Compiling 1 of 3 units" in capsys.readouterr().err

    (plain / "kernels/x.h").write_text("#pragma once\nconstexpr int kTwo = 22;\n")
    build(sources=plain)
    assert compiled() == ["ops.cc", "x.cc", "y.cc"]


def test_force_compiles_all_again_to_the_same_bytes(plain: Path, compiler: Compiler) -> None:
    compiled = compiler()
    content = build(sources=plain).read_bytes()
    compiled()
    assert build(sources=plain, force=True, jobs=1).read_bytes() == content
    assert compiled() == ["ops.cc", "x.cc", "y.cc"]


def test_objects_do_not_depend_on_the_folder_of_the_sources(
    plain: Path, tmp_path: Path, compiler: Compiler
) -> None:
    compiled = compiler()
    first = build(sources=plain)
    compiled()
    assert build(sources=plain.rename(tmp_path / "elsewhere")) == first
    assert compiled() == []


def test_nothing_unfinished_is_left_and_the_description_says_what_was_built(
    plain: Path, cache: Path
) -> None:
    folder = build(sources=plain).parent
    names = {path.name for path in folder.iterdir()}
    assert names == {"build.log", "deepinsight_kernels.json", "deepinsight_kernels.so", "lock"}
    assert sorted(path.suffix for path in (cache / "objects").iterdir()) == [".o", ".o", ".o"]
    found = json.loads((folder / "deepinsight_kernels.json").read_text())
    assert found["sources"] == read_sources(plain).digest
    assert found["machine"] == platform.machine()
    assert "-ffp-contract=off" in found["flags"]
    assert set(found["cpu_flags"]) <= cpu.present_cpu_flags()
    assert str(plain) not in (folder / "deepinsight_kernels.so").read_bytes().decode("latin-1")


def test_every_part_of_the_recipe_changes_the_key(
    plain: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensorflow = toolchain.find_tensorflow()
    keys = {library.make_plan(plain, tensorflow).folder}
    others = [
        {"version": "2.99.0"},
        {"build": "another"},
        {"compile_flags": ("-D_GLIBCXX_USE_CXX11_ABI=0",)},
    ]
    keys |= {
        library.make_plan(plain, dataclasses.replace(tensorflow, **other)).folder
        for other in others
    }
    keys.add(library.make_plan(plain, tensorflow, march=_some_architecture()).folder)
    # The same flags on another CPU: -march=native means something else there.
    recipe = library.make_plan(plain, tensorflow).recipes[0]
    elsewhere = dataclasses.replace(recipe.target, macros="#define __AVX2__ 1\n")
    assert dataclasses.replace(recipe, target=elsewhere).digest != recipe.digest
    monkeypatch.setenv("CXX", "g++ -DANOTHER")
    keys.add(library.make_plan(plain, tensorflow).folder)
    (plain / "kernels/new.cc").write_text("")
    keys.add(library.make_plan(plain, tensorflow).folder)
    assert len(keys) == 7


def _some_architecture() -> str:
    return "x86-64-v2" if platform.machine() == "x86_64" else "armv8-a"


def test_where_the_headers_refuse_the_best_architecture_the_next_is_taken_and_told(
    plain: Path, compiler: Compiler, capsys: pytest.CaptureFixture[str]
) -> None:
    # The preprocessor (-E) accepts -march=native, as GCC 12 does; compiling Eigen fails.
    refuse = 'echo "/tf/include/Eigen/Core.h:1:1: error: expected initializer" >&2; exit 1'
    compiled = compiler(f'case "$*" in *-E*) ;; *-march=native*) {refuse};; esac')
    folder = build(sources=plain).parent
    told = capsys.readouterr().err
    assert "headers do not compile with -march=native; trying " in told
    found = json.loads((folder / "deepinsight_kernels.json").read_text())
    assert "-march=native" not in found["architecture"]
    assert f"trying {found['architecture']}." in told
    compiled()
    assert build(sources=plain).parent == folder  # the next process does not try again
    assert compiled() == []


def test_gcc_before_13_leaves_avx512_fp16_out(monkeypatch: pytest.MonkeyPatch) -> None:
    macros = "#define __cplusplus 201703L\n#define __AVX512FP16__ 1\n"
    monkeypatch.setattr(toolchain, "predefined_macros", lambda command, flags: macros)
    old = toolchain.Compiler(("g++",), "g++ 12.2.0", False, 12)
    new = toolchain.Compiler(("g++",), "g++ 13.1.0", False, 13)
    clang = toolchain.Compiler(("clang++",), "clang++ 12.0.0", True, 12)
    assert toolchain.targets(old)[0].flags == ("-march=native", "-mno-avx512fp16")
    assert toolchain.targets(new)[0].flags == ("-march=native",)
    assert toolchain.targets(clang)[0].flags == ("-march=native",)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the architecture is one of x86-64")
def test_tensorflows_headers_compile_for_a_cpu_with_avx512_fp16(
    tmp_path: Path, cache: Path
) -> None:
    (tmp_path / "cc/kernels").mkdir(parents=True)
    (tmp_path / "cc/kernels/x.cc").write_text("#include <unsupported/Eigen/CXX11/Tensor>\n")
    compiler = toolchain.find_compiler()
    (target,) = toolchain.targets(compiler, "sapphirerapids")
    old = not compiler.clang and compiler.major < 13
    assert ("-mno-avx512fp16" in target.flags) == old
    made = build(tmp_path / "out", march="sapphirerapids", sources=tmp_path / "cc")
    found = json.loads((made.parent / "deepinsight_kernels.json").read_text())
    assert {"avx512f", "avx512_vnni", "fma"} <= set(found["cpu_flags"])
    assert ("avx512_fp16" in found["cpu_flags"]) != old


def test_the_cpu_flags_of_this_machine_are_those_that_native_code_needs() -> None:
    target = toolchain.targets(toolchain.find_compiler())[0]
    assert target.flags[0] == "-march=native"
    assert target.cpu_flags
    assert cpu.missing_cpu_flags(target.cpu_flags) == []
    assert cpu.missing_cpu_flags(["avx", "no_such_flag"])[-1:] == ["no_such_flag"]


def test_threads_get_the_same_module(plain: Path, cache: Path) -> None:
    found = []
    threads = [threading.Thread(target=lambda: found.append(library.load(plain))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert {id(module) for module in found} == {id(library.load(plain))}


def test_jobs_are_at_most_the_cores_and_at_least_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = len(os.sched_getaffinity(0))
    assert 1 <= compile.default_jobs() <= cores
    monkeypatch.setattr(compile, "MEMORY_PER_UNIT", 1 << 60)
    assert compile.default_jobs() == 1


def test_old_objects_are_removed_when_something_is_built(plain: Path, cache: Path) -> None:
    (cache / "objects").mkdir(parents=True)
    old, recent = cache / "objects/old.o", cache / "objects/recent.o"
    for path in (old, recent):
        path.write_text("")
    os.utime(old, (0, 0))
    build(sources=plain)
    assert not old.exists()
    assert recent.exists()


def test_the_command_builds_and_says_the_state(
    plain: Path, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["status"], sources=plain) == 0
    assert "not compiled yet: 3 of 3 units" in capsys.readouterr().out
    assert command.main(["build", "--output", str(tmp_path / "out")], sources=plain) == 0
    made = tmp_path / "out/deepinsight_kernels.so"
    assert capsys.readouterr().out == f"{made}\n"
    assert {path.name for path in made.parent.iterdir()} == {made.name, "deepinsight_kernels.json"}
    assert command.main(["status"], sources=plain) == 0
    shown = capsys.readouterr().out
    assert "ready" in shown
    assert str(cache) in shown


def test_status_says_why_a_given_library_cannot_be_used(
    plain: Path,
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    build(tmp_path / "out", sources=plain)
    monkeypatch.setenv("DEEPINSIGHT_KERNELS", str(tmp_path / "out"))
    command.main(["status"], sources=plain)
    shown = capsys.readouterr().out
    assert f"DEEPINSIGHT_KERNELS={tmp_path / 'out'}" in shown
    assert "ready" in shown
    (plain / "kernels/new.cc").write_text("")
    command.main(["status"], sources=plain)
    assert "cannot be used. The library" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build", "--march", "x86-64-v3"], "--march needs --output"),
        (["build", "--jobs", "0"], "must be a whole number >= 1. Received: '0'"),
        ([], "required: COMMAND"),
    ],
)
def test_wrong_usage_of_the_command_is_told(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(arguments)
    assert message in capsys.readouterr().err


def test_the_shipped_sources_have_ops_and_kernels() -> None:
    names = [unit.name for unit in units(read_sources(SOURCES))]
    assert "ops.cc" in names
    assert len(names) > 1
