"""What the Keras optimizers accept."""

import math
import numbers
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from deepinsight.trainer.keras.errors import BackendError, CompiledStepError

DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64)


def check_backend(optimizer: str) -> None:
    """Check that Keras runs on TensorFlow.

    Raises:
        BackendError: If it does not.
    """
    if keras.backend.backend() != "tensorflow":
        raise BackendError(
            f"{optimizer} runs TensorFlow kernels: the Keras backend must be tensorflow. "
            f"Received: {keras.backend.backend()!r}. Set KERAS_BACKEND=tensorflow before Keras is "
            "imported."
        )


def positive(name: str, value: Any) -> float:
    """Return a finite number > 0."""
    return _number(name, value, "finite and > 0", lambda x: x > 0 and math.isfinite(x))


def non_negative(name: str, value: Any) -> float:
    """Return a finite number >= 0."""
    return _number(name, value, "finite and >= 0", lambda x: x >= 0 and math.isfinite(x))


def share(name: str, value: Any) -> float:
    """Return a number in [0, 1)."""
    return _number(name, value, "in [0, 1)", lambda x: 0 <= x < 1)


def _number(name: str, value: Any, must: str, holds: Callable[[float], bool]) -> float:
    number = float("nan")
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        number = float(value)
    if not holds(number):
        raise ValueError(f"`{name}` must be a number, {must}. Received: {name}={value!r}.")
    return number


def learning_rate(value: Any) -> Any:
    """Return a learning rate that is a number as a float, finite and > 0.

    Schedules and callables are left to the kernel.

    Raises:
        ValueError: If it is out of range.
    """
    if callable(value):
        return value
    return positive("learning_rate", value)


def worker_count(value: Any) -> int:
    """Return the number of workers.

    Raises:
        ValueError: If it is not an int >= 1.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not value >= 1:
        raise ValueError(f"`num_workers` must be an int >= 1. Received: num_workers={value!r}.")
    return int(value)


def worker_index(value: Any, workers: int) -> Any:
    """Return the index of a worker: an int, or an int32 tensor that is checked when it runs.

    Raises:
        ValueError: If it is none in [0, workers), as far as that is known.
    """
    known = value
    if tf.is_tensor(value):
        known = tf.get_static_value(value)
        if known is None and value.dtype.is_integer and value.shape.rank == 0:
            return _checked_when_run(tf.cast(value, tf.int32), workers)
    whole = isinstance(known, numbers.Integral) and not isinstance(known, bool)
    if whole and 0 <= known < workers:
        return int(known)
    raise ValueError(
        "`worker_index` must be an int in [0, num_workers), here "
        f"[0, {workers}). Received: worker_index={value!r}."
    )


def _checked_when_run(index: tf.Tensor, workers: int) -> tf.Tensor:
    message = f"`worker_index` must be in [0, {workers})."
    checks = [
        tf.debugging.assert_non_negative(index, message),
        tf.debugging.assert_less(index, workers, message),
    ]
    with tf.control_dependencies(checks):
        return tf.identity(index)


def check_variable(variable: Any) -> None:
    """Check that the kernels can update a variable.

    Raises:
        ValueError: If they cannot; the message names it.
    """
    name, value = label(variable), native(variable)
    if not isinstance(value, tf.Variable):
        raise ValueError(
            "`trainable_variables` must hold variables. "
            f"Received: {type(variable).__name__}, {name!r}."
        )
    if tf.as_dtype(value.dtype) not in DTYPES:
        names = ", ".join(dtype.name for dtype in DTYPES)
        raise ValueError(
            f"`trainable_variables` must have one of the dtypes {names}. "
            f"Received: {tf.as_dtype(value.dtype).name} for {name!r}."
        )
    check_device(name, value.device)


def check_device(name: str, device: str | None) -> None:
    """Check that a variable is in main memory.

    Raises:
        ValueError: If it is on another device.
    """
    kind = tf.DeviceSpec.from_string(device or "").device_type
    if kind not in (None, "CPU"):
        raise ValueError(
            "`trainable_variables` must be in main memory: the kernels are for CPUs. Received: "
            f"{name!r} on {device}. Make the model under `with tf.device('CPU:0'):`."
        )


def label(variable: Any) -> str:
    """The variable's path in the model."""
    return getattr(variable, "path", None) or getattr(variable, "name", None) or repr(variable)


def native(variable: Any) -> Any:
    """The TensorFlow variable of a Keras variable."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def refuse_xla(optimizer: str) -> None:
    """Check that the step being traced is not compiled with XLA.

    Keras does so on machines with a GPU unless it is told otherwise, and there is no hook by which
    an optimizer could tell it.

    Raises:
        CompiledStepError: If it is.
    """
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None:
        context = graph._get_control_flow_context()
        while context is not None:
            if context.IsXLAContext():
                raise CompiledStepError(
                    f"{optimizer} runs kernels that XLA cannot compile. Received: a training step "
                    "compiled with XLA. Pass jit_compile=False to `model.compile` or `tf.function`."
                )
            context = context.outer_context
        graph = getattr(graph, "outer_graph", None)
