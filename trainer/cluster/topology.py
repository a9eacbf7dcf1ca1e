"""Who is who in a cluster, from ``TF_CONFIG``; no TensorFlow.

Inside this package a cluster has two jobs, ``ps`` and ``worker``. A ``chief`` of TF_CONFIG is
worker 0; where there is none, worker 0 is the chief.
"""

import json
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deepinsight.trainer.errors import ClusterError, OptionError

JOBS = ("ps", "worker")


@dataclass(frozen=True)
class Topology:
    """A task's place in a cluster.

    Attributes:
        ps: Addresses ``host:port`` of the parameter servers.
        workers: Addresses of the workers, the chief first.
        job: ``"ps"`` or ``"worker"``.
        index: Index of this task within its job.
    """

    ps: tuple[str, ...]
    workers: tuple[str, ...]
    job: str
    index: int

    @property
    def process(self) -> str:
        """The process's name in a trace, such as ``worker-0``."""
        return f"{self.job}-{self.index}"

    @property
    def is_chief(self) -> bool:
        """Whether this task initialises, evaluates and saves."""
        return self.job == "worker" and self.index == 0

    def cluster(self) -> dict[str, list[str]]:
        """The cluster for `tf.train.ClusterSpec`."""
        return {"ps": list(self.ps), "worker": list(self.workers)}


def tf_config(ps: Sequence[str], workers: Sequence[str], job: str, index: int) -> str:
    """The value of ``TF_CONFIG`` for one task."""
    cluster = {"ps": list(ps), "worker": list(workers)}
    return json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})


def read_tf_config(text: str) -> Topology:
    """Read ``TF_CONFIG``.

    Args:
        text: JSON: ``{"cluster": {"chief": […], "worker": […], "ps": […]}, "task": {"type": …,
            "index": …}}``; ``chief`` is optional, at most one.

    Raises:
        OptionError: If it is malformed, or names a task that the cluster does not have.
    """
    try:
        config = json.loads(text)
        cluster = {job: [str(a) for a in addresses] for job, addresses in config["cluster"].items()}
        job, index = str(config["task"]["type"]), int(config["task"]["index"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OptionError(
            'TF_CONFIG must be JSON like {"cluster": {"worker": ["host:port"], "ps": '
            '["host:port"]}, "task": {"type": "worker", "index": 0}}. '
            f"Received: {text!r} ({error!r})."
        ) from error
    return _topology(cluster, job, index)


def _topology(cluster: Mapping[str, Sequence[str]], job: str, index: int) -> Topology:
    unknown = set(cluster) - {"chief", *JOBS}
    if unknown:
        raise OptionError(
            f"TF_CONFIG may name the jobs chief, worker and ps. Received: {', '.join(unknown)}. "
            f"The chief evaluates; leave the others out."
        )
    chiefs, ps = list(cluster.get("chief", ())), tuple(cluster.get("ps", ()))
    workers = (*chiefs, *cluster.get("worker", ()))
    if len(chiefs) > 1 or not workers or not ps:
        raise OptionError(
            f"TF_CONFIG must name at least one ps, at most one chief and at least one chief or "
            f"worker. Received: {len(ps)} ps, {len(chiefs)} chief, {len(workers)} chief or worker."
        )
    tasks = len(cluster.get(job, ()))
    if not 0 <= index < tasks:
        raise OptionError(
            f"TF_CONFIG's task must be in its cluster, which has {tasks} of type {job!r}. "
            f"Received: index {index}."
        )
    if job == "worker":
        index += len(chiefs)
    return Topology(ps, workers, "worker" if job == "chief" else job, index)


def wait_for_servers(addresses: Sequence[str], timeout_s: float = 600.0) -> None:
    """Wait until every address accepts a connection.

    A TensorFlow session that is opened too early backs off for seconds; this does not.

    Raises:
        ClusterError: If an address does not answer in time.
    """
    end = time.monotonic() + timeout_s
    for address in addresses:
        host, _, port = address.rpartition(":")
        while True:
            try:
                socket.create_connection((host.strip("[]"), int(port)), timeout=2.0).close()
                break
            except OSError as error:
                if time.monotonic() > end:
                    raise ClusterError(
                        f"The server at {address} did not answer within {timeout_s:.0f} s "
                        f"({error}). Check that its process runs and that the address is right."
                    ) from error
                time.sleep(0.05)
