"""The frame around every page."""

from pathlib import Path

from dash import dcc, html
from dash.development.base_component import Component

from deepinsight.dashboard.address import make_query
from deepinsight.dashboard.pages import PAGES
from deepinsight.dashboard.shell.ids import Shell


def build(folder: Path) -> Component:
    """The page's frame: a bar with the navigation, and room for one page."""
    return html.Div(
        [
            dcc.Location(id=Shell.URL, refresh=False),
            dcc.Store(id=Shell.SHOWN),
            html.A("Skip to the content", href="#content", className="skip"),
            html.Header(
                [
                    dcc.Link(
                        [html.Img(src="/assets/favicon.svg", alt="", height=26), "DeepInsight"],
                        href="/",
                        className="brand",
                    ),
                    html.Nav(id=Shell.NAVIGATION, **{"aria-label": "Pages"}),
                    html.Span(folder.name, className="folder", title=str(folder)),
                ],
                className="top",
            ),
            html.Main(html.Div(id=Shell.PAGE, className="page"), id="content"),
        ]
    )


def navigation(pathname: str, run: str | None) -> list[Component]:
    """Links to the pages; they carry the run that is being looked at."""
    return [
        dcc.Link(
            page.title,
            href=page.path + (make_query({"run": run}) if page.needs_run else ""),
            className="current" if page.path == pathname else "",
        )
        for page in PAGES
    ]
