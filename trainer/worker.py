"""A worker: it trains, records and, as the chief, evaluates and saves."""

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import tensorflow as tf

from deepinsight.collectors import TraceHook
from deepinsight.trainer.chief import Chores, crossed
from deepinsight.trainer.cluster.attendance import Attendance
from deepinsight.trainer.cluster.barriers import Barriers, server_config
from deepinsight.trainer.cluster.lifetime import Termination
from deepinsight.trainer.cluster.members import Patience
from deepinsight.trainer.cluster.own_state import OwnState
from deepinsight.trainer.cluster.topology import Topology, wait_for_servers
from deepinsight.trainer.cluster.watch import Watch, watch_others
from deepinsight.trainer.data import Batch, DataSet
from deepinsight.trainer.errors import ClusterError
from deepinsight.trainer.graph import Replica, TrainingGraph, build_graph
from deepinsight.trainer.kfac_graph import build_kfac
from deepinsight.trainer.local_steps import build_local
from deepinsight.trainer.optimizers import kfac_roles
from deepinsight.trainer.options import Options, checkpoint_dir, has_checkpoint
from deepinsight.trainer.progress import Reporter
from deepinsight.trainer.sessions import create_session, restored_step
from deepinsight.trainer.synchronization import ALONE, LOCAL
from deepinsight.trainer.towers import build_towers
from deepinsight.trainer.tracing import create_hook

v1 = tf.compat.v1
REPORT_EVERY_S = 0.25
WARM_UP_STEPS = 2  # a step with a snapshot and one without: TensorFlow prepares each at its first
LOSSES = (  # what TensorFlow raises when a process at the other end is gone
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)


class Worker:
    """One worker of a run; `run` does everything.

    Args:
        options: The run's options.
        data: The data set.
        topology: The place in the cluster; None for a run of a single process.
        report: Takes the events of `deepinsight.trainer.progress`.
        termination: Says when to stop.
        launched_s: Unix time of the launch.
        import_s: Seconds that imports took since then.
    """

    def __init__(
        self,
        options: Options,
        data: DataSet,
        topology: Topology | None,
        *,
        report: Reporter,
        termination: Termination,
        launched_s: float,
        import_s: float,
    ) -> None:
        self._options, self._data, self._topology = options, data, topology
        self._report, self._termination = report, termination
        self._launched_s, self._import_s = launched_s, import_s
        self._chief = topology is None or topology.is_chief
        self._in_graph = options.replication == "in-graph"
        self._process = topology.process if topology else "main"
        self._replica = Replica(
            topology.index if topology else 0,
            len(topology.workers) if topology else 1,
            len(topology.ps) if topology else 0,
        )
        self._pushes = 0
        self._staleness_sum: int | None = None
        self._first: tuple[int, float] | None = None
        self._last: tuple[int, float] = (0, 0.0)
        self._reported_s = 0.0
        self._dropped: int | None = None
        self._exchanges: int | None = None
        self._over = threading.Event()
        self._begun = False
        self._attendance: Attendance | None = None
        self._own: OwnState | None = None

    def run(self) -> None:
        """Train until the steps are done, the data has run out or a signal came.

        Raises:
            ClusterError: If a process that this one depends on is gone.
        """
        target, filters = self._start_server()
        patience = Patience(self._options.barrier_timeout, self._termination.requested)
        with tf.Graph().as_default():
            graph = self._build(patience)
            barriers = None
            if self._topology is not None:
                barriers = Barriers(self._topology, serving=self._in_graph)
            if graph.push.own:
                self._own = OwnState(
                    graph.push.own, checkpoint_dir(self._options.run_dir), self._replica.index
                )
            hook = create_hook(graph, self._options, self._data, self._process, self._chief)
            if barriers is not None and self._chief and not self._in_graph:
                self._attendance = Attendance(
                    self._topology, barriers, graph.push.members, self._report_loss
                )
            with self._watched(), self._trace_of_failures(hook):
                self._run(graph, barriers, hook, target, filters)

    def _build(self, patience: Patience) -> TrainingGraph:
        if self._in_graph:
            return build_towers(self._options, self._data, self._replica)
        build = build_local if self._options.synchronization in LOCAL else build_graph
        if self._options.synchronization == "kfac":
            build = build_kfac
        return build(self._options, self._data, self._replica, patience)

    def _run(
        self,
        graph: TrainingGraph,
        barriers: Barriers | None,
        hook: TraceHook,
        target: str,
        filters: tuple[str, ...],
    ) -> None:
        with self._losses_named():
            session, saver = create_session(
                graph,
                target=target,
                config=server_config(device_filters=filters),
                is_chief=self._chief,
                checkpoint_dir=checkpoint_dir(self._options.run_dir) if self._chief else None,
                hooks=[*graph.push.hooks, hook],
            )
        # Closing the session raises once more what its threads have met.
        with self._losses_named(), session, self._losses_named():
            self._termination.before_forced_end(lambda: hook.writer.close(ended=False))
            self._declare(hook)
            start = restored_step(session, graph.global_step)
            if self._own is not None:
                self._own.restore(_plain(session), start)
            chores = self._chores(graph, hook, saver, start) if self._chief else None
            reason = self._train(
                session, graph, hook, chores=chores, barriers=barriers, start=start
            )
            self._part(session, graph, barriers, chores)
            self._report(self._done_event(graph, reason))
            if self._termination.failed:
                _leave_unended(hook)
        if self._termination.failure:
            raise ClusterError(self._termination.failure)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Notice meanwhile that a parameter server, or for the others the chief, is gone."""
        topology = self._topology
        if topology is not None:
            watch_others(
                Watch(self._needed(topology)),
                self._over,
                lambda what: self._termination.fail(f"{what}. {self._remedy()}"),
            )
        try:
            yield
        finally:
            self._over.set()

    def _needed(self, topology: Topology) -> dict[str, str]:
        """The processes that this one cannot do without, and their addresses."""
        needed = {f"ps-{k}": address for k, address in enumerate(topology.ps)}
        if not self._chief:
            needed["the chief, worker-0"] = topology.workers[0]
        elif self._in_graph:
            needed |= {f"worker-{k}": a for k, a in enumerate(topology.workers) if k}
        return needed

    @contextmanager
    def _trace_of_failures(self, hook: TraceHook) -> Iterator[None]:
        """Leave the trace of a process that fails marked as crashed."""
        try:
            yield
        except BaseException:
            with suppress(Exception):  # there may be no trace yet
                _leave_unended(hook)
            raise

    @contextmanager
    def _losses_named(self) -> Iterator[None]:
        """Turn what TensorFlow raises for a lost process into an error that names it."""
        try:
            yield
        except LOSSES as error:
            topology = self._topology
            if topology is None:
                raise
            servers = Watch(self._needed(topology))
            silent = servers.silent()
            what = (
                f"{servers.describe(silent)} is gone"
                if silent
                else f"The cluster was lost ({str(error.message).splitlines()[0]})"
            )
            message = f"{what}. {self._remedy()}"
            # Closing a session whose server is gone may take for ever; this bounds it.
            self._termination.fail(message)
            raise ClusterError(message) from error

    def _remedy(self) -> str:
        if has_checkpoint(self._options.run_dir):
            return (
                f"Start the processes again with --run-dir {self._options.run_dir} --resume to "
                f"continue from the newest checkpoint."
            )
        return "There is no checkpoint to continue from: start a new run in another --run-dir."

    def _declare(self, hook: TraceHook) -> None:
        """Say what will be recorded beside the hook; a late stream costs a new segment."""
        declare = hook.writer.declare
        declare("startup/imports", unit="s", description="Imports in this process.")
        declare("startup/first_step", unit="s", description="Launch to the end of the first step.")

    def _chores(
        self, graph: TrainingGraph, hook: TraceHook, saver: v1.train.Saver, start: int
    ) -> Chores:
        return Chores(
            self._options,
            self._data,
            graph,
            report=self._report,
            hook=hook,
            saver=saver,
            start=start,
        )

    def _start_server(self) -> tuple[str, tuple[str, ...]]:
        """Start this process's server; the session's target and device filters."""
        topology = self._topology
        if topology is None:
            return "", ()
        server = v1.train.Server(
            topology.cluster(),
            job_name="worker",
            task_index=topology.index,
            config=server_config(),
        )
        if self._in_graph:
            wait_for_servers((*topology.ps, *topology.workers[1:]))
            return server.target, ()
        wait_for_servers(topology.ps)
        # Without filters a session waits for every worker of the cluster.
        return server.target, ("/job:ps", f"/job:worker/task:{topology.index}")

    def _batches(self, start: int) -> Iterator[Batch]:
        worker, workers = self._share_of_data()
        return self._data.batches(
            worker=worker,
            workers=workers,
            batch_size=self._options.samples_per_push,
            seed=self._options.seed,
            epochs=self._options.epochs,
            position=self._options.examples(start),
        )

    def _share_of_data(self) -> tuple[int, int]:
        """This worker's part of the data, and the number of parts: one per gradient worker.

        Who computes no gradients of its own, or those of all, draws from all of the data.
        """
        index, workers = self._replica.index, 1 if self._in_graph else self._replica.workers
        if self._options.synchronization == "kfac":
            workers = sum(role in ("all", "gradient") for role in kfac_roles(workers))
        return (index, workers) if index < workers else (0, 1)

    def _train(
        self,
        session: v1.train.SingularMonitoredSession,
        graph: TrainingGraph,
        hook: TraceHook,
        *,
        chores: Chores | None,
        barriers: Barriers | None,
        start: int,
    ) -> str:
        """The training loop.

        Returns:
            Why it ended: ``"steps"``, ``"data"`` or ``"interrupted"``.
        """
        limit = self._options.steps or math.inf
        step, fetches = start, _fetches(graph)
        for batch in self._batches(start):
            if barriers is not None and not self._begun and self._is_ready():
                self._begun = True
                everyone = barriers.wait_for_start(
                    _plain(session), self._termination.requested, self._options.barrier_timeout
                )
                if self._attendance is not None:
                    self._attendance.begin(_plain(session), self._over, everyone=everyone)
            if self._termination.requested.is_set():
                return "interrupted"
            if step >= limit or session.should_stop():
                return "steps"
            out = session.run(fetches, {graph.ids: batch.ids, graph.labels: batch.labels})
            before, step = step, self._after_step(out, hook)
            if self._own is not None and crossed(self._options.checkpoint_every, before, step):
                self._own.save(_plain(session), step)
            if chores is not None:
                chores.at(_plain(session), step)
        return "data" if step < limit else "steps"

    def _is_ready(self) -> bool:
        """Whether this worker may begin; a chief that needs nobody makes its slow steps alone."""
        alone = self._chief and self._options.synchronization in ALONE
        return not alone or self._pushes >= WARM_UP_STEPS

    def _after_step(self, out: dict[str, Any], hook: TraceHook) -> int:
        """Count a step; returns the global step that this worker has come to."""
        now = time.time()
        step = int(out["reached"])
        self._pushes += 1
        if "staleness" in out:
            self._staleness_sum = (self._staleness_sum or 0) + int(out["staleness"])
        if "dropped" in out:
            self._dropped = int(out["dropped"])
        if self._first is None:
            self._first = (step, now)
            self._report_start(hook, step, now)
        self._last = (step, now)
        if now - self._reported_s > REPORT_EVERY_S:
            self._reported_s = now
            self._report({"kind": "step", "step": step, "loss": float(out["loss"])})
        return step

    def _report_loss(self, process: str) -> None:
        self._report({"kind": "lost", "process": process, "how": "does not answer any more"})

    def _report_start(self, hook: TraceHook, step: int, now: float) -> None:
        startup = now - self._launched_s
        hook.writer.record("startup/imports", self._import_s, step=step)
        hook.writer.record("startup/first_step", startup, step=step)
        self._report(
            {
                "kind": "started",
                "process": self._process,
                "import_s": self._import_s,
                "startup_s": startup,
            }
        )

    def _part(
        self,
        session: v1.train.SingularMonitoredSession,
        graph: TrainingGraph,
        barriers: Barriers | None,
        chores: Chores | None,
    ) -> None:
        """Leave the cluster: at once as a worker, last as the chief."""
        plain = _plain(session)
        if self._own is not None and self._options.checkpoint_every and self._pushes:
            self._own.save(plain, self._last[0])
        if barriers is not None and not self._begun:
            plain.run(barriers.ready_op)  # nobody is to wait for this worker
        if graph.push.leave_op is not None:
            plain.run(graph.push.leave_op)
        if chores is None:
            if barriers is not None:
                plain.run(barriers.done_op)
            return
        if self._attendance is not None and not self._termination.requested.is_set():
            self._attendance.wait_for_others(
                plain,
                graph.global_step if graph.progress is None else graph.progress,
                self._termination.requested,
                self._options.barrier_timeout,
            )
        chores.finish(plain, self._termination.requested.is_set())
        if graph.progress is not None:
            self._exchanges = int(plain.run(graph.progress))
        if barriers is not None:
            barriers.stop_servers(plain)

    def _done_event(self, graph: TrainingGraph, reason: str) -> dict[str, Any]:
        first = self._first or (0, 0.0)
        pushes = self._pushes if graph.gradients else 0
        return {
            "kind": "done",
            "process": self._process,
            "reason": reason,
            "pushes": pushes,
            "samples": pushes * self._options.samples_per_push,
            "first_step": first[0],
            "last_step": self._last[0],
            "first_time_s": first[1],
            "last_time_s": self._last[1],
            "staleness_sum": self._staleness_sum,
            "dropped": self._dropped,
            "exchanges": self._exchanges,
        }


def _leave_unended(hook: TraceHook) -> None:
    """Write what was recorded and close the trace without its proper end."""
    hook.drain()
    hook.writer.close(ended=False)


def _fetches(graph: TrainingGraph) -> dict[str, Any]:
    said = {
        "reached": graph.reached,
        "loss": graph.loss,
        "staleness": graph.staleness,
        "dropped": graph.dropped,
    }
    return {"op": graph.push.op, **{name: t for name, t in said.items() if t is not None}}


def _plain(session: v1.train.SingularMonitoredSession) -> v1.Session:
    """The session without its hooks."""
    return session.run_step_fn(lambda step_context: step_context.session)
