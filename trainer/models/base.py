"""What a model is here: variables first, the forward pass over pulled values afterwards.

The two are apart because a worker on a cluster does not read variables where it needs them: it
*pulls* them from the parameter servers, once per step and in one message per server (see
`deepinsight.trainer.optimizers.exchange`), after it has read the update counts that tell how
stale the values will be.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import tensorflow as tf

FeatureGroups = dict[str, Any]


class Model(ABC):
    """Variables by name, and the forward pass.

    Attributes:
        dense: Variables that every step needs whole, in the order of the forward pass.
        tables: Variables of which a step needs a few rows, ``[vocabulary, width]`` each.
    """

    dense: dict[str, tf.Variable]
    tables: dict[str, tf.Variable]

    @property
    def variables(self) -> dict[str, tf.Variable]:
        """All trainable variables by name, without TensorFlow's ``:0``."""
        return {**self.dense, **self.tables}

    @abstractmethod
    def logits(
        self,
        ids: tf.Tensor,
        dense: Mapping[str, tf.Tensor],
        looked_up: dict[str, tf.Tensor] | None = None,
    ) -> tf.Tensor:
        """The forward pass.

        Args:
            ids: int32 ``[n, slots]``.
            dense: The values of `self.dense`, by the same names.
            looked_up: Takes, by name, the rows that were read of `self.tables`, ``[rows, width]``,
                in the order of the rows of the table's gradient.

        Returns:
            The logit of P(y = 1), float32 ``[n]``.
        """

    @abstractmethod
    def feature_groups(self) -> FeatureGroups:
        """The rows of the variables that belong to each feature group, as a trace keeps them."""


class Initializers:
    """Seeded initializers, another seed for every variable."""

    def __init__(self, seed: int) -> None:
        self._seeds: Iterator[int] = (seed * 1000 + i for i in range(1_000_000))

    def normal(self, stddev: float) -> Any:
        """A truncated normal distribution."""
        return tf.compat.v1.truncated_normal_initializer(stddev=stddev, seed=next(self._seeds))

    def zeros(self) -> Any:
        """All zero."""
        return tf.compat.v1.zeros_initializer()


def create_variable(name: str, shape: Sequence[int], initializer: Any) -> tf.Variable:
    """A float32 resource variable."""
    return tf.compat.v1.get_variable(
        name, shape, tf.float32, initializer=initializer, use_resource=True
    )


def create_tower(
    inputs: int, hidden: Sequence[int], initializers: Initializers
) -> dict[str, tf.Variable]:
    """The kernels and biases of a tower ``inputs - hidden… - 1``, named fc1, fc2, …, logits."""
    variables = {}
    widths = [inputs, *hidden, 1]
    for i, (rows, columns) in enumerate(pairwise(widths)):
        layer = f"fc{i + 1}" if i < len(hidden) else "logits"
        scale = (2.0 / rows) ** 0.5
        for part, shape, initializer in (
            ("kernel", [rows, columns], initializers.normal(scale)),
            ("bias", [columns], initializers.zeros()),
        ):
            name = f"{layer}/{part}"
            variables[name] = create_variable(name, shape, initializer)
    return variables


def tower_logits(inputs: tf.Tensor, hidden: int, dense: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """The tower's output ``[n]`` for inputs ``[n, inputs]``, with ReLU between the layers."""
    values = inputs
    for i in range(hidden):
        values = tf.nn.relu(
            tf.matmul(values, dense[f"fc{i + 1}/kernel"]) + dense[f"fc{i + 1}/bias"]
        )
    return tf.squeeze(tf.matmul(values, dense["logits/kernel"]) + dense["logits/bias"], axis=1)
