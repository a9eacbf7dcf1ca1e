"""What a worker keeps for gradient compression: sums that wait, and how far the warm-up is."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from deepinsight.trainer import kernels
from deepinsight.trainer.optimizers._apply import Gradient, compute_dtype
from deepinsight.trainer.optimizers.versions import NO_LIMIT

v1 = tf.compat.v1


def local_variable(name: str, shape: Any, dtype: tf.DType) -> tf.Variable:
    """A variable of zeros for this worker alone, on the device of the scope."""
    with v1.name_scope(None):
        return v1.Variable(
            lambda: tf.zeros(shape, dtype),
            trainable=False,
            collections=[v1.GraphKeys.LOCAL_VARIABLES],
            use_resource=True,
            dtype=dtype,
            name=name,
        )


class Selected(NamedTuple):
    """What is taken out of one variable's state.

    Attributes:
        indices: Flat, ascending, int64 ``[k]``.
        values: ``[k]``, in the variable's dtype.
        threshold: Least magnitude that was taken, float64 scalar.
    """

    indices: tf.Tensor
    values: tf.Tensor
    threshold: tf.Tensor


class Waiting:
    """Velocity U and residual V of one variable, on the device of the scope.

    Args:
        variable: The variable.
        optimizer: Name of the optimizer, in the names of the state.
        whole: Whether everything is sent each time; V then only keeps what rounding has lost.
        masking: Whether U is cleared where something is sent; never if `whole`.
    """

    def __init__(
        self, variable: tf.Variable, optimizer: str, *, whole: bool, masking: bool
    ) -> None:
        self.variable, self.whole, self._masking = variable, whole, masking and not whole
        self.dtype = compute_dtype(variable.dtype)
        self.velocity, self.residual = (
            local_variable(f"{variable.op.name}/{optimizer}/{part}", variable.shape, self.dtype)
            for part in ("velocity", "residual")
        )

    def add(self, gradient: Gradient, momentum: Any) -> tf.Operation:
        """Let a gradient in; the kernel does not clip."""
        state = (self.velocity.handle, self.residual.handle)
        scalars = (tf.cast(momentum, self.dtype), tf.zeros([], self.dtype))
        if isinstance(gradient, tf.IndexedSlices):
            accumulate = kernels.ops().resource_sparse_dgc_accumulate
            return accumulate(*state, *scalars, gradient.values, gradient.indices).op
        return kernels.ops().resource_dgc_accumulate(*state, *scalars, gradient).op

    def take(self, sparsity: tf.Tensor, *, exact: bool) -> Selected:
        """Take the largest elements out, under the control dependencies of the scope."""
        before = None if self._masking else self.velocity.read_value()
        with tf.control_dependencies([] if before is None else [before]):
            indices, values, statistics = kernels.ops().resource_dgc_select(
                self.velocity.handle,
                self.residual.handle,
                tf.cast(0.0 if self.whole else sparsity, self.dtype),
                T=self.variable.dtype.base_dtype,
                exact=exact,
            )
        if before is not None:
            with tf.control_dependencies([statistics]):
                kept = self.velocity.assign(before, read_value=False)
            with tf.control_dependencies([kept]):
                values = tf.identity(values)
        if self.whole:
            values = tf.ensure_shape(values, [self.variable.shape.num_elements()])
        return Selected(indices, values, statistics[0])


class Progress:
    """The worker's own steps and the bytes of all its steps, on the device of the scope.

    Args:
        optimizer: Name of the optimizer, in the names of the state.
        stages: Sparsities of the warm-up, each for the same share of its steps.
        sparsity: The sparsity after it; no stage exceeds it.
        warm_up_steps: Own steps of the whole warm-up, >= 0.
    """

    def __init__(
        self, optimizer: str, stages: Sequence[float], sparsity: float, warm_up_steps: int
    ) -> None:
        self._stages = [min(stage, sparsity) for stage in stages] if warm_up_steps else []
        self._sparsity, self._warm_up_steps = sparsity, warm_up_steps
        self.steps = local_variable(f"{optimizer}/steps", [], tf.int64)
        self.total_bytes = local_variable(f"{optimizer}/total_bytes", [2], tf.int64)

    def next(self) -> tuple[tf.Tensor, tf.Operation]:
        """The sparsity of this step, float64 scalar, and the op that counts the step."""
        step = tf.raw_ops.ResourceCountUpTo(resource=self.steps.handle, limit=NO_LIMIT, T=tf.int64)
        if not self._stages:
            return tf.constant(self._sparsity, tf.float64), step.op
        begun = tf.minimum(step, self._warm_up_steps) * len(self._stages) // self._warm_up_steps
        stages = tf.constant([*self._stages, self._sparsity], tf.float64)
        return tf.gather(stages, begun), step.op

    def add_bytes(self, sent: tf.Tensor, dense: tf.Tensor) -> tf.Tensor:
        """Add the bytes of a step to those of all, and return these, int64 ``[2]``."""
        with tf.control_dependencies(
            [self.total_bytes.assign_add(tf.stack([sent, dense]), read_value=False)]
        ):
            return self.total_bytes.read_value()
