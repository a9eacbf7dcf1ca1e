"""One accumulator per variable, on the variable's device, for `SoftsyncOptimizer`."""

from collections.abc import Sequence

import tensorflow as tf

from deepinsight.trainer import kernels
from deepinsight.trainer.devices import by_device
from deepinsight.trainer.optimizers._apply import compute_dtype
from deepinsight.trainer.optimizers.exchange import GradientAndVariable

v1 = tf.compat.v1


class Accumulators:
    """The accumulators of some variables, shared by name with all graphs on the same servers.

    Args:
        pairs: (gradient, variable) pairs; all gradients of a variable, whoever sends them, are
            dense, or all are sparse.
        inverse: Whether a gradient's weight is 1 / max(staleness, 1), or 1.
        name: Prefix of the shared names.
    """

    def __init__(self, pairs: Sequence[GradientAndVariable], inverse: bool, name: str) -> None:
        self._inverse = inverse
        self._variables = [variable for _, variable in pairs]
        self._sparse = [isinstance(gradient, tf.IndexedSlices) for gradient, _ in pairs]
        self._handles = []
        for variable in self._variables:
            with tf.device(variable.device):
                handle = kernels.ops().staleness_weighted_accumulator_handle(
                    dtype=variable.dtype.base_dtype,
                    shape=variable.shape,
                    shared_name=f"{name}/{variable.name}",
                )
            self._handles.append(handle)

    def weight(self, staleness: tf.Tensor, dtype: tf.DType = tf.float64) -> tf.Tensor:
        """The weight of a gradient, on the device of the scope."""
        one = tf.ones([], dtype)
        return one / tf.cast(tf.maximum(staleness, 1), dtype) if self._inverse else one

    def add(
        self, gradients: Sequence[tf.Tensor | tf.IndexedSlices], staleness: tf.Tensor
    ) -> list[tf.Tensor]:
        """Add a gradient to each accumulator.

        Args:
            gradients: In the order of the variables, each on its variable's device.
            staleness: int64 scalar.

        Returns:
            How many gradients each accumulator holds then, on its device.
        """
        counts, weights = [], {}
        for gradient, variable, handle in zip(
            gradients, self._variables, self._handles, strict=True
        ):
            key = (variable.device, compute_dtype(variable.dtype))
            with tf.device(variable.device):
                if key not in weights:
                    weights[key] = self.weight(staleness, key[1])
                if isinstance(gradient, tf.IndexedSlices):
                    count = kernels.ops().staleness_weighted_accumulator_add_sparse(
                        handle, gradient.values, gradient.indices, weights[key], staleness
                    )
                else:
                    count = kernels.ops().staleness_weighted_accumulator_add(
                        handle, gradient, weights[key], staleness
                    )
            counts.append(count)
        return counts

    def take(
        self, counts: Sequence[tf.Tensor], home: str
    ) -> tuple[list[GradientAndVariable], tf.Tensor]:
        """Take the means, in a branch.

        Args:
            counts: What `add` returned; each accumulator is taken from after its own addition.
            home: Where the second result is wanted.

        Returns:
            (mean, variable) pairs, and what one accumulator says, on `home` if there is one:
            gradients taken, their mean staleness, the largest; float64 ``[3]``.
        """
        means, says = [], None
        near = [place for place, v in enumerate(self._variables) if v.device == home]
        for place, (variable, count) in enumerate(zip(self._variables, counts, strict=True)):
            with tf.device(variable.device), tf.control_dependencies([tf.identity(count)]):
                mean, taken, staleness = self._take(place)
                if place == (near or [0])[0]:
                    taken = tf.expand_dims(tf.cast(taken, tf.float64), 0)
                    says = tf.concat([taken, staleness], 0)
            means.append((mean, variable))
        return means, says

    def clear(self) -> list[tf.Operation]:
        """Empty all accumulators, under the control dependencies of the scope."""
        cleared = []
        for place, (variable, handle) in enumerate(
            zip(self._variables, self._handles, strict=True)
        ):
            with tf.device(variable.device):
                held = kernels.ops().staleness_weighted_accumulator_count(handle)
                taken = tf.cond(
                    held > 0,
                    lambda place=place: self._take(place)[1],
                    lambda: tf.constant(0, tf.int64),
                )
                cleared.append(taken.op)
        return cleared

    def _take(self, place: int) -> tuple[tf.Tensor | tf.IndexedSlices, tf.Tensor, tf.Tensor]:
        variable, handle = self._variables[place], self._handles[place]
        dtype = variable.dtype.base_dtype
        if not self._sparse[place]:
            return tuple(kernels.ops().staleness_weighted_accumulator_take(handle, T=dtype))
        rows, values, count, staleness = kernels.ops().staleness_weighted_accumulator_take_sparse(
            handle, T=dtype
        )
        shape = tf.constant(variable.shape.as_list(), tf.int64)
        return tf.IndexedSlices(values, rows, shape), count, staleness


def arrived(
    pairs: Sequence[GradientAndVariable],
) -> tuple[list[tf.Tensor | tf.IndexedSlices], list[tf.Operation]]:
    """Bring gradients to their variables.

    Returns:
        The gradients there, and per device an op that ends when all of its gradients are there.
    """
    there = []
    for gradient, variable in pairs:
        with tf.device(variable.device):
            if isinstance(gradient, tf.IndexedSlices):
                values, rows = tf.identity(gradient.values), tf.identity(gradient.indices)
                there.append(tf.IndexedSlices(values, rows, gradient.dense_shape))
            else:
                there.append(tf.identity(gradient))
    tensors = {}
    for place, gradient in enumerate(there):
        parts = [gradient]
        if isinstance(gradient, tf.IndexedSlices):
            parts = [gradient.values, gradient.indices]
        tensors.update({f"{place}/{k}": part for k, part in enumerate(parts)})
    done = []
    for device, names in by_device(tensors).items():
        with tf.device(device):
            done.append(tf.group(*(tensors[name] for name in names)))
    return there, done
