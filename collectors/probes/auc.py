"""AUC: decayed, windowed and cumulative, side by side."""

from collections.abc import Iterable
from typing import Any

from deepinsight.collectors.probes.base import Predictions, Probe, StepReport, Stream


class AUC(Probe):
    """Live AUC of the training predictions: decayed, windowed and cumulative side by side.

    Every step's labels and scores count; the three values are recorded at the cadence. NaN while
    only one
    class has been seen.

    Args:
        labels: Tensor of 0/1 labels, for the session hook; any shape with one element per sample.
        scores: Tensor of scores of the same shape, for the session hook.
        sample_weight: Tensor of weights >= 0 of the same shape, or None.
        half_life: Half-life of the decayed AUC, in steps or seconds, > 0.
        window: Length of the windowed AUC, in steps or seconds, > 0.
        unit: ``"steps"`` or ``"seconds"``.
        from_logits: Whether scores are logits rather than probabilities.
        every_n_steps: See :class:`Probe`.
        every_n_seconds: See :class:`Probe`.

    Raises:
        ValueError: If only one of labels and scores is given, or a length is out of range.
    """

    name = "auc"
    wants_predictions = True

    def __init__(
        self,
        labels: Any = None,
        scores: Any = None,
        sample_weight: Any = None,
        *,
        half_life: float = 1000,
        window: float = 1000,
        unit: str = "steps",
        from_logits: bool = False,
        every_n_steps: int | None = None,
        every_n_seconds: float | None = None,
    ) -> None:
        super().__init__(every_n_steps=every_n_steps, every_n_seconds=every_n_seconds)
        if (labels is None) != (scores is None):
            raise ValueError("Give both `labels` and `scores`, or neither (Keras, Recorder).")
        if unit not in ("steps", "seconds"):
            raise ValueError(f'`unit` must be "steps" or "seconds". Received: unit={unit!r}.')
        if not half_life > 0:
            raise ValueError(f"`half_life` must be > 0. Received: half_life={half_life!r}.")
        if not window > 0:
            raise ValueError(f"`window` must be > 0. Received: window={window!r}.")
        self.labels, self.scores, self.sample_weight = labels, scores, sample_weight
        self.half_life, self.window, self.unit = half_life, window, unit
        self.from_logits = from_logits
        self.reset()

    def reset(self) -> None:
        """Start all three from nothing."""
        from deepinsight.diagnostics import CumulativeAUC, DecayedAUC, WindowedAUC

        logits = self.from_logits
        self._metrics = {
            "auc/decayed": DecayedAUC(half_life=self.half_life, unit=self.unit, from_logits=logits),
            "auc/windowed": WindowedAUC(window=self.window, unit=self.unit, from_logits=logits),
            "auc/cumulative": CumulativeAUC(from_logits=logits),
        }

    def streams(self, *, samples_known: bool, offered: frozenset[str]) -> Iterable[Stream]:
        """The three streams; each says how it forgets."""
        yield Stream(
            "auc/decayed",
            description="Training AUC; the weight of a sample halves every "
            f"{self.half_life} {self.unit}.",
        )
        yield Stream(
            "auc/windowed",
            description=f"Training AUC over the last {self.window} {self.unit}.",
        )
        yield Stream("auc/cumulative", description="Training AUC since this process began.")

    def observe(self, predictions: Predictions) -> None:
        """Take in one step's samples."""
        steps = self.unit == "steps"
        at = predictions.step if steps else predictions.wall_time_s
        for metric in self._metrics.values():
            metric.update(
                predictions.labels, predictions.scores, at, sample_weight=predictions.sample_weight
            )

    def values(self, report: StepReport) -> dict[str, Any]:
        """The three values now."""
        return {name: float(metric.result()) for name, metric in self._metrics.items()}
