"""Runs the service on a socket: it handles signals, closes unused connections, and ends whatever clients do."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import threading
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from .records import LOGGER
from .service import LOADING, Service

_KEEP_ALIVE_SECONDS = 15
_BACKLOG = 2048
_ACCEPTED_AT_ONCE = 16
_OWN_DESCRIPTORS = 64  # decoders, files, log
_MOST_CONNECTIONS = 4096
_FLUSH_SECONDS = 1.0  # at the end, for clients to take what was answered
_EXIT_SECONDS = 0.5  # until connections, decoders and the process are gone


def run(app: FastAPI, listener: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT, then answer what was let in, for `grace_seconds` at most. A second signal ends the
    process at once.

    Args:
        app: Of `create_app`.
        listener: Of `settings.listen`; it is closed.

    Raises:
        UserError: If the judge cannot be loaded.
        Exception: The error of a GPU that this process cannot use any more; whoever started it starts another process.
    """
    with listener:
        asyncio.run(serve(app, listener))
    if app.state.service.lost or any(thread.name == LOADING for thread in threading.enumerate()):
        # a batch that nobody waits for may run for long, and Python aborts when it exits while a thread is importing
        # torch
        os._exit(0)


async def serve(app: FastAPI, listener: socket.socket) -> None:
    """As `run`; `app.state.server` is uvicorn meanwhile.

    uvicorn's own shutdown would refuse connections while the last requests are answered, so that a load balancer would
    not learn why: here every request that comes is answered with 503.
    """
    service: Service = app.state.service
    config = uvicorn.Config(
        app,
        http=_Connection,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        backlog=_ACCEPTED_AT_ONCE,  # for asyncio, too: the limit of connections is checked before the next ones
    )
    server, loop = uvicorn.Server(config), asyncio.get_running_loop()
    _, descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    signals = 0

    def on_signal(sig: int, frame: FrameType | None) -> None:
        nonlocal signals
        signals += 1
        if signals > 1:
            os._exit(128 + sig)
        loop.call_soon_threadsafe(service.told.set)

    server.handle_exit, app.state.server = on_signal, server
    host, port = listener.getsockname()[:2]
    LOGGER.info("listening", extra={"facts": {"host": host, "port": port}})
    helpers = [
        asyncio.create_task(_end(server, service, listener)),
        asyncio.create_task(_close_unused(server, service.settings.idle_seconds)),
    ]
    await server.serve(sockets=[listener])
    for helper in helpers:
        helper.cancel()
    if (starting := service.starting) is not None and starting.done() and not starting.cancelled():
        starting.result()  # raises the reason why it was never ready
    LOGGER.info("stopped", extra={"facts": {"let_in": service.let_in, "lost": service.lost}})
    if service.lost_device is not None:
        raise service.lost_device


async def _end(server: uvicorn.Server, service: Service, listener: socket.socket) -> None:
    """Tell uvicorn to end: if the judge cannot be loaded, or else after a signal or the loss of a GPU, once the last
    request is answered."""
    hearing, settings = asyncio.create_task(service.told.wait()), service.settings
    clock = asyncio.get_running_loop().time
    while not server.started:  # now the application has started to load the judge
        await asyncio.sleep(0.01)
    listener.listen(_BACKLOG)
    if service.starting is not None:
        await asyncio.wait({service.starting, hearing}, return_when=asyncio.FIRST_COMPLETED)
    if service.starting is None or not service.starting.done() or service.starting.exception() is None:
        await hearing
        LOGGER.info("stopping")
        latest = clock() + max(settings.grace_seconds - _FLUSH_SECONDS - _EXIT_SECONDS, settings.grace_seconds / 2)
        earliest = clock() + (settings.drain_seconds if service.is_ready else 0.0)
        service.is_stopping = True
        while (service.under_way or clock() < earliest) and clock() < latest:
            await asyncio.sleep(0.02)
    service.lost = service.under_way
    server.should_exit = True
    await asyncio.sleep(min(_FLUSH_SECONDS, service.settings.grace_seconds / 4))
    for connection in list(server.server_state.connections):
        connection.transport.abort()


class _Connection(H11Protocol):
    """uvicorn's HTTP/1.1 with a limit of connections. Beyond it the connection that has been silent for longest is
    closed, so that descriptors are left and a client that asks for `/healthz` at once is answered."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection; if there are too many, close one."""
        super().connection_made(transport)
        self.made = self.loop.time()
        open_ones: list[Any] = [peer for peer in self.connections if not peer.transport.is_closing()]
        if len(open_ones) > most_connections():
            LOGGER.warning("too many connections")
            silent = [peer for peer in open_ones if peer is not self and _is_silent(peer)]
            oldest = min(silent, key=lambda peer: (peer.cycle is not None, peer.made), default=self)
            oldest.transport.abort()


def _is_silent(connection: Any) -> bool:
    """Whether no request is being answered, or the client does not take its answer."""
    cycle = connection.cycle
    return cycle is None or cycle.response_complete or _is_not_taken(connection)


def _is_not_taken(connection: Any) -> bool:
    return connection.transport.get_write_buffer_size() > 0


async def _close_unused(server: uvicorn.Server, seconds: float) -> None:
    """Close connections on which for `seconds` neither the head of a request came nor an answer was taken: uvicorn has
    no such limits. Between two requests uvicorn's own limit applies."""
    since: dict[Any, float] = {}
    while True:
        now, silent = asyncio.get_running_loop().time(), dict[Any, Any]()
        for peer in list[Any](server.server_state.connections):
            if _is_not_taken(peer) or (_is_silent(peer) and not peer.timeout_keep_alive_task):
                silent[peer, peer.cycle] = peer
        since = {key: since.get(key, now) for key in silent}
        for key, peer in silent.items():
            if now - since[key] >= seconds:
                peer.transport.abort()
        await asyncio.sleep(min(1.0, seconds / 8))


def most_connections() -> int:
    """As many as there are descriptors for, after our own and those of a burst of new connections."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(8, min(descriptors - _OWN_DESCRIPTORS - 4 * _ACCEPTED_AT_ONCE, _MOST_CONNECTIONS))
