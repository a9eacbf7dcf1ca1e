"""What the optimizers over the C++ kernels share: checks, slots, scalars, and what they report."""

import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import tensorflow as tf

from deepinsight.trainer import kernels
from deepinsight.trainer.optimizers._statistics import Report, Statistic, keep, report, trace
from deepinsight.trainer.optimizers.exchange import GradientAndVariable

v1 = tf.compat.v1
DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
Gradient = tf.Tensor | tf.IndexedSlices


class Range(NamedTuple):
    """Where a hyperparameter lies: the words, and the bounds."""

    words: str
    low: float
    includes_low: bool
    high: float

    def holds(self, value: float) -> bool:
        """Whether a finite number lies in it; NaN does not."""
        above = value >= self.low if self.includes_low else value > self.low
        return math.isfinite(value) and above and value < self.high


POSITIVE = Range("finite and > 0", 0, False, math.inf)
NON_NEGATIVE = Range("finite and >= 0", 0, True, math.inf)
SHARE = Range("in [0, 1)", 0, True, 1)


def check_hyperparameter(name: str, value: Any, allowed: Range) -> Any:
    """Check a number; a tensor, a variable or a callable is left to the kernel.

    Raises:
        ValueError: If it is a number out of range, or nothing that can become a scalar.
    """
    if callable(value) or tf.is_tensor(value) or isinstance(value, tf.Variable):
        return value
    if getattr(value, "ndim", None) == 0:
        value = value.item()
    if not isinstance(value, numbers.Real) or not allowed.holds(float(value)):
        raise ValueError(f"`{name}` must be {allowed.words}. Received: {name}={value!r}.")
    return float(value)


def compute_dtype(dtype: tf.DType) -> tf.DType:
    """The dtype of the arithmetic, and of all state except backups: float64 or float32."""
    return tf.float64 if dtype.base_dtype == tf.float64 else tf.float32


def check_variable(var: Any) -> None:
    """Check that the kernels can update a variable.

    Raises:
        ValueError: If it is a ref variable, no floating one, or has no fixed shape.
    """
    if not isinstance(var, tf.Variable) or not hasattr(var, "handle"):
        kind = "a ref variable" if isinstance(var, tf.Variable) else type(var).__name__
        raise ValueError(
            f"`var` must be a resource variable. Received: {kind}, {getattr(var, 'name', var)!r}; "
            "create it with use_resource=True or call tf.compat.v1.enable_resource_variables()."
        )
    if var.dtype.base_dtype not in DTYPES:
        names = ", ".join(dtype.name for dtype in DTYPES)
        raise ValueError(
            f"`var` must have one of the dtypes {names}. Received: {var.dtype.base_dtype.name} "
            f"for {var.name!r}."
        )
    if not var.shape.is_fully_defined():
        raise ValueError(
            f"`var` must have a fixed shape. Received: {var.shape} for {var.name!r}; create it "
            "with validate_shape=True."
        )


def check_gradient(grad: Any, var: Any) -> Gradient | None:
    """Check a variable, and its gradient's dtype and shape, as far as they are known.

    Raises:
        ValueError: If the kernels cannot update the variable, or the gradient does not fit it.
    """
    if grad is None:
        return None
    check_variable(var)
    if not isinstance(grad, tf.IndexedSlices):
        grad = tf.convert_to_tensor(grad)
    if grad.dtype.base_dtype != var.dtype.base_dtype:
        raise ValueError(
            f"`grad` must have the dtype of its variable, {var.dtype.base_dtype.name}. "
            f"Received: {grad.dtype.base_dtype.name} for {var.name!r}."
        )
    values, expected = grad, var.shape
    if isinstance(grad, tf.IndexedSlices):
        values = grad.values
        if var.shape.rank:
            expected = tf.TensorShape([grad.indices.shape.num_elements()]).concatenate(
                var.shape[1:]
            )
        if not var.shape.rank or grad.indices.shape.rank not in (1, None):
            raise ValueError(
                "A sparse `grad` must have a vector of indices, and its variable rows. Received: "
                f"indices {grad.indices.shape}, variable {var.name!r} of shape {var.shape}."
            )
    if not values.shape.is_compatible_with(expected):
        raise ValueError(
            f"`grad` must have the shape {expected} of its variable"
            f"{'' if values is grad else chr(39) + 's rows'}. Received: {values.shape} for "
            f"{var.name!r}."
        )
    return grad


def make_slot(
    optimizer: v1.train.Optimizer,
    var: tf.Variable,
    slot: str,
    value: float = 0.0,
    *,
    dtype: tf.DType | None = None,
    shape: Sequence[int] | None = None,
) -> tf.Variable:
    """Make a slot on the variable's device, unless it is there.

    Args:
        optimizer: Whose slot.
        var: The variable.
        slot: The slot's name; the slot variable is called ``<variable>/<optimizer>/<slot>``.
        value: First value of every element.
        dtype: None: the dtype of the arithmetic.
        shape: None: the variable's.
    """
    return optimizer._get_or_make_slot_with_initializer(
        var,
        v1.constant_initializer(value) if value else v1.zeros_initializer(),
        var.shape if shape is None else tf.TensorShape(shape),
        dtype or compute_dtype(var.dtype),
        slot,
        f"{optimizer.get_name()}/{slot}",
    )


def _is_taken(grad: Gradient | None) -> bool:
    """Whether a gradient comes out of an accumulator: SyncReplicas applies it in another thread."""
    values = grad.values if isinstance(grad, tf.IndexedSlices) else grad
    if not isinstance(getattr(values, "graph", None), tf.Graph):
        return False  # no gradient, or an eager one
    return values.op.type.endswith("AccumulatorTakeGradient")


class KernelOptimizer(v1.train.Optimizer):
    """A ``tf.compat.v1`` optimizer whose update is one C++ kernel per variable.

    A subclass lists its `RANGES` and `STATISTICS`, makes its slots in `_create_slots`, and applies
    one gradient in `_push`, which returns what the kernel reports.

    Args:
        name: Name of the optimizer, the prefix of its slots' names.
        use_locking: If True, a sparse update holds the variables' locks alone.
        **hyper: The hyperparameters by name: numbers, tensors, or callables that return one.
    """

    RANGES: ClassVar[Mapping[str, Range]] = {}
    STATISTICS: ClassVar[Sequence[Statistic]] = ()

    def __init__(self, name: str, use_locking: bool, **hyper: Any) -> None:
        super().__init__(use_locking, name)
        self._hyper = {
            key: check_hyperparameter(key, value, self.RANGES[key]) for key, value in hyper.items()
        }
        self._now: dict[str, Any] = {}
        self._scalars: dict[tuple[str, tf.DType, str], tf.Tensor] = {}
        self._reported: list[tuple[tf.Variable, tf.Tensor]] = []
        self._arrivals: list[tf.Tensor] = []
        self.reported: list[Report] = []

    def apply_gradients(
        self,
        grads_and_vars: Iterable[GradientAndVariable],
        global_step: tf.Variable | None = None,
        name: str | None = None,
    ) -> tf.Operation:
        """Apply gradients to their variables.

        Args:
            grads_and_vars: (gradient, variable) pairs; a gradient is a tensor of the variable's
                shape, a `tf.IndexedSlices` (duplicate indices are summed) or None (no update).
            global_step: Variable to raise by one after the update.
            name: Name of the op.

        Returns:
            The op that makes the update; None in eager execution without `global_step`.

        Raises:
            ValueError: If a variable or a gradient does not fit; the message names it.
            tf.errors.InvalidArgumentError: When the op runs: if a hyperparameter is out of range
                or an index is out of bounds. No variable has been touched then by its own op.
            tf.errors.FailedPreconditionError: When the op runs: if a variable is uninitialised.
        """
        pairs = [(check_gradient(grad, var), var) for grad, var in grads_and_vars]
        self._scalars, self._reported = {}, []
        self._arrivals = [
            grad.values if isinstance(grad, tf.IndexedSlices) else grad
            for grad, _ in pairs
            if grad is not None
        ]
        update = super().apply_gradients(pairs, global_step, name)
        self.reported = []
        if not tf.executing_eagerly():
            self.reported = report(self._reported)
            if any(_is_taken(grad) for grad, _ in pairs):
                update, self.reported = keep(update, self.reported)
            trace(self, self.reported, self._trace_details())
        self._reported, self._arrivals = [], []
        return update

    def _trace_details(self) -> dict[str, Any]:
        return {"optimizer": self.get_name()}

    def _prepare(self) -> None:
        self._now = {
            key: check_hyperparameter(key, value(), self.RANGES[key]) if callable(value) else value
            for key, value in self._hyper.items()
        }

    def _scalar(self, name: str, var: tf.Variable) -> tf.Tensor:
        """A hyperparameter in the dtype of the arithmetic, once per device."""
        return self._scalar_of(name, self._now[name], var)

    def _scalar_of(self, name: str, value: Any, var: tf.Variable) -> tf.Tensor:
        dtype = compute_dtype(var.dtype)
        key = (name, dtype, var.device)
        if key not in self._scalars:
            number = isinstance(value, float)
            self._scalars[key] = tf.constant(value, dtype) if number else tf.cast(value, dtype)
        return self._scalars[key]

    def _slot(self, var: tf.Variable, slot: str, value: float = 0.0) -> None:
        make_slot(self, var, slot, value)

    def _handle(self, var: tf.Variable, slot: str) -> tf.Tensor:
        return self.get_slot(var, slot).handle

    @staticmethod
    def _ops() -> ModuleType:
        return kernels.ops()

    def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> Any:
        return self._record(grad, var, ())

    def _resource_apply_sparse_duplicate_indices(
        self, grad: tf.Tensor, var: tf.Variable, indices: tf.Tensor
    ) -> Any:
        return self._record(grad, var, (indices,))

    def _record(self, grad: tf.Tensor, var: tf.Variable, indices: tuple[tf.Tensor, ...]) -> Any:
        update, statistics = self._push(var, grad, indices)
        self._reported.append((var, statistics))
        return update

    def _push(
        self, var: tf.Variable, grad: tf.Tensor, indices: tuple[tf.Tensor, ...]
    ) -> tuple[Any, tf.Tensor]:
        """Apply one gradient.

        Args:
            var: The variable.
            grad: Its gradient, or rows of it.
            indices: Nothing, or the rows' indices.

        Returns:
            The op or tensor that ends the update, and the kernel's statistics.
        """
        raise NotImplementedError
