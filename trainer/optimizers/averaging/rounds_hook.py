"""The session hook of optimizers with rounds, and what a worker knows of its last round."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from deepinsight.collectors.collection import trace_tensor
from deepinsight.collectors.graph import closure, fetched_elements, structure_key
from deepinsight.trainer.cluster.members import Members, Patience
from deepinsight.trainer.optimizers._statistics import free_prefix, traceable
from deepinsight.trainer.optimizers.averaging.rounds import Rounds

v1 = tf.compat.v1
REMEMBERED = 256  # structures of fetches


class _Kind(NamedTuple):
    """What a structure of fetches means; `leaves` keeps alive what its key is made of."""

    leaves: tuple[Any, ...]
    counts: tuple[tf.Tensor, ...]


class RoundsHook(v1.train.SessionRunHook):
    """Begins with the global values, counts own steps, and makes a turn when one is due.

    A session that is created anew, after a server was lost, begins anew.

    Args:
        built: Called before the graph is finished: returns the rounds.
        counts: The number of own steps after a step, by the op that counts it.
        interval_steps: Own steps between turns.
        starts: Whether to begin a launch.
        patience: How long to wait for other workers.
    """

    def __init__(
        self,
        built: Callable[[], Rounds],
        counts: Mapping[tf.Operation, tf.Tensor],
        *,
        interval_steps: int,
        starts: bool,
        patience: Patience,
    ) -> None:
        self._built, self._counts = built, counts
        self._interval, self._starts, self._patience = interval_steps, starts, patience

    def begin(self) -> None:
        """Look at the graph, which is about to be finished."""
        self._rounds, self._graph = self._built(), v1.get_default_graph()
        self._kinds: dict[Any, _Kind] = {}

    def after_create_session(self, session: v1.Session, coord: Any) -> None:
        """Take the global values, and take part."""
        del coord
        self._rounds.begin(session, starts=self._starts, patience=self._patience)

    def before_run(self, run_context: Any) -> v1.train.SessionRunArgs | None:
        """Ask for the number of own steps, if this run takes one."""
        args = run_context.original_args
        leaves: list[Any] = []
        key = structure_key(args.fetches, leaves)
        leaves.extend(args.feed_dict or ())
        key = (key, tuple([id(fed) for fed in args.feed_dict or ()]))
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= REMEMBERED:
                self._kinds.clear()
            kind = self._kinds[key] = _Kind(tuple(leaves), self._steps(args))
        return v1.train.SessionRunArgs(kind.counts) if kind.counts else None

    def _steps(self, args: v1.train.SessionRunArgs) -> tuple[tf.Tensor, ...]:
        fed = fetched_elements(self._graph, list(args.feed_dict or ()))
        fetched = fetched_elements(self._graph, args.fetches)
        ops = closure(fetched, frozenset(tensor.name for tensor in fed))
        return tuple(count for op, count in self._counts.items() if op in ops)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Take part in a round, if the run has brought the own steps to one."""
        if run_values.results is None:
            return
        now, taken = int(max(run_values.results)), len(run_values.results)
        if now // self._interval > (now - taken) // self._interval:
            self._rounds.exchange(run_context.session, self._patience)
        else:
            self._rounds.beat(run_context.session, self._patience)

    def end(self, session: v1.Session) -> None:
        """Leave: what was learnt since the last round is in no mean."""
        session.run(self._rounds.leave_op)


class _Fact(NamedTuple):
    name: str
    unit: str
    description: str


FACTS = (
    _Fact("rounds", "rounds", "Averaging rounds so far: the global step after the last one."),
    _Fact(
        "distance_to_mean",
        "1",
        "Norm of this worker's variables minus the workers' mean, before its last round ended.",
    ),
    _Fact("block_update", "1", "Norm of the last block update of all variables."),
    _Fact("wait_time", "s", "How long this worker has waited for the others in its last round."),
    _Fact("live_workers", "workers", "Workers that rounds waited for after the last one."),
)


class RoundFacts:
    """What a worker knows of its last round: one small variable on it, NaN before the first.

    Args:
        optimizer: Name of the optimizer, in the details of the streams.
    """

    def __init__(self, optimizer: str) -> None:
        self._known = v1.Variable(
            tf.fill([len(FACTS)], tf.constant(float("nan"), tf.float64)),
            trainable=False,
            collections=[v1.GraphKeys.LOCAL_VARIABLES],
            name="last_round",
            use_resource=True,
        )
        if not traceable():
            return
        prefix = free_prefix("sync", [fact.name for fact in FACTS], optimizer)
        values = tf.unstack(self._known.read_value())
        for fact, value in zip(FACTS, values, strict=True):
            trace_tensor(
                f"{prefix}/{fact.name}",
                value,
                fact.unit,
                description=fact.description,
                details={"optimizer": optimizer},
                every_n_steps=None,
            )

    def keep(
        self,
        *,
        distance: tf.Tensor,
        block_update: tf.Tensor,
        wait_s: tf.Tensor,
        members: Members,
        global_step: tf.Variable,
    ) -> tf.Operation:
        """Keep what is known of a round, in the device scope of the worker."""
        with tf.device(global_step.device):
            counted = tf.cast(
                tf.stack([tf.cast(global_step.read_value(), tf.int64), members.count()]), tf.float64
            )
        rounds, live = tf.unstack(counted)
        return self._known.assign(
            tf.stack([rounds, distance, block_update, wait_s, live]), read_value=False
        )
