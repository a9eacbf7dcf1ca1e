"""Summaries of live TensorFlow variables outside of a session: one compiled function per probe."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from deepinsight.collectors.arrays import TensorFlowArrays
from deepinsight.collectors.packing import Pack, measure_parts, pack
from deepinsight.collectors.probes.base import Probe, Variable
from deepinsight.collectors.recording import Measured


class Snapshot:
    """Measures variables in one call of a ``tf.function`` per probe, each on its own device.

    Args:
        variables: Pairs of description and ``tf.Variable``.
    """

    def __init__(self, variables: Sequence[tuple[Variable, Any]]) -> None:
        self._variables = list(variables)
        self._compiled: dict[int, tuple[Probe, Any, list[Pack]]] = {}

    def holds(self, variables: Sequence[tuple[Variable, Any]]) -> bool:
        """Whether these are its variables, so that it can be used again."""
        return [(i, id(v)) for i, v in variables] == [(i, id(v)) for i, v in self._variables]

    def weights(self, probe: Probe) -> list[Measured]:
        """What the probe makes of the weights as they are."""
        if id(probe) not in self._compiled:
            self._compiled[id(probe)] = self._compile(probe)
        _, function, packs = self._compiled[id(probe)]
        vectors = function()
        measured: list[Measured] = []
        for one, vector in zip(packs, vectors, strict=True):
            measured.extend(one.unpack(vector.numpy()))
        return measured

    def _compile(self, probe: Probe) -> tuple[Probe, Any, list[Pack]]:
        packs: list[Pack] = []
        xp = TensorFlowArrays()

        def measure() -> list[Any]:
            measured = []
            for info, variable in self._variables:
                if probe.accepts(info):
                    with tf.device(variable.device or None):
                        tensors = measure_parts(xp, probe, info, {"weight": variable})
                    if tensors:
                        measured.append((probe, info, tensors))
            packs[:] = pack(tf, measured)
            return [p.tensor for p in packs]

        return probe, tf.function(measure, autograph=False), packs

    def copies(self, names: frozenset[str]) -> dict[str, Any]:
        """The values of the named variables now.

        Reading shares the buffer; the optimizer's next dense update then writes to a new one.
        """
        return {info.name: variable.read_value() for info, variable in self._variables_in(names)}

    def ratios(self, probe: Probe, before: dict[str, Any]) -> list[Measured]:
        """What the probe makes of the weights before and now, for the variables in `before`."""
        pairs = list(self._variables_in(frozenset(before)))
        if not pairs:
            return []
        key = -id(probe)
        if key not in self._compiled:
            xp = TensorFlowArrays()

            def measure(old: list[Any]) -> Any:
                ratios = []
                for (info, variable), value in zip(pairs, old, strict=True):
                    with tf.device(variable.device or None):
                        offered = {"weight": variable, "weight_before": value}
                        found = measure_parts(xp, probe, info, offered)
                        ratios.append(tf.cast(found["update_ratio"], tf.float64))
                return tf.stack(ratios)

            self._compiled[key] = (probe, tf.function(measure, autograph=False), [])
        _, function, _ = self._compiled[key]
        values = function([before[info.name] for info, _ in pairs]).numpy()
        return [
            (probe, info, {"update_ratio": value})
            for (info, _), value in zip(pairs, values, strict=True)
        ]

    def _variables_in(self, names: frozenset[str]) -> list[tuple[Variable, Any]]:
        return [(info, variable) for info, variable in self._variables if info.name in names]
