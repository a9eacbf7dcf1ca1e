"""What people install: the wheel holds every module and source, and each of them imports."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Built from a copy: setuptools leaves a build folder behind and would pack what lies in it.
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("deepinsight", "collectors", "dashboard", "trainer"):
        unneeded = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=unneeded)
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return next(folder.glob("*.whl"))


def expected_files() -> set[str]:
    """Every module, asset and C++ source of the repository, by its name in the package."""
    found = {
        path.relative_to(ROOT).as_posix()
        for place in ("collectors", "dashboard", "trainer", "deepinsight")
        for path in (ROOT / place).rglob("*")
        if path.suffix in {".py", ".cc", ".h", ".css", ".js", ".svg"} or path.name == "py.typed"
    }
    wings = ("collectors/", "dashboard/", "trainer/")
    return {f"deepinsight/{name}" if name.startswith(wings) else name for name in found}


@pytest.mark.xdist_group("package")
def test_the_wheel_holds_every_module_asset_and_cpp_source(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert expected_files() <= names
    strangers = {n.split("/")[0] for n in names if ".dist-info/" not in n} - {"deepinsight"}
    assert not strangers


@pytest.mark.xdist_group("package")
def test_every_module_imports_from_the_wheel_in_a_clean_environment(
    wheel: Path, tmp_path: Path
) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    site = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    zipfile.ZipFile(wheel).extractall(site)
    # The dependencies come from this environment; DeepInsight itself only from the wheel.
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    modules = sorted(
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in expected_files()
        if name.endswith(".py") and not name.endswith("__main__.py")
    )
    code = (
        "import importlib, sys, deepinsight\n"
        f"assert deepinsight.__file__.startswith({str(site)!r}), deepinsight.__file__\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
    )
    environment = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run(
        [str(python), "-c", code, *modules],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(modules) > 30
