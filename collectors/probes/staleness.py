"""Staleness from the global step alone, for any graph."""

from collections.abc import Iterable
from typing import Any

from deepinsight.collectors.probes.base import Probe, StepReport, Stream

STREAM = "staleness/global"


class Staleness(Probe):
    r"""An upper bound on how stale this worker's pushes are.

    .. math::  \hat\tau_k = \max(s_k - s_{k-1} - 1, 0)

    with :math:`s_k` the global step read after this process's k-th push. The worker pulls after its
    previous push at the earliest, so at most :math:`\hat\tau_k` updates by others lie between its
    pull and its push. Where the graph offers the exact ``staleness/global`` through
    ``trace_tensor`` that is recorded and this probe stays silent.

    Args:
        every_n_steps: See :class:`Probe`; every push unless given.
        every_n_seconds: See :class:`Probe`.
    """

    name = "staleness"
    default_every_n_steps = 1

    def streams(self, *, samples_known: bool, offered: frozenset[str]) -> Iterable[Stream]:
        """One stream, unless the exact one is offered."""
        if STREAM not in offered:
            yield Stream(
                STREAM,
                unit="updates",
                description="Upper bound: global updates by others since this worker's previous "
                "push. The exact staleness is at most this.",
            )

    def values(self, report: StepReport) -> dict[str, Any]:
        """The bound for this push; nothing at the first."""
        if STREAM in report.offered or report.previous_step is None:
            return {}
        return {STREAM: float(max(report.step - report.previous_step - report.own_steps, 0))}
