"""Which snapshots of which variables a run holds."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from deepinsight.dashboard.runs import opened
from deepinsight.errors import DeepInsightError
from deepinsight.figures import heatmap_stream, heatmap_variables
from deepinsight.traces import Run

Steps = npt.NDArray[np.int64]

NO_STEPS: Steps = np.empty(0, np.int64)


def variables_and_steps(
    folder: Path, key: str | None, asked: str | None
) -> tuple[list[str], str | None, Steps]:
    """The variables of a run, the one to show, and the steps of its snapshots.

    Args:
        folder: The runs folder.
        key: The run's key; anything the browser sent.
        asked: The variable that should be shown if the run holds it.
    """
    try:
        with opened(folder, key) as run:
            variables = list(heatmap_variables(run))
            variable = asked if asked in variables else next(iter(variables), None)
            return variables, variable, snapshot_steps(run, variable)
    except (DeepInsightError, OSError):
        return [], None, NO_STEPS


def snapshot_steps(run: Run, variable: str | None) -> Steps:
    """Distinct steps at which a variable was recorded, ascending."""
    if variable is None:
        return NO_STEPS
    return np.unique(run.steps(heatmap_stream(run, variable)))
