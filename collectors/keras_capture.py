"""What the Keras callback adds to the compiled training step: gradients and predictions."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from deepinsight.collectors.arrays import TensorFlowArrays
from deepinsight.collectors.packing import measure_parts
from deepinsight.collectors.probes import Gradients
from deepinsight.collectors.probes.base import Slices, Variable
from deepinsight.collectors.recording import Measured

_NEVER = -1


class GradientCapture:
    """Norms of the gradients inside the compiled step, only in the step that is asked for.

    ``optimizer.apply`` is wrapped on the instance. The norms are computed under ``tf.cond``, so
    that other steps pay for a comparison. With several steps per execution the update ratio is
    measured in there, too, from copies that live until training ends.

    Args:
        optimizer: The optimizer whose ``apply`` receives the gradients.
        describe: Gives pairs of description and Keras variable; a model may make its variables only
            when its step is traced.
        probe: The probe that measures.
        inside: Whether the update ratio is measured inside the step.
    """

    def __init__(
        self,
        optimizer: Any,
        describe: Callable[[], Sequence[tuple[Variable, Any]]],
        probe: Gradients,
        *,
        inside: bool,
    ) -> None:
        self.optimizer, self.probe = optimizer, probe
        self._describe, self._inside = describe, inside
        self._xp = TensorFlowArrays(static_shapes=True)
        self._variables: list[tuple[Variable, Any]] = []
        self._places: dict[int, int] = {}
        self._with_gradient: set[int] = set()
        self._shadows: dict[int, Any] = {}
        self._requested = _NEVER
        self._target = tf.Variable(_NEVER, dtype=tf.int64, trainable=False)
        self._captured = tf.Variable(_NEVER, dtype=tf.int64, trainable=False)
        self._norms = self._ratios = None

    def _build(self) -> None:
        """Make the variables that hold what is captured; outside of the graph being traced."""
        probe = self.probe
        self._variables = [(info, v) for info, v in self._describe() if probe.accepts(info)]
        self._places = {id(v): i for i, (_, v) in enumerate(self._variables)}
        nothing = tf.fill([max(len(self._variables), 1)], tf.constant(np.nan, tf.float64))
        self._norms = tf.Variable(nothing, trainable=False)
        self._ratios = tf.Variable(nothing, trainable=False)
        for i, (info, v) in enumerate(self._variables):
            if self._inside and probe.wants_before(info):
                self._shadows[i] = tf.Variable(tf.convert_to_tensor(v.value), trainable=False)

    def wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """``optimizer.apply`` with the capture before and after it."""

        def apply(grads: Any, trainable_variables: Any = None) -> Any:
            if self._norms is None:
                with tf.init_scope():
                    self._build()
            grads = list(grads)
            variables = trainable_variables
            if variables is None:
                variables = self.optimizer._trainable_variables
            variables = list(variables)
            wanted = tf.equal(tf.cast(self._iterations(), tf.int64), self._target)
            tf.cond(wanted, lambda: self._before(grads, variables), _nothing)
            result = original(grads, trainable_variables)
            if self._shadows:
                tf.cond(wanted, self._after, _nothing)
            return result

        return apply

    def _iterations(self) -> Any:
        return tf.convert_to_tensor(self.optimizer._iterations.value)

    def _before(self, grads: Sequence[Any], variables: Sequence[Any]) -> Any:
        norms: list[Any] = [tf.constant(np.nan, tf.float64)] * len(self._variables)
        scale = getattr(self.optimizer, "loss_scale_factor", None) or 1.0
        for gradient, variable in zip(grads, variables, strict=True):
            place = self._places.get(id(variable))
            if place is None or gradient is None:
                continue
            if isinstance(gradient, tf.IndexedSlices):
                gradient = Slices(gradient.values, gradient.indices)  # noqa: PLW2901
            info = self._variables[place][0]
            self._with_gradient.add(place)
            found = measure_parts(self._xp, self.probe, info, {"gradient": gradient})
            norms[place] = tf.cast(found["norm"], tf.float64) / scale
        if norms:
            self._norms.assign(tf.stack(norms))
        self._captured.assign(self._target)
        for place, shadow in self._shadows.items():
            shadow.assign(tf.convert_to_tensor(self._variables[place][1].value))
        return tf.constant(True)

    def _after(self) -> Any:
        ratios: list[Any] = [tf.constant(np.nan, tf.float64)] * len(self._variables)
        for place, shadow in self._shadows.items():
            info, variable = self._variables[place]
            offered = {"weight": variable.value, "weight_before": shadow.read_value()}
            found = measure_parts(self._xp, self.probe, info, offered)
            ratios[place] = tf.cast(found["update_ratio"], tf.float64)
        self._ratios.assign(tf.stack(ratios))
        return tf.constant(True)

    def request(self, iteration: int) -> None:
        """Capture in the call of ``apply`` that begins at this value of the iteration counter."""
        self._requested = iteration
        self._target.assign(iteration)

    def take(self) -> list[Measured]:
        """What was captured in the requested call; nothing if that call did not come."""
        target, self._requested = self._requested, _NEVER
        if target == _NEVER or self._norms is None:
            return []
        self._target.assign(_NEVER)
        if int(self._captured.numpy()) != target:
            return []
        norms = self._norms.numpy()
        ratios = self._ratios.numpy() if self._shadows else None
        measured: list[Measured] = []
        for i, (info, _) in enumerate(self._variables):
            found = {"norm": norms[i]} if i in self._with_gradient else {}
            if ratios is not None and i in self._shadows:
                found["update_ratio"] = ratios[i]
            if found:
                measured.append((self.probe, info, found))
        return measured


def _nothing() -> Any:
    return tf.constant(False)


class PredictionCapture:
    """Labels and scores of every training step, kept in a ring until they are drained.

    ``model.compute_metrics`` is wrapped on the instance and, while a training step is traced, also
    writes its samples into a variable ``[capacity, 4]``: label, score, sample weight, iteration.

    Args:
        iterations: Gives the optimizer's iteration counter as a tensor.
        capacity: Rows of the ring, >= 1.
    """

    def __init__(self, iterations: Callable[[], Any], capacity: int) -> None:
        self._iterations = iterations
        self.capacity = capacity
        self._ring = tf.Variable(tf.zeros([capacity, 4], tf.float32), trainable=False)
        self._cursor = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._drained = 0
        self._training = False

    def wrap_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """``model.train_step``, marking what is called inside as training."""

        def train_step(*args: Any, **kwargs: Any) -> Any:
            self._training = True
            try:
                return original(*args, **kwargs)
            finally:
                self._training = False

        return train_step

    def wrap_metrics(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """``model.compute_metrics`` with the capture before it."""

        def compute_metrics(x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            if self._training:
                self._store(y, y_pred, sample_weight)
            return original(x, y, y_pred, sample_weight=sample_weight)

        return compute_metrics

    def _store(self, y: Any, y_pred: Any, sample_weight: Any) -> None:
        labels = tf.reshape(tf.cast(y, tf.float32), [-1])
        scores = tf.reshape(tf.cast(y_pred, tf.float32), [-1])
        weight = tf.ones_like(scores)
        if sample_weight is not None:
            weight = tf.reshape(tf.cast(sample_weight, tf.float32), [-1])
        # This update has raised the counter already; float32 holds its low 24 bits exactly.
        step = tf.cast(tf.cast(self._iterations(), tf.int64) % (1 << 24), tf.float32)
        rows = tf.stack([labels, scores, weight, tf.fill(tf.shape(scores), step)], axis=1)
        size = tf.shape(rows, out_type=tf.int64)[0]
        places = (self._cursor + tf.range(size, dtype=tf.int64)) % self.capacity
        self._ring.scatter_nd_update(places[:, None], rows)
        self._cursor.assign_add(size)

    def take(self) -> tuple[np.ndarray, int]:
        """The rows since the last call, [n, 4], oldest first, and how many were overwritten."""
        cursor = int(self._cursor.numpy())
        count = cursor - self._drained
        self._drained = cursor
        if not count:
            return np.zeros((0, 4), np.float32), 0
        kept = min(count, self.capacity)
        places = np.arange(cursor - kept, cursor) % self.capacity
        return self._ring.numpy()[places], count - kept
