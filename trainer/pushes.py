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
    push_bounded,
    push_compressed,
    push_drop_stale,
    push_softsync,
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
    who = {"worker": place.worker, "workers": place.workers}
    chief = {"is_chief": place.worker == 0, "patience": place.patience}
    pushed = (rule, gradients, counts, pulled)
    match options.synchronization:
        case "sync":
            aggregate = options.replicas_to_aggregate
            return push_sync(*pushed, **who, **chief, replicas_to_aggregate=aggregate)
        case "drop-stale":
            return push_drop_stale(*pushed, **who, bound=options.staleness_bound, facts=facts)
        case "bounded":
            bound = options.staleness_bound
            return push_bounded(*pushed, **who, **chief, bound=bound, facts=facts)
        case "softsync":
            weighting = options.staleness_weighting
            return push_softsync(
                *pushed, **who, **chief, splits=options.splits, weighting=weighting
            )
        case "gradient-compression":
            return push_compressed(
                *pushed,
                workers=place.workers,
                momentum=options.momentum,
                sparsity=options.sparsity,
                warm_up_steps=options.warm_up_steps,
                clip_norm=options.clip_norm,
                compress_sparse=False,
                worker_device=place.device or None,
            )
    return push_async(*pushed, facts)
