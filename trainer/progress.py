"""What the processes of a run tell the launcher, and how it is shown.

A process writes one JSON object per line into a pipe; a line is shorter than a pipe's atomic
write, so lines of several processes do not mix. `kind` says what it is:

========  ==================================================================================
started   a worker has made its first step: import_s, startup_s (from launch, imports included)
step      a worker has come to global step `step` with batch loss `loss` (a few times a second)
eval      the chief has evaluated: step, loss, auc, train_loss, train_auc; last: at the end
lost      a worker was lost, and the others go on: process, how
done      a worker has ended: reason, pushes, samples, first_step, last_step, first_time_s,
          last_time_s, staleness_sum (None where gradients are never stale), dropped, exchanges
          (of workers that step alone; told by the chief)
========  ==================================================================================
"""

import json
import math
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO

EVENTS_VARIABLE = "DEEPINSIGHT_EVENTS_FD"
LINE_EVERY_S = 10.0
BAR_EVERY_S = 0.1
BAR_WIDTH = 24

Event = dict[str, Any]
Reporter = Callable[[Event], None]


def pipe_reporter(file_descriptor: int) -> Reporter:
    """A reporter that writes into the launcher's pipe."""

    def report(event: Event) -> None:
        with suppress(OSError):  # the launcher is gone; this process is about to be ended
            os.write(file_descriptor, (json.dumps(event) + "\n").encode())

    return report


class Display:
    """Shows events: one moving bar on a terminal, now and then a line elsewhere.

    Args:
        steps: The global step at which training ends, or None.
        out: Where to write.
    """

    def __init__(self, steps: int | None, out: TextIO | None = None) -> None:
        self._steps, self._out = steps, out or sys.stdout
        self._moving = self._out.isatty()
        self._started = time.monotonic()
        self._shown_at = float("-inf")
        self._step, self._loss = 0, float("nan")
        self._evaluation: Event | None = None
        self._evaluation_shown = False
        self.startup: dict[str, Event] = {}
        self.done: dict[str, Event] = {}
        self.lost: set[str] = set()

    @property
    def evaluation(self) -> Event | None:
        """The newest evaluation."""
        return self._evaluation

    @property
    def evaluation_shown(self) -> bool:
        """Whether the newest evaluation has a line of its own already."""
        return self._evaluation_shown

    @property
    def loss(self) -> float:
        """The newest batch loss that was told; NaN before any."""
        return self._loss

    @property
    def trained(self) -> bool:
        """Whether a step was told."""
        return self._step > 0

    def __call__(self, event: Event) -> None:
        """Take in an event."""
        kind = event["kind"]
        if kind == "started":
            self.startup[event["process"]] = event
            self.line(
                f"{event['process']}: first step {event['startup_s']:.1f} s after launch "
                f"({event['import_s']:.1f} s of it imports)"
            )
        elif kind == "eval":
            self._evaluation = event
            self._evaluation_shown = not (self._moving or event["last"])
            if self._evaluation_shown:
                self.line(_evaluation_text(event))
        elif kind == "lost" and event["process"] not in self.lost | set(self.done):
            self.lost.add(event["process"])
            self.line(f"{event['process']} {event['how']}; the others go on without it")
        elif kind == "done":
            self.done[event["process"]] = event
        elif kind == "step" and event["step"] >= self._step:
            self._step, self._loss = event["step"], event["loss"]
        self._show()

    def _show(self) -> None:
        now = time.monotonic()
        if now - self._shown_at < (BAR_EVERY_S if self._moving else LINE_EVERY_S):
            return
        if self._shown_at == float("-inf") and not self._step:
            return
        self._shown_at = now
        if self._moving:
            self._out.write("\r\x1b[K" + self._bar())
            self._out.flush()
        else:
            self.line(self._state())

    def _state(self) -> str:
        of = f"/{self._steps}" if self._steps else ""
        return f"step {self._step}{of}  loss {self._loss:.4f}"

    def _bar(self) -> str:
        text = self._state()
        if self._evaluation:
            text += f"  eval auc {self._evaluation['auc']:.4f}"
        if not self._steps:
            return text
        filled = min(BAR_WIDTH, BAR_WIDTH * self._step // self._steps)
        return f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {text}"

    def line(self, text: str) -> None:
        """Write a line, above the bar if there is one."""
        self._out.write(("\r\x1b[K" if self._moving else "") + text + "\n")
        self._out.flush()

    def clear(self) -> None:
        """Take the bar away."""
        if self._moving:
            self._out.write("\r\x1b[K")
            self._out.flush()


def _evaluation_text(event: Event) -> str:
    return (
        f"step {event['step']}  eval loss {event['loss']:.4f} auc {event['auc']:.4f}  "
        f"train loss {event['train_loss']:.4f} auc {event['train_auc']:.4f}"
    )


def count(number: int, noun: str) -> str:
    """``1 worker``, ``2 workers``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def summary(
    display: Display, run_dir: str, bayes_auc: float | None = None, *, alone: bool = False
) -> list[str]:
    """The last words of a run: what was reached, how fast, how stale, and what to type next.

    Args:
        display: What has been told.
        run_dir: The run.
        bayes_auc: The best possible AUC, where it is known.
        alone: Whether only one of several workers has told.
    """
    lines = []
    done = list(display.done.values())
    evaluation = display.evaluation
    if evaluation is not None and not display.evaluation_shown:
        lines.append("at the end: " + _evaluation_text(evaluation))
    if bayes_auc is not None:
        lines.append(f"the best possible auc on this data is {bayes_auc:.4f}")
    mine = " of this worker; the other workers' figures are in the trace" if alone else ""
    pushes = sum(d["pushes"] for d in done)
    if pushes:
        stepped = [d for d in done if d["last_time_s"]]  # who came too late has made no step
        steps = max(d["last_step"] for d in stepped) - min(d["first_step"] for d in stepped)
        seconds = max(d["last_time_s"] for d in stepped) - min(d["first_time_s"] for d in stepped)
        samples = sum(d["samples"] for d in done)
        rates = f"{steps / seconds:.0f} steps/s ({samples / seconds:.0f} samples/s)"
        said = [rates] if seconds > 0 else []
        ages = [d["staleness_sum"] for d in done if d["staleness_sum"] is not None]
        if ages:
            said.append(
                f"mean staleness {sum(ages) / pushes:.2f} updates over {pushes} pushes{mine}"
            )
        if said:
            lines.append(", ".join(said))
    dropped = [d["dropped"] for d in done if d["dropped"] is not None]
    if dropped:
        lines.append(f"{sum(dropped)} of {count(pushes, 'gradient')} dropped")
    for reason, text in (("data", "data ran out on"), ("interrupted", "told to end early:")):
        short = sorted(d["process"] for d in done if d["reason"] == reason)
        if short:
            lines.append(f"{text} {', '.join(short)}")
    if display.lost:
        lines.append(f"lost on the way: {', '.join(sorted(display.lost))}")
    losses = [display.loss] if display.trained else []
    losses += [evaluation["loss"]] if evaluation is not None else []
    if not all(math.isfinite(loss) for loss in losses):
        lines.append(
            "WARNING: the loss is not a finite number any more; a smaller --learning-rate may help"
        )
    if any(d.get("exchanges") == 0 for d in done):
        lines.append(
            "WARNING: the workers have not exchanged anything, so the model that was evaluated is "
            "untrained; give a smaller --communication-period"
        )
    parent = os.path.dirname(os.path.normpath(run_dir)) or "."
    lines += [f"the run is in {run_dir}", f"look at it: deepinsight dashboard {parent}"]
    return lines
