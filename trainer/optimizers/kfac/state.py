"""What K-FAC keeps where the variables are: factors, inverses and three counters.

Everything is a global variable, so part of checkpoints: the factors and inverses as slots of the
layers' kernels on the kernels' devices, the counters on the first kernel's device (home).
"""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from deepinsight.trainer.optimizers._apply import make_slot
from deepinsight.trainer.optimizers.kfac.factors import average, invert
from deepinsight.trainer.optimizers.kfac.layers import DenseLayer, bring

v1 = tf.compat.v1
COVARIANCES = ("input_covariance", "output_covariance")
INVERSES = ("input_inverse", "output_inverse")
NEVER = -1


class Schedule(NamedTuple):
    """When what is done.

    Attributes:
        covariance_every: Steps between two batches in the covariances, >= 1.
        inverse_every: Steps between two inversions, >= 1.
        burn_in: Batches in the covariances before they are inverted, >= 1.
    """

    covariance_every: int
    inverse_every: int
    burn_in: int


class Counters(NamedTuple):
    """What has happened so far, each an int64 scalar.

    Attributes:
        updates: Batches in the covariances.
        steps: Gradient steps.
        inverted: `steps` when the factors were inverted last; -1: never.
    """

    updates: tf.Tensor
    steps: tf.Tensor
    inverted: tf.Tensor

    def due(self, schedule: Schedule) -> tf.Tensor:
        """Whether the factors are to be inverted (again); bool scalar, or a bool for numbers."""
        age = self.steps - self.inverted
        # A restored checkpoint may be older than the inverses of a worker that lived on.
        old = (self.inverted < 0) | (age >= schedule.inverse_every) | (age < 0)
        return (self.updates >= schedule.burn_in) & old

    def active(self, schedule: Schedule) -> tf.Tensor:
        """Whether the inverses are to be used; bool scalar."""
        return (self.updates >= schedule.burn_in) & (self.inverted >= 0)


class State:
    """The variables, made in the default graph unless they are there.

    Args:
        optimizer: Whose slots they are.
        layers: The layers.
    """

    def __init__(self, optimizer: v1.train.Optimizer, layers: Sequence[DenseLayer]) -> None:
        self._layers = list(layers)
        first = self._layers[0].kernel
        self.home = first.device
        self._slots: list[dict[str, tf.Variable]] = []
        for layer in self._layers:
            dtype, sizes = layer.kernel.dtype.base_dtype, (layer.rows, layer.columns)
            slots = {
                name: make_slot(optimizer, layer.kernel, name, dtype=dtype, shape=[size, size])
                for names in (COVARIANCES, INVERSES)
                for name, size in zip(names, sizes, strict=True)
            }
            self._slots.append(slots)
        self._optimizer, self._first = optimizer, first
        self._updates, self.steps, self._inverted = (
            self._variable(name, tf.constant(value, tf.int64))
            for name, value in (("covariance_updates", 0), ("steps", 0), ("inverted_at", NEVER))
        )

    @property
    def kept_facts(self) -> tf.Variable:
        """Takes what is known of the last step, float64 ``[4]``, NaN at first; see `trace_step`."""
        return self._variable("facts", tf.fill([4], tf.constant(float("nan"), tf.float64)))

    def _variable(self, name: str, value: tf.Tensor) -> tf.Variable:
        # All workers must give it one name, whatever they are just building.
        with tf.init_scope(), v1.name_scope(None):
            return self._optimizer._create_non_slot_variable(
                value, f"{self._optimizer.get_name()}/{name}", colocate_with=self._first
            )

    def read_counters(self) -> Counters:
        """Read the counters, under the control dependencies of the scope, at home."""
        with tf.device(self.home):
            return Counters(
                self._updates.read_value(), self.steps.read_value(), self._inverted.read_value()
            )

    def read_inverses(self, index: int) -> list[tf.Tensor]:
        """Read a layer's inverses where they are."""
        with tf.device(self._layers[index].kernel.device):
            return [self._slots[index][name].read_value() for name in INVERSES]

    def take_moments(self, moments: Sequence[tf.Tensor], decay: float) -> tf.Operation:
        """Take a batch's moments into the covariances.

        Args:
            moments: `batch_moments` of the layers, on the device of the scope.
            decay: Weight of the past at most.

        Returns:
            The op that ends when the batch has been counted.
        """
        slots, devices = self._places(COVARIANCES)
        there = bring(moments, [""] * len(moments), devices)
        with tf.device(self.home), tf.control_dependencies(there):
            number = self._updates.read_value() + 1
        written = []
        for slot, device, moment in zip(slots, devices, there, strict=True):
            with tf.device(device):
                mean = average(slot.read_value(), moment, number, decay)
                # Assigned, not added: of two workers at the same moment one may be lost, but what
                # stays is a mean.
                written.append(slot.assign(mean, read_value=False))
        with tf.device(self.home), tf.control_dependencies(written):
            return tf.group(self._updates.assign_add(1, read_value=False))

    def renew_inverses(self, damping: float, now: tf.Tensor) -> tf.Operation:
        """Read the covariances, invert them on the device of the scope and write the inverses.

        Args:
            damping: The damping, > 0.
            now: `Counters.steps`, read before.

        Returns:
            The op that ends when the inverses' age has been noted.
        """
        covariances, sources = self._places(COVARIANCES)
        with tf.control_dependencies([now]):
            read = []
            for slot, device in zip(covariances, sources, strict=True):
                with tf.device(device):
                    read.append(slot.read_value())
        here = bring(read, sources, [None] * len(read))
        inverses = []
        for i, layer in enumerate(self._layers):
            inverses += invert(layer, *here[2 * i : 2 * i + 2], damping)
        slots, targets = self._places(INVERSES)
        there = bring(inverses, [""] * len(inverses), targets)
        written = []
        for slot, device, inverse in zip(slots, targets, there, strict=True):
            # All or nothing: where one factor cannot be inverted, no inverse is replaced.
            with tf.device(device), tf.control_dependencies(inverses):
                written.append(slot.assign(inverse, read_value=False))
        with tf.device(self.home), tf.control_dependencies(written):
            return tf.group(self._inverted.assign(now, read_value=False))

    def _places(self, names: Sequence[str]) -> tuple[list[tf.Variable], list[str]]:
        slots = [slots[name] for slots in self._slots for name in names]
        return slots, [slot.device for slot in slots]
