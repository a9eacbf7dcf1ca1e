"""What the session hook, the Keras callback and the recorder share: probes, cadences, streams."""

import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from deepinsight.collectors.background import Background
from deepinsight.collectors.probes.base import (
    Predictions,
    Probe,
    StepReport,
    Stream,
    Variable,
    check_cadence,
)
from deepinsight.collectors.probes.throughput import Throughput
from deepinsight.collectors.schedule import NEVER, Cadence, OverheadMeter
from deepinsight.traces import group_slices

FAILURES = "recorder/probe_failures"
OVERHEAD = "recorder/overhead"
#: A probe that fails this many times in a row is switched off for the rest of the run.
MAX_FAILURES = 3
_BATCHED_PREDICTIONS = 16

Measured = tuple[Probe, Variable, Mapping[str, np.ndarray]]


class ProbeWarning(UserWarning):
    """A probe failed; training goes on, and ``recorder/probe_failures`` counts it."""


def check_probes(probes: Iterable[Probe] | None) -> list[Probe] | None:
    """The probes as a list.

    Raises:
        ValueError: If something is not a probe, or one appears twice.
    """
    if probes is None:
        return None
    if isinstance(probes, Probe):
        raise ValueError(f"`probes` must be a list of probes. Received: {probes!r}; write [probe].")
    probes = list(probes)
    for probe in probes:
        if not isinstance(probe, Probe):
            raise ValueError(
                f"`probes` must hold instances of deepinsight.probes. Received: {probe!r}."
            )
    if len({id(p) for p in probes}) < len(probes):
        raise ValueError("`probes` holds one and the same probe twice; remove one.")
    return probes


def check_settings(every_n_steps: int, batch_size: int | None) -> None:
    """Raise ValueError if a setting of a hook is out of range."""
    if every_n_steps is None:
        raise ValueError("`every_n_steps` must be an integer >= 1. Received: every_n_steps=None.")
    check_cadence(every_n_steps, None)
    if batch_size is not None and not batch_size >= 1:
        raise ValueError(f"`batch_size` must be >= 1. Received: batch_size={batch_size!r}.")


class Recording:
    """Decides when probes are due and brings what they measured into the trace.

    Args:
        writer: A ``TraceWriter``; it stays the caller's to close.
        probes: The probes.
        every_n_steps: Cadence of the probes that state none.
        overhead_budget: Share of training time that recording may take; None: no limit.
        feature_groups: As in the trace format.
        samples_known: Whether reports carry ``samples``.
        offered: Names that ``StepReport.scalars`` will hold, with their streams.
        fresh: Whether probes forget what an earlier session or fit left in them.
    """

    def __init__(
        self,
        writer: Any,
        probes: Sequence[Probe],
        *,
        every_n_steps: int,
        overhead_budget: float | None = None,
        feature_groups: Mapping[str, Any] | None = None,
        samples_known: bool = False,
        offered: Sequence[Stream] = (),
        fresh: bool = True,
    ) -> None:
        self.writer = writer
        self.probes = list(probes)
        self.meter = OverheadMeter(overhead_budget)
        self.feature_groups = feature_groups or {}
        self.offered = frozenset(s.name for s in offered)
        self.failures = 0
        self._failed: dict[int, int] = {}
        self._off: set[int] = set()
        self._every_n_steps = every_n_steps
        self._cadences = {id(p): self._cadence(p) for p in self.probes}
        self._next_overhead = 0
        self._offered_streams = {s.name: s for s in offered}
        self.samples_known = samples_known
        self._predictions: list[Predictions] = []
        self._predictors = [p for p in self.probes if p.wants_predictions]
        self._background: Background | None = None
        self._next_due = 0
        for probe in self.probes if fresh else ():
            probe.reset()

    def _cadence(self, probe: Probe) -> Cadence:
        if probe.every_n_seconds is not None:
            return Cadence(None, probe.every_n_seconds)
        steps = probe.every_n_steps or probe.default_every_n_steps or self._every_n_steps
        return Cadence(steps)

    def cadence(self, probe: Probe) -> Cadence:
        """When the probe is due."""
        return self._cadences[id(probe)]

    def variable(self, name: str, shape: Sequence[int], dtype: str, device: str = "") -> Variable:
        """The description of a variable, with the feature groups that name it."""
        shape = tuple(int(n) for n in shape)
        groups = group_slices(self.feature_groups, name, shape[0]) if shape else {}
        return Variable(name, shape, "float64" if dtype == "float64" else "float32", device, groups)

    def start(
        self,
        step: int,
        variables: Sequence[tuple[Variable, frozenset[str]]],
        samples_before: float = 0.0,
        began_s: float | None = None,
    ) -> None:
        """Declare all streams that are known before the first step, and start the clocks.

        Args:
            step: Step at which this process begins.
            variables: Each with what is offered of it: ``weight``, ``weight_before``, ``gradient``.
            samples_before: Samples that were consumed before it.
            began_s: Unix time at which its training began; now, if None.
        """
        for probe in self.probes:
            try:
                streams = [
                    stream
                    for variable, offered in variables
                    if probe.accepts(variable)
                    for stream in probe.variable_streams(variable, offered)
                ]
                known = self.samples_known
                streams += probe.streams(samples_known=known, offered=self.offered)
                for stream in streams:
                    self._declare(stream)
            except Exception as error:
                self.failed(probe, error)
            if isinstance(probe, Throughput):
                samples = samples_before if self.samples_known else None
                began_s = time.time() if began_s is None else began_s
                probe.start(StepReport(step, began_s, samples=samples))
        for stream in self._offered_streams.values():
            self._declare(stream)
        self._declare(
            Stream(
                OVERHEAD,
                unit="share",
                description="Share of training time spent on recording since the last record: "
                "on the training thread, and in recorded steps beyond the mean of the others.",
            )
        )

    def _declare(self, stream: Stream) -> None:
        self.writer.declare(
            stream.name,
            shape=stream.shape,
            dtype=stream.dtype,
            unit=stream.unit,
            description=stream.description,
            axes=stream.axes,
            reduction=stream.reduction,
            details=dict(stream.details),
        )

    def due(self, step: int) -> list[Probe]:
        """The probes to record at the step about to run; none while the budget is spent."""
        if step < self._next_due:
            return []
        now_s = time.monotonic()
        due = []
        for probe in self.probes:
            key = id(probe)
            if key not in self._off and self._cadences[key].due(step, now_s):
                due.append(probe)
        if due and not self.meter.allows():
            for probe in due:
                cadence = self._cadences[id(probe)]
                if cadence.every_n_seconds is None:
                    cadence.mark(step, now_s)
            self._look_ahead()
            return []
        return due

    def _look_ahead(self) -> None:
        """The first step at which `due` has to look closely."""
        cadences = [c for key, c in self._cadences.items() if key not in self._off]
        self._next_due = min((c.next_step() for c in cadences), default=NEVER)

    def record_step(
        self, report: StepReport, due: Sequence[Probe], measured: Sequence[Measured] = ()
    ) -> None:
        """Bring one step into the trace; what takes time goes to the background thread."""
        later = list(measured)
        now_s = time.monotonic()
        for probe in due:
            if id(probe) in self._cadences:
                self._cadences[id(probe)].mark(report.step, now_s)
            if not probe.wants_predictions:
                self._record_values(probe, report)
        if due:
            self._look_ahead()
        slow = [p for p in due if p.wants_predictions]
        if later or slow or len(self._predictions) >= _BATCHED_PREDICTIONS:
            predictions, self._predictions = self._predictions, []
            self._submit(lambda: self._finish(report, later, slow, predictions))

    def predictions(self, predictions: Predictions) -> None:
        """Take in one step's labels and scores."""
        if self._predictors:
            self._predictions.append(predictions)

    def _submit(self, job: Any) -> None:
        if self._background is None:
            self._background = Background("deepinsight-probes")
        self._background.submit(job)

    def _finish(
        self,
        report: StepReport,
        measured: Sequence[Measured],
        probes: Sequence[Probe],
        predictions: Sequence[Predictions],
    ) -> None:
        for probe in self._predictors:
            self._guarded(probe, lambda p=probe: [p.observe(x) for x in predictions])
        for probe, variable, arrays in measured:
            self._guarded(
                probe,
                lambda p=probe, v=variable, a=arrays: self._write(p.finish(v, a), report),
            )
        for probe in probes:
            self._record_values(probe, report)

    def _record_values(self, probe: Probe, report: StepReport) -> None:
        try:
            self._write(probe.values(report), report)
        except Exception as error:
            self.failed(probe, error)

    def _guarded(self, probe: Probe, job: Any) -> None:
        if id(probe) in self._off:
            return
        try:
            job()
        except Exception as error:
            self.failed(probe, error)
        else:
            self._failed.pop(id(probe), None)

    def _write(self, values: Mapping[str, Any], report: StepReport) -> None:
        for name, value in values.items():
            self.writer.record(name, value, step=report.step, wall_time_s=report.wall_time_s)

    def failed(self, probe: Probe | None, error: BaseException) -> None:
        """Count a failure; warn at the first; switch off a probe that keeps failing."""
        self.failures += 1
        key = id(probe)
        count = self._failed[key] = self._failed.get(key, 0) + 1
        name = probe.name if probe is not None else "recording"
        if count >= MAX_FAILURES and probe is not None:
            self._off.add(key)
        if count == 1:
            warnings.warn(
                f"Probe {name!r} failed: {type(error).__name__}: {error} Training goes on; "
                f"{FAILURES} counts the failures.",
                ProbeWarning,
                stacklevel=2,
            )
        self._last_step = getattr(self, "_last_step", 0)
        self.writer.record(
            FAILURES,
            float(self.failures),
            step=self._last_step,
            unit="failures",
            description="Times that a probe failed in this process, cumulative.",
        )

    def end_step(self, step: int, run_s: float, hook_s: float, recorded: bool) -> None:
        """Account for the step's time and record the overhead at the cadence."""
        self._last_step = step
        self.meter.step(run_s, hook_s, recorded)
        if step >= self._next_overhead:
            self._next_overhead = (step // self._every_n_steps + 1) * self._every_n_steps
            self.writer.record(OVERHEAD, self.meter.take_share(), step=step)

    def drain(self) -> None:
        """Wait until everything that was measured has reached the writer."""
        if self._predictions:
            predictions, self._predictions = self._predictions, []
            self._submit(lambda: self._finish(StepReport(0, 0.0), (), (), predictions))
        if self._background is not None:
            self._background.drain()

    def close(self) -> None:
        """Finish the background work; the writer stays open."""
        self.drain()
        if self._background is not None:
            self._background.close()
