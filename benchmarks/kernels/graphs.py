"""TensorFlow's contenders: graphs of many passes in a row, so that Python does not count.

The passes of one graph run one after the other. Each has a gradient input of its own, although all
are given the same tensor, so that no pass can reuse what another has computed from the gradient.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from benchmarks.kernels import built_in
from benchmarks.kernels.rules import Rule, State

# A pass: from the gradient, and the rows of a sparse one, to operations to wait for.
Pass = Callable[..., list[Any]]


def make_variables(rule: Rule, shape: tuple[int, ...], seed: int = 0) -> list[Any]:
    """Variables with positive values, which are valid for every slot."""
    made = []
    for i, name in enumerate(rule.variables):
        seeds = tf.constant([seed, i])
        values = tf.random.stateless_uniform(shape, seeds, 0.1, 1.0)
        made.append(tf.Variable(values, name=name))
    return made


def make_gradient(shape: tuple[int, ...]) -> Any:
    """A gradient in [-0.5, 0.5)."""
    return tf.random.stateless_uniform(shape, [7, 7], -0.5, 0.5)


def our_pass(rule: Rule, ops: ModuleType, variables: State) -> Pass:
    """Our op."""
    scalars: list[Any] = []

    def run(grad: Any, rows: Any = None) -> list[Any]:
        scalars[:] = scalars or rule.scalar_tensors()
        if rows is None:
            rule.apply(ops, variables, scalars, grad)
        else:
            rule.apply_rows(ops, variables, scalars, grad, rows)
        return []

    return run


def built_in_pass(rule: Rule, variables: State) -> Pass:
    """TensorFlow's nearest kernel."""
    constants: built_in.Constants = {}

    def run(grad: Any, rows: Any = None) -> list[Any]:
        constants.update(constants or built_in.constants())
        if rows is None:
            built_in.DENSE[rule.built_in](variables, grad, constants)
        else:
            built_in.SPARSE[str(rule.sparse_built_in)](variables, grad, rows, constants)
        return []

    return run


def composed_pass(rule: Rule, variables: State, jit: bool = False) -> Pass:
    """The rule in TensorFlow's ops; under XLA, compiled as one, the variables assigned inside."""

    def run(grad: Any, rows: Any = None) -> list[Any]:
        if rows is None:
            new = rule.compose([v.read_value() for v in variables], grad)
            pairs = zip(variables, new, strict=True)
            return [v.assign(value, read_value=False) for v, value in pairs]
        new = rule.compose([tf.gather(v, rows) for v in variables], grad)
        for v, value in zip(variables, new, strict=True):
            v.scatter_update(tf.IndexedSlices(value, rows))
        return []

    if not jit:
        return run
    compiled = tf.function(lambda *inputs: run(*inputs) and None, jit_compile=True, autograph=False)
    return lambda *inputs: compiled(*inputs) or []


def chain(one: Pass, passes: int, *inputs: Any) -> Any:
    """Trace a function of so many passes; it takes a list of gradients and one of row vectors.

    Args:
        one: The pass; for one graph only, since it keeps the graph's constants.
        passes: How many.
        inputs: Example inputs of a pass: a gradient, and the rows of a sparse one.
    """

    @tf.function(autograph=False)
    def run(gradients: list[Any], rows: list[Any]) -> None:
        done: list[Any] = []
        for i, gradient in enumerate(gradients):
            with tf.control_dependencies(done):
                done = one(gradient, *rows[i : i + 1])

    gradient, *rows = [tf.TensorSpec(x.shape, x.dtype) for x in inputs]
    return run.get_concrete_function([gradient] * passes, rows * passes)


def check(rule: Rule, ops: ModuleType, rows: NDArray[np.int64] | None = None) -> None:
    """Compare three passes of our op with the composition.

    Raises:
        RuntimeError: If they do not compute the same.
    """
    shape = (1000,) if rows is None else (4000, 16)
    extra = [] if rows is None else [tf.constant(rows)]
    grad = make_gradient(shape if rows is None else (rows.size, 16))
    ours, theirs = (make_variables(rule, shape) for _ in range(2))
    for one in (our_pass(rule, ops, ours), composed_pass(rule, theirs)):
        run = chain(one, 3, grad, *extra)
        run([grad] * 3, extra * 3)
    for name, mine, composed in zip(rule.variables, ours, theirs, strict=True):
        error = float(np.max(np.abs(mine.numpy() - composed.numpy())))
        if not error < 1e-5:
            raise RuntimeError(
                f"`{name}` of {rule.op} must be what TensorFlow's ops compute. Received: a "
                f"difference of {error} after three passes."
            )
