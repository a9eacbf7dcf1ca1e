"""The headers with the maths, compiled without TensorFlow: rules, half types, sparse rows."""

import subprocess
from pathlib import Path

import pytest

from deepinsight.trainer.kernels.sources import SOURCES
from deepinsight.trainer.kernels.toolchain import FLAGS, find_compiler

PROGRAM = Path(__file__).parent / "cc" / "test_rules.cc"


# With the instructions of this machine, and without: the half types have a way of their own each.
@pytest.mark.parametrize("march", ["-march=native", "-DPORTABLE"])
def test_rules_storage_types_and_rows(tmp_path, march):
    program = tmp_path / "test_rules"
    command = [*find_compiler().command, *FLAGS, march, "-Werror", f"-I{SOURCES / 'kernels'}"]
    built = subprocess.run(
        [*command, str(PROGRAM), "-o", str(program)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    ran = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stdout
