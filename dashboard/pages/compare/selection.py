"""Which runs can be compared, and by what."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from deepinsight.dashboard.runs import opened
from deepinsight.errors import DeepInsightError
from deepinsight.figures import scalar_streams
from deepinsight.traces import Run

#: Runs opened at once at most; more lines cannot be told apart anyway.
MOST_RUNS = 12


@contextmanager
def opened_all(folder: Path, keys: Sequence[str] | None) -> Iterator[dict[str, Run]]:
    """Open the runs that can be read, in the order of their keys."""
    with ExitStack() as stack:
        runs: dict[str, Run] = {}
        for key in list(keys or ())[:MOST_RUNS]:
            try:
                runs[key] = stack.enter_context(opened(folder, key))
            except (DeepInsightError, OSError):
                continue
        yield runs


def common_streams(folder: Path, keys: Sequence[str] | None) -> list[str]:
    """Scalar streams that at least one of the runs holds."""
    with opened_all(folder, keys) as runs:
        return list(scalar_streams(runs))


def preferred_stream(streams: Sequence[str], asked: str | None) -> str | None:
    """The stream asked for if there is one, else the held-out AUC, else the first."""
    wishes = (asked, "eval/auc", "train/loss", *streams)
    return next((wish for wish in wishes if wish in streams), None)
