"""Optimizers that keep, per worker, the value that its gradient was computed at."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from deepinsight.trainer.keras import _checks
from deepinsight.trainer.keras._base import KernelOptimizer, Row


class _Current:
    """Which worker's turn it is; a variable, so that a traced function asks anew each time."""

    def __init__(self, workers: int) -> None:
        self.index = keras.Variable(0, dtype="int32", trainable=False) if workers > 1 else None


class WorkerOptimizer(KernelOptimizer):
    """A `KernelOptimizer` that compares a variable with what the pushing worker pulled.

    ``fit`` has one worker, and what it pushes is never stale. A loop of one's own that plays
    several says before each `apply` whose gradients these are.

    Args:
        learning_rate: A number > 0, a schedule or a callable.
        num_workers: Number of workers that push, >= 1.
        **settings: Arguments of ``keras.optimizers.Optimizer``.
    """

    def __init__(self, learning_rate: Any, num_workers: int, **settings: Any) -> None:
        super().__init__(learning_rate, **settings)
        self.num_workers = _checks.worker_count(num_workers)
        self._current = _Current(self.num_workers)
        self._pulled_at: keras.Variable | None = None

    @property
    def worker_index(self) -> Any:
        """The worker whose gradients come next, in [0, num_workers); 0 at first.

        May be set between calls of `apply`, also of a traced function: it asks each time. Inside
        of one it is a tensor.
        """
        if self._current.index is None:
            return 0
        index = tf.identity(self._current.index.value)
        return int(index) if tf.executing_eagerly() else index

    @worker_index.setter
    def worker_index(self, index: Any) -> None:
        index = _checks.worker_index(index, self.num_workers)
        if self._current.index is not None:
            self._current.index.assign(index)

    @contextlib.contextmanager
    def worker(self, index: Any) -> Iterator["WorkerOptimizer"]:
        """Let a worker push, or `pull`, in a with block.

        Args:
            index: The worker, an int or an integer scalar tensor in [0, num_workers).

        Raises:
            ValueError: If it is out of range.
            tf.errors.InvalidArgumentError: If it is a tensor of a traced function and out of range.
        """
        before = self.worker_index
        self.worker_index = index
        try:
            yield self
        finally:
            self.worker_index = before

    def build(self, variables: Sequence[Any]) -> None:
        """Make the state; the backups start as the variables' values.

        Args:
            variables: The variables to update, floating point, in main memory.

        Raises:
            ValueError: If a kernel cannot update one of them, or with several workers under a
                distribution strategy.
            KernelError: If the kernels cannot be built or loaded.
        """
        if self.built:
            return
        if self.num_workers > 1 and tf.distribute.has_strategy():
            raise ValueError(
                "`num_workers` must be 1 under a distribution strategy: its replicas push one "
                f"gradient together. Received: num_workers={self.num_workers}."
            )
        super().build(variables)
        if self.num_workers > 1:
            with tf.init_scope():
                self._pulled_at = self.add_variable(
                    (self.num_workers,), "zeros", "int64", name="pulled_at"
                )

    def _initial_own_slots(self) -> Mapping[str, float]:
        """The state per variable and worker: the kernel's input and the value at first."""
        return {}

    def _make_row(self, variable: Any) -> Row:
        row = super()._make_row(variable)
        value = _checks.native(variable)
        for m in range(self.num_workers):
            row.own_slots.append(
                {
                    name: self._add_slot(variable, f"{name}_{m}", keras.initializers.Constant(x))
                    for name, x in self._initial_own_slots().items()
                }
            )
            if self.num_workers > 1:
                backup = self._add_slot(variable, f"backup_{m}", dtype=value.dtype)
                backup.assign(value)
                row.backups.append(backup)
        return row

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Update the variables with the gradients of worker `worker_index`, which then pulls.

        Args:
            grads: One gradient per variable: a tensor, ``tf.IndexedSlices`` or None.
            trainable_variables: The variables; needed only at the first call.
        """
        grads = list(grads)
        super().apply(grads, trainable_variables)
        if grads and self.num_workers > 1:
            pushed = True
            if self.gradient_accumulation_steps:
                steps = tf.identity(self._iterations.value)
                pushed = tf.equal(steps % self.gradient_accumulation_steps, 0)
            self._note_pull(pushed)

    def pull(self) -> None:
        """Let worker `worker_index` read the variables now: it is not stale at all then.

        It does so by itself right after its own push. Call this where a worker reads the variables
        at another time, or where they were set by hand. With one worker there is nothing to do.

        Raises:
            ValueError: If the optimizer is not built yet.
        """
        if not self.built:
            raise ValueError("The optimizer must be built before a worker can pull; call `build`.")
        if self.num_workers == 1:
            return

        def copy(worker: int) -> tf.Tensor:
            for row, variable in zip(self._table.rows, self._trainable_variables, strict=True):
                row.backups[worker].assign(_checks.native(variable))
            return tf.constant(True)

        self._for_worker(copy)
        self._note_pull(True)

    def _note_pull(self, pulled: Any) -> None:
        mine = tf.equal(tf.range(self.num_workers), self.worker_index)
        now = tf.cast(tf.convert_to_tensor(self.iterations), tf.int64)
        self._pulled_at.assign(tf.where(tf.logical_and(mine, pulled), now, self._pulled_at.value))

    def _staleness(self) -> tf.Tensor:
        """Updates by others since the worker pulled, int64."""
        if self.num_workers == 1:
            return tf.constant(0, tf.int64)
        now = tf.cast(tf.convert_to_tensor(self.iterations), tf.int64)
        return now - tf.gather(self._pulled_at.value, self.worker_index)

    def _for_worker(self, function: Callable[[int], tf.Tensor]) -> tf.Tensor:
        """Call a function for the worker whose turn it is."""
        index = self.worker_index
        if isinstance(index, int):
            return function(index)
        return tf.switch_case(index, [partial(function, m) for m in range(self.num_workers)])

    def _kernel(self) -> str:
        """Name of the op after ``resource_apply_``."""
        raise NotImplementedError

    def _hyperparameters(self, dtype: tf.DType) -> Mapping[str, Any]:
        """The kernel's scalars except the learning rate, and its attributes.

        Args:
            dtype: Of the scalars; plain floats need not be converted.
        """
        raise NotImplementedError

    def _push(self, gradient: Any, variable: Any, rate: tf.Tensor, row: Row) -> tf.Tensor:
        hyperparameters = self._hyperparameters(rate.dtype)

        def push(worker: int) -> tf.Tensor:
            if row.backups:
                backup = row.backups[worker]
            elif isinstance(gradient, tf.IndexedSlices):
                backup = variable.sparse_read(gradient.indices)
            else:
                backup = variable.read_value()  # shares the buffer
            inputs = {"backup": backup, **row.slots, **row.own_slots[worker], **hyperparameters}
            return self._call(self._kernel(), variable, gradient, rate, inputs)

        return self._for_worker(push)

    def get_config(self) -> dict[str, Any]:
        """The arguments to make this optimizer again, without its state."""
        return super().get_config() | {"num_workers": self.num_workers}
