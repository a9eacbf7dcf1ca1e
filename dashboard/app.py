"""The Dash app: pages, the shell around them, and the guard in front."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from dash import Dash
from flask import Flask, redirect, request
from werkzeug.wrappers import Response

from deepinsight.dashboard import shell
from deepinsight.dashboard.address import make_query
from deepinsight.dashboard.pages import PAGES
from deepinsight.dashboard.runs import run_keys
from deepinsight.dashboard.security import protect

_PAGE = """<!doctype html>
<html lang="en">
  <head>
    {%metas%}
    <title>{%title%}</title>
    <link rel="icon" type="image/svg+xml" href="/assets/favicon.svg">
    {%css%}
  </head>
  <body>
    {%app_entry%}
    <footer>{%config%}{%scripts%}{%renderer%}</footer>
  </body>
</html>
"""


def create_app(runs_folder: str | Path, token: str | None = None) -> Dash:
    """Build the dashboard of one folder of runs.

    The app keeps no state between requests: everything a page shows is in its address and in the
    traces, so any number of server processes can serve it (``create_app(…).server`` is a WSGI
    application).

    Args:
        runs_folder: Folder below which runs are looked for; it need not exist yet.
        token: Secret that every request must know; None lets only this machine in (the Host
            header must name it).

    Returns:
        The app.
    """
    folder = Path(runs_folder).absolute()
    server = Flask("deepinsight.dashboard", static_folder=None)
    protect(server, token)
    server.before_request(partial(pin_run, folder))
    app = Dash(
        "deepinsight.dashboard",
        server=server,
        assets_folder=str(Path(__file__).parent / "assets"),
        pages_folder="",
        use_pages=False,
        serve_locally=True,
        compress=False,
        suppress_callback_exceptions=True,
        title="DeepInsight",
        update_title="",
        index_string=_PAGE,
        meta_tags=[{"name": "viewport", "content": "width=device-width, initial-scale=1"}],
        add_log_handler=False,
    )
    app.layout = partial(shell.layout.build, folder)
    shell.callbacks.register(app, folder)
    for page in PAGES:
        page.register(app, folder)
    return app


def pin_run(folder: Path, keys: Callable[[Path], list[str]] = run_keys) -> Response | None:
    """Send a page that was opened without a run to the address that names the newest one."""
    paths = {page.path for page in PAGES if page.needs_run}
    if request.method != "GET" or request.path not in paths or request.args.get("run"):
        return None
    known = keys(folder)[:1]
    return redirect(request.path + make_query({"run": known}), 302) if known else None
