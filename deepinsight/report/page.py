"""The HTML of a report: one file, no network, readable on paper."""

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files

import plotly.graph_objects as go
from plotly.io.json import to_json_plotly
from plotly.offline import get_plotlyjs

from deepinsight.figures import GRAPH_CONFIG, Table, is_empty_figure
from deepinsight.report.sections import Section
from deepinsight.report.summary import RunSummary

#: The file may run its own scripts and nothing else; it can load nothing from anywhere.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'"
)


def render_page(
    title: str,
    summaries: Mapping[str, RunSummary],
    comparison: Section | None,
    runs: Mapping[str, Iterable[Section]],
) -> Iterator[str]:
    """The file in pieces, so that a report of many figures never stands in memory as a whole.

    Args:
        title: Of the document; untrusted, like every text from a run.
        summaries: One per run, by the name that it has in the report.
        comparison: The section that compares them, if there are several.
        runs: The sections of each run.
    """
    assets = files("deepinsight.report") / "assets"
    yield (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{CONTENT_SECURITY_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n"
        f"<style>{(assets / 'report.css').read_text('utf-8')}</style>\n</head>\n<body>\n"
        f"<header><h1>{escape(title)}</h1>"
        f"<p>Written {time.strftime('%Y-%m-%d %H:%M %Z')} by deepinsight report.</p></header>\n"
        "<main>\n<h2>Summary</h2>\n"
    )
    yield _summary_table(summaries)
    if comparison is not None:
        yield "<h2>Comparison</h2>\n"
        yield from _figures(comparison)
    for number, (name, sections) in enumerate(runs.items()):
        yield f'<h2 id="run-{number}">{escape(name)}</h2>\n'
        yield _configuration(summaries[name])
        for section in sections:
            yield f"<h3>{escape(section.heading)}</h3>\n"
            yield from _figures(section)
    yield "</main>\n<script>"
    yield get_plotlyjs()
    yield f"</script>\n<script>const config = {_script_json(GRAPH_CONFIG)};\n"
    yield (assets / "report.js").read_text("utf-8")
    yield "</script>\n</body>\n</html>\n"


def _summary_table(summaries: Mapping[str, RunSummary]) -> str:
    """Facts down, runs across."""
    heads = "".join(
        f'<th scope="col"><a href="#run-{number}">{escape(name)}</a></th>'
        for number, name in enumerate(summaries)
    )
    columns = [summary_facts(summary) for summary in summaries.values()]
    facts = dict.fromkeys(fact for column in columns for fact in column)
    rows = "".join(
        f'<tr><th scope="row">{escape(fact)}</th>'
        + "".join(f"<td>{_cell(column.get(fact, ''))}</td>" for column in columns)
        + "</tr>\n"
        for fact in facts
    )
    table = f"<table><thead><tr><td></td>{heads}</tr></thead>\n<tbody>{rows}</tbody></table>"
    return f'<div class="scroll">{table}</div>\n'


def summary_facts(summary: RunSummary) -> dict[str, str | Sequence[str]]:
    """What the summary table says about a run, in the order of its rows; plain text."""
    facts: dict[str, str | Sequence[str]] = {"Status": summary.status}
    for label, key in (
        ("Model", "model"),
        ("Data", "data"),
        ("Optimizer", "optimizer"),
        ("Learning rate", "learning_rate"),
        ("Batch size", "batch_size"),
    ):
        if text := summary.setting(key):
            facts[label] = text
    if summary.synchronized:
        facts["Synchronization"] = summary.synchronized
    facts["Processes"] = [f"{name} ({status})" for name, status in summary.processes] or "none"
    facts["Started"] = _moment(summary.created_time_s)
    facts["Duration"] = _number(summary.duration_s, " s")
    facts["Last step"] = f"{summary.last_step:,} updates" if summary.last_step >= 0 else "none"
    facts["Streams"] = f"{summary.streams:,}"
    for value in summary.latest:
        unit = "" if value.unit in ("", "1") else f" {value.unit}"
        facts[value.label] = f"{value.value:.5g}{unit} at step {value.step:,}"
    facts["Throughput"] = _number(summary.samples_per_second, " samples/s")
    facts["Warnings"] = list(summary.warnings) or "none"
    return facts


def _configuration(summary: RunSummary) -> str:
    if not summary.config:
        return '<p class="note">This run recorded no configuration.</p>\n'
    rows = "".join(
        f'<tr><th scope="row">{escape(str(key))}</th><td>{escape(_plain(value))}</td></tr>'
        for key, value in summary.config.items()
    )
    return (
        f"<details><summary>Configuration ({len(summary.config)} settings)</summary>"
        f'<div class="scroll"><table><tbody>{rows}</tbody></table></div></details>\n'
    )


def _figures(section: Section) -> Iterator[str]:
    if section.note:
        yield f'<p class="note">{escape(section.note)}</p>\n'
    if section.table is not None:
        yield _numbers(section.table)
    for figure in section.figures:
        yield _empty(figure) if is_empty_figure(figure) else _figure(figure)


def _numbers(table: Table) -> str:
    """A table of which the first two columns name the row."""
    heads = "".join(f'<th scope="col">{escape(head)}</th>' for head in table.heads)
    rows = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        + "</tr>\n"
        for row in table.rows
    )
    return (
        f'<div class="scroll"><table class="numbers"><caption>{escape(table.caption)}</caption>'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>{rows}</tbody></table></div>\n"
    )


def _figure(figure: go.Figure) -> str:
    height = int(figure.layout.height or 400)
    title = figure.layout.title.text or "Figure"
    # to_json_plotly writes <, > and / as escapes, so that no text can end the script element.
    return (
        f'<figure><div class="plot" style="height:{height}px" role="img" aria-label="'
        f'{escape(_unescaped(title))}"></div>'
        f'<script type="application/json">{to_json_plotly(figure)}</script></figure>\n'
    )


def _empty(figure: go.Figure) -> str:
    """What is missing and why, as text: a blank picture would waste paper."""
    title = figure.layout.title.text
    reason = figure.layout.annotations[0].text.replace("<br>", " ")
    return f'<p class="note"><strong>{title}.</strong> {reason}</p>\n'


def _unescaped(text: str) -> str:
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def _script_json(value: object) -> str:
    return json.dumps(value).replace("<", "\\u003c")


def _cell(value: str | Sequence[str]) -> str:
    if isinstance(value, str):
        return escape(value)
    return "<br>".join(escape(part) for part in value)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _number(value: float, unit: str) -> str:
    return f"{value:,.5g}{unit}" if math.isfinite(value) else "not recorded"


def _moment(unix_s: float) -> str:
    if not math.isfinite(unix_s):
        return "not recorded"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))
