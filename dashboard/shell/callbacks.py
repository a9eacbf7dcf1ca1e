"""From the address to the page, and from the page's selectors back to the address."""

from functools import partial
from pathlib import Path
from typing import Any

from dash import Dash, Input, Output, State, no_update
from dash.exceptions import PreventUpdate

from deepinsight.dashboard.address import first, parse_query
from deepinsight.dashboard.pages import page_at
from deepinsight.dashboard.runs import run_keys
from deepinsight.dashboard.shell.ids import Shell, any_query_id
from deepinsight.dashboard.shell.layout import navigation


def register(app: Dash, folder: Path) -> None:
    """Wire the shell."""
    app.callback(
        Output(Shell.PAGE, "children"),
        Output(Shell.NAVIGATION, "children"),
        Output(Shell.SHOWN, "data"),
        Output(Shell.URL, "search"),
        Input(Shell.URL, "pathname"),
        Input(Shell.URL, "search"),
        Input(any_query_id(), "data"),
        State(Shell.SHOWN, "data"),
    )(partial(route, folder))
    app.clientside_callback(
        "function(shown) { document.title = shown ? shown.title : 'DeepInsight'; }",
        Input(Shell.SHOWN, "data"),
    )


def route(
    folder: Path, pathname: str, search: str, queries: list[str | None], shown: dict[str, Any]
) -> tuple[Any, Any, Any, Any]:
    """Show the page of a new address, or write the address of a new selection."""
    here = {"pathname": pathname or "/", "search": search or ""}
    page = page_at(here["pathname"])
    arrived = not shown or any(shown[part] != here[part] for part in here)
    if not arrived and (not queries or queries[0] in (None, shown["search"])):
        raise PreventUpdate
    if not arrived:
        here["search"] = str(queries[0])
    query = parse_query(here["search"])
    run = first(query, "run") or next(iter(run_keys(folder)), None)
    shown = {**here, "title": f"{page.title} · DeepInsight"}
    links = navigation(here["pathname"], run)
    if not arrived:
        return no_update, links, shown, here["search"]
    return page.build(folder, query), links, shown, no_update
