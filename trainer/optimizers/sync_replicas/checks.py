"""Whether the arguments of SyncReplicas make sense."""

import operator
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1


def check_arguments(opt: Any, aggregate: Any, workers: Any, worker: Any) -> None:
    """Check the arguments of SyncReplicas.

    Args:
        opt: ``opt``.
        aggregate: ``replicas_to_aggregate``.
        workers: ``total_num_replicas``.
        worker: ``worker_index``.

    Raises:
        ValueError: If one is out of range.
    """
    if not isinstance(opt, v1.train.Optimizer):
        raise ValueError(
            "`opt` must be a tf.compat.v1.train.Optimizer. "
            f"Received: {type(opt).__module__}.{type(opt).__qualname__}."
        )
    for name, value in (
        ("total_num_replicas", workers),
        ("replicas_to_aggregate", aggregate),
        ("worker_index", worker),
    ):
        try:
            operator.index(value)
        except TypeError:
            raise ValueError(f"`{name}` must be an int. Received: {name}={value!r}.") from None
    if not 1 <= aggregate <= workers:
        raise ValueError(
            "`replicas_to_aggregate` must be >= 1 and <= `total_num_replicas`: each worker gives "
            f"one gradient per round. Received: replicas_to_aggregate={aggregate}, "
            f"total_num_replicas={workers}; for larger batches put AccumulatedGradients or larger "
            "batches into the workers."
        )
    if not 0 <= worker < workers:
        raise ValueError(
            f"`worker_index` must be >= 0 and < `total_num_replicas`, {workers}. "
            f"Received: worker_index={worker}."
        )
