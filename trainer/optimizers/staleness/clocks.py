"""The workers' clocks under stale-synchronous parallel, kept beside the global step."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from deepinsight.collectors.graph import closure, fetched_elements, structure_key
from deepinsight.trainer.cluster.members import Members, Patience
from deepinsight.trainer.errors import ClusterError

v1 = tf.compat.v1
START_TIMEOUT_S = 60.0
FIRST_PAUSE_S = 0.001
REMEMBERED = 256  # structures of fetches


class Look(NamedTuple):
    """All clocks at a moment; int64 arrays ``[workers]``.

    Attributes:
        clocks: Steps of each worker.
        live: 1 for a worker that is waited for.
        progress: Signs of life of each worker.
    """

    clocks: np.ndarray
    live: np.ndarray
    progress: np.ndarray

    def slower(self, worker: int, bound: int) -> list[int]:
        """The live workers that are more than `bound` steps behind a worker."""
        behind = (self.live > 0) & (self.clocks[worker] - self.clocks > bound)
        return np.flatnonzero(behind).tolist()

    def lead(self, worker: int) -> int:
        """How far a worker is ahead of the slowest live one."""
        counted = (self.live > 0) | (np.arange(len(self.live)) == worker)
        return int(self.clocks[worker] - self.clocks[counted].min())


class Clocks:
    """The clocks, in the graph of one worker.

    Args:
        worker: Index of this worker.
        workers: Number of workers.
        device: That of the global step.

    Attributes:
        members: Who is waited for.
        start_op: The chief runs it once per launch: all clocks are 0, and everybody is expected.
        leave_op: A worker runs it when it steps no more.
        variables: Variables that belong to one launch.
        ticked: After `tick`: the op that raises this worker's clock.
        lead: After `tick`: steps ahead of the slowest live worker, int64 scalar.
        live_workers: After `tick`: how many are waited for, int64 scalar.
    """

    def __init__(self, worker: int, workers: int, device: str) -> None:
        if not 0 <= worker < workers:
            raise ValueError(
                f"The worker's index must be in [0, {workers}), the number of workers. "
                f"Received: {worker}."
            )
        self.worker, self._workers, self._device = worker, workers, device
        with tf.device(device):
            self.members = Members(workers, "bounded")
            # In no collection: who finds it initialised knows that the launch has begun.
            self._clocks = v1.get_variable(
                "bounded/clocks", [workers], tf.int64, v1.zeros_initializer(),
                trainable=False, use_resource=True, collections=[],
            )  # fmt: skip
            with tf.control_dependencies([self.members.start_op]):
                self.start_op = self._clocks.assign(tf.zeros([workers], tf.int64), read_value=False)
            self._started = tf.raw_ops.VarIsInitializedOp(resource=self._clocks.handle)
            self._seen = tf.stack(
                [self._clocks.read_value(), self.members.live, self.members.progress]
            )
            clocks, live = self._read()
            self._join = self._set(tf.maximum(clocks[worker], _front(clocks, live)))
        self.leave_op = self.members.leave(worker)
        self.variables = (self._clocks, *self.members.variables)

    def tick(self, after: list[tf.Operation | tf.Tensor]) -> tf.Operation:
        """Raise the worker's clock by one step, and look where the others are.

        A worker that nobody waited for any more comes in again at the front of the live ones.
        """
        with tf.device(self._device):
            with tf.control_dependencies(after):
                clocks, live = self._read()
            following = clocks[self.worker] + 1
            front = tf.where(live[self.worker] > 0, following, _front(clocks, live))
            self.ticked = self._set(tf.maximum(following, front))
            with tf.control_dependencies([self.ticked]):
                clocks, live = self._read()
            live = tf.maximum(live, tf.one_hot(self.worker, self._workers, dtype=tf.int64))
            slowest = tf.reduce_min(tf.where(live > 0, clocks, tf.int64.max))
            self.lead = clocks[self.worker] - slowest
            self.live_workers = tf.reduce_sum(live)
        return self.ticked

    def join(self, session: v1.Session) -> None:
        """Take part, at the front of the live workers, in a launch that has begun."""
        session.run(self._join)

    def await_start(self, session: v1.Session, patience: Patience) -> bool:
        """Wait until the chief has begun the launch.

        Returns:
            Whether it has: False if this process was told to stop.

        Raises:
            ClusterError: If nobody begins a launch.
        """
        deadline_s = time.monotonic() + max(START_TIMEOUT_S, patience.timeout_s)
        while not session.run(self._started):
            if patience.stop.wait(patience.poll_s):
                return False
            if time.monotonic() > deadline_s:
                raise ClusterError(
                    "The chief must set the workers' clocks. Received: nothing from it; give every "
                    "worker's session the optimizer's hook, with is_chief=True on one of them."
                )
        return True

    def look(self, session: v1.Session) -> Look:
        """Read all clocks, in a session without hooks."""
        return Look(*session.run(self._seen))

    def wait(self, session: v1.Session, bound: int, patience: Patience) -> Look:
        """Wait until this worker is at most `bound` steps ahead of the slowest live one.

        Workers that stand still for the patience's time-out meanwhile are waited for no more. When
        `patience.stop` is set, the wait ends at once.

        Returns:
            The last look.
        """
        pause_s, since = FIRST_PAUSE_S, _Standing()
        while True:
            seen = self.look(session)
            slower = seen.slower(self.worker, bound)
            if not slower:
                return seen
            lost = since.longer_than(patience.timeout_s, seen, slower)
            if lost:
                self.members.lose(session, lost)
            elif patience.stop.wait(pause_s):
                return seen
            pause_s = min(2 * pause_s, patience.poll_s)

    def _read(self) -> tuple[tf.Tensor, tf.Tensor]:
        return self._clocks.read_value(), self.members.live.read_value()

    def _set(self, value: tf.Tensor) -> tf.Operation:
        """Set this worker's clock, and only then let the others wait for it."""
        clock = tf.raw_ops.ResourceScatterUpdate(
            resource=self._clocks.handle,
            indices=tf.constant([self.worker], tf.int64),
            updates=tf.expand_dims(value, 0),
        )
        with tf.control_dependencies([clock]):
            return self.members.arrive(self.worker)


class _Standing:
    """Since when each worker has given no sign of life."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[tuple[int, int], float]] = {}

    def longer_than(self, timeout_s: float, seen: Look, workers: list[int]) -> list[int]:
        now_s, silent = time.monotonic(), []
        for worker in workers:
            sign = (int(seen.clocks[worker]), int(seen.progress[worker]))
            last, since_s = self._last.get(worker, (None, now_s))
            self._last[worker] = (sign, since_s if sign == last else now_s)
            if sign == last and now_s - since_s > timeout_s:
                silent.append(worker)
        return silent


class _Kind(NamedTuple):
    """Whether a structure of fetches is a step; `leaves` keeps alive what its key is made of."""

    leaves: tuple[Any, ...]
    steps: bool


class ClockHook(v1.train.SessionRunHook):
    """Holds a worker back that is too far ahead; see `BoundedStalenessOptimizer`.

    Between two looks the worker's lead grows by at most one per step of its own. So a step asks for
    it, in its own run, only if the lead might exceed the bound after it, and only if it does, the
    hook looks again until the others have come closer.

    Args:
        built: Called before the graph is finished: returns the clocks, and the placeholder for the
            seconds waited before a step.
        bound: Steps that a worker may be ahead, >= 0.
        starts: Whether to begin a launch.
        awaits: Whether to wait until another worker has begun it.
        patience: How long to wait for workers that stand still.
    """

    def __init__(
        self,
        built: Callable[[], tuple[Clocks, tf.Tensor]],
        bound: int,
        *,
        starts: bool,
        awaits: bool,
        patience: Patience,
    ) -> None:
        self._built, self._bound = built, bound
        self._starts, self._awaits, self._patience = starts, awaits, patience

    def begin(self) -> None:
        """Look at the graph, which is about to be finished."""
        self._clocks, self._waited_s = self._built()
        self._graph = v1.get_default_graph()
        self._kinds: dict[Any, _Kind] = {}

    def after_create_session(self, session: v1.Session, coord: Any) -> None:
        """Begin the launch as the chief, and take part."""
        del coord
        if self._starts:
            session.run(self._clocks.start_op)
        if not self._awaits or self._clocks.await_start(session, self._patience):
            self._clocks.join(session)
        self._lead, self._looked_s = self._bound + 1, time.monotonic()

    def before_run(self, run_context: Any) -> v1.train.SessionRunArgs | None:
        """Wait before a step, if the worker is too far ahead."""
        if not self._is_step(run_context.original_args):
            return None
        began_s = time.monotonic()
        # Who was off the list for a while has a new clock, but not without standing still.
        outdated = began_s - self._looked_s > self._patience.timeout_s / 2
        waited_s = 0.0
        if self._lead > self._bound or outdated:
            seen = self._clocks.wait(run_context.session, self._bound, self._patience)
            self._lead, self._looked_s = seen.lead(self._clocks.worker), time.monotonic()
            waited_s = self._looked_s - began_s
        fetches = [self._clocks.lead] if self._lead + 1 > self._bound else []
        self._asked_s = time.monotonic()
        return v1.train.SessionRunArgs([fetches], {self._waited_s: waited_s})

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Note how far ahead the worker is, at most, after its step."""
        if run_values.results is None:
            return
        (found,) = run_values.results
        if found:
            self._lead, self._looked_s = int(found[0]), self._asked_s
        else:
            self._lead += 1

    def end(self, session: v1.Session) -> None:
        """Leave, so that nobody waits for this worker any more."""
        session.run(self._clocks.leave_op)

    def _is_step(self, args: v1.train.SessionRunArgs) -> bool:
        leaves: list[Any] = []
        key = structure_key(args.fetches, leaves)
        leaves.extend(args.feed_dict or ())
        key = (key, tuple([id(fed) for fed in args.feed_dict or ()]))
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= REMEMBERED:
                self._kinds.clear()
            fed = fetched_elements(self._graph, list(args.feed_dict or ()))
            fetched = fetched_elements(self._graph, args.fetches)
            ops = closure(fetched, frozenset(tensor.name for tensor in fed))
            kind = self._kinds[key] = _Kind(tuple(leaves), self._clocks.ticked in ops)
        return kind.steps


def _front(clocks: tf.Tensor, live: tf.Tensor) -> tf.Tensor:
    return tf.reduce_max(tf.where(live > 0, clocks, tf.zeros_like(clocks)))
