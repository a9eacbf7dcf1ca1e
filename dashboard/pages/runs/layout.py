"""The list of all runs."""

import math
from pathlib import Path

from dash import dcc, html
from dash.development.base_component import Component

from deepinsight.dashboard.address import make_query
from deepinsight.dashboard.pages.runs.ids import Runs
from deepinsight.dashboard.parts import (
    MISSING,
    TICK_MS,
    badge,
    duration,
    heading,
    message,
    moment,
    number,
)
from deepinsight.report.summary import RunSummary

COLUMNS = (
    ("Run", ""),
    ("Status", ""),
    ("Model", "text"),
    ("Optimizer", "text minor"),
    ("Sync", "text minor"),
    ("Processes", "num minor"),
    ("Last step", "num"),
    ("Eval AUC", "num"),
    ("Train loss", "num"),
    ("Samples/s", "num"),
    ("Started", "minor"),
    ("Ran for", "num minor"),
)


def build(folder: Path, query: dict[str, list[str]]) -> Component:
    """The page."""
    return html.Div(
        [
            heading("Runs", f"Every run below {folder}, the newest first."),
            html.Div(id=Runs.TABLE),
            dcc.Store(id=Runs.VERSION),
            dcc.Interval(id=Runs.TICK, interval=TICK_MS),
        ]
    )


def table(entries: list[tuple[str, RunSummary | str]]) -> Component:
    """One row per run; a run that cannot be read has the reason in place of its numbers."""
    if not entries:
        return message(
            "There are no runs in this folder yet. They appear here as soon as one is written: "
            "by deepinsight train, by a hook (deepinsight.TraceHook, deepinsight.TraceCallback), "
            "or by deepinsight.Recorder."
        )
    head = html.Tr([html.Th(name, scope="col", className=kind) for name, kind in COLUMNS])
    rows = [row for key, summary in entries for row in run_rows(key, summary)]
    return html.Div(
        html.Table([html.Thead(head), html.Tbody(rows)], className="runs"), className="card scroll"
    )


def run_rows(key: str, summary: RunSummary | str) -> list[Component]:
    """A run's row, and below it one for what is wrong with it."""
    if isinstance(summary, str):
        dashes = [html.Td(MISSING, className=kind) for _, kind in COLUMNS[2:]]
        cells = [_name(key), html.Td(badge("unreadable")), *dashes]
        return [html.Tr(cells), _note(summary)]
    rate = summary.samples_per_second
    texts: list[tuple[str, str]] = [
        *((summary.setting(name), "") for name in ("model", "optimizer")),
        (summary.setting("synchronization"), summary.synchronized),
        (str(len(summary.processes)), ", ".join(f"{n}: {s}" for n, s in summary.processes)),
        (f"{summary.last_step:,}" if summary.last_step >= 0 else "", ""),
        _latest(summary, "eval/auc"),
        _latest(summary, "train/loss"),
        ("" if math.isnan(rate) else number(rate), "all processes together"),
        (moment(summary.created_time_s), ""),
        (duration(summary.duration_s), ""),
    ]
    cells = [
        html.Td(text or MISSING, className=kind, title=title or text)
        for (text, title), (_, kind) in zip(texts, COLUMNS[2:], strict=True)
    ]
    row = html.Tr([_name(key), html.Td(badge(summary.status)), *cells])
    return [row, *(_note(text) for text in summary.warnings)]


def _name(key: str) -> Component:
    link = dcc.Link(key, href="/weights" + make_query({"run": key}), title=key)
    return html.Th(link, scope="row")


def _latest(summary: RunSummary, stream: str) -> tuple[str, str]:
    value = summary.latest_of(stream)
    if value is None:
        return "", f"{stream} is not recorded"
    unit = "" if value.unit in ("", "1") else f" {value.unit}"
    return number(value.value) + unit, f"{stream} at step {value.step:,}"


def _note(text: str) -> Component:
    return html.Tr(html.Td(html.Div(text), colSpan=len(COLUMNS)), className="note")
