"""What a Keras optimizer knows about its own updates, as streams."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from deepinsight.collectors.probes import Scalars
from deepinsight.collectors.probes.base import Probe, StepReport, Stream


class OptimizerValues(Probe):
    """The values that an optimizer offers, one per variable, at the callback's cadence.

    An optimizer offers them by three members: ``traced_variables``, the Keras variables that there
    is a value for; ``traced_streams(labels)``, one `Stream` per quantity, with a label per
    variable; and ``traced_values()``, the value of each stream after the last update.

    Args:
        optimizer: Such an optimizer.
        names: Gives the labels of variables.
        scalars: The callback's `Scalars`: they choose streams by name.
    """

    name = "optimizer"

    def __init__(
        self,
        optimizer: Any,
        names: Callable[[Sequence[Any]], list[str]],
        scalars: Sequence[Scalars],
    ) -> None:
        super().__init__()
        self._optimizer, self._names, self._scalars = optimizer, names, scalars

    @staticmethod
    def offered_by(optimizer: Any) -> bool:
        """Whether the optimizer offers values."""
        return hasattr(optimizer, "traced_streams")

    def _wants(self, name: str) -> bool:
        return any(probe.wants(name) for probe in self._scalars)

    def streams(self, *, samples_known: bool, offered: frozenset[str]) -> Iterable[Stream]:
        """The optimizer's streams, with the names of the variables as labels."""
        del samples_known, offered
        labels = self._names(self._optimizer.traced_variables)
        return [s for s in self._optimizer.traced_streams(labels) if self._wants(s.name)]

    def values(self, report: StepReport) -> dict[str, Any]:
        """What the optimizer reports of its last update."""
        del report
        values = self._optimizer.traced_values()
        return {name: value for name, value in values.items() if self._wants(name)}
