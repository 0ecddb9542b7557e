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

from .connections import ACCEPTED_AT_ONCE, Connection
from .records import LOGGER
from .service import LOADING, Service
from .settings import ALL_ADDRESSES, TOKEN_VARIABLE

_KEEP_ALIVE_SECONDS = 15
_BACKLOG = 2048
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
        # A batch that nobody waits for may run for long, and Python aborts when it exits while a thread is importing
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
        http=Connection,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        backlog=ACCEPTED_AT_ONCE,  # for asyncio, too: the limit of connections is checked before the next ones
    )
    server, loop = uvicorn.Server(config), asyncio.get_running_loop()
    _, descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The soft limit, often 1,024, is raised to the hard one: each connection takes a descriptor
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    signals = 0

    def on_signal(sig: int, frame: FrameType | None) -> None:
        nonlocal signals
        signals += 1
        if signals > 1:
            os._exit(128 + sig)
        loop.call_soon_threadsafe(service.must_stop.set)

    server.handle_exit, app.state.server = on_signal, server
    host, port = listener.getsockname()[:2]
    LOGGER.info("listening", extra={"facts": {"host": host, "port": port}})
    if host in ALL_ADDRESSES and service.settings.token is None:
        LOGGER.warning(f"open to whoever reaches this machine; set {TOKEN_VARIABLE}, or listen on --host 127.0.0.1")
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
    """End uvicorn: if the judge cannot be loaded, or else after a signal or the loss of a GPU, once the last request is
    answered."""
    stop, settings = asyncio.create_task(service.must_stop.wait()), service.settings
    clock = asyncio.get_running_loop().time
    while not server.started or service.starting is None:
        await asyncio.sleep(0.01)
    # `backlog` above was for asyncio; the system may hold more connections that wait to be accepted
    listener.listen(_BACKLOG)
    await asyncio.wait({service.starting, stop}, return_when=asyncio.FIRST_COMPLETED)
    if not service.starting.done() or service.starting.exception() is None:
        await stop
        LOGGER.info("stopping")
        latest = clock() + max(settings.grace_seconds - _FLUSH_SECONDS - _EXIT_SECONDS, settings.grace_seconds / 2)
        earliest = clock() + (settings.drain_seconds if service.is_ready else 0.0)
        service.is_stopping = True
        while (service.under_way or clock() < earliest) and clock() < latest:
            await asyncio.sleep(0.02)
    service.lost = service.under_way
    server.should_exit = True
    await asyncio.sleep(min(_FLUSH_SECONDS, settings.grace_seconds / 4))
    for connection in list(server.server_state.connections):
        connection.transport.abort()


async def _close_unused(server: uvicorn.Server, seconds: float) -> None:
    """Close connections on which for `seconds` neither the head of a request came nor an answer was taken: uvicorn has
    no such limits. Between two requests uvicorn's own limit applies."""
    since: dict[Any, float] = {}
    while True:
        now, silent = asyncio.get_running_loop().time(), dict[Any, Any]()
        for peer in list[Any](server.server_state.connections):
            if peer.is_silent and not peer.is_between_requests:
                silent[peer, peer.cycle] = peer
        # A connection that did something meanwhile, or has another request, begins anew
        since = {key: since.get(key, now) for key in silent}
        for key, peer in silent.items():
            if now - since[key] >= seconds:
                # What is not taken would hold up `close`; a reset would take an answer from a client that is slow
                (peer.transport.abort if peer.is_not_taken else peer.transport.close)()
        await asyncio.sleep(min(1.0, seconds / 8))
