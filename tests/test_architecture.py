"""Imports point one way; the messages say what to do when they do not."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Where a module lives -> what it may import: parts of DeepInsight and guarded libraries.
GROUND = {"errors", "traces", "diagnostics", "figures", "report"}
ALLOWED = {
    "errors": {"errors"},
    "traces": {"errors", "traces", "h5py", "pandas"},
    "diagnostics": GROUND - {"figures", "report"} | {"pandas"},
    "figures": GROUND - {"report"} | {"plotly", "pandas", "tsdownsample"},
    "report": GROUND | {"plotly", "pandas"},
    "collectors": GROUND - {"figures", "report"} | {"collectors", "tensorflow", "keras"},
    "dashboard": GROUND | {"dashboard", "dash", "flask", "werkzeug", "plotly", "pandas"},
    "trainer": GROUND - {"figures", "report"}
    | {"trainer", "collectors", "tensorflow", "keras", "sklearn", "pandas"},
}
REMEDY = {
    "tensorflow": "Only collectors/ and trainer/ may: move the TensorFlow part there.",
    "keras": "Only collectors/ and trainer/ may: move the Keras part there.",
    "dash": "Only dashboard/ may: a figure returns a plotly Figure and knows no Dash.",
    "h5py": "Only deepinsight/traces/ may: read a trace through deepinsight.traces.open_run.",
    "plotly": "Only figures/, report/ and dashboard/ may: return a frozen dataclass of evidence.",
    "collectors": "The ground knows no wing: move what both need into deepinsight/.",
    "dashboard": "Only the front door (cli.py) opens the dashboard.",
    "trainer": "Only the front door (cli.py) opens the trainer.",
}
GUARDED = set().union(*ALLOWED.values()) | set(REMEDY)


def parts() -> dict[str, Path]:
    wings = {name: ROOT / name for name in ("collectors", "dashboard", "trainer")}
    ground = {name: ROOT / "deepinsight" / name for name in GROUND - {"errors"}}
    return {**wings, **ground, "errors": ROOT / "deepinsight" / "errors.py"}


def modules(place: Path) -> list[Path]:
    return sorted(place.rglob("*.py")) if place.is_dir() else [place]


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and guarded name of each import, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: import by the full deepinsight.* name"
            module = node.module or ""
            bare = module == "deepinsight"
            names = [f"{module}.{a.name}" for a in node.names] if bare else [module]
        else:
            continue
        for name in names:
            head, *rest = name.split(".")
            yield node.lineno, (rest[0] if rest else head) if head == "deepinsight" else head


@pytest.mark.parametrize("part", sorted(ALLOWED))
def test_imports_point_one_way(part: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}. {REMEDY.get(name, '')}"
        for path in modules(parts()[part])
        for line, name in imported(path)
        if name in GUARDED and name not in ALLOWED[part]
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("wing", ["collectors", "dashboard", "trainer"])
def test_nobody_imports_a_wing_by_its_bare_name(wing: str) -> None:
    pattern = re.compile(rf"^\s*(from {wing}[. ]|import {wing}\b)", re.MULTILINE)
    places = [p for name in ("tests", "benchmarks", "deepinsight") for p in modules(ROOT / name)]
    wrong = [
        p for place in parts().values() for p in modules(place) if pattern.search(p.read_text())
    ]
    wrong += [p for p in places if p != Path(__file__) and pattern.search(p.read_text())]
    assert not wrong, f"import deepinsight.{wing} instead: {wrong}"


def test_importing_deepinsight_pulls_in_neither_tensorflow_nor_dash() -> None:
    code = (
        "import sys, tempfile, deepinsight as di\n"
        "with di.Recorder(tempfile.mkdtemp() + '/run') as rec: rec.record('loss', 1.0, step=0)\n"
        "assert len(di.open_run(rec.run_dir).frame('loss')) == 1\n"
        "heavy = {'tensorflow', 'keras', 'dash', 'plotly', 'sklearn'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_plain_install_needs_neither_tensorflow_nor_dash() -> None:
    blocked = "import sys\nfor name in ('tensorflow', 'keras', 'dash', 'plotly', 'sklearn'):\n"
    code = blocked + (
        "    sys.modules[name] = None\n"
        "import tempfile, numpy as np, deepinsight as di\n"
        "with di.Recorder(tempfile.mkdtemp() + '/run', every_n_steps=1) as rec:\n"
        "    weights = {'w': np.ones((4, 3), 'float32')}\n"
        "    rec.after_step(1, variables=weights, gradients=weights, samples=10)\n"
        "norm = di.open_run(rec.run_dir).row('gradients/w/norm', 1).values[0]\n"
        "assert norm == np.float32(np.sqrt(12))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_public_names_are_sorted_and_resolve() -> None:
    import deepinsight

    assert deepinsight.__all__ == sorted(deepinsight.__all__)
    for name in deepinsight.__all__:
        assert getattr(deepinsight, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        deepinsight.nonsense  # noqa: B018
