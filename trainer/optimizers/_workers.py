"""Optimizers that keep, per worker, the value that its gradient was computed at."""

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from deepinsight.trainer.optimizers._apply import KernelOptimizer, make_slot
from deepinsight.trainer.optimizers.exchange import GradientAndVariable

v1 = tf.compat.v1
Snapshot = tuple[tf.Tensor | tf.IndexedSlices, tf.Variable]


class WorkerOptimizer(KernelOptimizer):
    """A `KernelOptimizer` that compares the variable with what the pushing worker pulled.

    Args:
        name: Name of the optimizer.
        use_locking: If True, a sparse update holds the variables' locks alone.
        num_workers: Number of workers that push, >= 1.
        **hyper: The hyperparameters by name.
    """

    USES_STALENESS = False

    def __init__(self, name: str, use_locking: bool, num_workers: int, **hyper: Any) -> None:
        super().__init__(name, use_locking, **hyper)
        self._num_workers = _whole("num_workers", num_workers)
        if not self._num_workers > 0:
            raise ValueError(f"`num_workers` must be >= 1. Received: num_workers={num_workers!r}.")
        self._worker = 0
        self._snapshots: dict[Any, Any] = {}
        self._staleness: dict[Any, Any] | Any = None

    @property
    def num_workers(self) -> int:
        """Number of workers that push."""
        return self._num_workers

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
        *,
        worker_index: int = 0,
        backup: Iterable[Snapshot] | None = None,
        staleness: Any = None,
    ) -> tf.Operation:
        """Compute the gradients of a loss and apply them.

        Args:
            loss: The loss, a tensor; in eager execution a callable that returns it.
            global_step: Variable to raise by one after the update.
            var_list: The variables; None: all trainable ones.
            gate_gradients: As in `tf.compat.v1.train.Optimizer.minimize`.
            aggregation_method: As there.
            colocate_gradients_with_ops: As there.
            name: Name of the op.
            grad_loss: As there.
            worker_index: As in `apply_gradients`.
            backup: As in `apply_gradients`.
            staleness: As in `apply_gradients`.

        Returns:
            The op that makes the update; None in eager execution without `global_step`.

        Raises:
            ValueError: As `apply_gradients`, and if no variable has a gradient.
        """
        pairs = self.compute_gradients(
            loss,
            var_list=var_list,
            gate_gradients=gate_gradients,
            aggregation_method=aggregation_method,
            colocate_gradients_with_ops=colocate_gradients_with_ops,
            grad_loss=grad_loss,
        )
        return self.apply_gradients(
            pairs,
            global_step,
            name,
            worker_index=worker_index,
            backup=backup,
            staleness=staleness,
        )

    def apply_gradients(
        self,
        grads_and_vars: Iterable[GradientAndVariable],
        global_step: tf.Variable | None = None,
        name: str | None = None,
        *,
        worker_index: int = 0,
        backup: Iterable[Snapshot] | None = None,
        staleness: Any = None,
    ) -> tf.Operation:
        """Apply one worker's gradients to their variables.

        Args:
            grads_and_vars: (gradient, variable) pairs; a gradient is a tensor of the variable's
                shape, a `tf.IndexedSlices` (duplicate indices are summed) or None (no update).
            global_step: Variable to raise by one after the update.
            name: Name of the op.
            worker_index: The worker that pushes, an int in [0, `num_workers`).
            backup: (snapshot, variable) pairs: the value that the worker really read, of the
                variable's dtype and shape. For a sparse gradient also a `tf.IndexedSlices`, or
                only rows, parallel to the gradient's; a tensor with as many rows as the variable
                is taken for the whole value. For a variable with a snapshot no slot is kept.
                For the others the optimizer remembers, in the slots ``backup_0`` …, what the
                variable was right after the worker's last push (at first: as initialised); of a
                sparse gradient's rows, what each was after the worker's last push to this row.
                After a warm start from elsewhere run the slots' initializers again.
            staleness: Updates by other workers between this worker's pull and its push: an int64
                scalar, or (staleness, variable) pairs. None: the updates since the worker's last
                push, counted in the slot ``pushes_by_others``. Rules without staleness, such
                as delay compensation, have no use for it.

        Returns:
            The op that makes the update; None in eager execution without `global_step`.

        Raises:
            ValueError: If an argument does not fit; the message names it.
            tf.errors.InvalidArgumentError: When the op runs: if a hyperparameter, the staleness
                or an index is out of range. The variable is untouched then.
            tf.errors.FailedPreconditionError: When the op runs: if a variable is uninitialised.
        """
        pairs = list(grads_and_vars)
        variables = [var for _, var in pairs]
        self._worker = self._checked_worker(worker_index)
        self._snapshots = _by_variable("backup", backup or (), variables)
        self._staleness = staleness
        if isinstance(staleness, list | tuple):
            self._staleness = _by_variable("staleness", staleness, variables)
        try:
            return super().apply_gradients(pairs, global_step, name)
        finally:
            self._worker, self._snapshots, self._staleness = 0, {}, None

    def _checked_worker(self, worker_index: Any) -> int:
        index = _whole("worker_index", worker_index)
        if not 0 <= index < self._num_workers:
            raise ValueError(
                f"`worker_index` must be in [0, num_workers), here [0, {self._num_workers}). "
                f"Received: worker_index={worker_index!r}."
            )
        return index

    def _trace_details(self) -> dict[str, Any]:
        return super()._trace_details() | {"worker_index": self._worker}

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        for var in var_list:
            if var.ref() not in self._snapshots:
                self._create_backups(var)
            if self.USES_STALENESS and self._given_staleness(var) is None:
                make_slot(self, var, "pushes_by_others", dtype=tf.int64, shape=[self._num_workers])
            self._create_state(var)

    def _create_state(self, var: tf.Variable) -> None:
        """Make the rule's other slots."""

    def _create_backups(self, var: tf.Variable) -> None:
        slots = [f"backup_{i}" for i in range(self._num_workers)]
        missing = [slot for slot in slots if self.get_slot(var, slot) is None]
        if not missing:
            return
        value = _initialized_value(var)
        for slot in missing:
            self._get_or_make_slot(var, value, slot, f"{self._name}/{slot}")

    def _backup(
        self, var: tf.Variable, grad: tf.Tensor, indices: tuple[tf.Tensor, ...]
    ) -> tf.Tensor:
        """The backup that the kernel takes: the worker's slot, or the snapshot given."""
        if var.ref() not in self._snapshots:
            return self._handle(var, f"backup_{self._worker}")
        return _fitting(self._snapshots[var.ref()], var, grad, indices)

    def _given_staleness(self, var: tf.Variable) -> Any:
        if isinstance(self._staleness, dict):
            return self._staleness.get(var.ref())
        return self._staleness

    def _stale(self, var: tf.Variable) -> tuple[tf.Tensor, Any]:
        """The staleness, and what to call after the update (None: nothing)."""
        given = self._given_staleness(var)
        if given is not None:
            return _whole_tensor(given, var), None
        pushes = self.get_slot(var, "pushes_by_others")
        missed = tf.gather(pushes, self._worker)
        mine = tf.one_hot(self._worker, self._num_workers, dtype=tf.int64)
        # One atomic addition: the others have missed one more, and this worker starts at 0.
        change = 1 - mine * (missed + 1)
        return missed, lambda: pushes.assign_add(change, read_value=False)


def _whole(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"`{name}` must be an int. Received: {name}={value!r}.") from None


def _whole_tensor(staleness: Any, var: tf.Variable) -> tf.Tensor:
    tensor = tf.convert_to_tensor(staleness)
    if not tensor.dtype.is_integer or tensor.shape.rank not in (0, None):
        raise ValueError(
            f"`staleness` must be an integer scalar. Received: {tensor.dtype.name} of shape "
            f"{tensor.shape} for {var.name!r}."
        )
    return tf.cast(tensor, tf.int64)


def _by_variable(
    name: str, pairs: Iterable[tuple[Any, tf.Variable]], variables: Sequence[tf.Variable]
) -> dict[Any, Any]:
    known, found = {var.ref() for var in variables}, {}
    for value, var in pairs:
        if not isinstance(var, tf.Variable) or var.ref() not in known:
            raise ValueError(
                f"`{name}` must be pairs of a value and a variable of `grads_and_vars`. "
                f"Received: {getattr(var, 'name', var)!r}, which is not among them."
            )
        found[var.ref()] = value
    return found


def _initialized_value(var: tf.Variable) -> tf.Tensor:
    """The variable's value; before it has one, what it will be initialised to."""
    if tf.executing_eagerly():
        return var.read_value()
    with tf.device(var.device):
        value = tf.cond(
            var.is_initialized(), var.read_value, lambda: tf.identity(var.initial_value)
        )
    value.set_shape(var.shape)
    return value


def _fitting(
    snapshot: Any, var: tf.Variable, grad: tf.Tensor, indices: tuple[tf.Tensor, ...]
) -> tf.Tensor:
    """A snapshot with the shape of the gradient, dense or rows.

    Raises:
        ValueError: If its dtype or shape does not fit.
    """
    sliced = isinstance(snapshot, tf.IndexedSlices)
    value = snapshot.values if sliced else tf.convert_to_tensor(snapshot)
    if value.dtype != var.dtype.base_dtype:
        raise ValueError(
            f"`backup` must have the dtype of its variable, {var.dtype.base_dtype.name}. "
            f"Received: {value.dtype.name} for {var.name!r}."
        )
    if indices and not sliced and value.shape == var.shape:
        return tf.gather(value, indices[0])
    if (sliced and not indices) or not value.shape.is_compatible_with(grad.shape):
        wanted = (
            f"rows {grad.shape} parallel to the gradient's, or the shape"
            if indices
            else ("the shape")
        )
        raise ValueError(
            f"`backup` must have {wanted} {var.shape} of its variable. Received: "
            f"{'rows ' if sliced else ''}{value.shape} for {var.name!r}."
        )
    return value
