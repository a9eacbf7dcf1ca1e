"""The front door: what a user reads when they type a command."""

import subprocess
import sys
from pathlib import Path

import pytest

from deepinsight import cli


def test_without_a_command_the_usage_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    shown = capsys.readouterr().out
    for command in ("train", "dashboard", "report", "inspect", "repair", "kernels", "demo"):
        assert f"\n  {command} " in shown


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("deepinsight 0.")


def test_an_unknown_command_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["trian"]) == 2
    assert "there is no command 'trian'" in capsys.readouterr().err


def test_an_error_is_one_sentence_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["inspect", str(tmp_path)]) == 1
    assert "is not a run (it has no run.json)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "library", "extra"),
    [("dashboard", "dash", "dashboard"), ("report", "plotly", "dashboard")],
)
def test_a_missing_extra_is_named(command: str, library: str, extra: str, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        f"sys.modules[{library!r}] = None\n"
        "from deepinsight.cli import main\n"
        f"sys.exit(main([{command!r}, {str(tmp_path)!r}]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert f"pip install 'deepinsight[{extra}]'" in done.stderr


def test_help_of_every_command_is_quick_and_imports_no_tensorflow() -> None:
    code = (
        "import sys\n"
        "from deepinsight.cli import main\n"
        "try: main([sys.argv[1], '--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert 'tensorflow' not in sys.modules\n"
    )
    for command in ("train", "dashboard", "report", "inspect", "repair", "kernels", "demo"):
        done = subprocess.run(
            [sys.executable, "-c", code, command],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert f"usage: deepinsight {command}" in done.stdout
