"""What the pages about one run share: its selector, its banner, and following it while it grows."""

import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from dash import Dash, Input, Output, Patch, State, dcc, html, no_update
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from deepinsight.dashboard.parts import (
    TICK_MS,
    badge,
    duration,
    field,
    message,
    moment,
    revision_id,
    selector,
)
from deepinsight.dashboard.runs import opened, run_keys, run_version
from deepinsight.errors import DeepInsightError
from deepinsight.figures import empty_figure, is_empty_figure
from deepinsight.report.summary import RunSummary, summarise_run

_LOG = logging.getLogger(__name__)
Drawn = tuple[go.Figure | Patch, dict[str, str], str]

_UNREADABLE = "This run cannot be read just now. The terminal of the dashboard says why."


def run_bar(folder: Path, ids: Any, key: str | None, *fields: Component) -> list[Component]:
    """The selectors of a page, the banner below, and the invisible parts that follow the run."""
    keys = run_keys(folder)
    known = key if key in keys else None
    banner, version = look(folder, key)
    return [
        html.Div(
            [
                field("Run", selector(ids.RUN, keys, known, "Choose a run"), wide=True),
                *fields,
            ],
            className="controls",
        ),
        html.Div(banner, id=ids.BANNER, className="banner", **{"aria-live": "polite"}),
        dcc.Store(id=ids.VERSION, data=version),
        dcc.Interval(id=ids.TICK, interval=TICK_MS),
    ]


def register_follow(app: Dash, folder: Path, ids: Any) -> None:
    """Wire a page's run selector: a version that changes with the run, the banner, the list."""
    app.callback(
        Output(ids.VERSION, "data"),
        Output(ids.BANNER, "children"),
        Output(ids.RUN, "options"),
        Input(ids.TICK, "n_intervals"),
        Input(ids.RUN, "value"),
        State(ids.VERSION, "data"),
        State(ids.RUN, "options"),
        prevent_initial_call=True,
        running=[(Output(ids.TICK, "disabled"), True, False)],  # see the page of all runs
    )(functools.partial(follow, folder))


def follow(
    folder: Path, _ticks: int | None, key: str | None, version: str | None, options: list[str]
) -> tuple[Any, ...]:
    """Say what has changed since the page last looked; nothing is sent if nothing has."""
    keys = run_keys(folder)
    listed = no_update if keys == options else keys
    if key is None:
        banner: Any = no_update if listed is no_update else look(folder, None)[0]
        return _unless_idle(no_update, banner, listed)
    if version is not None and version == version_or_reason(folder, key):
        return _unless_idle(no_update, no_update, listed)
    banner, version = look(folder, key)
    return version, banner, listed


def _unless_idle(*outputs: Any) -> tuple[Any, ...]:
    if all(output is no_update for output in outputs):
        raise PreventUpdate
    return outputs


def version_or_reason(folder: Path, key: object) -> str:
    """The run's version; if it cannot be had, the reason, which is as good to tell a change."""
    try:
        return run_version(folder, key)
    except (DeepInsightError, OSError) as error:
        return f"{key}:{error}"


def look(folder: Path, key: object, *, named: bool = False) -> tuple[list[Component], str | None]:
    """The banner of a run, with its name if there are several, and the version it belongs to."""
    version = version_or_reason(folder, key)
    if key is None:
        empty = "There are no runs in this folder yet. They appear here as soon as one is written."
        text = "Choose a run." if run_keys(folder) else empty
        return [message(text)], None
    try:
        with opened(folder, key) as run:
            summary = shortened(summarise_run(run), folder)
            return run_banner(summary, str(key) if named else ""), version
    except DeepInsightError as error:
        return [message(without_folder(str(error), folder), "error")], version
    except Exception:
        _LOG.exception("Run %r cannot be read", key)
        return [message(_UNREADABLE, "error")], version


def shortened(summary: RunSummary, folder: Path) -> RunSummary:
    """The summary with warnings that name files relative to the runs folder."""
    warnings = tuple(without_folder(text, folder) for text in summary.warnings)
    return dataclasses.replace(summary, warnings=warnings)


def without_folder(text: str, folder: Path) -> str:
    """Name files relative to the runs folder: shorter, and nobody's business where it lies."""
    for root in {f"{folder}/", f"{folder.resolve()}/"}:
        text = text.replace(root, "")
    return text


def run_banner(summary: RunSummary, name: str = "") -> list[Component]:
    """One line about a run, with its name if it is given, and a line for each of its warnings."""
    what = [summary.setting("model"), summary.setting("optimizer"), summary.synchronized]
    facts = [
        *(part for part in what if part),
        f"{len(summary.processes)} process{'' if len(summary.processes) == 1 else 'es'}",
        f"step {summary.last_step:,}" if summary.last_step >= 0 else "nothing recorded yet",
        f"started {moment(summary.created_time_s)}",
        f"ran {duration(summary.duration_s)}",
    ]
    facts_line = html.Span([html.Span(fact) for fact in facts], className="facts")
    warnings = [message(text, "warning") for text in summary.warnings]
    parts = [html.Strong(name), badge(summary.status), facts_line][0 if name else 1 :]
    return [html.Div(parts, className="status-line"), *warnings]


def figure_or_reason(draw: Callable[..., go.Figure]) -> Callable[..., Drawn]:
    """Let a callback that draws a figure say what is wrong inside the figure.

    The last argument is the revision of the figure that the page shows. The figure comes with the
    height that it wants, since the width follows the page, and with its own revision.
    """

    @functools.wraps(draw)
    def drawn(folder: Path, *arguments: Any) -> Drawn:
        try:
            figure = draw(folder, *arguments[:-1])
        except PreventUpdate:
            raise
        except DeepInsightError as error:
            figure = empty_figure("Nothing to show", without_folder(str(error), folder))
        except Exception:
            _LOG.exception("%s cannot be drawn", draw.__name__)
            figure = empty_figure("Nothing to show", _UNREADABLE)
        revision = "" if is_empty_figure(figure) else revision_of(figure, arguments[0])
        figure.update_layout(uirevision=revision)
        shown = keep_view(figure) if revision and revision == arguments[-1] else figure
        return shown, {"height": f"{figure.layout.height}px"}, revision

    return drawn


def revision_of(figure: go.Figure, subject: object) -> str:
    """What the user's zoom belongs to: the figure's own revision, of the runs that are selected.

    Args:
        figure: The figure.
        subject: The callback's first argument: a run's key, several, or a snapshot that names one.
    """
    runs = subject.get("run") if isinstance(subject, dict) else subject
    return f"{runs}:{figure.layout.uirevision}"


def keep_view(figure: go.Figure) -> Patch:
    """A new state of the figure that a page shows, without the ranges of its axes.

    plotly's ``uirevision`` alone does not keep the user's zoom: Dash writes the zoomed ranges into
    the figure that it holds, after which plotly takes them for the figure's own.
    """
    whole = figure.to_plotly_json()
    patch = Patch()
    patch["data"] = whole["data"]
    for name, value in whole["layout"].items():
        if name.startswith(("xaxis", "yaxis")):
            for key in value.keys() - {"range", "autorange"}:
                patch["layout"][name][key] = value[key]
        elif name != "template":
            patch["layout"][name] = value
    return patch


def register_figure(
    app: Dash,
    folder: Path,
    graph: str,
    draw: Callable[..., go.Figure],
    inputs: Sequence[tuple[str, str]],
) -> None:
    """Wire one figure, as `parts.figure_card` lays it out, to what it depends on."""
    app.callback(
        Output(graph, "figure"),
        Output(graph, "style"),
        Output(revision_id(graph), "data"),
        *(Input(*pair) for pair in inputs),
        State(revision_id(graph), "data"),
    )(functools.partial(figure_or_reason(draw), folder))
