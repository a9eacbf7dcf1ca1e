"""Which runs can be compared, and by what."""

from collections.abc import Sequence
from pathlib import Path

from deepinsight.dashboard.several import opened_all
from deepinsight.figures import scalar_streams


def common_streams(folder: Path, keys: Sequence[str] | None) -> list[str]:
    """Scalar streams that at least one of the runs holds."""
    with opened_all(folder, keys) as runs:
        return list(scalar_streams(runs))


def preferred_stream(streams: Sequence[str], asked: str | None) -> str | None:
    """The stream asked for if there is one, else the held-out AUC, else the first."""
    wishes = (asked, "eval/auc", "train/loss", *streams)
    return next((wish for wish in wishes if wish in streams), None)
