"""What happens around every request: its record, its counters, its last resort, and the rest of a body nobody reads."""

from __future__ import annotations

import asyncio
import contextlib

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .problems import CLIENT_GONE, ClientGone, Problem
from .records import LOGGER, Record, open_record
from .service import Service

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_LINGER_SECONDS, _LINGER_SILENCE = 5.0, 1.0


class AroundRequests:
    """Opens and writes the record of each request, and answers where nothing else did.

    Args:
        app: What is inside.
        service: Whose counters these are.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = open_record(scope)
        exchange = _Exchange(record, receive, send, self._service, _has_body(scope))
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except ClientGone:
            record.status = CLIENT_GONE
        except Exception as error:
            LOGGER.error("bug", exc_info=error, extra={"facts": {"id": record.id}})
            record.code = "internal"
            if not exchange.began:
                problem = Problem("internal", f"the service failed; its log knows more of request {record.id}")
                await problem.response()(scope, exchange.receive, exchange.send)
        finally:
            self._service.finished(record)


class _Exchange:
    """The messages of one request, watched."""

    def __init__(self, record: Record, receive: Receive, send: Send, service: Service, has_body: bool) -> None:
        self._record, self._receive, self._send, self._service = record, receive, send, service
        self._unread = has_body
        self.began = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self._unread = False
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.began = True
            self._record.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-ID"] = self._record.id
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            if self._unread or self._service.is_stopping:
                headers["Connection"] = "close"
        elif self._unread and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            await self._linger()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)

    async def _linger(self) -> None:
        """Reads on for a moment and throws away: a client that still sends would find its connection reset, not the
        answer in it (RFC 9112, 9.6)."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                while self._unread:
                    async with asyncio.timeout(_LINGER_SILENCE):
                        await self.receive()


def _has_body(scope: Scope) -> bool:
    headers = dict(scope["headers"])
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
