"""``deepinsight dashboard``: show the runs below a folder in a browser."""

import argparse
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

from deepinsight.dashboard.errors import ServeError, TokenRequiredError
from deepinsight.dashboard.security import new_token
from deepinsight.dashboard.server import address_of, listen, require_token, serve

_SHORT_TOKEN = 16


def main(argv: list[str]) -> int:
    """Run the command.

    Args:
        argv: Arguments after ``deepinsight dashboard``.

    Returns:
        Exit status: 0 after Ctrl-C or SIGTERM, 2 if the request cannot be served.
    """
    options = _parser().parse_args(argv)
    token = _token(options.token)
    folder = Path(options.runs)
    if folder.exists() and not folder.is_dir():
        return _refuse(f"The runs folder must be a directory. Received: {folder}, a file.")
    try:
        require_token(options.host, token)
        listener = listen(options.host, options.port)
    except (TokenRequiredError, ServeError) as error:
        return _refuse(str(error))
    if not folder.exists():
        _say(f"{folder} is not there yet. Its runs appear as soon as something writes them.")
    if token and len(token) < _SHORT_TOKEN:
        _say("This token is short and may be guessed; --token auto makes a strong one.")
    # Dash takes a second to import; a refused address should not wait for it.
    from deepinsight.dashboard.app import create_app

    app = create_app(folder, token=token)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _stop)
    print(f"DeepInsight shows {folder} at {address_of(listener, token)}  (Ctrl-C ends)", flush=True)
    serve(app.server, listener)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="deepinsight dashboard",
        description="Show the runs below a folder in a browser, live while they are written.",
    )
    parser.add_argument("runs", nargs="?", default="runs", help="folder with runs (runs)")
    parser.add_argument("--host", default="127.0.0.1", help="address to serve on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8050, help="port, 0 for a free one (8050)")
    parser.add_argument(
        "--token",
        default=os.environ.get("DEEPINSIGHT_TOKEN"),
        help="secret that a browser must know; 'auto' makes one. Needed on any address but "
        "loopback. Better given in the environment variable DEEPINSIGHT_TOKEN, which other users "
        "of the machine cannot see.",
    )
    return parser


def _token(given: str | None) -> str | None:
    return new_token() if given == "auto" else given or None


def _say(message: str) -> None:
    print(f"deepinsight dashboard: {message}", file=sys.stderr, flush=True)


def _refuse(message: str) -> int:
    _say(message)
    return 2


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
