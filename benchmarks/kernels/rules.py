"""The rules that are measured: our op, and the same composed from TensorFlow's ops.

A rule's variables stand in the order of its op's inputs, the updated variable first. Compositions
follow the operation order of the rules: they are checked against the ops before anything is timed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import tensorflow as tf

from benchmarks.kernels.machine import Streams

RATE, MOMENTUM, EPSILON = 1e-3, 0.9, 1e-7
VARIANCE, MEAN_SQUARE_DECAY = 2.0, 0.95
BOOST, STALENESS, STALENESS_SCALE, DECAY, BOOST_EPSILON = 0.5, 4, 10.0, 0.9, 1e-12
BETA1, BETA2 = 0.9, 0.999
EETA, WEIGHT_DECAY, MOVING_RATE = 1e-3, 1e-4, 0.1

State = Sequence[Any]
Composition = Callable[[State, Any], State]


@dataclass(frozen=True)
class Rule:
    """One of our ops and what it is compared with.

    Attributes:
        op: Name of the dense op's wrapper.
        variables: Names of the variables, in the order of the op's inputs.
        scalars: Values of the scalar inputs; an int is int64.
        compose: From values of the variables and a gradient to the new values.
        streams: What one ideal pass moves.
        built_in: TensorFlow's nearest kernel, a key of `built_in.DENSE`.
        sparse_built_in: Its nearest sparse kernel, a key of `built_in.SPARSE`; None: dense only.
    """

    op: str
    variables: tuple[str, ...]
    scalars: tuple[float | int, ...]
    compose: Composition
    streams: Streams
    built_in: str
    sparse_built_in: str | None = None

    def scalar_tensors(self) -> list[Any]:
        """The scalar inputs, once per graph."""
        kinds = {int: tf.int64, float: tf.float32}
        return [tf.constant(value, kinds[type(value)]) for value in self.scalars]

    def apply(self, ops: ModuleType, variables: State, scalars: list[Any], grad: Any) -> None:
        """Run our op on all elements."""
        handles = [variable.handle for variable in variables]
        if self.streams.read:
            getattr(ops, self.op)(*handles, *scalars, grad)
        else:
            getattr(ops, self.op)(*handles, *scalars, T=grad.dtype)

    def apply_rows(
        self, ops: ModuleType, variables: State, scalars: list[Any], grad: Any, indices: Any
    ) -> None:
        """Run our op on the rows at the indices."""
        handles = [variable.handle for variable in variables]
        sparse = self.op.replace("resource_", "resource_sparse_", 1)
        getattr(ops, sparse)(*handles, *scalars, grad, indices)


def _delay_compensated(state: State, g: Any) -> State:
    w, backup = state
    w = w - RATE * (g + VARIANCE * g * g * (w - backup))
    return w, w


def _adaptive_delay_compensated(state: State, g: Any) -> State:
    w, backup, ms = state
    ms = MEAN_SQUARE_DECAY * ms + (1.0 - MEAN_SQUARE_DECAY) * g * g
    variance = VARIANCE / tf.sqrt(ms + EPSILON)
    w = w - RATE * (g + variance * g * g * (w - backup))
    return w, w, ms


def _boosted(w: Any, averages: State, g: Any) -> tuple[Any, State]:
    """The boosted gradient, and the new averages."""
    backup, c, s, q = averages
    moved = w - backup
    c = DECAY * c + (1.0 - DECAY) * g * moved
    s = DECAY * s + (1.0 - DECAY) * g * g
    q = DECAY * q + (1.0 - DECAY) * moved * moved
    rho = tf.clip_by_value(c / (tf.sqrt(s) * tf.sqrt(q) + BOOST_EPSILON), -1.0, 1.0)
    return g * (1.0 + BOOST / (1.0 + STALENESS / STALENESS_SCALE) * rho), (c, s, q)


def _boosted_sgd(state: State, g: Any) -> State:
    w, *averages = state
    g, averages = _boosted(w, averages, g)
    w = w - RATE * g
    return w, w, *averages


def _boosted_momentum(state: State, g: Any) -> State:
    w, v, *averages = state
    g, averages = _boosted(w, averages, g)
    v = v * MOMENTUM + g
    w = w - RATE * v
    return w, v, w, *averages


def _boosted_adagrad(state: State, g: Any) -> State:
    w, a, *averages = state
    g, averages = _boosted(w, averages, g)
    a = a + g * g
    w = w - RATE * g / (tf.sqrt(a) + EPSILON)
    return w, a, w, *averages


def _boosted_adam(state: State, g: Any) -> State:
    w, m, v, *averages = state
    g, averages = _boosted(w, averages, g)
    alpha = RATE * (1.0 - BETA2) ** 0.5 / (1.0 - BETA1)
    m = m + (g - m) * (1.0 - BETA1)
    v = v + (g * g - v) * (1.0 - BETA2)
    w = w - m * alpha / (tf.sqrt(v) + EPSILON)
    return w, m, v, w, *averages


def _lars(state: State, g: Any) -> State:
    w, v = state
    weight, gradient = tf.norm(w), tf.norm(g)
    trust = EETA * weight / (gradient + WEIGHT_DECAY * weight)
    v = v * MOMENTUM + RATE * trust * (g + WEIGHT_DECAY * w)
    return w - v, v


def _dgc_accumulate(state: State, g: Any) -> State:
    velocity, residual = state
    velocity = velocity * MOMENTUM + g
    return velocity, residual + velocity


def _elastic(state: State, _: Any) -> State:
    local, center = state
    force = MOVING_RATE * (local - center)
    return local - force, center + force


def _block_momentum(state: State, mean: Any) -> State:
    w, delta = state
    delta = MOMENTUM * delta + (mean - w)
    return w + delta, delta


_AVERAGES = ("backup", "correlation", "gradient_square", "movement_square")
_BOOST = (BOOST, STALENESS, STALENESS_SCALE, DECAY, BOOST_EPSILON)
_ADAM = (RATE, BETA1, BETA2, BETA1, BETA2, EPSILON)  # the first step's powers

RULES = {
    "dc": Rule(
        "resource_apply_delay_compensated_gradient_descent",
        ("var", "backup"),
        (RATE, VARIANCE),
        _delay_compensated,
        Streams(2),
        "GradientDescent",
        "ScatterSub",
    ),
    "dc_adaptive": Rule(
        "resource_apply_adaptive_delay_compensated_gradient_descent",
        ("var", "backup", "mean_square"),
        (RATE, VARIANCE, MEAN_SQUARE_DECAY, EPSILON),
        _adaptive_delay_compensated,
        Streams(3),
        "AdagradV2",
        "AdagradV2",
    ),
    "boosted_sgd": Rule(
        "resource_apply_boosted_gradient_descent",
        ("var", *_AVERAGES),
        (RATE, *_BOOST),
        _boosted_sgd,
        Streams(5),
        "GradientDescent",
        "ScatterSub",
    ),
    "boosted_momentum": Rule(
        "resource_apply_boosted_momentum",
        ("var", "accum", *_AVERAGES),
        (RATE, MOMENTUM, *_BOOST),
        _boosted_momentum,
        Streams(6),
        "Momentum",
        "Momentum",
    ),
    "boosted_adagrad": Rule(
        "resource_apply_boosted_adagrad",
        ("var", "accum", *_AVERAGES),
        (RATE, EPSILON, *_BOOST),
        _boosted_adagrad,
        Streams(6),
        "AdagradV2",
        "AdagradV2",
    ),
    "boosted_adam": Rule(
        "resource_apply_boosted_adam",
        ("var", "m", "v", *_AVERAGES),
        (*_ADAM, *_BOOST),
        _boosted_adam,
        Streams(7),
        "Adam",
        "AdagradV2",  # TensorFlow has no sparse Adam kernel
    ),
    "lars": Rule(
        "resource_apply_lars",
        ("var", "accum"),
        (RATE, EETA, WEIGHT_DECAY, MOMENTUM, 0.0),
        _lars,
        Streams(2, norms=True),
        "Momentum",
        "Momentum",
    ),
    "dgc_accumulate": Rule(
        "resource_dgc_accumulate",
        ("velocity", "residual"),
        (MOMENTUM, 0.0),  # no clipping
        _dgc_accumulate,
        Streams(2),
        "Momentum",
    ),
    "elastic": Rule(
        "resource_elastic_exchange",
        ("local", "center"),
        (MOVING_RATE,),
        _elastic,
        Streams(2, read=0),
        "GradientDescent",
    ),
    "block_momentum": Rule(
        "resource_apply_block_momentum",
        ("var", "delta"),
        (MOMENTUM, 1.0),
        _block_momentum,
        Streams(2),
        "Momentum",
    ),
}
