"""What a worker of SyncReplicas says of itself."""

import tensorflow as tf

from deepinsight.collectors.collection import trace_tensor
from deepinsight.trainer.optimizers._statistics import free_prefix, traceable
from deepinsight.trainer.optimizers.sync_replicas.rounds import Decided

v1 = tf.compat.v1


def bring(decided: Decided, name: str) -> tf.Tensor:
    """Bring what was decided to the worker, in one message, and offer it to the recorder.

    Args:
        decided: It.
        name: Name of the optimizer; where a graph has several, the later ones report under it.

    Returns:
        The global step that the worker has reached, int64 scalar on the device of the scope.
    """
    with tf.device(decided.reached.device):
        packed = tf.stack(list(decided))
    reached, accepted, dropped, live, waited_us = tf.unstack(tf.identity(packed))
    if traceable():
        prefix = free_prefix("sync", ["dropped_gradients"], name)
        for quantity, tensor, unit, description in (
            ("dropped_gradients", dropped, "gradients", "Gradients of this worker, since the "
             "rounds began, that missed their round."),
            ("accepted_gradients", accepted, "gradients", "Gradients of this worker, since the "
             "rounds began, that were taken into a round."),
            ("live_workers", live, "workers", "Workers that rounds wait for."),
            ("wait_time", tf.cast(waited_us, tf.float64) / 1e6, "s", "This worker's last wait for "
             "the end of a round."),
        ):  # fmt: skip
            trace_tensor(
                f"{prefix}/{quantity}", tensor, unit, description=description, every_n_steps=None
            )
    return reached
