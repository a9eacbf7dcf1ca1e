"""Scripts for ``tf.contrib.opt`` train on real processes with only the import changed."""

import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "contrib_script.py"
TIMEOUT_S = 150

pytestmark = pytest.mark.timeout(200)


@pytest.mark.parametrize(("kind", "steps"), [("elastic", 24), ("model", 6), ("drop", 120)])
def test_a_script_trains_with_a_server_that_only_joins(kind, steps):
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(3)]
        for one in held:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            one.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in held]
        environment = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
        environment |= {"TF_GRPC_REUSE_PORT": "1", "CUDA_VISIBLE_DEVICES": "-1"}
        processes = []
        for job, index in (("ps", 0), ("worker", 0), ("worker", 1)):
            process = subprocess.Popen(
                [sys.executable, str(SCRIPT), job, str(index), kind, *addresses],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            stack.callback(process.stdout.close)
            stack.callback(process.wait, 20)
            stack.callback(process.kill)
            processes.append(process)
        said = []
        for worker in processes[1:]:
            output, _ = worker.communicate(timeout=TIMEOUT_S)
            assert worker.returncode == 0, output
            said.append(output.splitlines()[-1].split())
    for _, before, after, *_ in said:
        assert float(after) < 0.5 * float(before)
    assert 0.5 * steps <= max(int(words[-1]) for words in said) <= steps
