"""What a model is here: variables first, the forward pass over pulled values afterwards.

The two are apart because a worker on a cluster does not read variables where it needs them: it
*pulls* them from the parameter servers, once per step and in one message per server (see
`deepinsight.trainer.optimizers.exchange`), after it has read the update counts that tell how
stale the values will be.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import tensorflow as tf

FeatureGroups = dict[str, Any]


class LayerTensors(NamedTuple):
    """What goes into a dense layer and what comes out of it.

    Attributes:
        inputs: float32 ``[n, in]``.
        outputs: ``inputs @ kernel + bias``, before the activation, float32 ``[n, out]``.
    """

    inputs: tf.Tensor
    outputs: tf.Tensor


class Model(ABC):
    """Variables by name, and the forward pass.

    Attributes:
        dense: Variables that every step needs whole, in the order of the forward pass.
        tables: Variables of which a step needs a few rows, ``[vocabulary, width]`` each.
        devices: Per layer of the tower, the device that computes it; None is the worker.
    """

    dense: dict[str, tf.Variable]
    tables: dict[str, tf.Variable]
    devices: Sequence[str | None]

    @property
    def elsewhere(self) -> dict[str, str]:
        """The dense variables whose layers other devices compute, and those devices."""
        layers = zip(layer_names(len(self.devices) - 1), self.devices, strict=True)
        return {
            f"{layer}/{part}": device
            for layer, device in layers
            if device is not None
            for part in ("kernel", "bias")
        }

    def over(self, variables: Mapping[str, tf.Variable]) -> "Model":
        """The same model over other variables of the same names and shapes."""
        other = copy.copy(self)
        other.dense = {name: variables[name] for name in self.dense}
        other.tables = {name: variables[name] for name in self.tables}
        return other

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
        layers: dict[str, LayerTensors] | None = None,
    ) -> tf.Tensor:
        """The forward pass.

        Args:
            ids: int32 ``[n, slots]``.
            dense: The values of `self.dense`, by the same names.
            looked_up: Takes, by name, the rows that were read of `self.tables`, ``[rows, width]``,
                in the order of the rows of the table's gradient.
            layers: Takes the tensors of each dense layer, by the prefix of its variables' names:
                ``fc1`` has ``fc1/kernel`` and ``fc1/bias``.

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


def layer_names(hidden: int) -> list[str]:
    """The layers of a tower: fc1, fc2, …, logits."""
    return [*(f"fc{i + 1}" for i in range(hidden)), "logits"]


def create_tower(
    inputs: int,
    hidden: Sequence[int],
    initializers: Initializers,
    devices: Sequence[str | None],
) -> dict[str, tf.Variable]:
    """The kernels and biases of a tower ``inputs - hidden… - 1``.

    A layer that a parameter server computes has its variables there.
    """
    variables = {}
    widths = pairwise([inputs, *hidden, 1])
    for layer, (rows, columns), device in zip(
        layer_names(len(hidden)), widths, devices, strict=True
    ):
        scale = (2.0 / rows) ** 0.5
        for part, shape, initializer in (
            ("kernel", [rows, columns], initializers.normal(scale)),
            ("bias", [columns], initializers.zeros()),
        ):
            name = f"{layer}/{part}"
            with tf.device(device if device and "job:ps" in device else ""):
                variables[name] = create_variable(name, shape, initializer)
    return variables


def tower_logits(
    inputs: tf.Tensor,
    dense: Mapping[str, tf.Tensor],
    devices: Sequence[str | None],
    layers: dict[str, LayerTensors] | None = None,
) -> tf.Tensor:
    """The tower's output ``[n]`` for inputs ``[n, inputs]``, with ReLU between the layers.

    `layers` takes the tensors of each layer.
    """
    values, outputs = inputs, inputs
    for layer, device in zip(layer_names(len(devices) - 1), devices, strict=True):
        with tf.device(device or ""):
            outputs = tf.matmul(values, dense[f"{layer}/kernel"]) + dense[f"{layer}/bias"]
            if layers is not None:
                layers[layer] = LayerTensors(values, outputs)
            if layer != "logits":
                values = tf.nn.relu(outputs)
    return tf.squeeze(outputs, axis=1)
