"""Serving the app: one threaded process, one printed line, a clean end."""

import errno
import socket
from contextlib import closing

from flask import Flask
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from deepinsight.dashboard.errors import ServeError, TokenRequiredError
from deepinsight.dashboard.security import is_loopback


class QuietRequestHandler(WSGIRequestHandler):
    """Keeps connections open between requests and prints nothing for each of them."""

    protocol_version = "HTTP/1.1"

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Print nothing; a page that follows a run sends a request every two seconds."""

    def version_string(self) -> str:
        """Do not tell clients which software this is."""
        return "deepinsight"


def require_token(host: str, token: str | None) -> None:
    """Refuse to serve an address that others can reach unless a token protects it.

    Raises:
        TokenRequiredError: If ``host`` is not a loopback address and there is no token.
    """
    if token is None and not is_loopback(host):
        raise TokenRequiredError(
            f"Serving on an address that other machines can reach needs a token. Received: "
            f"--host {host} without --token. Add --token auto (makes one and prints it), set "
            "DEEPINSIGHT_TOKEN, or serve on 127.0.0.1 and reach it through "
            "ssh -L 8050:127.0.0.1:8050."
        )


def listen(host: str, port: int) -> socket.socket:
    """Bind and listen.

    Args:
        host: Name or address of an interface of this machine.
        port: 0 to 65535; 0 takes a free one.

    Raises:
        ServeError: If the port is taken or not allowed, or the host is not this machine's.
    """
    if not 0 <= port <= 65535:
        raise ServeError(f"`--port` must be 0 to 65535. Received: --port {port}.")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise ServeError(
            f"`--host` must be a name or address of this machine. Received: --host {host} --port "
            f"{port} ({error})."
        ) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ServeError(_why_not(host, port, error)) from error
    return listener


def _why_not(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"Port {port} on {host} is in use, perhaps by another dashboard. Choose another with "
            f"--port {port + 1 if port < 65535 else 8050}, or --port 0 for any free one."
        )
    if error.errno == errno.EACCES:
        return f"Port {port} needs more rights than this user has. Choose one from 1024 on."
    return f"Cannot serve on {host} port {port}: {error.strerror}."


def make_http_server(app: Flask, listener: socket.socket) -> BaseWSGIServer:
    """A server with one thread per connection on a socket that already listens.

    Werkzeug's own threaded server does for a tool that one person or a small group looks at: a
    callback takes milliseconds and NumPy and HDF5 release the interpreter for most of them. For
    more, any WSGI server can serve ``create_app(…).server``; the app keeps no state of its own.
    """
    host, port = listener.getsockname()[:2]
    return make_server(
        host,
        port,
        app,
        threaded=True,
        request_handler=QuietRequestHandler,
        fd=listener.fileno(),
    )


def address_of(listener: socket.socket, token: str | None) -> str:
    """The URL to open, with the token in it if there is one."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")


def serve(app: Flask, listener: socket.socket) -> None:
    """Serve until interrupted (Ctrl-C, SIGTERM)."""
    with closing(listener):
        server = make_http_server(app, listener)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            pass
        finally:
            server.server_close()
