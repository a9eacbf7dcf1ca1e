"""``TraceCallback``: what attaches to Keras 3 ``fit`` on TensorFlow."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from deepinsight.collectors.keras_attachment import Attachment, execution_steps, innermost
from deepinsight.collectors.keras_logs import EpochLogs
from deepinsight.collectors.keras_optimizer import OptimizerValues
from deepinsight.collectors.probes import Gradients, Probe, Scalars, Throughput, Weights
from deepinsight.collectors.probes.base import (
    GRADIENT,
    WEIGHT,
    WEIGHT_BEFORE,
    StepReport,
    Variable,
)
from deepinsight.collectors.recording import Recording, check_probes, check_settings
from deepinsight.collectors.schedule import OverheadMeter
from deepinsight.collectors.snapshot import Snapshot
from deepinsight.traces import TraceWriter, stream_name


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
            ``Gradients()`` and ``Throughput()``. ``Scalars`` also records what the optimizers of
            ``deepinsight.trainer.keras`` report of their updates, ``optimizer/…``, at
            `every_n_steps`. ``AUC()`` needs no tensors here: it takes the model's own labels and
            outputs.
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

    #: Keeping logs is safe on any thread; Keras then need not wait for them at every step.
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
        self._attachment: Attachment | None = None
        self._snapshot: Snapshot | None = None
        self._samples_before = 0.0
        self._fits = 0

    @property
    def writer(self) -> TraceWriter:
        """The trace writer of the running fit, for values of one's own.

        Raises:
            RuntimeError: Outside of a fit.
        """
        if self._writer is None:
            raise RuntimeError("The callback has no open trace: it is open while `fit` runs.")
        return self._writer

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Wait until everything recorded so far is in the file; False if the time was too short."""
        if self._recording is None:
            return True
        self.drain()
        return self.writer.flush(timeout_s)

    def drain(self) -> None:
        """Wait until the background thread has finished what probes measured so far."""
        if self._recording is not None:
            self._recording.drain()

    def on_train_begin(self, logs: Any = None) -> None:
        """Open the trace and attach to the optimizer."""
        self._detach()
        optimizer = innermost(getattr(self.model, "optimizer", None))
        self._writer = TraceWriter(
            self._run_dir,
            self._process,
            config=self._config,
            feature_groups=self._feature_groups,
        )
        scalars = [p for p in self._probes if isinstance(p, Scalars)]
        probes = [p for p in self._probes if not isinstance(p, Scalars)]
        if scalars and OptimizerValues.offered_by(optimizer):
            probes.append(OptimizerValues(optimizer, self._names, scalars))
        self._recording = Recording(
            self._writer,
            probes,
            every_n_steps=self._every_n_steps,
            overhead_budget=self._overhead_budget,
            feature_groups=self._feature_groups,
            samples_known=self._batch_size is not None or _counts_samples(self.model),
            fresh=self._fits == 0,
        )
        self._execution_steps = execution_steps(self.model)
        self._counter = getattr(optimizer, "_iterations", None)
        self._accumulation = getattr(optimizer, "gradient_accumulation_steps", None) or 1
        if self._attachment is None or not self._attachment.fits(self.model, optimizer):
            self._attachment = Attachment(self.model, optimizer, self._variables, self._probes)
        self._attachment.attach()
        if self._attachment.refusal is not None:
            error = RuntimeError(f"Gradients are not recorded {self._attachment.refusal}.")
            self._recording.failed(None, error)
        self._started, self._began_s = False, time.time()
        if self.model.trainable_variables:
            self._start()
        self._logs = [EpochLogs(p, self._writer, self._recording) for p in scalars]
        self._first_iteration = self._iteration()
        self._previous: int | None = None
        self._samples_counted = False
        self._pending: _Execution | None = None
        self._hook_s, self._last_end = 0.0, time.perf_counter()
        self._fits += 1

    def _start(self) -> None:
        """Declare the streams; for a model that was not built yet, after its first execution."""
        variables = self._variables()
        self._tf_variables = [(info, v.value) for info, v in variables]
        if self._snapshot is None or not self._snapshot.holds(self._tf_variables):
            self._snapshot = Snapshot(self._tf_variables)
        described = {
            info.name: {"shape": list(info.shape), "dtype": str(v.dtype), "device": info.device}
            for info, v in variables
        }
        self._writer.update_metadata(variables=described)
        offered = frozenset({WEIGHT})
        if self._attachment.gradients:
            offered |= {GRADIENT, WEIGHT_BEFORE}
        step = self._iteration() // self._accumulation
        streams = [(info, offered) for info, _ in variables]
        self._recording.start(step, streams, self._samples_before, self._began_s)
        self._started = True

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

    def _names(self, variables: Sequence[Any]) -> list[str]:
        """Names of variables; of the model's, where the optimizer has not met them yet."""
        names = {id(v): info.name for info, v in self._variables()}
        chosen = variables or self.model.trainable_variables
        return [names.get(id(v), stream_name(v.path)) for v in chosen]

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
                if self._execution_steps == 1 and self._started:
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
        if not self._started:
            self._start()
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
            own_steps=1 if pending.previous is None else step - pending.previous,
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
            measured = [*measured, *self._snapshot.ratios(probe, pending.before[id(probe)])]
        step = report.step if self._execution_steps == 1 else pending.gradient_step
        at = StepReport(step=step, wall_time_s=report.wall_time_s)
        self._recording.record_step(at, [], measured)

    def _samples(self, pending: "_Execution") -> float | None:
        if self._batch_size is not None:
            done = pending.last - self._first_iteration
            return self._samples_before + done * self._batch_size
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
            log.end_epoch(logs, self._iteration())

    def _end_of_training_part(self) -> None:
        if self._recording is None or self._samples_counted:
            return
        self._guarded(lambda: self._finish(time.perf_counter()))
        self._pending = None
        self._samples_counted = True
        if self._batch_size is None:
            self._samples_before += _sample_count(self.model) or 0.0

    def on_train_end(self, logs: Any = None) -> None:
        """Detach from the optimizer and close the trace."""
        self._guarded(lambda: self._finish(time.perf_counter()))
        if self._batch_size is not None:
            self._samples_before += (self._iteration() - self._first_iteration) * self._batch_size
        self._detach()

    def _detach(self) -> None:
        if self._attachment is not None:
            self._attachment.detach()
        if self._recording is not None:
            self._recording.close()
        if self._writer is not None:
            self._writer.close()
        self._recording = self._writer = None
        self._pending = None


class _Execution:
    """One call of the compiled function: what is due after it."""

    def __init__(self, due: list[Probe], last: int, previous: int | None) -> None:
        self.due, self.last, self.previous = due, last, previous
        self.gradient_step = 0
        self.before: dict[int, dict[str, Any]] = {}


def _counts_samples(model: Any) -> bool:
    return getattr(model, "_loss_tracker", None) is not None


def _sample_count(model: Any) -> float | None:
    """Samples of this epoch so far: the weight of Keras's own running mean of the loss."""
    tracker = getattr(model, "_loss_tracker", None)
    return None if tracker is None else float(tracker.count.numpy())
