"""What the tests of traces share."""

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Run a script in an interpreter of its own, which ends within a minute."""

    def run(script: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run
