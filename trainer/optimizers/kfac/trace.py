"""What K-FAC knows about itself, offered to the session hook in one message from home."""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from deepinsight.collectors.collection import trace_tensor, traced_tensors
from deepinsight.trainer.optimizers._statistics import traceable
from deepinsight.trainer.optimizers.kfac.precondition import Facts
from deepinsight.trainer.optimizers.kfac.state import Counters, State

v1 = tf.compat.v1
NAN = float("nan")
STREAMS = {
    "sync/inverse_age": ("updates", "Updates since the inverses in use were computed."),
    "sync/covariance_updates": ("batches", "Batches that the covariances have taken in."),
    "sync/fisher_norm": (
        "1",
        "Sum over the layers of the products of direction and gradient, before the cap.",
    ),
    "sync/step_scale": ("1", "Factor by which the cap on the Fisher norm shortens the step."),
}


def trace_step(
    state: State,
    facts: Facts,
    damping: float,
    done: Sequence[tf.Operation],
    kept: tf.Variable | None,
) -> list[tf.Operation]:
    """Offer what is known of a step.

    Args:
        state: Where its home is.
        facts: The step's.
        damping: The damping.
        done: What the step consists of.
        kept: Takes the facts, float64 ``[4]``, where the step is made by another thread than the
            one that fetches: what fetched the facts themselves would make the step once more.

    Returns:
        What the step consists of.
    """
    with tf.device(state.home):
        norm = tf.where(facts.active, facts.norm, tf.constant(NAN, tf.float64))
        values = tf.stack([*_state_values(facts.counters), norm, facts.scale])
        done = list(done)
        if kept is not None:
            done.append(kept.assign(values, read_value=False))
            values = kept.read_value()
    _trace(values, list(STREAMS), damping)
    return done


def trace_state(state: State, damping: float) -> None:
    """Offer what a worker that computes no gradients knows."""
    with tf.device(state.home):
        values = tf.stack(_state_values(state.read_counters()))
    _trace(values, list(STREAMS)[:2], damping)


def _state_values(counters: Counters) -> list[tf.Tensor]:
    age = tf.cast(counters.steps - counters.inverted, tf.float64)
    age = tf.where(counters.inverted >= 0, age, tf.constant(NAN, tf.float64))
    return [age, tf.cast(counters.updates, tf.float64)]


def _trace(values: tf.Tensor, names: Sequence[str], damping: float) -> None:
    if not traceable():
        return
    here: Mapping[str, tf.Tensor] = dict(zip(names, tf.unstack(tf.identity(values)), strict=True))
    taken = {traced.stream.name for traced in traced_tensors(v1.get_default_graph())}
    for name, tensor in here.items():
        if name not in taken:  # a second tower or optimizer: the first one's stay
            unit, description = STREAMS[name]
            trace_tensor(name, tensor, unit, description=description, every_n_steps=None)
    if "sync/damping" not in taken:
        trace_tensor(
            "sync/damping", tf.constant(damping, tf.float64), "1",
            description="Damping that is added to the curvature.", every_n_steps=None,
        )  # fmt: skip
