"""What the trainer's tests share."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
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


class Cluster:
    """Processes with a place in ``TF_CONFIG`` each, as on a real cluster: no launcher."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def start(
        self,
        run_dir: Path,
        *arguments: object,
        workers: int = 1,
        more: Mapping[str, list[object]] | None = None,
    ) -> dict[str, subprocess.Popen[str]]:
        """Start a parameter server, a chief and workers.

        Args:
            run_dir: The run.
            *arguments: Of every process.
            workers: Number of workers beside the chief.
            more: Further arguments of some, such as ``{"worker-1": ["--epochs", 1]}``; they are
                counted as in a trace, the chief first.
        """
        names = ["ps-0", *(f"worker-{k}" for k in range(workers + 1))]
        addresses = [self._reserve() for _ in names]
        cluster = {"ps": addresses[:1], "chief": addresses[1:2], "worker": addresses[2:]}
        tasks = [("ps", 0), ("chief", 0), *(("worker", k) for k in range(workers))]
        processes = {}
        for name, (job, index) in zip(names, tasks, strict=True):
            config = json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})
            given = ["--run-dir", run_dir, *arguments, *(more or {}).get(name, [])]
            processes[name] = process = subprocess.Popen(
                [*COMMAND, *map(str, given)],
                env=clean_environment(TF_CONFIG=config, TF_GRPC_REUSE_PORT="1"),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            self._stack.callback(process.stdout.close)
            self._stack.callback(process.wait, 20)
            self._stack.callback(process.kill)
        return processes

    def _reserve(self) -> str:
        holder = self._stack.enter_context(socket.socket())
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{holder.getsockname()[1]}"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Starts clusters, and ends what is left of them."""
    with ExitStack() as stack:
        yield Cluster(stack)
