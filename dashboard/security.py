"""Who may talk to the dashboard: a token, the Host header, and headers for the browser."""

import hashlib
import hmac
import ipaddress
import secrets
from urllib.parse import urlencode

from flask import Flask, redirect, request
from werkzeug.wrappers import Response

_LOCAL_NAMES = frozenset({"localhost", "localhost.localdomain"})

#: The dashboard loads nothing from elsewhere; Dash starts itself with one inline script.
CONTENT_SECURITY_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def is_loopback(host: str) -> bool:
    """Whether a host name or address can only be reached from this machine.

    Example:
        >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0")
        (True, False)
    """
    name = host.strip("[]").lower()
    if name in _LOCAL_NAMES or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False


def new_token() -> str:
    """An unguessable token of 256 bits, safe in a URL."""
    return secrets.token_urlsafe(32)


def session_cookie(token: str) -> tuple[str, str]:
    """Name and value of the cookie that stands for a token; neither contains it.

    The name depends on the token, so that two dashboards on one machine do not sign each other out
    (browsers do not tell ports apart).
    """
    name = hashlib.sha256(b"name:" + token.encode()).hexdigest()[:12]
    value = hmac.new(token.encode(), b"deepinsight dashboard session", hashlib.sha256).hexdigest()
    return f"deepinsight_{name}", value


def protect(server: Flask, token: str | None) -> None:
    """Check every request before anything else sees it.

    With a token: it comes once as ``?token=…`` and then as an HttpOnly cookie, or in each request
    as ``Authorization: Bearer …``. Without one: the Host header must name this machine, so that a
    web page whose name was made to point here (DNS rebinding) cannot read anything.

    Args:
        server: The Flask server.
        token: The token, or None.
    """

    def check() -> Response | None:
        return refuse_foreign_host() if token is None else check_token(token)

    server.before_request(check)
    server.after_request(harden)


def refuse_foreign_host() -> Response | None:
    """Refuse a request whose Host header names another machine."""
    host = request.headers.get("Host", "")
    name = host.rpartition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
    if is_loopback(name):
        return None
    return _refusal(
        403,
        "Unknown host",
        "Without a token, this dashboard answers only to localhost. Open it at "
        "http://localhost or start it with a token.",
    )


def check_token(token: str) -> Response | None:
    """Let a request pass that knows the token; turn ``?token=…`` into a cookie."""
    name, value = session_cookie(token)
    offered = request.args.get("token")
    if offered is not None and _equal(offered, token) and request.method == "GET":
        rest = [pair for pair in request.args.items(multi=True) if pair[0] != "token"]
        target = request.path + (f"?{urlencode(rest)}" if rest else "")
        response = redirect("/" + target.lstrip("/"), 303)
        response.set_cookie(name, value, httponly=True, samesite="Lax", path="/")
        return response
    scheme, _, credential = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and _equal(credential.strip(), token):
        return None
    if _equal(request.cookies.get(name, ""), value):
        return None
    response = _refusal(
        401,
        "Token required",
        "Open the address that the dashboard printed when it started; it ends in ?token=….",
    )
    response.headers["WWW-Authenticate"] = "Bearer"
    return response


def harden(response: Response) -> Response:
    """Add the headers that keep other sites, and the network, out of the page."""
    response.headers.setdefault("Content-Security-Policy", CONTENT_SECURITY_POLICY)
    response.headers.setdefault("X-Content-Type-Options", "nosniff")
    response.headers.setdefault("X-Frame-Options", "DENY")
    response.headers.setdefault("Referrer-Policy", "no-referrer")
    return response


def _equal(offered: str, expected: str) -> bool:
    return hmac.compare_digest(offered.encode(), expected.encode())


def _refusal(status: int, title: str, text: str) -> Response:
    page = (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport "
        f'content="width=device-width"><title>{title}</title><body style="font:16px/1.5 '
        'system-ui,sans-serif;max-width:34rem;margin:15vh auto;padding:0 1rem;color:#1c2733">'
        f"<h1 style='font-size:1.3rem'>{title}</h1><p>{text}</p>"
    )
    return Response(page, status, mimetype="text/html", headers={"Cache-Control": "no-store"})
