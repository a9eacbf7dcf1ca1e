"""Many small arrays in few tensors: one concatenated vector per device and dtype."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from deepinsight.collectors.probes.base import Probe, Variable


@dataclass
class Pack:
    """A vector tensor and where the arrays of each (probe, variable) lie in it."""

    probe: Probe
    tensor: Any = None
    layout: list[tuple[Variable, str, int, tuple[int, ...]]] = field(default_factory=list)

    def unpack(self, vector: np.ndarray) -> Iterator[tuple[Probe, Variable, dict[str, np.ndarray]]]:
        """One entry per variable, the arrays cut out of the fetched vector."""
        arrays: dict[str, dict[str, np.ndarray]] = {}
        variables: dict[str, Variable] = {}
        for variable, key, offset, shape in self.layout:
            piece = vector[offset : offset + math.prod(shape)].reshape(shape)
            arrays.setdefault(variable.name, {})[key] = piece
            variables[variable.name] = variable
        for name, found in arrays.items():
            yield self.probe, variables[name], found


def measure_parts(
    xp: Any, probe: Probe, variable: Variable, offered: Mapping[str, Any]
) -> dict[str, Any]:
    """What the probe's parts make of a variable, for the parts whose needs are offered exactly.

    Args:
        xp: Array operations.
        probe: The probe.
        variable: The variable.
        offered: ``weight``, ``weight_before``, ``gradient``: those that are at hand.
    """
    measured: dict[str, Any] = {}
    for part in probe.parts():
        if part.needs <= offered.keys():
            needed = {key: offered[key] for key in part.needs}
            measured.update(part.measure(xp, variable, **needed))
    return measured


def pack(tf: Any, measured: Sequence[tuple[Probe, Variable, Mapping[str, Any]]]) -> list[Pack]:
    """Concatenate measured tensors per probe, device and dtype, on that device."""
    pieces: dict[tuple[int, str, str], list[Any]] = {}
    packs: dict[tuple[int, str, str], Pack] = {}
    ends: dict[tuple[int, str, str], int] = {}
    for probe, variable, tensors in measured:
        for name, tensor in tensors.items():
            key = (id(probe), variable.device, tensor.dtype.name)
            target = packs.setdefault(key, Pack(probe))
            shape = tuple(int(n) for n in tensor.shape)
            offset = ends.get(key, 0)
            target.layout.append((variable, name, offset, shape))
            ends[key] = offset + math.prod(shape)
            with tf.device(variable.device or None):
                pieces.setdefault(key, []).append(tf.reshape(tensor, [-1]))
    for key, target in packs.items():
        with tf.device(key[1] or None):
            parts = pieces[key]
            target.tensor = tf.concat(parts, 0) if len(parts) > 1 else parts[0]
    return list(packs.values())
