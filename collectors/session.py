"""``TraceHook``: what attaches to ``tf.compat.v1`` sessions."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from deepinsight.collectors import graph as graph_module
from deepinsight.collectors.probes import Gradients, Probe, Scalars, Throughput, Weights
from deepinsight.collectors.probes.base import Predictions, StepReport
from deepinsight.collectors.recording import Measured, Recording, check_probes, check_settings
from deepinsight.collectors.schedule import OverheadMeter
from deepinsight.collectors.session_plan import ScalarPack, SessionPlan
from deepinsight.traces import TraceWriter


@dataclass(frozen=True)
class _Kind:
    """What a structure of fetches means for the hook.

    `leaves` keeps the objects alive whose identities the cache key is made of.
    """

    leaves: tuple[Any, ...]
    training: bool
    step: Any = None
    increment: int | None = None
    norms: tuple[Any, ...] = ()
    packs: tuple[Any, ...] = ()
    predictions: tuple[Any, ...] = ()
    plain: dict[Any, Any] = field(default_factory=dict)


class _Wanted:
    """What one training run is asked for beside the user's fetches, and what came back."""

    def __init__(self, kind: _Kind, due: Sequence[Probe], packs: Sequence[ScalarPack]) -> None:
        self.kind, self.due, self.packs = kind, due, packs
        self.wants_step = kind.step is not None and (bool(due) or kind.increment is None)
        gradients = [p for p in due if isinstance(p, Gradients)]
        self.norms = [n for n in kind.norms if n.probe in gradients] if gradients else []
        self.step: int | None = None
        self.norm_values: Sequence[Any] = ()
        self.scalars: Sequence[Any] = ()
        self.predictions: Sequence[Sequence[Any]] = ()
        # Flat, or bare if single: TensorFlow walks nested fetches in Python at every run.
        tensors = [kind.step] if self.wants_step else []
        tensors += [n.tensor for n in self.norms]
        tensors += [p.tensor for p in packs]
        for prediction in kind.predictions:
            tensors += prediction.tensors
        self._fetched = len(tensors)
        self.request = None
        if tensors:
            fetches = tensors if len(tensors) > 1 else tensors[0]
            self.request = tf.compat.v1.train.SessionRunArgs(fetches)

    def receive(self, results: Any) -> None:
        """Sort the fetched values, in the order in which they were asked for."""
        if not self._fetched:
            return
        if self._fetched == 1 and self.packs:
            self.scalars = (results,)
            return
        values = iter([results] if self._fetched == 1 else results)
        if self.wants_step:
            self.step = int(next(values))
        self.norm_values = [next(values) for _ in self.norms]
        self.scalars = [next(values) for _ in self.packs]
        self.predictions = [[next(values) for _ in p.tensors] for p in self.kind.predictions]


class TraceHook(tf.compat.v1.train.SessionRunHook):
    """Records a training session into a trace.

    Give it to ``MonitoredTrainingSession`` or any other session that takes hooks. Gradients are
    found from the graph's apply ops, weights from its trainable variables; whatever
    ``trace_tensor`` named is recorded too. Runs that do not run the train op are left alone.

    Steps are values of the global step after the update. Without a global step that training
    raises, the hook counts this process's training runs.

    Args:
        run_dir: Directory of the run.
        probes: Probes; None takes ``Weights()``, ``Gradients()`` and ``Throughput()``.
        every_n_steps: Cadence of the probes that state none, >= 1. Recorded are the first step and
            the multiples.
        process: Name of this process in the run, for example ``"worker-0"``.
        config: What to store as the run's configuration, JSON.
        feature_groups: Rows of axis 0 per feature group; see the trace format.
        batch_size: Samples per step and process, for samples per second.
        overhead_budget: Share of training time that recording may take, for example 0.02; too
            expensive probes are then recorded less often. None: no limit.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> hook = TraceHook("runs/mine", every_n_steps=100)  # doctest: +SKIP
        >>> with tf.compat.v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
        ...     while not session.should_stop():
        ...         session.run(train_op)  # doctest: +SKIP
    """

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
        check_settings(every_n_steps, batch_size)
        OverheadMeter(overhead_budget)
        chosen = check_probes(probes)
        self._probes = [Weights(), Gradients(), Throughput()] if chosen is None else chosen
        scalars = [p for p in self._probes if isinstance(p, Scalars)]
        self._scalars = scalars[0] if scalars else Scalars()
        self._run_dir, self._process = Path(run_dir), process
        self._every_n_steps, self._batch_size = every_n_steps, batch_size
        self._config, self._feature_groups = config, feature_groups
        self._overhead_budget = overhead_budget
        self._writer: TraceWriter | None = None
        self._recording: Recording | None = None

    @property
    def writer(self) -> TraceWriter:
        """The trace writer of the running session, for values of one's own.

        Raises:
            RuntimeError: Outside of a session.
        """
        if self._writer is None:
            raise RuntimeError("The hook has no open trace: it opens when its session is created.")
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

    def begin(self) -> None:
        """Add what is to be measured to the graph and open the trace."""
        self._close()
        graph = tf.compat.v1.get_default_graph()
        self._kinds: dict[Any, _Kind] = {}
        self._plan = SessionPlan(
            graph,
            self._probes,
            self._scalars,
            every_n_steps=self._every_n_steps,
            feature_groups=self._feature_groups,
            identity=f"{self._run_dir.resolve()}:{self._process}",
        )
        self._writer = TraceWriter(
            self._run_dir,
            self._process,
            config=self._config,
            feature_groups=self._feature_groups,
            variables=self._plan.metadata,
        )
        self._recording = Recording(
            self._writer,
            [p for p in self._probes if not isinstance(p, Scalars)],
            every_n_steps=self._every_n_steps,
            overhead_budget=self._overhead_budget,
            feature_groups=self._feature_groups,
            samples_known=self._batch_size is not None,
            offered=[t.stream for t in self._plan.traced if self._scalars.wants(t.stream.name)],
        )
        self._step: int | None = None
        self._previous: int | None = None
        self._steps_done = 0
        self._wanted: _Wanted | None = None
        self._started = False
        for probe, error in self._plan.failures:
            self._recording.failed(probe, error)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Continue at the restored global step."""
        del coord
        step = self._plan.step_readings
        self._step = int(session.run(step[-1].tensor)) if step else self._step or 0
        self._previous = None
        if not self._started:
            self._recording.start(self._step, self._plan.variables)
            self._started = True
        self._last_end = time.perf_counter()

    def before_run(self, run_context: Any) -> Any:
        """Ask for what is due, if this run trains."""
        started = time.perf_counter()
        self._wanted, request = None, None
        if self._step is not None:
            try:
                request = self._request(run_context)
            except Exception as error:
                self._recording.failed(None, error)
        self._run_started = time.perf_counter()
        self._before_s = self._run_started - started
        return request

    def _request(self, run_context: Any) -> Any:
        args = run_context.original_args
        kind = self._kind(args)
        if not kind.training:
            return None
        step = self._step + 1
        due = self._recording.due(step)
        if due:
            saves = [op for p in due for op in self._plan.saves.get(id(p), ())]
            if saves:
                run_context.session.run(saves)
        packs = kind.packs
        if packs:
            now_s = time.monotonic()
            packs = tuple([p for p in packs if p.cadence.due(step, now_s)])
            if packs and not self._recording.meter.allows():
                packs = ()
        if due:
            wanted = _Wanted(kind, due, packs)
        else:
            wanted = kind.plain.get(packs)
            if wanted is None:
                wanted = kind.plain[packs] = _Wanted(kind, (), packs)
        self._wanted = wanted
        return wanted.request

    def _kind(self, args: Any) -> _Kind:
        leaves: list[Any] = []
        key = graph_module.structure_key(args.fetches, leaves)
        if args.feed_dict:
            leaves.extend(args.feed_dict)
            key = (key, tuple([id(k) for k in args.feed_dict]))
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= 256:
                self._kinds.clear()
            kind = self._kinds[key] = self._classify(args, tuple(leaves))
        return kind

    def _classify(self, args: Any, leaves: tuple[Any, ...]) -> _Kind:
        plan = self._plan
        elements = graph_module.fetched_elements(plan.graph, args.fetches)
        feeds = graph_module.fetched_elements(plan.graph, list(args.feed_dict or ()))
        fed = frozenset(t.name for t in feeds)
        ops = graph_module.closure(elements, fed)
        if not plan.trains(ops):
            return _Kind(leaves, False)
        available = graph_module.placeholders(ops) | fed
        readings = [r for r in plan.step_readings if r.trigger is None or r.trigger in ops]
        return _Kind(
            leaves,
            True,
            readings[0].tensor if readings else None,
            plan.step_increment(ops),
            tuple(n for n in plan.norms if n.trigger in ops),
            tuple(p for p in plan.packs if p.possible(fed, ops)),
            tuple(p for p in plan.predictions if p.possible(fed, available)),
        )

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Record what came back."""
        started = time.perf_counter()
        wanted, self._wanted = self._wanted, None
        if wanted is None:
            return
        wanted.receive(run_values.results)
        self._steps_done += 1
        if wanted.wants_step:
            self._step = wanted.step
        else:  # the step is this process's own, and the run adds a constant to it
            self._step += wanted.kind.increment
        plain_s = started - self._last_end - self._before_s
        try:
            wall_time_s = time.time()
            if wanted.packs:
                self._record_scalars(wanted, wall_time_s)
            if wanted.due or wanted.predictions:
                self._record_probes(run_context, wanted, wall_time_s, plain_s)
        except Exception as error:
            self._recording.failed(None, error)
        self._previous = self._step
        recorded = bool(wanted.due or wanted.packs)
        self._last_end = time.perf_counter()
        hook_s = self._before_s + self._last_end - started
        self._recording.end_step(self._step, plain_s, hook_s, recorded)

    def _record_scalars(self, wanted: "_Wanted", wall_time_s: float) -> None:
        now_s = time.monotonic()
        for pack, vector in zip(wanted.packs, wanted.scalars, strict=True):
            pack.cadence.mark(self._step, now_s)
            for name, value in pack.unpack(vector).items():
                self._writer.record(name, value, step=self._step, wall_time_s=wall_time_s)

    def _record_probes(
        self, run_context: Any, wanted: "_Wanted", wall_time_s: float, step_time_s: float
    ) -> None:
        report = StepReport(
            step=self._step,
            wall_time_s=wall_time_s,
            previous_step=self._previous,
            step_time_s=step_time_s,
            steps_done=self._steps_done,
            samples=self._steps_done * self._batch_size if self._batch_size else None,
            offered=self._recording.offered,
        )
        for values in wanted.predictions:
            self._recording.predictions(_predictions(values, report))
        measured = self._measured(run_context, wanted)
        self._recording.record_step(report, wanted.due, measured)

    def _measured(self, run_context: Any, wanted: "_Wanted") -> list[Measured]:
        measured: list[Measured] = [
            (norm.probe, norm.variable, {"norm": value})
            for norm, value in zip(wanted.norms, wanted.norm_values, strict=True)
        ]
        packs = [p for p in self._plan.snapshots if p.probe in wanted.due]
        if packs:
            vectors = run_context.session.run([p.tensor for p in packs])
            for pack, vector in zip(packs, vectors, strict=True):
                measured.extend(pack.unpack(vector))
        return measured

    def end(self, session: Any) -> None:
        """Finish and close the trace."""
        del session
        self._close()

    def _close(self) -> None:
        if self._recording is not None:
            self._recording.close()
        if self._writer is not None:
            self._writer.close()
        self._recording = self._writer = None


def _predictions(values: Sequence[Any], report: StepReport) -> Predictions:
    flat = [np.reshape(v, -1) for v in values]
    weight = flat[2] if len(flat) > 2 else None
    return Predictions(flat[0], flat[1], weight, report.step, report.wall_time_s)
