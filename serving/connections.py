"""Connections: uvicorn's HTTP/1.1 with limits on pieces, heads and connections, and errors that have the form of all
errors."""

from __future__ import annotations

import asyncio
import resource
import uuid
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import urlsplit

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .records import HEADERS, LOGGER, record_of
from .schemas import Code, Problem

ACCEPTED_AT_ONCE = 16
"""Connections that are accepted before others have their turn."""
_OWN_DESCRIPTORS = 64  # decoders, files, log
_MOST_CONNECTIONS = 4096
_MAX_HEAD = 2**14
_SLICE = 2**14
_PIECE = 128
_CREDIT = 2**14  # some 100 pieces of a byte: about as much work as a request without a body
_OVERHEAD = 2**18  # bytes beside the content, and an eighth of that
_LINGER_SECONDS = 2.0
_CODES: dict[int, Code] = {414: "uri_too_long", 431: "head_too_large", 501: "not_implemented", 505: "bad_version"}


class Messages(h11.Connection):
    """What comes on a connection as requests, for little work whatever the client does.

    Each piece of a body (a chunk, or what one packet brought) costs a call of Python, however small it is: a megabyte
    in chunks of one byte held everybody up for six seconds. So a body has a credit, from which each piece takes
    `_PIECE` bytes and to which its content is added; and what comes beside the content is bounded.
    """

    def __init__(self) -> None:
        super().__init__(h11.SERVER, _MAX_HEAD)
        self.problem: Problem | None = None  # why nothing more is read
        self._held, self._credit = bytearray(), _CREDIT
        self._received = self._content = 0  # bytes of a request

    def receive_data(self, data: bytes) -> None:
        """Keep what came until `next_event` asks for it: heads and trailers are bounded, in one packet too."""
        self._held += data

    @property
    def is_begun(self) -> bool:
        """Whether something has come of a request whose head is not complete."""
        return self.their_state is h11.IDLE and bool(self.trailing_data[0])

    def next_event(self) -> Any:
        """The next event, as h11 has it.

        Raises:
            h11.RemoteProtocolError: If it is no HTTP/1.1 or comes in too many pieces; `problem` is what to answer.
        """
        is_head = self.their_state is h11.IDLE
        try:
            event = super().next_event()
            while event is h11.NEED_DATA and self._held:
                # In slices: h11 bounds a head only while it is incomplete, and a packet may bring a large one whole
                piece = bytes(self._held[:_SLICE])
                del self._held[:_SLICE]
                self._received += len(piece)
                super().receive_data(piece)
                event = super().next_event()
            if isinstance(event, h11.Request):
                self._credit, self._received, self._content = _CREDIT, 0, 0
                return _checked(event)
            if isinstance(event, h11.Data):
                self._content += len(event.data)
                self._credit = min(_CREDIT, self._credit + len(event.data) - _PIECE)
                beside = self._received - self._content * 9 // 8
                if self._credit < 0 or beside > _OVERHEAD:
                    expected = f"expected {2 * _PIECE} bytes in each"
                    raise h11.RemoteProtocolError(f"the body comes in many small pieces; {expected}")
        except h11.RemoteProtocolError as error:
            self.problem = self._problem_of(error, is_head)
            raise
        return event

    def _problem_of(self, error: h11.RemoteProtocolError, is_head: bool) -> Problem:
        status = error.error_status_hint
        if status == 431 and is_head and self.their_state is h11.ERROR and b"\n" not in self.trailing_data[0]:
            status = 414  # h11 gave up in the first line
        if (code := _CODES.get(status)) is not None:
            return Problem(code)
        reason = str(error).partition(":")[0]  # behind the colon h11 quotes the client
        return Problem("bad_request", reason if "expected" in reason else f"{reason}; expected a request of HTTP/1.1")


def _checked(request: h11.Request) -> h11.Request:
    """A request in origin form (RFC 9112, 3.2), if its framing is beyond doubt.

    Raises:
        h11.RemoteProtocolError: If its head is too large, its version is not known, or the next server might see
            another end of its body.
    """
    names = {name for name, _ in request.headers}
    if len(request.target) + sum(len(name) + len(value) for name, value in request.headers) > _MAX_HEAD:
        raise h11.RemoteProtocolError("", error_status_hint=414 if len(request.target) > _MAX_HEAD else 431)
    if not request.http_version.startswith(b"1."):
        raise h11.RemoteProtocolError("", error_status_hint=505)
    if b"transfer-encoding" in names and (b"content-length" in names or request.http_version == b"1.0"):
        raise h11.RemoteProtocolError("Transfer-Encoding beside Content-Length or in HTTP/1.0; expected one length")
    if not request.target.lower().startswith((b"http://", b"https://")):
        return request
    try:
        url = urlsplit(request.target)
    except ValueError:
        raise h11.RemoteProtocolError("the address of the request is no URL") from None
    query = b"?" + url.query if url.query else b""
    headers = [(b"Host", url.netloc), *((name, value) for name, value in request.headers if name != b"host")]
    return h11.Request(
        method=request.method, target=(url.path or b"/") + query, headers=headers, http_version=request.http_version
    )


class Connection(H11Protocol):
    """uvicorn's connection. Beyond the limit of connections the one that has been silent for longest is closed, so that
    descriptors are left and a client that asks for `/healthz` at once is answered."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn: Messages = Messages()
        self._is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection; if there are too many, close one."""
        super().connection_made(transport)
        self.made = self.loop.time()
        open_ones: list[Any] = [peer for peer in self.connections if not peer.transport.is_closing()]
        if len(open_ones) > most_connections():
            LOGGER.warning("too many connections")
            silent = [peer for peer in open_ones if peer is not self and peer.is_silent]
            # Connections that never asked anything go first, the oldest before the others
            oldest = min(silent, key=lambda peer: (peer.cycle is not None, peer.made), default=self)
            oldest.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Read what came; after a refusal throw it away."""
        if not self._is_refused:
            super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """As uvicorn calls it where what came is no HTTP."""
        self.refuse(self.conn.problem or Problem("bad_request", msg))

    def refuse(self, problem: Problem) -> None:
        """Answer instead of the application, and end the connection. A client that still sends can read why: its bytes
        are thrown away for a moment (RFC 9112, 9.6)."""
        self._is_refused, cycle = True, self.cycle
        # The client has an answer already, or a part of it
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        answer = problem.response()
        # The application waits for more of the body, and is told that the client is gone
        if cycle is not None and not cycle.response_complete:
            record = record_of(cast("dict[str, Any]", self.scope))
            record.refused, request_id = problem, record.id
            cycle.disconnected = True
            cycle.message_event.set()
        else:
            request_id = uuid.uuid4().hex
            facts = {"id": request_id, "status": answer.status_code, "code": problem.code}
            LOGGER.warning("no request", extra={"facts": facts})
        lines = [f"HTTP/1.1 {answer.status_code} {HTTPStatus(answer.status_code).phrase}"]
        headers = {**HEADERS, "X-Request-ID": request_id, "Connection": "close", **answer.headers}
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.transport.write("\r\n".join([*lines, "", ""]).encode("latin-1") + bytes(answer.body))
        # uvicorn may have stopped reading, and what is thrown away must be read
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_LINGER_SECONDS, self.transport.close)

    @property
    def is_silent(self) -> bool:
        """Whether no request is being answered, or the client does not take its answer."""
        return self.cycle is None or self.cycle.response_complete or self.is_not_taken

    @property
    def is_not_taken(self) -> bool:
        """Whether an answer waits for the client to read."""
        return self.transport.get_write_buffer_size() > 0

    def end_unused(self) -> None:
        """Close a connection on which nothing came for too long."""
        if self.conn.is_begun and not self.is_not_taken and not self._is_refused:
            self.refuse(Problem("head_timeout"))
        else:
            self.transport.abort()


def most_connections() -> int:
    """As many as there are descriptors for, after our own and those of a burst of new connections."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(8, min(descriptors - _OWN_DESCRIPTORS - 4 * ACCEPTED_AT_ONCE, _MOST_CONNECTIONS))
