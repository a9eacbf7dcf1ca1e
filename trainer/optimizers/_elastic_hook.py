"""The session hook of elastic averaging: it counts own steps and exchanges when one is due."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from deepinsight.collectors.graph import closure, fetched_elements, structure_key

v1 = tf.compat.v1
REMEMBERED = 256  # structures of fetches


class _Kind(NamedTuple):
    """What a structure of fetches means; `leaves` keeps alive what its key is made of."""

    leaves: tuple[Any, ...]
    counts: tuple[tf.Tensor, ...]


class OwnSteps:
    """Which runs of a session take steps, and what they count to.

    Args:
        graph: The graph.
        counts: The tensors that hold the number of own steps, by the op that raises it: valid in
            runs of that op, and only then.
    """

    def __init__(self, graph: tf.Graph, counts: Mapping[tf.Operation, tf.Tensor]) -> None:
        self._graph, self._counts = graph, dict(counts)
        self._kinds: dict[Any, _Kind] = {}

    def of(self, args: v1.train.SessionRunArgs) -> tuple[tf.Tensor, ...]:
        """The counts that a run takes on; none if it takes no step."""
        leaves: list[Any] = []
        key = structure_key(args.fetches, leaves)
        leaves.extend(args.feed_dict or ())
        key = (key, tuple(id(fed) for fed in args.feed_dict or ()))
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= REMEMBERED:
                self._kinds.clear()
            kind = self._kinds[key] = _Kind(tuple(leaves), self._find(args))
        return kind.counts

    def _find(self, args: v1.train.SessionRunArgs) -> tuple[tf.Tensor, ...]:
        feeds = fetched_elements(self._graph, list(args.feed_dict or ()))
        ops = closure(
            fetched_elements(self._graph, args.fetches), frozenset(fed.name for fed in feeds)
        )
        return tuple(count for op, count in self._counts.items() if op in ops)


class ExchangeHook(v1.train.SessionRunHook):
    """Exchanges after every `period` own steps, in a run of its own.

    Args:
        period: Own steps between exchanges.
    """

    def __init__(self, period: int) -> None:
        self._period = period

    def count(self, counts: Mapping[tf.Operation, tf.Tensor]) -> None:
        """Say, when the graph is built, what counts own steps; see `OwnSteps`."""
        self._steps = OwnSteps(v1.get_default_graph(), counts)

    def exchange(self, session: v1.Session) -> None:
        """Make an exchange, with a session without hooks."""
        raise NotImplementedError

    def before_run(self, run_context: Any) -> v1.train.SessionRunArgs | None:
        """Ask what the own steps come to, if this run takes one."""
        counts = self._steps.of(run_context.original_args)
        return v1.train.SessionRunArgs(counts) if counts else None

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Exchange if the run has taken the own steps to or over a multiple of the period."""
        if run_values.results is None:
            return
        now, taken = max(run_values.results), len(run_values.results)
        if now // self._period > (now - taken) // self._period:
            self.exchange(run_context.session)
