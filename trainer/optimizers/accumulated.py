"""Very large batches from small ones: apply the mean of several gradients at once."""

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from deepinsight.trainer.optimizers._apply import check_gradient, compute_dtype, make_slot
from deepinsight.trainer.optimizers._arguments import check_optimizer, whole
from deepinsight.trainer.optimizers._statistics import Report, trace, traceable
from deepinsight.trainer.optimizers.exchange import GradientAndVariable
from deepinsight.trainer.optimizers.versions import NO_LIMIT

v1 = tf.compat.v1


class AccumulatedGradients(v1.train.Optimizer):
    r"""Hand every `steps`-th call the mean gradient of the calls since then to an optimizer.

    .. math::

        a \leftarrow a + g; \quad \text{every } k \text{ calls: }
        base.apply\_gradients(a / k), \quad a \leftarrow 0

    One update then is that of a batch k times as large. `global_step` counts updates of the base,
    so it rises once in k calls. Where several workers share the variables, their calls count
    together: the k-th call, whoever makes it, applies the mean of all. Give it more steps than
    there are workers: of two such calls at the same moment both would apply the same sum.

    Slots, on the variable's device and in checkpoints: ``sum``, float32, for float64 variables
    float64; for a variable with a sparse gradient also ``touched`` (bool, one per row): the base
    gets a `tf.IndexedSlices` of the rows that had a gradient in any of the calls, and only these
    are updated. The number of calls is the variable ``accumulated_calls``. What the base reports to
    the session hook is NaN in steps in which it applied nothing.

    Args:
        base: The optimizer; its slots are its own.
        steps: k, gradients per update, >= 1.
        use_locking: If True, the sums are updated under a lock.
        name: Name of the optimizer, the prefix of its slots' names.

    Raises:
        ValueError: If `base` is no ``tf.compat.v1`` optimizer or `steps` is not >= 1.

    Example:
        >>> w = tf.Variable([1.0])
        >>> base = tf.compat.v1.train.GradientDescentOptimizer(1.0)
        >>> optimizer = AccumulatedGradients(base, steps=2)
        >>> optimizer.apply_gradients([(tf.constant([0.5]), w)])
        >>> w.numpy()
        array([1.], dtype=float32)
        >>> optimizer.apply_gradients([(tf.constant([1.5]), w)])
        >>> w.numpy()
        array([0.], dtype=float32)

    References:
        Goyal et al., 2017, Accurate, Large Minibatch SGD. arXiv:1706.02677.
    """

    def __init__(
        self,
        base: v1.train.Optimizer,
        steps: int,
        use_locking: bool = False,
        name: str = "AccumulatedGradients",
    ) -> None:
        super().__init__(use_locking, name)
        check_optimizer("base", base)
        self._steps = whole("steps", steps, 1)
        self._base = base
        self._track_trackable(base, "base")

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[GradientAndVariable]:
        """As the base optimizer's."""
        return self._base.compute_gradients(*args, **kwargs)

    def variables(self) -> list[tf.Variable]:
        """The sums, the number of calls, and the base optimizer's variables."""
        return [*super().variables(), *self._base.variables()]

    def minimize(
        self,
        loss: Any,
        global_step: tf.Variable | None = None,
        var_list: Sequence[tf.Variable] | None = None,
        gate_gradients: int = v1.train.Optimizer.GATE_OP,
        aggregation_method: int | None = None,
        colocate_gradients_with_ops: bool = False,
        name: str | None = None,
        grad_loss: tf.Tensor | None = None,
        **options: Any,
    ) -> tf.Operation:
        """Compute the gradients of a loss, and add or apply them.

        Args:
            loss: The loss, a tensor; in eager execution a callable that returns it.
            global_step: Variable to raise by one with each update of the base.
            var_list: The variables; None: all trainable ones.
            gate_gradients: As in `tf.compat.v1.train.Optimizer.minimize`.
            aggregation_method: As there.
            colocate_gradients_with_ops: As there.
            name: Name of the op.
            grad_loss: As there.
            **options: As in `apply_gradients`.

        Returns:
            The op of the step; None in eager execution.

        Raises:
            ValueError: As `apply_gradients`.
        """
        pairs = self.compute_gradients(
            loss,
            var_list=var_list,
            gate_gradients=gate_gradients,
            aggregation_method=aggregation_method,
            colocate_gradients_with_ops=colocate_gradients_with_ops,
            grad_loss=grad_loss,
        )
        return self.apply_gradients(pairs, global_step, name, **options)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[GradientAndVariable],
        global_step: tf.Variable | None = None,
        name: str | None = None,
        **options: Any,
    ) -> tf.Operation:
        """Add the gradients, and every `steps`-th time apply their mean.

        Args:
            grads_and_vars: (gradient, variable) pairs, the same variables in each call; a gradient
                is a tensor, a `tf.IndexedSlices` or None.
            global_step: Variable to raise by one with each update of the base.
            name: Name of the op.
            **options: Further arguments of the base's `apply_gradients`, such as ``worker_index``;
                those of the call that applies count. A ``backup`` must be of the variable's shape.

        Returns:
            The op of the step; None in eager execution.

        Raises:
            ValueError: If a variable or a gradient does not fit, or no variable has a gradient.
            TypeError: If the base does not know an option.
        """
        pairs = [(check_gradient(grad, var), var) for grad, var in grads_and_vars]
        pairs = [(grad, var) for grad, var in pairs if grad is not None]
        if not pairs:
            raise ValueError("No gradients provided for any variable.")
        if options.get("backup") is not None:
            options["backup"] = list(options["backup"])
            _check_snapshots(pairs, options["backup"])
        with tf.init_scope():
            calls = self._create_state(pairs)
        with tf.name_scope(name or self._name):
            added = [op for grad, var in pairs for op in self._add(grad, var)]
            with tf.control_dependencies(added):
                before = tf.raw_ops.ResourceCountUpTo(
                    resource=calls.handle, limit=NO_LIMIT, T=tf.int64
                )
            due = tf.equal((before + 1) % self._steps, 0)
            reports: list[Report] = []
            train_ops = v1.get_collection_ref(v1.GraphKeys.TRAIN_OP)
            known = len(train_ops)
            outputs = tf.cond(
                due,
                lambda: self._apply(pairs, global_step, options, reports),
                lambda: [tf.constant(False), *(_nothing(part.values) for part in reports)],
            )
        if tf.executing_eagerly():
            return None
        # The base has entered its op, which belongs to a branch: no meta graph could name it.
        del train_ops[known:]
        if traceable() and reports:
            parts = [
                part._replace(values=tf.ensure_shape(values, part.values.shape))
                for part, values in zip(reports, outputs[1:], strict=True)
            ]
            details = {"optimizer": self._base.get_name(), "accumulated_steps": self._steps}
            trace(self._base, parts, details)
        op = tf.group(outputs[0])
        v1.add_to_collection(v1.GraphKeys.TRAIN_OP, op)
        return op

    def _create_state(self, pairs: Sequence[GradientAndVariable]) -> tf.Variable:
        for grad, var in pairs:
            make_slot(self, var, "sum")
            if isinstance(grad, tf.IndexedSlices):
                make_slot(self, var, "touched", dtype=tf.bool, shape=var.shape[:1])
        # On the same variable's device on every worker.
        first = min((var for _, var in pairs), key=lambda var: var.name)
        return self._create_non_slot_variable(
            tf.zeros([], tf.int64), "accumulated_calls", colocate_with=first
        )

    def _add(self, grad: tf.Tensor | tf.IndexedSlices, var: tf.Variable) -> list[tf.Operation]:
        total, dtype = self.get_slot(var, "sum"), compute_dtype(var.dtype)
        with tf.device(var.device):
            if isinstance(grad, tf.Tensor):
                op = total.assign_add(
                    tf.cast(grad, dtype), use_locking=self._use_locking, read_value=False
                )
                return [] if op is None else [op]
            values = tf.cast(grad.values, dtype)
            op = tf.raw_ops.ResourceScatterAdd(
                resource=total.handle, indices=grad.indices, updates=values
            )
            with tf.control_dependencies([] if op is None else [op]):
                mark = self._mark(var, grad.indices, True)
            return [] if mark is None else [mark]

    def _mark(self, var: tf.Variable, rows: tf.Tensor, touched: bool) -> tf.Operation | None:
        return tf.raw_ops.ResourceScatterUpdate(
            resource=self.get_slot(var, "touched").handle,
            indices=rows,
            updates=tf.fill(tf.shape(rows), touched),
        )

    def _apply(
        self,
        pairs: Sequence[GradientAndVariable],
        global_step: tf.Variable | None,
        options: dict[str, Any],
        reports: list[Report],
    ) -> list[tf.Tensor]:
        """Apply the means and take what was applied from the sums; the base's reports."""
        sums, means = [], []
        for grad, var in pairs:
            with tf.device(var.device):
                total = self._take(grad, var)
                sums.append(total)
                means.append((_mean(total, self._steps, var), var))
        update = self._base.apply_gradients(means, global_step, **options)
        with tf.control_dependencies([] if update is None else [update]):
            # Subtracted, not set to 0: what others have added meanwhile stays.
            left = [
                op
                for total, (_, var) in zip(sums, pairs, strict=True)
                for op in self._subtract(total, var)
            ]
        reports.extend(getattr(self._base, "reported", ()))
        with tf.control_dependencies(left):
            return [tf.constant(True), *(tf.identity(part.values) for part in reports)]

    def _take(
        self, grad: tf.Tensor | tf.IndexedSlices, var: tf.Variable
    ) -> tf.Tensor | tf.IndexedSlices:
        total = self.get_slot(var, "sum")
        if isinstance(grad, tf.Tensor):
            return total.read_value()
        rows = tf.reshape(tf.where(self.get_slot(var, "touched").read_value()), [-1])
        # Unmarked before it is read: a row that is added to meanwhile is marked again.
        unmarked = self._mark(var, rows, False)
        with tf.control_dependencies([] if unmarked is None else [unmarked]):
            values = tf.gather(total, rows)
        return tf.IndexedSlices(values, rows, tf.shape(total, tf.int64))

    def _subtract(
        self, taken: tf.Tensor | tf.IndexedSlices, var: tf.Variable
    ) -> list[tf.Operation]:
        total = self.get_slot(var, "sum")
        if isinstance(taken, tf.Tensor):
            ops = [total.assign_sub(taken, use_locking=self._use_locking, read_value=False)]
        else:
            ops = [
                tf.raw_ops.ResourceScatterSub(
                    resource=total.handle, indices=taken.indices, updates=taken.values
                )
            ]
        return [op for op in ops if op is not None]


def _mean(
    total: tf.Tensor | tf.IndexedSlices, steps: int, var: tf.Variable
) -> tf.Tensor | tf.IndexedSlices:
    if isinstance(total, tf.Tensor):
        return tf.cast(total / steps, var.dtype.base_dtype)
    values = tf.cast(total.values / steps, var.dtype.base_dtype)
    return tf.IndexedSlices(values, total.indices, total.dense_shape)


def _nothing(values: tf.Tensor) -> tf.Tensor:
    return tf.fill(values.shape, tf.constant(float("nan"), values.dtype))


def _check_snapshots(pairs: Sequence[GradientAndVariable], backup: Iterable[Any]) -> None:
    sparse = {var.ref() for grad, var in pairs if isinstance(grad, tf.IndexedSlices)}
    for snapshot, var in backup:
        if var.ref() not in sparse:
            continue
        if isinstance(snapshot, tf.IndexedSlices) or tf.convert_to_tensor(snapshot).shape != (
            var.shape
        ):
            raise ValueError(
                "`backup` must be of the variable's shape where sparse gradients are accumulated: "
                f"the rows of one call are not those that are applied. Received: rows of "
                f"{var.name!r}."
            )
