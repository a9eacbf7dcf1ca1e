"""What gradient compression accepts."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from deepinsight.trainer.optimizers._apply import SHARE, _is_taken, check_hyperparameter
from deepinsight.trainer.optimizers.exchange import GradientAndVariable

v1 = tf.compat.v1


def rate_of(rule: Any) -> Any:
    """The learning rate, also of a gradient descent optimizer; refuses other optimizers."""
    if isinstance(rule, v1.train.GradientDescentOptimizer):
        return rule._learning_rate
    if isinstance(rule, v1.train.Optimizer) or hasattr(rule, "apply_gradients"):
        raise ValueError(
            "`learning_rate` must be a learning rate or a tf.compat.v1.train."
            f"GradientDescentOptimizer. Received: {type(rule).__module__}."
            f"{type(rule).__qualname__}; the workers add momentum before they send, so a server "
            "that does more than gradient descent would count it twice, or scale a few late "
            "elements as if they were the gradient. Use tf.compat.v1.train."
            "GradientDescentOptimizer with `momentum` here."
        )
    return rule


def check_pairs(pairs: Sequence[GradientAndVariable]) -> None:
    """Check that there are gradients, and that none has been sent before.

    Raises:
        ValueError: If not.
    """
    if not pairs:
        raise ValueError("No gradients provided for any variable.")
    for grad, var in pairs:
        if _is_taken(grad):
            raise ValueError(
                "Gradients must be compressed on the worker that computed them. Received: one of "
                f"{var.name!r} out of an accumulator, which it has reached uncompressed; use the "
                "optimizer without SyncReplicasOptimizer."
            )


def check_place(device: str, state: tf.Variable) -> None:
    """Check that a device function has not put a worker's state somewhere else.

    Raises:
        ValueError: If it has: the gradient's device says nothing.
    """
    if not device and state.device:
        raise ValueError(
            "The state of gradient compression must be on the worker. Received: a gradient without "
            f"a device, so that {state.op.name!r} is on {state.device}; name `worker_device`."
        )


def share(name: str, value: Any) -> float:
    """A number in [0, 1).

    Raises:
        ValueError: If it is none.
    """
    if callable(value) or tf.is_tensor(value):
        raise ValueError(f"`{name}` must be a number in [0, 1). Received: {name}={value!r}.")
    return check_hyperparameter(name, value, SHARE)
