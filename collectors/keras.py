"""``TraceCallback``: what attaches to Keras 3 ``fit`` on TensorFlow."""

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from deepinsight.collectors.keras_capture import GradientCapture, PredictionCapture
from deepinsight.collectors.probes import Gradients, Probe, Scalars, Throughput, Weights
from deepinsight.collectors.probes.base import (
    GRADIENT,
    WEIGHT,
    WEIGHT_BEFORE,
    Predictions,
    StepReport,
    Variable,
)
from deepinsight.collectors.recording import Recording, check_probes, check_settings
from deepinsight.collectors.schedule import Cadence, OverheadMeter
from deepinsight.collectors.snapshot import Snapshot
from deepinsight.traces import TraceWriter, stream_name

_RING_ROWS = 8192


class TraceCallback(keras.callbacks.Callback):
    """Records ``fit`` into a trace: logs, weights, gradients, throughput.

    Works with ``steps_per_execution`` > 1, with and without XLA (``jit_compile``), with
    ``run_eagerly``, on models that were fitted before, and in several fits. Gradients are found
    from the model's optimizer. Steps are the optimizer's ``iterations``. With several steps per
    execution, weights are recorded at the end of the execution that holds the due step, gradients
    at the due step itself.

    Args:
        run_dir: Directory of the run.
        probes: Probes; None takes ``Scalars()`` (the logs, every step), ``Weights()``,
            ``Gradients()`` and ``Throughput()``. ``AUC()`` needs no tensors here: it takes the
            model's own labels and outputs.
        every_n_steps: Cadence of the probes that state none, >= 1. Recorded are the first step and
            the multiples.
        process: Name of this process in the run.
        config: What to store as the run's configuration, JSON.
        feature_groups: Rows of axis 0 per feature group; see the trace format.
        batch_size: Samples per step; None takes the number that Keras counts.
        overhead_budget: Share of training time that recording may take, for example 0.02. None: no
            limit.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> model.fit(x, y, callbacks=[TraceCallback("runs/mine")])  # doctest: +SKIP
    """

    #: What runs off the training thread here (reading logs) is safe to: Keras then need not wait for
    #: the logs of every step.
    async_safe = True

    def __init__(
        self,
        run_dir: str | Path,
        probes: Sequence[Probe] | None = None,
        every_n_steps: int = 100,
        *,
        process: str = "main",
        config: Mapping[str, Any] | None = None,
        feature_groups: Mapping[str, Any] | None = None,
        batch_size: int | None = None,
        overhead_budget: float | None = None,
    ) -> None:
        super().__init__()
        check_settings(every_n_steps, batch_size)
        OverheadMeter(overhead_budget)
        chosen = check_probes(probes)
        self._probes = chosen
        if chosen is None:
            self._probes = [Scalars(), Weights(), Gradients(), Throughput()]
        self._run_dir, self._process = Path(run_dir), process
        self._every_n_steps, self._batch_size = every_n_steps, batch_size
        self._config, self._feature_groups = config, feature_groups
        self._overhead_budget = overhead_budget
        self._writer: TraceWriter | None = None
        self._recording: Recording | None = None
        self._attachment: _Attachment | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Open the trace and attach to the optimizer."""
        self._detach()
        self._failed_quietly = False
        optimizer = _innermost(getattr(self.model, "optimizer", None))
        variables = self._variables()
        self._tf_variables = [(info, v.value) for info, v in variables]
        self._snapshot = Snapshot(self._tf_variables)
        self._writer = TraceWriter(
            self._run_dir,
            self._process,
            config=self._config,
            feature_groups=self._feature_groups,
            variables={
                info.name: {"shape": list(info.shape), "dtype": str(v.dtype), "device": info.device}
                for info, v in variables
            },
        )
        self._recording = Recording(
            self._writer,
            [p for p in self._probes if not isinstance(p, Scalars)],
            every_n_steps=self._every_n_steps,
            overhead_budget=self._overhead_budget,
            feature_groups=self._feature_groups,
            samples_known=self._batch_size is not None or _counts_samples(self.model),
        )
        self._execution_steps = int(getattr(self.model, "steps_per_execution", 1) or 1)
        self._counter = getattr(optimizer, "_iterations", None)
        self._accumulation = getattr(optimizer, "gradient_accumulation_steps", None) or 1
        self._attachment = _Attachment(
            self.model, optimizer, variables, self._probes, self._execution_steps, self._recording
        )
        offered = frozenset({WEIGHT})
        if self._attachment.gradients:
            offered |= {GRADIENT, WEIGHT_BEFORE}
        step = self._iteration() // self._accumulation
        self._recording.start(step, [(info, offered) for info, _ in variables])
        scalars = [p for p in self._probes if isinstance(p, Scalars)]
        self._logs = [_Logs(p, self._writer, self._recording, self._every_n_steps) for p in scalars]
        self._first_iteration = self._iteration()
        self._previous: int | None = None
        self._samples_before = 0.0
        self._samples_counted = False
        self._pending: _Execution | None = None
        self._hook_s, self._last_end = 0.0, time.perf_counter()

    def _variables(self) -> list[tuple[Variable, Any]]:
        """Trainable floating-point variables; names without the model's own, which is arbitrary."""
        found = [v for v in self.model.trainable_variables if tf.as_dtype(v.dtype).is_floating]
        prefix = f"{self.model.name}/"
        strip = len(prefix) if found and all(v.path.startswith(prefix) for v in found) else 0
        described, taken = [], set()
        recorder = Recording(None, [], every_n_steps=1, feature_groups=self._feature_groups)
        for v in found:
            name = base = stream_name(v.path[strip:])
            count = 1
            while name in taken:
                count += 1
                name = f"{base}_{count}"
            taken.add(name)
            device = getattr(v.value, "device", "") or ""
            described.append((recorder.variable(name, v.shape, str(v.dtype), device), v))
        return described

    def _iteration(self) -> int:
        return int(self._counter.numpy()) if self._counter is not None else 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Learn the iteration that the epoch begins at."""
        self._epoch_iteration = self._iteration()
        self._samples_counted = False
        for log in self._logs:
            log.begin_epoch(self._epoch_iteration, self._execution_steps, self._accumulation)
        self._last_end, self._hook_s = time.perf_counter(), 0.0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Finish what the last execution left, and prepare the next."""
        started = time.perf_counter()
        self._guarded(lambda: self._finish(started))
        self._pending = None
        self._guarded(lambda: self._prepare(batch))
        self._last_end = time.perf_counter()
        self._hook_s += self._last_end - started

    def _prepare(self, batch: int) -> None:
        first = self._epoch_iteration + batch
        last = first + self._execution_steps
        step = last // self._accumulation
        due = self._recording.due(step)
        self._pending = _Execution(due, last, self._previous)
        gradients = [p for p in due if isinstance(p, Gradients)]
        if gradients:
            step = first // self._accumulation + 1
            cadence = self._recording.cadence(gradients[0])
            if self._previous is not None and cadence.every_n_steps is not None:
                multiple = -(-step // cadence.every_n_steps) * cadence.every_n_steps
                step = min(multiple, last // self._accumulation)
            for probe in gradients:
                self._attachment.request(probe, step * self._accumulation - 1)
                if self._execution_steps == 1:
                    names = frozenset(
                        i.name for i, _ in self._tf_variables if probe.wants_before(i)
                    )
                    self._pending.before[id(probe)] = self._snapshot.copies(names)
            self._pending.gradient_step = step

    def _finish(self, now: float) -> None:
        """Record the execution that has just ended."""
        pending = self._pending
        if pending is None:
            return
        run_s = now - self._last_end
        step = pending.last // self._accumulation
        if pending.due and self._counter is not None:
            step = self._iteration() // self._accumulation
        report = StepReport(
            step=step,
            wall_time_s=time.time(),
            previous_step=pending.previous,
            step_time_s=run_s / self._execution_steps,
            steps_done=(pending.last - self._first_iteration) // self._accumulation,
            samples=self._samples(pending) if pending.due else None,
        )
        self._previous = step
        self._attachment.drain(self._recording, bool(pending.due))
        measured = []
        for probe in pending.due:
            if isinstance(probe, Gradients):
                self._finish_gradients(probe, pending, report)
            elif probe.parts():
                measured.extend(self._snapshot.weights(probe))
        self._recording.record_step(report, pending.due, measured)
        hook_s = (
            self._hook_s + time.perf_counter() - now + sum(log.take_time() for log in self._logs)
        )
        self._hook_s = now - time.perf_counter()  # what is counted here is not counted again
        self._recording.end_step(step, run_s, hook_s, bool(pending.due))

    def _finish_gradients(self, probe: Gradients, pending: "_Execution", report: Any) -> None:
        measured = self._attachment.take(probe)
        if id(probe) in pending.before:
            before = {k: v for k, v in pending.before[id(probe)].items()}
            measured = [*measured, *self._snapshot.ratios(probe, before)]
        step = report.step if self._execution_steps == 1 else pending.gradient_step
        at = StepReport(step=step, wall_time_s=report.wall_time_s)
        self._recording.record_step(at, [], measured)

    def _samples(self, pending: "_Execution") -> float | None:
        if self._batch_size is not None:
            return float((pending.last - self._first_iteration) * self._batch_size)
        count = _sample_count(self.model)
        return None if count is None else self._samples_before + count

    def _guarded(self, job: Any) -> None:
        if self._recording is None:
            return
        try:
            job()
        except Exception as error:
            self._recording.failed(None, error)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keep the logs; Keras may call this on another thread."""
        for log in self._logs:
            log.add(batch, logs)

    def on_test_begin(self, logs: Any = None) -> None:
        """Validation is about to reset Keras's counts."""
        self._end_of_training_part()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Record what is left of the epoch, and the held-out part of the logs."""
        self._end_of_training_part()
        for log in self._logs:
            log.end_epoch(logs, self._iteration() // self._accumulation)

    def _end_of_training_part(self) -> None:
        if self._recording is None or self._samples_counted:
            return
        self._guarded(lambda: self._finish(time.perf_counter()))
        self._pending = None
        self._samples_counted = True
        self._samples_before += _sample_count(self.model) or 0.0

    def on_train_end(self, logs: Any = None) -> None:
        """Detach from the optimizer and close the trace."""
        self._guarded(lambda: self._finish(time.perf_counter()))
        self._detach()

    def _detach(self) -> None:
        if self._attachment is not None:
            self._attachment.detach()
        if self._recording is not None:
            self._recording.close()
        if self._writer is not None:
            self._writer.close()
        self._attachment = self._recording = self._writer = None
        self._pending = None


class _Execution:
    """One call of the compiled function: what is due after it."""

    def __init__(self, due: list[Probe], last: int, previous: int | None) -> None:
        self.due, self.last, self.previous = due, last, previous
        self.gradient_step = 0
        self.before: dict[int, dict[str, Any]] = {}


class _Logs:
    """Keras's logs of every step as rows, in blocks."""

    BLOCK = 64
    SECONDS = 0.5

    def __init__(self, probe: Scalars, writer: Any, recording: Recording, every: int) -> None:
        del every
        self._probe, self._writer, self._recording = probe, writer, recording
        if probe.every_n_seconds is not None:
            self._cadence = Cadence(None, probe.every_n_seconds)
        else:
            self._cadence = Cadence(probe.every_n_steps or probe.default_every_n_steps)
        self._lock = threading.Lock()
        self._rows: list[tuple[int, float, Mapping[str, Any]]] = []
        self._written_at = time.monotonic()
        self._time_s = 0.0

    def begin_epoch(self, iteration: int, steps: int, accumulation: int) -> None:
        """Steps of this epoch count from here."""
        self._iteration, self._steps, self._accumulation = iteration, steps, accumulation
        self._next = steps - 1

    def add(self, batch: int, logs: Any) -> None:
        """Keep one row; write a block if enough is there."""
        started = time.perf_counter()
        with self._lock:
            self._rows.append((batch, time.time(), logs or {}))
            enough = len(self._rows) >= self.BLOCK
            if enough or time.monotonic() - self._written_at > self.SECONDS:
                self._write(all_rows=False)
            self._time_s += time.perf_counter() - started

    def take_time(self) -> float:
        """Seconds spent since the last call."""
        with self._lock:
            taken, self._time_s = self._time_s, 0.0
        return taken

    def _write(self, all_rows: bool) -> None:
        """Write the rows whose predecessors are all there; threads may bring them out of order."""
        self._written_at = time.monotonic()
        self._rows.sort(key=lambda row: row[0])
        ready = []
        while self._rows and (all_rows or self._rows[0][0] <= self._next):
            row = self._rows.pop(0)
            self._next = row[0] + self._steps
            ready.append(row)
        columns: dict[str, tuple[list[int], list[float], list[Any]]] = {}
        for batch, wall_time_s, logs in ready:
            step = max(self._iteration + batch + 1, 1) // self._accumulation
            now_s = time.monotonic()
            if not self._cadence.due(step, now_s) or not self._recording.meter.allows():
                continue
            self._cadence.mark(step, now_s)
            for key, value in logs.items():
                name = stream_name(f"train/{key}")
                if self._probe.wants(name) and np.ndim(value) == 0:
                    steps, times, values = columns.setdefault(name, ([], [], []))
                    steps.append(step)
                    times.append(wall_time_s)
                    values.append(float(value))
        for name, (steps, times, values) in columns.items():
            self._writer.record_block(
                name,
                np.asarray(values, np.float64),
                steps=steps,
                wall_times_s=times,
                unit=_unit(name),
                description="As Keras logs it: the mean since the epoch began.",
            )

    def end_epoch(self, logs: Any, step: int) -> None:
        """Write the rest, and the held-out values as ``eval/…``."""
        with self._lock:
            self._write(all_rows=True)
        for key, value in (logs or {}).items():
            name = stream_name(f"eval/{key.removeprefix('val_')}")
            if key.startswith("val_") and self._probe.wants(name) and np.ndim(value) == 0:
                self._writer.record(
                    name,
                    float(value),
                    step=step,
                    unit=_unit(name),
                    description="Held-out part, at the end of the epoch.",
                )


def _unit(name: str) -> str:
    """Units of the logs whose meaning is fixed by their name."""
    return (
        "1" if name.rpartition("/")[2] in ("auc", "accuracy", "acc", "precision", "recall") else ""
    )


class _Attachment:
    """What is changed on the model and its optimizer while training lasts, and is put back after."""

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        variables: Sequence[tuple[Variable, Any]],
        probes: Sequence[Probe],
        steps: int,
        recording: Recording,
    ) -> None:
        self._model, self._optimizer = model, optimizer
        self._captures: dict[int, GradientCapture] = {}
        self._predictions: PredictionCapture | None = None
        self._since_drain = 0
        self._lost_warned = False
        self._steps = steps
        replicas = model.distribute_strategy.num_replicas_in_sync
        wanted = [p for p in probes if isinstance(p, Gradients)]
        if optimizer is not None and replicas == 1:
            for probe in wanted:
                self._captures[id(probe)] = GradientCapture(
                    optimizer, variables, probe, inside=steps > 1 and probe.update_ratio
                )
        elif wanted:
            reason = "several replicas" if optimizer is not None else "a model without optimizer"
            recording.failed(wanted[0], RuntimeError(f"Gradients are not recorded with {reason}."))
        if any(p.wants_predictions for p in probes) and optimizer is not None:
            self._predictions = PredictionCapture(
                lambda: tf.convert_to_tensor(optimizer._iterations.value), _RING_ROWS
            )
        self._attach()

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

    def detach(self) -> None:
        """Put everything back as it was."""
        self._optimizer.__dict__.pop("apply", None) if self._optimizer is not None else None
        if self._predictions is not None:
            self._model.__dict__.pop("train_step", None)
            self._model.__dict__.pop("compute_metrics", None)
        if self._plain_function is not None:
            self._model.train_function = self._plain_function

    def request(self, probe: Probe, iteration: int) -> None:
        """Ask for the gradients of the call of ``apply`` at this iteration."""
        if id(probe) in self._captures:
            self._captures[id(probe)].request(iteration)

    def take(self, probe: Probe) -> list[Any]:
        """The captured gradients."""
        capture = self._captures.get(id(probe))
        return capture.take() if capture is not None else []

    def drain(self, recording: Recording, force: bool) -> None:
        """Hand the collected predictions over, before the ring overflows."""
        if self._predictions is None:
            return
        self._since_drain += 1
        if not force and self._since_drain < self._drain_every():
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

    def _drain_every(self) -> int:
        per_execution = getattr(self, "_per_execution", None)
        if per_execution is None:
            return 1
        return max(1, int(_RING_ROWS / (2 * max(per_execution, 1))))


def _innermost(optimizer: Any) -> Any:
    """The optimizer whose ``apply`` receives unscaled gradients."""
    while getattr(optimizer, "inner_optimizer", None) is not None:
        optimizer = optimizer.inner_optimizer
    return optimizer


def _counts_samples(model: Any) -> bool:
    return getattr(model, "_loss_tracker", None) is not None


def _sample_count(model: Any) -> float | None:
    """Samples of this epoch so far: the weight of Keras's own running mean of the loss."""
    tracker = getattr(model, "_loss_tracker", None)
    return None if tracker is None else float(tracker.count.numpy())


__all__ = ["TraceCallback"]
