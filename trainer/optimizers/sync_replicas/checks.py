"""Whether the arguments of SyncReplicas make sense."""

from typing import Any

import tensorflow as tf

from deepinsight.trainer.optimizers._arguments import check_optimizer, whole

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
    check_optimizer("opt", opt)
    whole("replicas_to_aggregate", aggregate, 1)
    whole("total_num_replicas", workers, 1)
    if aggregate > workers:
        raise ValueError(
            "`replicas_to_aggregate` must be >= 1 and <= `total_num_replicas`: each worker gives "
            f"one gradient per round. Received: replicas_to_aggregate={aggregate}, "
            f"total_num_replicas={workers}; for larger batches put AccumulatedGradients or larger "
            "batches into the workers."
        )
    whole("worker_index", worker, 0, workers - 1)
