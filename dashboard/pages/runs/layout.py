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
    ("Optimizer", "text"),
    ("Sync", "text"),
    ("Processes", "num"),
    ("Last step", "num"),
    ("Eval AUC", "num"),
    ("Train loss", "num"),
    ("Samples/s", "num"),
    ("Started", ""),
    ("Ran for", "num"),
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
    created = summary.created_time_s
    cells = [
        _name(key),
        html.Td(badge(summary.status)),
        *(_setting(summary, name) for name in ("model", "optimizer", "synchronization")),
        _number(str(len(summary.processes)), ", ".join(f"{n}: {s}" for n, s in summary.processes)),
        _number(f"{summary.last_step:,}" if summary.last_step >= 0 else MISSING),
        _latest(summary, "eval/auc"),
        _latest(summary, "train/loss"),
        _number(MISSING if math.isnan(r := summary.samples_per_second) else number(r)),
        html.Td(moment(created), className="when"),
        _number(duration(summary.duration_s)),
    ]
    return [html.Tr(cells), *(_note(text) for text in summary.warnings)]


def _name(key: str) -> Component:
    link = dcc.Link(key, href="/weights" + make_query({"run": key}), title="Open this run")
    return html.Th(link, scope="row")


def _setting(summary: RunSummary, name: str) -> Component:
    text = summary.setting(name)
    return html.Td(text or MISSING, className="text", title=text)


def _number(text: str, title: str = "") -> Component:
    return html.Td(text, className="num", title=title)


def _latest(summary: RunSummary, stream: str) -> Component:
    value = summary.latest_of(stream)
    if value is None:
        return _number(MISSING, f"{stream} is not recorded")
    unit = "" if value.unit in ("", "1") else f" {value.unit}"
    return _number(number(value.value) + unit, f"{stream} at step {value.step:,}")


def _note(text: str) -> Component:
    return html.Tr(html.Td(text, colSpan=len(COLUMNS)), className="note")
