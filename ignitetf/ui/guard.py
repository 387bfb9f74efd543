"""`Guard`: checks who may send requests, and adds security headers to every answer.

browser -> **guard** -> app

- The Host must be ours. Other names are refused, so a foreign DNS name cannot lead here (DNS
  rebinding).
- A request that another site caused is refused (Origin, Sec-Fetch-Site).
- The token, in the address of the first request (of any page), is exchanged for a cookie that
  scripts cannot read and that browsers do not send from other sites.
- A change needs a second secret, which only the forms of our own pages contain.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Guard", "Refusal", "Secrets"]

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_METHODS: Final = ("GET", "HEAD", "POST")
_TICKET_S: Final = 60.0

# Renders the page of a refusal: status, title, reason, hint.
Refusal = Callable[[int, str, str, str], Response]


class Secrets:
    """The secrets that a browser must present.

    Args:
        token: The token of the printed address; None for a random one.

    Attributes:
        token: The token.
        session: Content of the cookie.
        form: Content of a hidden field in forms that change something.
    """

    def __init__(self, token: str | None = None) -> None:
        self.token = token or secrets.token_urlsafe(24)
        self.session = secrets.token_urlsafe(24)
        self.form = secrets.token_urlsafe(24)
        self._tickets: dict[str, float] = {}

    def ticket(self) -> str:
        """Return a one-use token, valid for a minute: other users can see a browser's arguments."""
        made = secrets.token_urlsafe(24)
        self._tickets[made] = time.monotonic()
        return made

    def admits(self, token: str) -> bool:
        """True if this is the token, or an unused ticket."""
        made = self._tickets.pop(token, None)
        if made is not None and time.monotonic() - made < _TICKET_S:
            return True
        return same(token, self.token)


def same(given: str, secret: str) -> bool:
    """Compare two texts in a time that does not depend on the first difference."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), secret.encode())


class Guard:
    """The outermost part of the application.

    Args:
        app: The application that it protects.
        port: Port of the server; part of the accepted Host names.
        known: The secrets.
        refuse: Renders the answer to a refused request.
    """

    def __init__(self, app: ASGIApp, port: int, known: Secrets, refuse: Refusal) -> None:
        self._app = app
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}
        if port == 80:
            self._hosts |= {"127.0.0.1", "localhost", "[::1]"}
        self._known = known
        self._refuse = refuse
        # Cookies ignore ports. Two servers on this machine must not overwrite each other's cookie.
        self._cookie = f"ignitetf_ui_{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        answer = self._answer(scope)
        await (answer or self._app)(scope, receive, _with_headers(send))

    def _answer(self, scope: Scope) -> Response | None:
        """Return the refusal of a request; None if it is passed to the application."""
        headers = Headers(scope=scope)
        if (found := self._foreign(scope, headers)) is not None:
            return found
        if scope["method"] not in _METHODS:
            return self._refuse(405, "Not possible", "This page does not accept this method.", "")
        if scope["path"].startswith("/static/"):
            return None
        if scope["method"] == "GET":
            query = parse_qsl(scope["query_string"].decode("latin-1"))
            given = [value for name, value in query if name == "token"]
            if len(given) == 1 and self._known.admits(given[0]):
                others = [(name, value) for name, value in query if name != "token"]
                return self._admission_redirect(scope["path"], others)
        held = HTTPConnection(scope).cookies.get(self._cookie, "")
        if not same(held, self._known.session):
            return self._refuse(
                401,
                "A token is needed",
                "This browser has not presented the token of this server yet.",
                "Open the address that 'ignitetf ui' printed, with everything after '?token='.",
            )
        return None

    def _foreign(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the refusal of a request to another host name or from another site, or None."""
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            return self._refuse(
                421,
                "Wrong server name",
                "This server only answers under the name that it printed.",
                "Open the address that 'ignitetf ui' printed.",
            )
        site = headers.get("sec-fetch-site", "none")
        origins = headers.getlist("origin")
        own = f"http://{hosts[0].lower()}"
        if site not in ("none", "same-origin") or any(o.lower() != own for o in origins):
            return self._refuse(
                403,
                "Request from another site",
                "The request was sent by another page; this server only answers its own.",
                "Type or paste the address into the address bar instead of following a link.",
            )
        return None

    def _admission_redirect(self, path: str, query: list[tuple[str, str]]) -> Response:
        """Return a redirect to the page without the token in its address."""
        # Two slashes at the beginning would name another server.
        place = "/" + quote(path.lstrip("/\\"))
        answer = RedirectResponse(f"{place}?{urlencode(query)}" if query else place, 303)
        answer.set_cookie(self._cookie, self._known.session, httponly=True, samesite="strict")
        return answer


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers[name] = value
            headers.setdefault("Cache-Control", "no-store")
        await send(message)

    return sending
