"""TensorFlow's accumulators of gradients, one per variable, dense or sparse."""

import tensorflow as tf

from deepinsight.trainer.optimizers.exchange import GradientAndVariable, _sum_rows

v1 = tf.compat.v1
ALWAYS_FRESH = 2**63 - 1  # no round is that late


class MeanGradient:
    """The mean gradient of a variable, on the variable's device.

    An accumulator has the number of its round, drops what is for an earlier one, and raises the
    number when its mean is taken. A sparse mean is one of each row, over the gradients that have
    the row.

    Args:
        gradient: A gradient like those to come.
        variable: The variable; the accumulator is shared under its name, as TensorFlow's
            SyncReplicas does.
    """

    def __init__(self, gradient: tf.Tensor | tf.IndexedSlices, variable: tf.Variable) -> None:
        self._variable, self._dtype = variable, gradient.dtype
        self._is_sparse = isinstance(gradient, tf.IndexedSlices)
        name = f"{variable.name}/grad_accum"
        with tf.device(variable.device):
            if self._is_sparse:
                self._shared = v1.SparseConditionalAccumulator(
                    self._dtype, shape=(), shared_name=name
                )
            else:
                self._shared = v1.ConditionalAccumulator(
                    self._dtype, variable.shape, shared_name=name
                )

    def add(self, gradient: tf.Tensor | tf.IndexedSlices, number: tf.Tensor) -> tf.Operation:
        """Add a gradient for a round, unless the round is over.

        Args:
            gradient: A tensor, or rows with sorted, unique indices.
            number: The number of the round.
        """
        with tf.device(self._variable.device):
            if self._is_sparse:
                return self._shared.apply_indexed_slices_grad(gradient, number)
            return self._shared.apply_grad(gradient, number)

    def take(self, number_required: tf.Tensor | int) -> GradientAndVariable:
        """Take the mean of all that is there, as soon as it is that of so many gradients."""
        with tf.device(self._variable.device):
            if self._is_sparse:
                return self._shared.take_indexed_slices_grad(number_required), self._variable
            return self._shared.take_grad(number_required), self._variable

    def empty(self, number: tf.Tensor) -> tf.Operation:
        """Throw away what is there, and go on with a round.

        Args:
            number: The number of the round.
        """
        with tf.device(self._variable.device):
            # An empty accumulator gives nothing away: so it gets something.
            with tf.control_dependencies([self.add(self._nothing(), ALWAYS_FRESH)]):
                gradient, _ = self.take(1)
            values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
            with tf.control_dependencies([values]):
                return self._shared.set_global_step(number)

    def _nothing(self) -> tf.Tensor | tf.IndexedSlices:
        shape = tf.shape(self._variable)
        if not self._is_sparse:
            return tf.zeros(shape, self._dtype)
        rows = tf.concat([[1], shape[1:]], 0)
        return tf.IndexedSlices(tf.zeros(rows, self._dtype), tf.zeros([1], tf.int64))


def summed(gradient: tf.Tensor | tf.IndexedSlices | None) -> tf.Tensor | tf.IndexedSlices | None:
    """A gradient whose rows, if it has any, are sorted and unique; summed where it is."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    with tf.device(gradient.values.device):
        return _sum_rows(gradient)
