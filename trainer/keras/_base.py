"""What the Keras optimizers share: slots, the call of a kernel, and what it reports."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from deepinsight.collectors.probes.base import Stream
from deepinsight.traces import Axis
from deepinsight.trainer import kernels
from deepinsight.trainer.keras import _checks

PACKAGE = "deepinsight"


class Quantity(NamedTuple):
    """One number of a kernel's statistics.

    Attributes:
        name: What it is called in `statistics`, and after ``optimizer/`` in a trace.
        description: One sentence.
        unit: Unit in a trace.
        traced: Whether `TraceCallback` records it; its own probes measure norms already.
    """

    name: str
    description: str
    unit: str = "1"
    traced: bool = True


NON_FINITE = Quantity("nonfinite_gradients", "NaN and infinity in the gradient.", "elements")


@dataclass
class Row:
    """What belongs to one variable.

    Attributes:
        slots: State by the name of the kernel's input.
        statistics: What the kernel reported last, float64; NaN before the first update.
        backups: Per worker, the value that it pulled; empty for one worker.
        own_slots: Per worker, state of its own, by the name of the kernel's input.
    """

    slots: dict[str, keras.Variable]
    statistics: keras.Variable
    backups: list[keras.Variable] = field(default_factory=list)
    own_slots: list[dict[str, keras.Variable]] = field(default_factory=list)


class _Table:
    """The rows; an object of its own, because Keras would track a list's variables as state."""

    def __init__(self) -> None:
        self.rows: list[Row] = []


class KernelOptimizer(keras.optimizers.Optimizer):
    """A Keras optimizer whose update is one C++ kernel per variable.

    A subclass names what its kernel reports in `QUANTITIES`, its state in `_initial_slots`, and
    calls the kernel in `_push`.

    Args:
        learning_rate: A number > 0, a schedule or a callable.
        **settings: Arguments of ``keras.optimizers.Optimizer``.
    """

    QUANTITIES: Sequence[Quantity] = ()

    def __init__(self, learning_rate: Any, **settings: Any) -> None:
        _checks.check_backend(type(self).__name__)
        super().__init__(learning_rate=_checks.learning_rate(learning_rate), **settings)
        self._table = _Table()

    def build(self, variables: Sequence[Any]) -> None:
        """Make the state, and on the machine's first use compile the kernels.

        Args:
            variables: The variables to update, floating point, in main memory.

        Raises:
            ValueError: If a kernel cannot update one of them.
            KernelError: If the kernels cannot be built or loaded.
        """
        if self.built:
            return
        variables = list(variables)
        for variable in variables:
            _checks.check_variable(variable)
        kernels.ops()
        # Outside of a function that is being traced: backups begin as what the variables are now.
        with tf.init_scope():
            super().build(variables)
            self._table.rows = [self._make_row(variable) for variable in variables]

    def _initial_slots(self) -> Mapping[str, float]:
        """The state per variable: the kernel's input and the value at first."""
        return {}

    def _make_row(self, variable: Any) -> Row:
        slots = {
            name: self._add_slot(variable, name, keras.initializers.Constant(value))
            for name, value in self._initial_slots().items()
        }
        # No state: it is neither saved nor counted among `variables`.
        unknown = keras.initializers.Constant(np.nan)
        statistics = keras.Variable(
            unknown, (len(self.QUANTITIES),), "float64", trainable=False, name="statistics"
        )
        return Row(slots, statistics)

    def _add_slot(
        self, variable: Any, name: str, initializer: Any = "zeros", dtype: Any = None
    ) -> keras.Variable:
        """Make a slot where the variable is, unless told otherwise in the compute dtype."""
        value = _checks.native(variable)
        dtype = tf.as_dtype(dtype or compute_dtype(value.dtype)).name
        name = f"{_checks.label(variable).replace('/', '_').replace(':', '_')}_{name}"
        with tf.distribute.get_strategy().extended.colocate_vars_with(value):
            return self.add_variable(tuple(value.shape), initializer, dtype, name=name)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update one variable.

        Args:
            gradient: A tensor of the variable's shape, or ``tf.IndexedSlices``, whose duplicate
                indices are summed; then only the rows that it names are touched.
            variable: The variable.
            learning_rate: A scalar > 0. Where a schedule gives 0, as a warm-up does at its first
                step, the smallest normal number is taken.

        Raises:
            CompiledStepError: If the step is compiled with XLA.
            tf.errors.InvalidArgumentError: If the gradient or the learning rate does not fit; the
                variable is untouched.
        """
        _checks.refuse_xla(type(self).__name__)
        row = self._table.rows[self._get_variable_index(variable)]
        variable = _checks.native(variable)
        gradient = tf.cast(gradient, variable.dtype)
        rate = tf.cast(learning_rate, compute_dtype(variable.dtype))
        if not isinstance(self._learning_rate, keras.Variable):
            tiny = np.finfo(rate.dtype.as_numpy_dtype).tiny
            rate = tf.where(tf.equal(rate, 0), tf.constant(tiny, rate.dtype), rate)
        self.assign(row.statistics, self._push(gradient, variable, rate, row))

    def _push(self, gradient: Any, variable: Any, rate: tf.Tensor, row: Row) -> tf.Tensor:
        """Call the kernel on one variable and return its statistics."""
        raise NotImplementedError

    @staticmethod
    def _call(
        kernel: str, variable: Any, gradient: Any, rate: tf.Tensor, inputs: Mapping[str, Any]
    ) -> tf.Tensor:
        """Call a kernel, or its sparse form.

        Args:
            kernel: Name of the op after ``resource_apply_``.
            variable: The variable.
            gradient: Its gradient.
            rate: The learning rate, in the dtype of the arithmetic.
            inputs: Slots, hyperparameters, tensors and the op's attributes by name.

        Returns:
            The kernel's statistics.
        """
        sparse = isinstance(gradient, tf.IndexedSlices)
        operator = getattr(
            kernels.ops(), f"resource_{'sparse_apply' if sparse else 'apply'}_{kernel}"
        )
        arguments = {name: _operand(value, rate.dtype) for name, value in inputs.items()}
        if sparse:
            arguments |= {"grad": gradient.values, "indices": gradient.indices}
        else:
            arguments["grad"] = gradient
        return operator(var=variable.handle, learning_rate=rate, **arguments)

    @property
    def statistics(self) -> dict[str, dict[str, float]]:
        """What the last update of each variable was like: name, then the variable's path.

        NaN for a variable that was not updated yet. The values are on the host at once, so read
        them outside of ``tf.function``.
        """
        labels = self._labels()
        values = self._statistics().T.tolist()
        return {
            quantity.name: dict(zip(labels, column, strict=True))
            for quantity, column in zip(self.QUANTITIES, values, strict=True)
        }

    def _labels(self) -> list[str]:
        labels: list[str] = []
        for variable in self.traced_variables:
            name = label = _checks.label(variable)
            count = 1
            while label in labels:
                count += 1
                label = f"{name}_{count}"
            labels.append(label)
        return labels

    def _statistics(self) -> np.ndarray:
        rows = [row.statistics.value.numpy() for row in self._table.rows]
        return np.reshape(np.asarray(rows, np.float64), (len(rows), len(self.QUANTITIES)))

    @property
    def traced_variables(self) -> list[Any]:
        """The variables that `traced_values` has a value for, in that order."""
        return list(self._trainable_variables)

    def traced_streams(self, labels: Sequence[str]) -> list[Stream]:
        """What `TraceCallback` records of this optimizer.

        Args:
            labels: Names of `traced_variables`.
        """
        axes = (Axis("variable", tuple(labels)),)
        return [
            Stream(f"optimizer/{q.name}", (len(labels),), "float64", q.unit, q.description, axes)
            for q in self.QUANTITIES
            if q.traced
        ]

    def traced_values(self) -> dict[str, np.ndarray]:
        """Stream name -> value per variable, after the last update."""
        columns = zip(self.QUANTITIES, self._statistics().T, strict=True)
        return {f"optimizer/{q.name}": column for q, column in columns if q.traced}


def compute_dtype(dtype: Any) -> tf.DType:
    """The dtype of the arithmetic, and of all state except backups: float64 or float32."""
    return tf.float64 if tf.as_dtype(dtype) == tf.float64 else tf.float32


def _operand(value: Any, dtype: tf.DType) -> Any:
    """An input of a kernel: a slot's handle, a number in the dtype, a tensor or an attribute."""
    if isinstance(value, keras.Variable):
        return value.value.handle
    return tf.constant(value, dtype) if isinstance(value, float) else value
