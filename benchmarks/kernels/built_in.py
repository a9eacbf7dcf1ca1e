"""TensorFlow's own kernels that are nearest to ours: the same base rule, without compensation.

Each takes the rule's variables, of which it updates the first one to three, the gradient, the rows
of a sparse gradient, and the scalars of `constants`.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from benchmarks.kernels.rules import BETA1, BETA2, EPSILON, MOMENTUM, RATE, State

Constants = dict[str, Any]


def constants() -> Constants:
    """The scalar inputs, once per graph."""
    values = {"rate": RATE, "momentum": MOMENTUM, "epsilon": EPSILON, "one": BETA1, "two": BETA2}
    return {name: tf.constant(value, tf.float32) for name, value in values.items()}


def _gradient_descent(v: State, g: Any, c: Constants) -> None:
    tf.raw_ops.ResourceApplyGradientDescent(var=v[0].handle, alpha=c["rate"], delta=g)


def _momentum(v: State, g: Any, c: Constants) -> None:
    tf.raw_ops.ResourceApplyMomentum(
        var=v[0].handle, accum=v[1].handle, lr=c["rate"], grad=g, momentum=c["momentum"]
    )


def _adagrad(v: State, g: Any, c: Constants) -> None:
    tf.raw_ops.ResourceApplyAdagradV2(
        var=v[0].handle, accum=v[1].handle, lr=c["rate"], epsilon=c["epsilon"], grad=g
    )


def _adam(v: State, g: Any, c: Constants) -> None:
    tf.raw_ops.ResourceApplyAdam(
        var=v[0].handle,
        m=v[1].handle,
        v=v[2].handle,
        beta1_power=c["one"],
        beta2_power=c["two"],
        lr=c["rate"],
        beta1=c["one"],
        beta2=c["two"],
        epsilon=c["epsilon"],
        grad=g,
    )


def _scatter_sub(v: State, g: Any, rows: Any, _: Constants) -> None:
    tf.raw_ops.ResourceScatterSub(resource=v[0].handle, indices=rows, updates=g)


def _sparse_momentum(v: State, g: Any, rows: Any, c: Constants) -> None:
    tf.raw_ops.ResourceSparseApplyMomentum(
        var=v[0].handle,
        accum=v[1].handle,
        lr=c["rate"],
        grad=g,
        indices=rows,
        momentum=c["momentum"],
    )


def _sparse_adagrad(v: State, g: Any, rows: Any, c: Constants) -> None:
    tf.raw_ops.ResourceSparseApplyAdagradV2(
        var=v[0].handle,
        accum=v[1].handle,
        lr=c["rate"],
        epsilon=c["epsilon"],
        grad=g,
        indices=rows,
    )


DENSE: dict[str, Callable[[State, Any, Constants], None]] = {
    "GradientDescent": _gradient_descent,
    "Momentum": _momentum,
    "AdagradV2": _adagrad,
    "Adam": _adam,
}
SPARSE: dict[str, Callable[[State, Any, Any, Constants], None]] = {
    "ScatterSub": _scatter_sub,
    "Momentum": _sparse_momentum,
    "AdagradV2": _sparse_adagrad,
}
