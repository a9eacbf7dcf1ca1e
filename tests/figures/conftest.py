import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from deepinsight.traces import Run, TraceWriter, open_run


def load_example_runs() -> ModuleType:
    path = Path(__file__).parent / "example_runs.py"
    spec = importlib.util.spec_from_file_location("example_runs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def example_runs() -> ModuleType:
    return load_example_runs()


@pytest.fixture(scope="session")
def runs_folder(example_runs: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    example_runs.write_cluster_run(folder / "async")
    example_runs.write_cluster_run(folder / "sync", synchronization="sync", steps=100)
    example_runs.write_cluster_run(folder / "diverged", steps=80, nan=True)
    example_runs.write_keras_run(folder / "keras")
    return folder


@pytest.fixture
def open_example(runs_folder: Path) -> Iterator[Callable[[str], Run]]:
    opened: list[Run] = []

    def open_named(name: str) -> Run:
        opened.append(open_run(runs_folder / name))
        return opened[-1]

    yield open_named
    for run in opened:
        run.close()


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Write a run with a function that is given each process' writer, and open it."""
    opened: list[Run] = []

    def write(*fill: Callable[[TraceWriter], object], name: str = "run", **metadata: object) -> Run:
        for number, own in enumerate(fill or (lambda writer: None,)):
            with TraceWriter(tmp_path / name, f"worker-{number}", **metadata) as writer:
                own(writer)
        opened.append(open_run(tmp_path / name))
        return opened[-1]

    yield write
    for run in opened:
        run.close()
