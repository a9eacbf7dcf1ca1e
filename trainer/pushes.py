"""From the options to the way in which a worker's gradients meet the variables."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from deepinsight.trainer.cluster.members import Patience
from deepinsight.trainer.optimizers import (
    GradientAndVariable,
    Push,
    UpdateCounts,
    Versions,
    push_async,
    push_sync,
)
from deepinsight.trainer.options import Options

v1 = tf.compat.v1


class Place(NamedTuple):
    """Who pushes.

    Attributes:
        worker: Index of the worker; 0 is the chief.
        workers: Number of workers.
        device: The worker's device.
        patience: How long it waits for others.
    """

    worker: int
    workers: int
    device: str
    patience: Patience


def create_push(
    options: Options,
    place: Place,
    rule: v1.train.Optimizer,
    gradients: list[GradientAndVariable],
    counts: UpdateCounts,
    pulled: Versions,
    facts: Mapping[str, Any],
) -> Push:
    """Build the push of ``--synchronization`` into the default graph.

    Args:
        options: The run's options.
        place: Who pushes.
        rule: The update rule.
        gradients: What `exchange_gradients` returned.
        counts: The update counters.
        pulled: Their values at the pull.
        facts: What the rule wants to know beside the gradients.
    """
    kind = options.synchronization
    if kind == "sync":
        return push_sync(
            rule, gradients, counts, pulled,
            worker=place.worker,
            workers=place.workers,
            replicas_to_aggregate=options.replicas_to_aggregate,
        )  # fmt: skip
    return push_async(rule, gradients, counts, pulled, facts)
