"""What the trainer's tests share."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

COMMAND = [sys.executable, "-m", "deepinsight.trainer.command"]
SMALL = ["--hidden", "16", "--batch-size", "50"]


def clean_environment(**more: str) -> dict[str, str]:
    """The environment without a place in some cluster."""
    return {k: v for k, v in os.environ.items() if k != "TF_CONFIG"} | more


@pytest.fixture(scope="session")
def train() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ``deepinsight train`` to its end, at most two minutes."""

    def run(*arguments: str | Path, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *map(str, arguments)],
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    return run
