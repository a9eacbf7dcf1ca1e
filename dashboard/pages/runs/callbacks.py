"""Keeping the list of runs up to date."""

import hashlib
import logging
from functools import partial
from pathlib import Path
from typing import Any

from dash import Dash, Input, Output, State
from dash.exceptions import PreventUpdate

from deepinsight.dashboard.follow import shortened, version_or_reason, without_folder
from deepinsight.dashboard.pages.runs.ids import Runs
from deepinsight.dashboard.pages.runs.layout import table
from deepinsight.dashboard.runs import opened, run_keys
from deepinsight.errors import DeepInsightError
from deepinsight.report.summary import RunSummary, summarise_run

_LOG = logging.getLogger(__name__)


def register(app: Dash, folder: Path) -> None:
    """Wire the page."""
    app.callback(
        Output(Runs.TABLE, "children"),
        Output(Runs.VERSION, "data"),
        Input(Runs.TICK, "n_intervals"),
        State(Runs.VERSION, "data"),
        # Dash forgets a call that is asked for again: a tick while one runs would end it.
        running=[(Output(Runs.TICK, "disabled"), True, False)],
    )(partial(update_table, folder))


def update_table(folder: Path, _ticks: int | None, version: str | None) -> tuple[Any, str]:
    """Draw the table if any run has changed."""
    keys = run_keys(folder)
    newest = hashlib.blake2b(digest_size=12)
    for key in keys:
        newest.update(version_or_reason(folder, key).encode())
    if newest.hexdigest() == version:
        raise PreventUpdate
    return table([(key, summary_or_reason(folder, key)) for key in keys]), newest.hexdigest()


def summary_or_reason(folder: Path, key: str) -> RunSummary | str:
    """What a run's row shows, or why it cannot be read."""
    try:
        with opened(folder, key) as run:
            return shortened(summarise_run(run), folder)
    except DeepInsightError as error:
        return without_folder(str(error), folder)
    except Exception:
        _LOG.exception("Run %r cannot be read", key)
        return "This run cannot be read. The terminal of the dashboard says why."
