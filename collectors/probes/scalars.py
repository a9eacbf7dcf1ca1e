"""Scalars: whatever the training offers by name."""

from typing import Any

from deepinsight.collectors.probes.base import Probe, StepReport


class Scalars(Probe):
    """Values that the training offers by name, as they are.

    In a session these are the tensors of ``trace_tensor``; in Keras the logs (``loss`` becomes
    ``train/loss``, ``val_loss`` ``eval/loss``); in a recorder what ``after_step(scalars=…)`` is
    given.

    Args:
        names: Only these stream names; None takes all.
        every_n_steps: See :class:`Probe`; every step unless given.
        every_n_seconds: See :class:`Probe`.
    """

    name = "scalars"
    default_every_n_steps = 1

    def __init__(
        self,
        names: list[str] | tuple[str, ...] | None = None,
        *,
        every_n_steps: int | None = None,
        every_n_seconds: float | None = None,
    ) -> None:
        super().__init__(every_n_steps=every_n_steps, every_n_seconds=every_n_seconds)
        self.names = frozenset(names) if names is not None else None

    def wants(self, name: str) -> bool:
        """Whether the value of this name is recorded."""
        return self.names is None or name in self.names

    def values(self, report: StepReport) -> dict[str, Any]:
        """The offered values, filtered by name."""
        return {name: value for name, value in report.scalars.items() if self.wants(name)}
