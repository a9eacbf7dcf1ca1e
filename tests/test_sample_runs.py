"""The traces that come with the project show what a user is told to look at."""

import subprocess
import sys
from pathlib import Path

import pytest

import deepinsight as di

SAMPLES = Path(__file__).parents[1] / "sample_runs"


@pytest.mark.parametrize("name", ["async", "sync"])
def test_a_sample_is_a_finished_run_with_every_page_s_streams(name: str) -> None:
    with di.open_run(SAMPLES / name) as run:
        assert run.status == "finished"
        assert run.warnings == ()
        assert run.config["synchronization"] == name
        assert [p.name for p in run.processes] == ["worker-0", "worker-1"]
        wanted = {
            "weights/fc1/kernel/tiles",
            "weights/fc1/kernel/group_rms",
            "gradients/fc1/kernel/norm",
            "staleness/global",
            "auc/decayed",
            "eval/auc",
            "train/loss",
            "throughput/samples",
        }
        assert wanted <= set(run.stream_names())
        assert len(run.steps("weights/fc1/kernel/tiles")) >= 4
        assert run.frame("eval/auc")["value"].iloc[-1] > 0.9


def test_staleness_is_what_the_synchronization_says() -> None:
    means = {
        name: di.open_run(SAMPLES / name).frame("staleness/global")["value"].mean()
        for name in ("async", "sync")
    }
    assert means["async"] > 0.05
    assert means["sync"] < 0.05


def test_the_samples_are_small() -> None:
    files = [p for p in SAMPLES.rglob("*") if p.is_file()]
    assert sum(p.stat().st_size for p in files) <= 3 << 20
    assert {p.suffix for p in files} <= {".h5", ".json", ".md", ".lock", ""}


WITHOUT_TENSORFLOW = "import sys; sys.modules['tensorflow'] = sys.modules['keras'] = None\n"


def test_the_dashboard_of_the_samples_needs_no_tensorflow() -> None:
    code = WITHOUT_TENSORFLOW + (
        "from pathlib import Path\n"
        "from deepinsight.dashboard.app import create_app\n"
        "from deepinsight.dashboard.pages.weights.layout import build\n"
        "folder = Path(sys.argv[1])\n"
        "assert create_app(folder).server.test_client().get('/').status_code == 200\n"
        "assert 'fc1/kernel' in str(build(folder, {'run': ['async']}))\n"
    )
    subprocess.run([sys.executable, "-c", code, str(SAMPLES)], check=True, timeout=120)


def test_the_report_of_the_samples_needs_no_tensorflow(tmp_path: Path) -> None:
    code = WITHOUT_TENSORFLOW + (
        "from deepinsight.cli import main\nsys.exit(main(['report', *sys.argv[1:]]))\n"
    )
    target = tmp_path / "report.html"
    runs = [str(SAMPLES / "async"), str(SAMPLES / "sync")]
    command = [sys.executable, "-c", code, *runs, "-o", str(target)]
    subprocess.run(command, check=True, timeout=120)
    assert "eval/auc by step" in target.read_text()
