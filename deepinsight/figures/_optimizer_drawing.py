"""The picture of what an optimizer tells of itself."""

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from deepinsight.figures._clock import AXIS_TITLES
from deepinsight.figures._panels import Grid, add_heading, add_panel, make_grid
from deepinsight.figures._series import process_suffix
from deepinsight.figures._theme import (
    INK,
    MUTED,
    colour,
    dash,
    empty_figure,
    escape,
    new_figure,
    short,
    unit_words,
    wrap,
)
from deepinsight.figures.optimizer import HEADINGS, OptimizerInfo, OptimizerLine, OptimizerPanel

_TITLE = "What the optimizer recorded of itself"

#: Characters in a line of text above a panel.
_WIDTH = 60

#: Counts up to this are drawn as stairs; of larger ones the slope matters.
_STAIRS = 20

#: Pixels of a legend above the panels on a narrow screen, and its rows at most.
_LEGEND_WIDTH, _LEGEND_ROWS = 820, 5


def plot_optimizer(info: OptimizerInfo) -> go.Figure:
    """Draw the panels: a colour per run and a dash per process.

    Of one run, a scalar has a colour per process and a vector one per entry.
    """
    if not info.panels:
        return empty_figure(_TITLE, info.reason)
    texts = [_text(panel, len(info.runs)) for panel in info.panels]
    groups = _groups(info.panels)
    legend, above = _legend(info)
    grid = make_grid([[len(texts[number]) for number in own] for own in groups.values()], above)
    figure = new_figure(
        _TITLE, subtitle=_subtitle(info), height=grid.height, revision=_revision(info)
    )
    for number, heading in enumerate(groups):
        add_heading(figure, grid, number, heading)
    named = _name_processes(figure, info)
    for number, text in enumerate(texts):
        _draw(figure, grid, number, info, text, named)
    figure.update_layout(margin=grid.margins, showlegend=len(named) > 1, legend=legend)
    return figure


def _groups(panels: Sequence[OptimizerPanel]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for number, panel in enumerate(panels):
        groups.setdefault(HEADINGS[panel.stream.split("/")[0]], []).append(number)
    return groups


def _legend(info: OptimizerInfo) -> tuple[dict[str, Any], int]:
    """The legend and its height: above the panels, or beside them where there are many names."""
    several = len(info.runs) > 1
    names = [
        _who(info, key, process, several) for key in info.runs for process in _processes(info, key)
    ]
    if len(names) == 1:
        return {}, 0
    in_a_row = max(_LEGEND_WIDTH // max(50 + 7 * len(short(name)) for name in names), 1)
    rows = -(-len(names) // in_a_row)
    if rows > _LEGEND_ROWS:
        return {"groupclick": "togglegroup"}, 0
    above = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom"}
    return above | {"groupclick": "togglegroup"}, 8 + 20 * rows


def _who(info: OptimizerInfo, run: str, process: str, several: bool) -> str:
    return run + process_suffix(process, len(_processes(info, run))) if several else process


def _name_processes(figure: go.Figure, info: OptimizerInfo) -> set[tuple[str, str]]:
    """Explain the dashes where no line's colour stands for a process."""
    lines = [line for panel in info.panels for line in panel.lines]
    named: set[tuple[str, str]] = set()
    if len(info.runs) == 1 and all(line.entry for line in lines):
        for number, process in enumerate(_processes(info, info.runs[0])):
            named.add((info.runs[0], process))
            style = {"color": MUTED, "dash": dash(number), "width": 1.6}
            name, group = escape(short(process)), escape(process)
            figure.add_trace(
                go.Scatter(
                    x=[None], y=[None], name=name, legendgroup=group, mode="lines", line=style
                )
            )
    return named


def _draw(
    figure: go.Figure,
    grid: Grid,
    number: int,
    info: OptimizerInfo,
    text: Sequence[str],
    named: set[tuple[str, str]],
) -> None:
    panel = info.panels[number]
    about = f"{panel.stream}: {panel.description}" if panel.description else panel.stream
    x, y = add_panel(figure, grid, number, text, about)
    figure.layout[f"xaxis{x[1:]}"].title.text = AXIS_TITLES[info.against]
    axis = figure.layout[f"yaxis{y[1:]}"]
    unit = escape(unit_words(panel.unit))
    axis.title.text = f"{unit} (log scale)" if panel.logarithmic else unit
    axis.type = "log" if panel.logarithmic else "linear"
    still = panel.smallest == panel.largest > 0  # else the axis would be 2 wide around it
    axis.rangemode = "tozero" if panel.whole or still else "normal"
    axis.nticks = 5
    axis.exponentformat = "SI" if panel.unit == "bytes" else "power"
    for line in panel.lines:
        figure.add_trace(_trace(info, panel, line, named).update(xaxis=x, yaxis=y))


def _trace(
    info: OptimizerInfo, panel: OptimizerPanel, line: OptimizerLine, named: set[tuple[str, str]]
) -> go.Scatter:
    several = len(info.runs) > 1
    own = _processes(info, line.run).index(line.process)
    if several:
        shade = info.runs.index(line.run)
    else:
        shade = panel.entries.index(line.entry) if line.entry else own
    who = _who(info, line.run, line.process, several)
    new = (several or not line.entry) and (line.run, line.process) not in named
    if new:
        named.add((line.run, line.process))
    what = f"{short(line.entry)} · {short(who)}" if line.entry else short(who)
    return go.Scatter(
        x=line.series.x,
        y=line.series.y,
        name=escape(short(who)),
        legendgroup=escape(who),
        showlegend=new,
        legendrank=info.runs.index(line.run) if several else own,
        mode="lines" if line.series.x.size > 1 else "markers",
        line={
            "color": colour(shade),
            "dash": dash(own),
            "width": 1.6,
            "shape": "hv" if panel.whole and panel.largest <= _STAIRS else "linear",
        },
        hovertemplate=f"%{{x:,.4~f}}: %{{y:.5g}}<extra>{escape(what).replace('%{', '% {')}</extra>",
    )


def _processes(info: OptimizerInfo, run: str) -> tuple[str, ...]:
    return info.processes[info.runs.index(run)]


def _text(panel: OptimizerPanel, runs: int) -> list[str]:
    """What stands above a panel: its title, what it is, which entries, and what is not drawn."""
    lines = [f'<b style="font-size:13px;color:{INK}">{escape(panel.title)}</b>']
    description = wrap(panel.description, _WIDTH) if panel.description else []
    if len(description) > 2:
        description = [description[0], description[1].rstrip(".,;: ") + " …"]
    lines += [escape(line) for line in description]
    if panel.entries:
        lines += _key(panel, coloured=runs == 1)
    left_out = []
    if panel.more_processes:
        left_out.append(_count(panel.more_processes, "more process", "es"))
    if panel.non_finite:
        left_out.append(
            _count(panel.non_finite, "value", "s that are not finite", " that is not finite")
        )
    if left_out:
        lines.append(f"Not drawn: {', '.join(left_out)}")
    return lines


def _count(number: int, what: str, many: str, one: str = "") -> str:
    return f"{number:,} {what}{one if number == 1 else many}"


def _key(panel: OptimizerPanel, *, coloured: bool) -> list[str]:
    """The names of the entries shown, two in a line, and how many are not."""
    names = []
    for number, entry in enumerate(panel.entries):
        shade, mark = (colour(number), "\N{BLACK SQUARE} ") if coloured else (INK, "")
        names.append(f'<span style="color:{shade}">{mark}{escape(short(entry, 26))}</span>')
    if panel.more_entries:
        every = panel.more_entries + len(panel.entries)
        which = "those that move most" if len(names) > 1 else "the one that moves most"
        which = which if panel.moves else "all constant"
        names.append(f"{len(names)} of {every:,} shown, {which}")
    return [" \N{NO-BREAK SPACE}".join(names[i : i + 2]) for i in range(0, len(names), 2)]


def _subtitle(info: OptimizerInfo) -> str:
    facts = [f"{short(key)} {why}" for key, why in info.left_out]
    if info.more_streams:
        facts.append(_count(info.more_streams, "more stream", "s"))
    if facts:
        return f"Not shown: {'; '.join(facts)}"
    return "A panel for each stream under sync/ and optimizer/; a title tells more when pointed at"


def _revision(info: OptimizerInfo) -> str:
    shown = [panel.stream + ("~" if panel.logarithmic else "") for panel in info.panels]
    return f"{'|'.join(info.runs)}/optimizer/{info.against}/{'|'.join(shown)}"
