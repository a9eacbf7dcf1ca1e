"""What the Keras callback changes on a model while it trains, and puts back after."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from deepinsight.collectors.keras_capture import GradientCapture, PredictionCapture
from deepinsight.collectors.probes import Gradients, Probe
from deepinsight.collectors.probes.base import Predictions, Variable
from deepinsight.collectors.recording import Measured, Recording

_RING_ROWS = 8192


class Attachment:
    """What is changed on a model and its optimizer while training lasts, and is put back after.

    The function that `fit` runs is made anew, because the old one may have been traced already. It
    is kept for the next fit of the same model, as long as nobody compiles the model again in
    between.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        describe: Callable[[], Sequence[tuple[Variable, Any]]],
        probes: Sequence[Probe],
    ) -> None:
        self._model, self._optimizer = model, optimizer
        self._steps = execution_steps(model)
        self._captures: dict[int, GradientCapture] = {}
        self._predictions: PredictionCapture | None = None
        self._plain_function = self._own_function = None
        self._since_drain, self._per_execution = 0, 0.0
        self._lost_warned = False
        self.refusal: str | None = None
        wanted = [p for p in probes if isinstance(p, Gradients)]
        if optimizer is None:
            self.refusal = "without an optimizer" if wanted else None
            return
        if model.distribute_strategy.num_replicas_in_sync > 1:
            self.refusal = "with several replicas" if wanted else None
        else:
            for probe in wanted:
                inside = self._steps > 1 and probe.update_ratio
                self._captures[id(probe)] = GradientCapture(
                    optimizer, describe, probe, inside=inside
                )
        if any(p.wants_predictions for p in probes):
            self._predictions = PredictionCapture(
                lambda: tf.convert_to_tensor(optimizer._iterations.value), _RING_ROWS
            )

    def fits(self, model: Any, optimizer: Any) -> bool:
        """Whether it can be attached again for another fit."""
        return (
            self._model is model
            and self._optimizer is optimizer
            and self._own_function is not None
            and model.train_function is self._plain_function
            and self._steps == execution_steps(model)
        )

    def attach(self) -> None:
        """Wrap what has to be wrapped, and let `fit` run a function that was traced with it."""
        if not self._captures and self._predictions is None:
            return
        model = self._model
        if self._own_function is not None:
            model.train_function = self._own_function
        for capture in self._captures.values():
            object.__setattr__(self._optimizer, "apply", capture.wrap(self._optimizer.apply))
        if self._predictions is not None:
            step = self._predictions.wrap_step(model.train_step)
            metrics = self._predictions.wrap_metrics(model.compute_metrics)
            object.__setattr__(model, "train_step", step)
            object.__setattr__(model, "compute_metrics", metrics)
        if self._own_function is None:
            self._plain_function = model.train_function
            model.make_train_function(force=True)
            self._own_function = model.train_function

    def detach(self) -> None:
        """Put everything back as it was."""
        if self._optimizer is not None:
            self._optimizer.__dict__.pop("apply", None)
        if self._predictions is not None:
            self._model.__dict__.pop("train_step", None)
            self._model.__dict__.pop("compute_metrics", None)
        if self._own_function is not None and self._model.train_function is self._own_function:
            self._model.train_function = self._plain_function

    @property
    def gradients(self) -> bool:
        """Whether gradients are captured."""
        return bool(self._captures)

    def _attach(self) -> None:
        if not self._captures and self._predictions is None:
            self._plain_function = None
            return
        for capture in self._captures.values():
            object.__setattr__(self._optimizer, "apply", capture.wrap(self._optimizer.apply))
        model = self._model
        if self._predictions is not None:
            step = self._predictions.wrap_step(model.train_step)
            metrics = self._predictions.wrap_metrics(model.compute_metrics)
            object.__setattr__(model, "train_step", step)
            object.__setattr__(model, "compute_metrics", metrics)
        # `fit` has made the function already, and it may have been traced in an earlier fit.
        self._plain_function = model.train_function
        model.make_train_function(force=True)

    def request(self, probe: Probe, iteration: int) -> None:
        """Ask for the gradients of the call of ``apply`` at this iteration."""
        if id(probe) in self._captures:
            self._captures[id(probe)].request(iteration)

    def take(self, probe: Probe) -> list[Measured]:
        """The captured gradients."""
        capture = self._captures.get(id(probe))
        return capture.take() if capture is not None else []

    def drain(self, recording: Recording, force: bool) -> None:
        """Hand the collected predictions over, before the ring overflows."""
        if self._predictions is None:
            return
        self._since_drain += 1
        full_after = _RING_ROWS / (2 * max(self._per_execution, 1.0))
        if not force and self._per_execution and self._since_drain < full_after:
            return
        rows, lost = self._predictions.take()
        self._per_execution = (len(rows) + lost) / self._since_drain
        self._since_drain = 0
        if lost and not self._lost_warned:
            self._lost_warned = True
            message = f"{lost} predictions were overwritten before they could be read."
            recording.failed(None, RuntimeError(message))
        wall_time_s = time.time()
        for step in np.unique(rows[:, 3]):
            part = rows[rows[:, 3] == step]
            recording.predictions(
                Predictions(part[:, 0], part[:, 1], part[:, 2], int(step), wall_time_s)
            )


def execution_steps(model: Any) -> int:
    """How many steps one call of the compiled function makes."""
    return int(getattr(model, "steps_per_execution", 1) or 1)


def innermost(optimizer: Any) -> Any:
    """The optimizer whose ``apply`` receives unscaled gradients."""
    while getattr(optimizer, "inner_optimizer", None) is not None:
        optimizer = optimizer.inner_optimizer
    return optimizer
