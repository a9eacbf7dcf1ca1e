"""``Recorder``: a trace writer for own training loops, with the same probes as the hooks."""

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from deepinsight.collectors.arrays import NumpyArrays, TensorFlowArrays
from deepinsight.collectors.packing import measure_parts
from deepinsight.collectors.probes import Gradients, Probe, Scalars, Throughput, Weights
from deepinsight.collectors.probes.base import (
    GRADIENT,
    WEIGHT,
    WEIGHT_BEFORE,
    Predictions,
    Slices,
    StepReport,
    Variable,
)
from deepinsight.collectors.recording import Measured, Recording, check_probes, check_settings
from deepinsight.collectors.schedule import OverheadMeter
from deepinsight.traces import TraceWriter, stream_name

Named = Mapping[str, Any] | Sequence[Any]


class Recorder(TraceWriter):
    """Records an own training loop into a trace: NumPy, TensorFlow eager, anything.

    ``record`` stores any value under any name. ``after_step`` runs the probes; ``before_step``,
    called before the update, lets them measure how far it moves the weights.

    Args:
        run_dir: Directory of the run.
        process: Name of this process in the run.
        probes: Probes for ``after_step``; None takes ``Weights()``, ``Gradients()``,
            ``Throughput()`` and ``Scalars()``.
        every_n_steps: Cadence of the probes that state none, >= 1. Recorded are the first step and
            the multiples.
        config: What to store as the run's configuration, JSON.
        feature_groups: Rows of axis 0 per feature group; see the trace format.
        variables: Shapes, dtypes and devices by name; ``after_step`` finds them itself.
        overhead_budget: Share of training time that the probes may take, for example 0.02. None: no
        limit. **settings: ``flush_interval_s`` and the other settings of ``TraceWriter``.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> import tempfile, numpy as np
        >>> w = np.ones((4, 2))
        >>> with Recorder(tempfile.mkdtemp(), every_n_steps=1) as rec:
        ...     for step in range(1, 4):
        ...         rec.before_step(step, variables={"w": w})
        ...         w = 0.9 * w
        ...         rec.after_step(step, variables={"w": w}, gradients={"w": w}, samples=32)
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str],
        process: str = "main",
        *,
        probes: Sequence[Probe] | None = None,
        every_n_steps: int = 100,
        config: Mapping[str, Any] | None = None,
        feature_groups: Mapping[str, Any] | None = None,
        variables: Mapping[str, Any] | None = None,
        overhead_budget: float | None = None,
        **settings: Any,
    ) -> None:
        check_settings(every_n_steps, None)
        OverheadMeter(overhead_budget)
        chosen = check_probes(probes)
        if chosen is None:
            chosen = [Weights(), Gradients(), Throughput(), Scalars()]
        super().__init__(
            run_dir,
            process,
            config=config,
            feature_groups=feature_groups,
            variables=variables,
            **settings,
        )
        self._recording = Recording(
            self,
            chosen,
            every_n_steps=every_n_steps,
            overhead_budget=overhead_budget,
            feature_groups=feature_groups,
        )
        self._started, self._began_s = False, time.time()
        self._before: dict[str, Any] | None = None
        self._due: list[Probe] | None = None
        self._due_step = -1
        self._hook_s = 0.0
        self._previous: int | None = None
        self._steps_done = 0
        self._samples = 0.0
        self._last_end = time.perf_counter()
        self._infos: dict[str, Variable] = {}

    def before_step(self, step: int, variables: Named) -> None:
        """Keep the weights as they are before the update, if this step is recorded.

        Args:
            step: The step that is about to be made, as ``after_step`` will be given it.
            variables: Name -> array or variable, or a sequence of TensorFlow or Keras variables.
        """
        started = time.perf_counter()
        named = _by_name(variables)
        if not self._started and self._before is None:
            self._began_s = time.time()
        for name, value in named.items():
            if name not in self._infos:
                self._describe(name, value)
        due = self._due_at(step)
        self._before = {}
        for probe in due:
            if isinstance(probe, Gradients):
                wanted = {n for n, v in self._infos.items() if probe.wants_before(v)}
                self._before |= {n: _copy(v) for n, v in named.items() if n in wanted}
        self._hook_s += time.perf_counter() - started

    def after_step(
        self,
        step: int,
        *,
        variables: Named | None = None,
        gradients: Named | None = None,
        samples: int | None = None,
        labels: Any = None,
        scores: Any = None,
        sample_weight: Any = None,
        scalars: Mapping[str, Any] | None = None,
    ) -> None:
        """Run the probes that are due after a training step.

        Args:
            step: Updates made so far, >= 1 after the first.
            variables: Name -> array or variable, or a sequence of TensorFlow or Keras variables.
            gradients: Name -> gradient, or a sequence in the order of `variables`. A gradient is an
                array, a tensor, ``tf.IndexedSlices``, a pair ``(values, indices)`` or None.
            samples: Samples of this step.
            labels: 0/1 labels of this step's samples, for the AUC probe.
            scores: Scores of the same shape.
            sample_weight: Weights >= 0 of the same shape.
            scalars: Stream name -> value, for the Scalars probe.

        Raises:
            ValueError: If `step` is negative or gradients do not fit the variables.
        """
        started = time.perf_counter()
        if not step >= 0:
            raise ValueError(f"`step` must be >= 0. Received: step={step}.")
        named = _by_name(variables) if variables is not None else {}
        slopes = _gradients_by_name(gradients, named)
        if not self._started:
            self._start(step - 1, named, slopes, samples is not None)
        self._steps_done += 1
        self._samples += samples or 0
        due = self._due_at(step)
        plain_s = started - self._last_end - self._hook_s
        report = StepReport(
            step=step,
            wall_time_s=time.time(),
            previous_step=self._previous,
            step_time_s=plain_s,
            steps_done=self._steps_done,
            samples=self._samples if samples is not None else None,
            scalars=scalars or {},
        )
        if labels is not None and scores is not None:
            self._recording.predictions(_predictions(labels, scores, sample_weight, report))
        measured: list[Measured] = []
        for probe in due:
            try:
                measured.extend(self._measure(probe, named, slopes))
            except Exception as error:
                self._recording.failed(probe, error)
        self._recording.record_step(report, due, measured)
        self._previous, self._before, self._due = step, None, None
        self._recording.end_step(
            step, plain_s, self._hook_s + time.perf_counter() - started, bool(due)
        )
        self._hook_s, self._last_end = 0.0, time.perf_counter()

    def _due_at(self, step: int) -> list[Probe]:
        if self._due is None or self._due_step != step:
            self._due, self._due_step = self._recording.due(step), step
        return self._due

    def _start(
        self,
        step: int,
        named: Mapping[str, Any],
        slopes: Mapping[str, Any],
        samples_known: bool,
    ) -> None:
        """Declare the streams of what the first step brings."""
        self._started = True
        described = {name: self._describe(name, value) for name, value in named.items()}
        for name, value in slopes.items():
            if name not in self._infos and not isinstance(value, Slices):
                self._describe(name, value)
        offered = []
        for name, info in self._infos.items():
            kinds = {WEIGHT} if name in named else set()
            kinds |= {GRADIENT} if name in slopes else set()
            kinds |= {WEIGHT_BEFORE} if self._before is not None else set()
            offered.append((info, frozenset(kinds)))
        self._recording.samples_known = samples_known
        self._recording.start(max(step, 0), offered, began_s=self._began_s)
        if described:
            self.update_metadata(variables=described)

    def _describe(self, name: str, value: Any) -> dict[str, Any]:
        dtype = getattr(value, "dtype", None)
        dtype = getattr(dtype, "name", None) or str(np.asarray(value).dtype)
        device = getattr(value, "device", "")
        device = device if isinstance(device, str) and _is_tensorflow(value) else ""
        info = self._recording.variable(name, np.shape(value), dtype, device)
        self._infos[name] = info
        return {"shape": list(info.shape), "dtype": dtype, "device": device}

    def _measure(
        self, probe: Probe, named: Mapping[str, Any], slopes: Mapping[str, Any]
    ) -> list[Measured]:
        if not probe.parts():
            return []
        measured: list[Measured] = []
        for name, info in self._infos.items():
            if not probe.accepts(info):
                continue
            offered: dict[str, Any] = {}
            if name in named:
                offered[WEIGHT] = named[name]
            if slopes.get(name) is not None:
                offered[GRADIENT] = slopes[name]
            if self._before is not None and name in self._before:
                offered[WEIGHT_BEFORE] = self._before[name]
            tensors = measure_parts(_arrays(offered), probe, info, offered)
            if tensors:
                measured.append((probe, info, {k: np.asarray(v) for k, v in tensors.items()}))
        return measured

    def close(self, *, ended: bool = True) -> None:
        """Finish the probes, write what is queued and end this process's part of the run."""
        if hasattr(self, "_recording"):
            self._recording.close()
        super().close(ended=ended)


def _is_tensorflow(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] in ("tensorflow", "keras")


def _arrays(offered: Mapping[str, Any]) -> NumpyArrays | TensorFlowArrays:
    for value in offered.values():
        probe = value.values if isinstance(value, Slices) else value
        if _is_tensorflow(probe):
            return TensorFlowArrays()
    return NumpyArrays()


def _by_name(variables: Named) -> dict[str, Any]:
    """Name -> tensor; Keras variables give up the TensorFlow variable behind them."""
    if isinstance(variables, Mapping):
        return {stream_name(name): _unwrapped(value) for name, value in variables.items()}
    named = {}
    for variable in variables:
        name = getattr(variable, "path", None) or getattr(variable, "name", None)
        if not isinstance(name, str):
            raise ValueError(
                "`variables` must be a mapping of names to arrays, or a sequence of TensorFlow or "
                f"Keras variables. Received: a sequence that holds {type(variable).__name__}."
            )
        if stream_name(name) in named:
            raise ValueError(f"`variables` holds two named {name!r}; give a mapping of names.")
        named[stream_name(name)] = _unwrapped(variable)
    return named


def _unwrapped(value: Any) -> Any:
    if hasattr(value, "path") and not callable(getattr(value, "value", None)):
        return value.value
    return value if _is_tensorflow(value) else np.asarray(value)


def _gradients_by_name(gradients: Named | None, named: Mapping[str, Any]) -> dict[str, Any]:
    if gradients is None:
        return {}
    if not isinstance(gradients, Mapping):
        gradients = list(gradients)
        if len(gradients) != len(named):
            raise ValueError(
                "`gradients` must have one entry per variable, or be a mapping of names. "
                f"Received: {len(gradients)} gradients, {len(named)} variables."
            )
        gradients = dict(zip(named, gradients, strict=True))
    return {stream_name(n): _gradient(g) for n, g in gradients.items() if g is not None}


def _gradient(gradient: Any) -> Any:
    if isinstance(gradient, tuple) and len(gradient) == 2:
        return Slices(np.asarray(gradient[0]), np.asarray(gradient[1]))
    if hasattr(gradient, "indices") and hasattr(gradient, "values"):
        return Slices(gradient.values, gradient.indices)
    return gradient if _is_tensorflow(gradient) else np.asarray(gradient)


def _copy(value: Any) -> Any:
    if hasattr(value, "read_value"):
        return value.read_value()  # shares the buffer until the variable is next written to
    return value if _is_tensorflow(value) else np.array(value)


def _predictions(labels: Any, scores: Any, weight: Any, report: StepReport) -> Predictions:
    flat = [np.array(x).reshape(-1) if x is not None else None for x in (labels, scores, weight)]
    return Predictions(flat[0], flat[1], flat[2], report.step, report.wall_time_s)
