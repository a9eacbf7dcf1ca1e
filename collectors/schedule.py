"""When to record: cadences, and a budget that holds recording to a share of training time."""

import math
from dataclasses import dataclass

#: Later than any step.
NEVER = 1 << 62


@dataclass
class Cadence:
    """Due at the first step, then at every multiple of `every_n_steps` or after `every_n_seconds`.

    With several workers the global step jumps: crossing a multiple counts as reaching it.
    """

    every_n_steps: int | None
    every_n_seconds: float | None = None
    last_step: int | None = None
    last_time_s: float = 0.0

    def due(self, step: int, now_s: float) -> bool:
        """Whether the step that is about to run should be recorded."""
        if self.last_step is None:
            return True
        if self.every_n_seconds is not None:
            return now_s - self.last_time_s >= self.every_n_seconds
        assert self.every_n_steps is not None
        return step // self.every_n_steps > self.last_step // self.every_n_steps

    def next_step(self) -> int:
        """No step before this one is due; 0 if that depends on the time."""
        if self.last_step is None or self.every_n_steps is None:
            return 0
        return (self.last_step // self.every_n_steps + 1) * self.every_n_steps

    def mark(self, step: int, now_s: float) -> None:
        """The step was recorded, or passed over for the budget's sake."""
        self.last_step, self.last_time_s = step, now_s


class OverheadMeter:
    """Measures the share of training time that recording takes, and holds it to a budget.

    Overhead is the time that the hook spends on the training thread, plus what recorded steps take
    longer than the running mean of unrecorded ones. With a budget :math:`b`, an account gains
    :math:`b` seconds per second and pays for each recording; a recording is allowed while the
    account is not overdrawn, so that the share tends to at most :math:`b`. The first recording,
    which builds and compiles, is measured but not charged.

    Args:
        budget: Share of training time, 0 < budget < 1; None only measures.

    Raises:
        ValueError: If the budget is out of range.
    """

    #: The account never holds more than the budget of this many seconds.
    SAVED_SECONDS = 10.0

    def __init__(self, budget: float | None = None) -> None:
        if budget is not None and not 0 < budget < 1:
            raise ValueError(
                f"`overhead_budget` must be > 0 and < 1. Received: overhead_budget={budget!r}."
            )
        self.budget = budget
        self._account_s = 0.0
        self._plain_s = math.nan
        self._recordings = 0
        self._spent_s = 0.0
        self._elapsed_s = 0.0

    def allows(self) -> bool:
        """Whether the account allows a recording now."""
        return self.budget is None or self._account_s >= 0

    def step(self, run_s: float, hook_s: float, recorded: bool) -> None:
        """Account for one step.

        Args:
            run_s: Seconds of the step itself, with what recording added to it.
            hook_s: Seconds that the hook spent beside it.
            recorded: Whether anything was recorded in this step.
        """
        extra_s = 0.0
        if recorded:
            self._recordings += 1
            if not math.isnan(self._plain_s):
                extra_s = max(run_s - self._plain_s, 0.0)
        elif math.isnan(self._plain_s):
            self._plain_s = run_s
        else:
            # Outliers (a pause of the machine) move the mean by at most as much as a doubled step.
            self._plain_s += 0.05 * (min(run_s, 2 * self._plain_s) - self._plain_s)
        cost_s, total_s = hook_s + extra_s, run_s + hook_s
        self._spent_s += cost_s
        self._elapsed_s += total_s
        if self.budget is not None:
            first = recorded and self._recordings == 1
            self._account_s += self.budget * total_s - (0.0 if first else cost_s)
            self._account_s = min(self._account_s, self.budget * self.SAVED_SECONDS)

    def take_share(self) -> float:
        """The measured share since the last call; NaN if no time has passed."""
        share = self._spent_s / self._elapsed_s if self._elapsed_s > 0 else math.nan
        self._spent_s = self._elapsed_s = 0.0
        return share
