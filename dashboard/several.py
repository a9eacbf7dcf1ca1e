"""What the pages about several runs share: opening them, following them, saying what is missing."""

import functools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from deepinsight.dashboard.follow import look, version_or_reason
from deepinsight.dashboard.parts import TICK_MS, field, message, selector
from deepinsight.dashboard.runs import opened, run_keys
from deepinsight.errors import DeepInsightError
from deepinsight.traces import Run

#: Runs opened at once at most; more lines cannot be told apart anyway.
MOST_RUNS = 12

#: What the horizontal axis of several runs can count, and what the choice is called.
AGAINST = {"step": "steps", "samples": "samples", "seconds": "seconds"}


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


def chosen_runs(folder: Path, query: dict[str, list[str]], default: int) -> list[str]:
    """The runs that the address names and the folder has, else the newest ones."""
    keys = run_keys(folder)
    return [key for key in query.get("run", ()) if key in keys] or keys[:default]


def runs_bar(
    folder: Path,
    ids: Any,
    query: dict[str, list[str]],
    chosen: Sequence[str],
    *fields: Component,
) -> list[Component]:
    """The selectors of a page, the banner below, and the invisible parts that follow the runs."""
    keys = run_keys(folder)
    wanted = list(dict.fromkeys([*query.get("run", ()), *chosen]))
    runs = selector(ids.RUNS, keys, list(chosen), "Choose runs", multi=True)
    return [
        html.Div([field("Runs", runs, wide=True), *fields], className="controls"),
        html.Div(
            banner(folder, wanted), id=ids.BANNER, className="banner", **{"aria-live": "polite"}
        ),
        dcc.Store(id=ids.VERSION),
        dcc.Interval(id=ids.TICK, interval=TICK_MS),
    ]


def banner(folder: Path, wanted: Sequence[str]) -> list[Component]:
    """A line about each run that is wanted, or what keeps it from being shown."""
    if not wanted:
        return look(folder, None)[0]
    lines = [look(folder, key, named=len(wanted) > 1)[0] for key in wanted[:MOST_RUNS]]
    more = len(wanted) - MOST_RUNS
    if more > 0:
        lines.append([message(f"{more} more runs are not shown: {MOST_RUNS} at most.", "warning")])
    return [part for line in lines for part in line]


def register_follow_runs(app: Dash, folder: Path, ids: Any) -> None:
    """Wire a page's selector of runs: a version that changes with any of them, banner, list."""
    app.callback(
        Output(ids.VERSION, "data"),
        Output(ids.RUNS, "options"),
        Output(ids.BANNER, "children"),
        Input(ids.TICK, "n_intervals"),
        Input(ids.RUNS, "value"),
        State(ids.VERSION, "data"),
        State(ids.RUNS, "options"),
        prevent_initial_call=True,
        running=[(Output(ids.TICK, "disabled"), True, False)],  # see the page of all runs
    )(functools.partial(follow_runs, folder))


def follow_runs(
    folder: Path,
    _ticks: int | None,
    chosen: list[str] | None,
    version: str | None,
    options: list[str],
) -> tuple[Any, Any, Any]:
    """Say whether one of the runs, or the list of all, has changed."""
    keys = run_keys(folder)
    newest = "|".join(version_or_reason(folder, key) for key in chosen or ())
    if newest == version and keys == options:
        raise PreventUpdate
    return (
        no_update if newest == version else newest,
        no_update if keys == options else keys,
        banner(folder, chosen or ()),
    )
