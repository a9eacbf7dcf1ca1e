import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def example_runs() -> ModuleType:
    path = Path(__file__).parents[1] / "figures" / "example_runs.py"
    spec = importlib.util.spec_from_file_location("example_runs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def runs_folder(example_runs: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    example_runs.write_cluster_run(folder / "async")
    example_runs.write_cluster_run(folder / "sync", synchronization="sync", steps=100)
    example_runs.write_keras_run(folder / "keras")
    example_runs.write_hostile_run(folder)
    example_runs.write_damaged_runs(folder)
    return folder
