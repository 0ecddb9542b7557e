"""Who may ask by which name: pages of other origins may not, neither by a form that they post nor by a name of their
own that leads here (DNS rebinding)."""

from __future__ import annotations

import ipaddress
import re
import socket

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from .records import record_of
from .schemas import Problem
from .settings import ALL_ADDRESSES, ServiceSettings

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^][:/@\s]+)(:[0-9]*)?", re.IGNORECASE)
_SAFE = ("GET", "HEAD", "OPTIONS")


class OriginCheck:
    """Middleware that lets in who asks for this service by a name of its own, and no page of another origin.

    An IP address is always a name of its own: a browser sends none to which it does not connect. With a token every
    name is, unless `allowed_hosts` says otherwise: no page of others knows the token.
    """

    def __init__(self, app: ASGIApp, settings: ServiceSettings) -> None:
        self._app = app
        own = {socket.gethostname()} if settings.host in ALL_ADDRESSES else set[str]()
        names = {"localhost", settings.host, *own, *settings.allowed_hosts}
        if settings.token is not None and not settings.allowed_hosts:
            names = {"*"}
        self._names = {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, as ASGI calls it."""
        if scope["type"] == "http" and (problem := self._problem(scope["method"], Headers(scope=scope))) is not None:
            record_of(scope).code = problem.code
            await problem.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _problem(self, method: str, headers: Headers) -> Problem | None:
        host = headers.get("host")
        if host is not None:  # in HTTP/1.0 it may be missing, but no browser speaks that
            if not (name := _name_of(host)):
                return Problem("bad_request", "Host; expected a name or an address, with or without a port")
            if not (self._is_known(name) or _is_address(name)):
                return Problem("wrong_host")
        # These change nothing, and a browser keeps the answer from pages of other origins
        if method in _SAFE:
            return None
        foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if (origin := headers.get("origin")) is not None:
            _, scheme, where = origin.partition("://")  # there is none in "null"
            is_same = where.lower() == (host or "").lower()
            foreign |= not (scheme and (is_same or self._is_known(_name_of(where))))
        return Problem("other_origin") if foreign else None

    def _is_known(self, name: str) -> bool:
        return name in self._names or bool(name and "*" in self._names)


def _name_of(host: str) -> str:
    """A `Host` without its port; empty = it is none."""
    found = _HOST.fullmatch(host)
    return found[1].strip("[]").removesuffix(".").lower() if found else ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
