"""Connections: uvicorn's HTTP/1.1 with limits on pieces, heads and connections, and errors that have the form of all
errors."""

from __future__ import annotations

import asyncio
import resource
import uuid
from http import HTTPStatus
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .records import HEADERS, LOGGER, record_of
from .schemas import Problem

ACCEPTED_AT_ONCE = 16
"""Connections that are accepted before others have their turn."""
_OWN_DESCRIPTORS = 64  # decoders, files, log
_MOST_CONNECTIONS = 4096
_MAX_HEAD = 2**14
_PIECE = 128
_CREDIT = 2**14  # some 130 pieces of a byte: about as much work as a request without a body
_LINGER_SECONDS = 2.0


class Messages(h11.Connection):
    """What comes on a connection as requests, for little work whatever the client does.

    Each piece of a body (a chunk, or what one packet brought) costs a call of Python, however small it is: a megabyte
    in chunks of one byte held everybody up for six seconds. So a body has a credit, from which each piece takes
    `_PIECE` bytes and to which its content is added.
    """

    def __init__(self) -> None:
        super().__init__(h11.SERVER, _MAX_HEAD)
        self.problem: Problem | None = None  # why nothing more is read
        self._credit = _CREDIT

    def next_event(self) -> Any:
        """The next event, as h11 has it.

        Raises:
            h11.RemoteProtocolError: If it is no HTTP/1.1 or comes in too many pieces; `problem` is what to answer.
        """
        try:
            event = super().next_event()
            if isinstance(event, h11.Request):
                self._credit = _CREDIT
                _check_head(event)
            elif isinstance(event, h11.Data):
                self._credit = min(_CREDIT, self._credit + len(event.data) - _PIECE)
                if self._credit < 0:
                    expected = f"expected {2 * _PIECE} bytes in each"
                    raise h11.RemoteProtocolError(f"the body comes in many small pieces; {expected}")
        except h11.RemoteProtocolError as error:
            reason = str(error).partition(":")[0]  # behind the colon h11 quotes the client
            if "expected" not in reason:
                reason += "; expected a request of HTTP/1.1"
            too_large = error.error_status_hint == 431
            self.problem = Problem("head_too_large") if too_large else Problem("bad_request", reason)
            raise
        return event


def _check_head(request: h11.Request) -> None:
    """Check that a head is small, and that no server in front of this one could see another end of the body."""
    # h11 bounds a head only while it is incomplete, and a packet may bring a large one whole
    if len(request.target) + sum(len(name) + len(value) for name, value in request.headers) > _MAX_HEAD:
        raise h11.RemoteProtocolError("", error_status_hint=431)
    names = {name for name, _ in request.headers}
    if b"transfer-encoding" in names and (b"content-length" in names or request.http_version == b"1.0"):
        raise h11.RemoteProtocolError("Transfer-Encoding beside Content-Length or in HTTP/1.0; expected one length")


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
        if self._is_refused:
            return
        super().data_received(data)
        # uvicorn's timer of idle connections starts with the answer, and has ended if more of the body came after it
        if self.is_between_requests and self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, instead of the application, and end the connection; uvicorn calls it.

        A client that still sends can read why: its bytes are thrown away for a moment (RFC 9112, 9.6).
        """
        self._is_refused, cycle = True, self.cycle
        problem = self.conn.problem or Problem("bad_request", msg)
        if self.conn.our_state is h11.SEND_BODY:
            self.transport.close()
            return
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):  # otherwise the client has its answer
            # The application waits for more of the body, and learns that the client is gone
            if cycle is not None and not cycle.response_complete:
                record = record_of(cast("dict[str, Any]", self.scope))
                record.refused, request_id = problem, record.id
                cycle.disconnected = True
                cycle.message_event.set()
            else:
                request_id = uuid.uuid4().hex
                facts = {"id": request_id, "status": problem.status, "code": problem.code}
                LOGGER.warning("no request", extra={"facts": facts})
            answer = problem.response()
            lines = [f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}"]
            headers = {**HEADERS, "X-Request-ID": request_id, "Connection": "close", **answer.headers}
            lines += [f"{name}: {value}" for name, value in headers.items()]
            self.transport.write("\r\n".join([*lines, "", ""]).encode("latin-1") + bytes(answer.body))
        # uvicorn may have stopped reading, and what is thrown away must be read
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_LINGER_SECONDS, self.transport.close)

    @property
    def is_not_taken(self) -> bool:
        """Whether an answer waits for the client to read."""
        return self.transport.get_write_buffer_size() > 0

    @property
    def is_silent(self) -> bool:
        """Whether no request is being answered, or the client does not take its answer."""
        return self.cycle is None or self.cycle.response_complete or self.is_not_taken

    @property
    def is_between_requests(self) -> bool:
        """Whether the client took an answer to a whole request, and nothing has come since then."""
        is_done = self.cycle is not None and self.cycle.response_complete and self.conn.their_state is h11.IDLE
        return is_done and not self.conn.trailing_data[0] and not self.is_not_taken


def most_connections() -> int:
    """As many as there are descriptors for, after our own and those of a burst of new connections."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(8, min(descriptors - _OWN_DESCRIPTORS - 4 * ACCEPTED_AT_ONCE, _MOST_CONNECTIONS))
