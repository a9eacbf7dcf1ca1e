"""The same pushes in a graph session, eagerly and under tf.function."""

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
DENSE, ROWS = (3, 2), (6, 2)
INDICES = 5


class Graph:
    """Two variables, dense and sparse, in a graph with one train op per worker."""

    def __init__(self, make, values, workers, dtype=tf.float32):
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.variables = [
                v1.get_variable(f"v{i}", initializer=tf.constant(v, dtype), use_resource=True)
                for i, v in enumerate(values)
            ]
            self.optimizer = make()
            self._feeds = [
                v1.placeholder(dtype, DENSE),
                v1.placeholder(dtype, [None, ROWS[1]]),
                v1.placeholder(tf.int32, [None]),
            ]
            self._ops = [
                self.optimizer.apply_gradients(pairs(self.variables, self._feeds), worker_index=w)
                for w in range(workers)
            ]
            self.session = v1.Session()
            self.session.run(v1.global_variables_initializer())

    def push(self, worker, *gradients):
        self.session.run(self._ops[worker], dict(zip(self._feeds, gradients, strict=True)))

    def read(self, variable):
        with self.graph.as_default():
            return self.session.run(variable)


class Eager:
    """The same, op by op."""

    def __init__(self, make, values, workers, dtype=tf.float32):
        self._dtype = dtype
        self.variables = [tf.Variable(value, dtype=dtype) for value in values]
        self.optimizer = make()

    def push(self, worker, *gradients):
        rows = [tf.constant(g, self._dtype) for g in gradients[:2]]
        self._apply(worker, *rows, tf.constant(gradients[2], tf.int32))

    def _apply(self, worker, *gradients):
        self.optimizer.apply_gradients(pairs(self.variables, gradients), worker_index=worker)

    def read(self, variable):
        return variable.numpy()


class Function(Eager):
    """The same, traced."""

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self._traced = tf.function(super()._apply)

    def _apply(self, worker, *gradients):
        self._traced(worker, *gradients)


def pairs(variables, gradients):
    """(gradient, variable) of a dense and of a sparse gradient."""
    dense, rows, indices = gradients
    return [(dense, variables[0]), (tf.IndexedSlices(rows, indices), variables[1])]


MODES = {"graph": Graph, "eager": Eager, "function": Function}


def random_values(seed, dtype=np.float32):
    """First values of the two variables."""
    generator = np.random.default_rng(seed)
    return [generator.normal(size=shape).astype(dtype) for shape in (DENSE, ROWS)]


def random_gradients(generator, dtype=np.float32):
    """A dense gradient, rows of a sparse one, and their indices, some of them twice."""
    return (
        generator.normal(size=DENSE).astype(dtype),
        generator.normal(size=(INDICES, ROWS[1])).astype(dtype),
        generator.integers(0, ROWS[0] - 1, INDICES).astype(np.int32),  # the last row never
    )
