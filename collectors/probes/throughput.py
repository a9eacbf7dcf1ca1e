"""Throughput: time per step, steps and samples per second."""

from collections.abc import Iterable
from typing import Any

from deepinsight.collectors.probes.base import Probe, StepReport, Stream


class Throughput(Probe):
    """Wall time of a step, and steps and samples per second since the last record.

    ``throughput/step_time`` (s) is the wall time of the recorded step, from the end of the one
    before and without the recording itself. ``throughput/steps_per_second`` counts this process's
    steps since the last record, recording included; ``samples_per_second`` and ``samples``
    (cumulative) exist where the hook knows the batch size.

    Args:
        every_n_steps: See :class:`Probe`.
        every_n_seconds: See :class:`Probe`.
    """

    name = "throughput"

    def __init__(
        self, *, every_n_steps: int | None = None, every_n_seconds: float | None = None
    ) -> None:
        super().__init__(every_n_steps=every_n_steps, every_n_seconds=every_n_seconds)
        self._last: StepReport | None = None

    def reset(self) -> None:
        """Forget the last record."""
        self._last = None

    def start(self, report: StepReport) -> None:
        """Count from here: the moment before the first step."""
        self._last = report

    def streams(self, *, samples_known: bool, offered: frozenset[str]) -> Iterable[Stream]:
        """Step time and rates; the samples only where they are known."""
        yield Stream(
            "throughput/step_time",
            unit="s",
            description="Wall time of the recorded step without the recording.",
        )
        yield Stream(
            "throughput/steps_per_second",
            unit="1/s",
            description="Steps of this process per second since the last record.",
        )
        if samples_known:
            yield Stream(
                "throughput/samples_per_second",
                unit="samples/s",
                description="Samples of this process per second since the last record.",
            )
            yield Stream(
                "throughput/samples",
                unit="samples",
                description="Samples that this process has consumed since it began.",
            )

    def values(self, report: StepReport) -> dict[str, Any]:
        """Step time, and the rates since the last record."""
        last, self._last = self._last, report
        values: dict[str, Any] = {"throughput/step_time": report.step_time_s}
        if report.samples is not None:
            values["throughput/samples"] = float(report.samples)
        elapsed = report.wall_time_s - last.wall_time_s if last is not None else 0.0
        if last is None or not elapsed > 0:
            return values
        values["throughput/steps_per_second"] = (report.steps_done - last.steps_done) / elapsed
        if report.samples is not None and last.samples is not None:
            rate = (report.samples - last.samples) / elapsed
            values["throughput/samples_per_second"] = rate
        return values
