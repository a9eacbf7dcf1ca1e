"""From the layers' gradients to what the base optimizer gets, on the variables' devices."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from deepinsight.trainer.optimizers.exchange import GradientAndVariable
from deepinsight.trainer.optimizers.kfac.factors import step_scale
from deepinsight.trainer.optimizers.kfac.layers import DenseLayer, bring
from deepinsight.trainer.optimizers.kfac.state import Counters, Schedule, State


class Facts(NamedTuple):
    """What is known of a step, scalars at the state's home.

    Attributes:
        counters: The counters when the inverses were read.
        active: Whether the inverses were used, bool.
        norm: Sum of <delta, gradient> over the layers before scaling, float64; during burn-in
            delta is the gradient.
        scale: The factor of the cap, float64.
    """

    counters: Counters
    active: tf.Tensor
    norm: tf.Tensor
    scale: tf.Tensor


def check_gradients(layers: Sequence[DenseLayer], pairs: Sequence[GradientAndVariable]) -> None:
    """Check that the layers' gradients are there and dense.

    Raises:
        ValueError: If no layer has a gradient, one has half of it, or it is sparse.
    """
    grads = {var.ref(): grad for grad, var in pairs if grad is not None}
    if not any(layer.kernel.ref() in grads for layer in layers):
        raise ValueError(
            "`grads_and_vars` must hold the gradient of at least one layer. Received: none for "
            f"{', '.join(repr(layer.kernel.name) for layer in layers)}."
        )
    for layer in layers:
        given = [variable for variable in layer.variables if variable.ref() in grads]
        if given and len(given) < len(layer.variables):
            raise ValueError(
                "A layer's kernel and bias must have gradients both or neither: they are "
                f"preconditioned together. Received: one for {given[0].name!r} only, of "
                f"{', '.join(repr(v.name) for v in layer.variables)}."
            )
        for variable in given:
            if not isinstance(grads[variable.ref()], tf.Tensor):
                raise ValueError(
                    f"The gradient of a layer must be a dense tensor. Received: "
                    f"{type(grads[variable.ref()]).__name__} for {variable.name!r}; leave a table "
                    "of which rows are looked up out of `layers`."
                )


def precondition(
    state: State,
    layers: Sequence[DenseLayer],
    pairs: Sequence[GradientAndVariable],
    prior: Sequence[tf.Operation],
    *,
    schedule: Schedule,
    learning_rate: Any,
    norm_constraint: float | None,
) -> tuple[list[GradientAndVariable], Facts]:
    """Replace the layers' gradients by their directions, once the inverses are to be used.

    Args:
        state: The inverses.
        layers: The layers; those without a gradient are left alone.
        pairs: All gradients and variables.
        prior: Ops to end before the inverses are read.
        schedule: When the burn-in ends.
        learning_rate: The base optimizer's: a number, a tensor or a callable.
        norm_constraint: Cap of the squared Fisher norm of a step, or None.

    Returns:
        The pairs for the base optimizer, in the same order, and what is known of the step.
    """
    grads = {var.ref(): grad for grad, var in pairs if grad is not None}
    present = [(i, layer) for i, layer in enumerate(layers) if layer.kernel.ref() in grads]
    matrices = _matrices([layer for _, layer in present], grads)
    at_home = [m for (_, layer), m in zip(present, matrices, strict=True)
               if layer.kernel.device == state.home]  # fmt: skip
    with tf.control_dependencies([*at_home, *prior]):
        counters = state.read_counters()
    with tf.device(state.home):
        active = counters.active(schedule)
    deltas, products = [], []
    for (i, layer), matrix in zip(present, matrices, strict=True):
        # Read once the gradient has arrived, and after the note that there are inverses.
        with tf.control_dependencies([matrix, active]):
            first, second = state.read_inverses(i)
        with tf.device(layer.kernel.device):
            delta = tf.where(active, tf.matmul(tf.matmul(first, matrix), second), matrix)
            deltas.append(delta)
            products.append(tf.reduce_sum(tf.cast(delta * matrix, tf.float64)))
    norm = _sum_at(products, [layer.kernel.device for _, layer in present], state.home)
    with tf.device(state.home):
        rate = learning_rate() if callable(learning_rate) else learning_rate
        scale = step_scale(norm, rate, norm_constraint)
    if norm_constraint is not None:
        deltas = _each(present, deltas, lambda delta: tf.cast(scale, delta.dtype) * delta)
    replaced = _split([layer for _, layer in present], deltas)
    scaled = [(replaced.get(var.ref(), grad), var) for grad, var in pairs]
    return scaled, Facts(counters, active, norm, scale)


def _matrices(layers: Sequence[DenseLayer], grads: dict[Any, tf.Tensor]) -> list[tf.Tensor]:
    """The gradients as matrices with the bias as last row, on the kernels' devices."""
    biased = [layer for layer in layers if layer.bias is not None]
    found = [grads[layer.bias.ref()] for layer in biased]
    there = bring(
        [tf.ensure_shape(g, layer.bias.shape) for g, layer in zip(found, biased, strict=True)],
        [g.device for g in found],
        [layer.kernel.device for layer in biased],
    )
    rows = {layer.kernel.ref(): row for layer, row in zip(biased, there, strict=True)}
    matrices = []
    for layer in layers:
        with tf.device(layer.kernel.device):
            matrix = tf.ensure_shape(grads[layer.kernel.ref()], layer.kernel.shape)
            if layer.bias is not None:
                matrix = tf.concat([matrix, rows[layer.kernel.ref()][None, :]], axis=0)
            matrices.append(matrix)
    return matrices


def _split(layers: Sequence[DenseLayer], deltas: Sequence[tf.Tensor]) -> dict[Any, tf.Tensor]:
    """The directions by variable; a bias's on its own device."""
    directions, last, biased = {}, [], []
    for layer, delta in zip(layers, deltas, strict=True):
        with tf.device(layer.kernel.device):
            directions[layer.kernel.ref()] = delta if layer.bias is None else delta[:-1]
            if layer.bias is not None:
                last.append(delta[-1])
                biased.append(layer)
    there = bring(
        last, [layer.kernel.device for layer in biased], [layer.bias.device for layer in biased]
    )
    directions |= {layer.bias.ref(): row for layer, row in zip(biased, there, strict=True)}
    return directions


def _each(
    present: Sequence[tuple[int, DenseLayer]],
    deltas: Sequence[tf.Tensor],
    change: Callable[[tf.Tensor], tf.Tensor],
) -> list[tf.Tensor]:
    changed = []
    for (_, layer), delta in zip(present, deltas, strict=True):
        with tf.device(layer.kernel.device):
            changed.append(change(delta))
    return changed


def _sum_at(parts: Sequence[tf.Tensor], devices: Sequence[str], home: str) -> tf.Tensor:
    """The sum of scalars: first on each device, then at home."""
    sums = []
    for device in dict.fromkeys(devices):
        with tf.device(device):
            sums.append(tf.add_n([p for p, d in zip(parts, devices, strict=True) if d == device]))
    with tf.device(home):
        return tf.add_n(sums)
