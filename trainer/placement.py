"""Model parallelism: ``--placement layers=…`` puts each layer of the tower on a device.

``layers=here,ps:0,ps:1,here`` names a device per layer, from the input to the logit. A layer is
computed where it is placed: activations travel to it, and their gradients back, instead of its
weights. ``ps:K`` is a parameter server, which then also holds the layer's variables; ``worker:K``
is another worker, which takes an in-graph run, for only one client sees all workers; ``here`` is
the worker itself.
"""

import re

from deepinsight.trainer.errors import OptionError
from deepinsight.trainer.synchronization import LOCAL

HERE = "here"
_PLACE = re.compile(r"(ps|worker):(\d+)")


def parse_placement(text: str) -> tuple[str, ...]:
    """The places of ``layers=…``, one per layer.

    Raises:
        OptionError: If it is malformed.
    """
    key, _, places = text.partition("=")
    parts = tuple(part.strip() for part in places.split(","))
    if key != "layers" or not all(p == HERE or _PLACE.fullmatch(p) for p in parts):
        raise OptionError(
            f"--placement must be layers= and a place per layer: here, ps:K or worker:K, such as "
            f"layers=here,ps:0,here. Received: {text!r}."
        )
    return parts


def check_placement(text: str, layers: int, *, ps: int, workers: int, synchronization: str) -> None:
    """Check a placement against the model and the cluster.

    Args:
        text: The value of ``--placement``.
        layers: Layers of the tower, the logit's included.
        ps: Number of parameter servers.
        workers: Workers that one client can use; 0 for between-graph replication.
        synchronization: The value of ``--synchronization``.

    Raises:
        OptionError: If it does not fit.
    """
    places = parse_placement(text)
    if len(places) != layers:
        raise OptionError(
            f"--placement must name a place for each of the {layers} layers of the tower, the "
            f"logit's included. Received: {len(places)} in {text!r}."
        )
    if synchronization in (*LOCAL, "gradient-compression", "kfac"):
        raise OptionError(
            f"--placement needs layers whose variables and gradients are the servers' alone; "
            f"--synchronization {synchronization} keeps copies or sums of them on every worker. "
            f"Use another synchronization."
        )
    for place in places:
        if place == HERE:
            continue
        job, index = place.split(":")
        if job == "worker" and not workers:
            raise OptionError(
                f"--placement on other workers needs --replication in-graph: between-graph workers "
                f"do not see each other. Received: {place}."
            )
        tasks = ps if job == "ps" else workers
        if int(index) >= tasks:
            raise OptionError(
                f"--placement must name tasks of the cluster, which has {tasks} of the job "
                f"{job!r}. Received: {place}."
            )


def uses_workers(text: str | None) -> bool:
    """Whether some layer is placed on a worker by its number."""
    return text is not None and any(p.startswith("worker") for p in parse_placement(text))


def device_of(place: str) -> str | None:
    """The TensorFlow device of a place; None for the worker itself."""
    if place == HERE:
        return None
    job, index = place.split(":")
    return f"/job:{job}/task:{index}"
