"""What gradient compression tells the session hook."""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from deepinsight.collectors.collection import trace_tensor
from deepinsight.trainer.optimizers._statistics import free_prefix, traceable
from deepinsight.trainer.optimizers.compression.state import Selected, Waiting

v1 = tf.compat.v1


class Step(NamedTuple):
    """One worker's step.

    Attributes:
        sent: Bytes of this push, int64 scalar.
        dense: Bytes that it would have been uncompressed, int64 scalar.
        total: `sent` and `dense` of all steps, int64 ``[2]``.
        sparsity: Share that was kept back, float64 scalar.
        states: The state of each variable.
        taken: What was taken from each.
    """

    sent: tf.Tensor
    dense: tf.Tensor
    total: tf.Tensor
    sparsity: tf.Tensor
    states: Sequence[Waiting]
    taken: Sequence[Selected]


def trace_step(optimizer: str, step: Step) -> None:
    """Offer a step to the session hook, on the device of the scope.

    The streams are ``sync/<quantity>``; a second worker in the same graph reports under
    ``sync/<optimizer>/<quantity>``, a third under ``sync/<optimizer>_1/…``.
    """
    if not traceable():
        return
    with v1.name_scope("statistics"):
        streams = {
            "bytes_sent": (step.sent, "bytes", "Bytes of this push, as they travel."),
            "dense_bytes": (step.dense, "bytes", "Bytes of this push, had it been uncompressed."),
            "compression_ratio": (
                step.dense / step.sent, "1", "Bytes of the uncompressed push over those sent."
            ),
            "total_bytes_sent": (step.total[0], "bytes", "Bytes of all pushes of this worker."),
            "total_dense_bytes": (
                step.total[1], "bytes", "Bytes of all pushes, had they been uncompressed."
            ),
            "residual_norm": (_norm(step), "1", "Norm of the gradient that waits to be sent."),
            "threshold": (
                _threshold(step), "1",
                "Largest over the variables of the least magnitude that was sent; 0 if all is.",
            ),
            "sparsity": (step.sparsity, "1", "Share of the elements that is not sent now."),
        }  # fmt: skip
    prefix = free_prefix("sync", list(streams), optimizer)
    for name, (tensor, unit, description) in streams.items():
        trace_tensor(f"{prefix}/{name}", tensor, unit, description=description, every_n_steps=None)


def _norm(step: Step) -> tf.Tensor:
    """The norm of all residuals after the push; computed only in steps that are recorded."""
    with tf.control_dependencies([part.threshold for part in step.taken]):
        squares = [
            2 * tf.nn.l2_loss(tf.cast(state.residual.read_value(), tf.float64))
            for state in step.states
        ]
    return tf.sqrt(tf.add_n(squares))


def _threshold(step: Step) -> tf.Tensor:
    thresholds = [
        part.threshold
        for part, state in zip(step.taken, step.states, strict=True)
        if not state.whole
    ]
    return tf.reduce_max(tf.stack([tf.zeros([], tf.float64), *thresholds]))
