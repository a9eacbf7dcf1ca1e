"""Keras's logs of every step as rows of ``train/…`` and ``eval/…``."""

import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from deepinsight.collectors.probes import Scalars
from deepinsight.collectors.recording import Recording
from deepinsight.collectors.schedule import NEVER, Cadence
from deepinsight.traces import stream_name


class EpochLogs:
    """Collects the logs of every step, on whichever thread Keras brings them, and writes blocks.

    Args:
        probe: Says which logs are wanted and how often.
        writer: The trace writer.
        recording: Says whether the overhead budget allows more.
    """

    BLOCK = 64
    SECONDS = 0.5

    def __init__(self, probe: Scalars, writer: Any, recording: Recording) -> None:
        self._probe, self._writer, self._recording = probe, writer, recording
        if probe.every_n_seconds is not None:
            self._cadence = Cadence(None, probe.every_n_seconds)
        else:
            self._cadence = Cadence(probe.every_n_steps or probe.default_every_n_steps)
        self._lock = threading.Lock()
        self._rows: list[tuple[int, float, Mapping[str, Any]]] = []
        self._written_at = time.monotonic()
        self._time_s = 0.0

    def begin_epoch(self, iteration: int, steps: int, accumulation: int) -> None:
        """Steps of this epoch count from here."""
        self._iteration, self._steps, self._accumulation = iteration, steps, accumulation
        self._next = steps - 1

    def add(self, batch: int, logs: Any) -> None:
        """Keep one row; write a block if enough is there."""
        started = time.perf_counter()
        with self._lock:
            self._rows.append((batch, time.time(), logs or {}))
            enough = len(self._rows) >= self.BLOCK
            if enough or time.monotonic() - self._written_at > self.SECONDS:
                self._write()
            self._time_s += time.perf_counter() - started

    def take_time(self) -> float:
        """Seconds spent since the last call."""
        with self._lock:
            taken, self._time_s = self._time_s, 0.0
        return taken

    def _write(self, last_iteration: int | None = None) -> None:
        """Write the rows whose predecessors are all there; threads may bring them out of order."""
        all_rows = last_iteration is not None
        last_iteration = NEVER if last_iteration is None else last_iteration
        self._written_at = time.monotonic()
        self._rows.sort(key=lambda row: row[0])
        ready = []
        while self._rows and (all_rows or self._rows[0][0] <= self._next):
            if not all_rows and len(self._rows) == 1:
                break  # the last execution of an epoch may have been shorter
            row = self._rows.pop(0)
            self._next = row[0] + self._steps
            ready.append(row)
        columns: dict[str, tuple[list[int], list[float], list[Any]]] = {}
        for batch, wall_time_s, logs in ready:
            step = min(self._iteration + batch + 1, last_iteration) // self._accumulation
            now_s = time.monotonic()
            if not self._cadence.due(step, now_s) or not self._recording.meter.allows():
                continue
            self._cadence.mark(step, now_s)
            for key, value in logs.items():
                name = stream_name(f"train/{key}")
                if self._probe.wants(name) and np.ndim(value) == 0:
                    steps, times, values = columns.setdefault(name, ([], [], []))
                    steps.append(step)
                    times.append(wall_time_s)
                    values.append(float(value))
        for name, (steps, times, values) in columns.items():
            self._writer.record_block(
                name,
                np.asarray(values, np.float64),
                steps=steps,
                wall_times_s=times,
                unit=_unit(name),
                description="As Keras logs it: the mean since the epoch began.",
            )

    def end_epoch(self, logs: Any, iteration: int) -> None:
        """Write the rest, and the held-out values as ``eval/…``."""
        with self._lock:
            self._write(iteration)
        step = iteration // self._accumulation
        for key, value in (logs or {}).items():
            name = stream_name(f"eval/{key.removeprefix('val_')}")
            if key.startswith("val_") and self._probe.wants(name) and np.ndim(value) == 0:
                self._writer.record(
                    name,
                    float(value),
                    step=step,
                    unit=_unit(name),
                    description="Held-out part, at the end of the epoch.",
                )


def _unit(name: str) -> str:
    """Units of the logs whose meaning is fixed by their name."""
    return (
        "1" if name.rpartition("/")[2] in ("auc", "accuracy", "acc", "precision", "recall") else ""
    )
