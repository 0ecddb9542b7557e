"""Runs the service until it is told to stop, and then until everybody who was let in has an answer."""

from __future__ import annotations

import asyncio
import functools
import socket
import time
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..data_modules.errors import UserError
from .app import Service
from .records import LOGGER

_KEEP_ALIVE_SECONDS = 15
_BACKLOG = 2048


def run(app: FastAPI, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT, then answer what was let in. A second signal ends the service at once.

    Args:
        app: Of `create_app`.
        host: Address to listen on.
        port: 0 = any that is free; the log says which.

    Raises:
        UserError: If nothing can listen there, or the judge cannot be loaded.
        KeyboardInterrupt: After the second signal.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        raise UserError(
            f"--host {host} --port {port}: {error}; expected an address of this machine and a free port"
        ) from None
    with listener:
        asyncio.run(serve(app, listener))


async def serve(app: FastAPI, listener: socket.socket) -> None:
    """As `run`, on a socket that listens; `app.state.server` is uvicorn meanwhile.

    uvicorn's own shutdown would refuse connections while the last requests are answered, so that a load balancer would
    not learn why: here everybody who comes is answered with 503.
    """
    service: Service = app.state.service
    config = uvicorn.Config(
        app,
        http=functools.partial(_PromptHeads, head_seconds=service.settings.idle_seconds),  # type: ignore[arg-type]
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        backlog=_BACKLOG,
    )
    server, told, loop = uvicorn.Server(config), asyncio.Event(), asyncio.get_running_loop()

    def on_signal(sig: int, frame: FrameType | None) -> None:
        server.should_exit = server.force_exit = told.is_set()
        loop.call_soon_threadsafe(told.set)

    server.handle_exit, app.state.server = on_signal, server
    host, port = listener.getsockname()[:2]
    LOGGER.info("listening", extra={"facts": {"host": host, "port": port}})
    ending = asyncio.create_task(_end(server, service, told))
    await server.serve(sockets=[listener])
    ending.cancel()
    if (starting := service.starting) is not None and starting.done() and not starting.cancelled():
        starting.result()  # why it never was ready
    if server.force_exit:
        raise KeyboardInterrupt
    LOGGER.info("stopped", extra={"facts": {"let_in": service.let_in, "lost": service.under_way}})


async def _end(server: uvicorn.Server, service: Service, told: asyncio.Event) -> None:
    """Tell uvicorn to end: when the judge cannot be loaded, or after a signal and the last answer."""
    hearing = asyncio.create_task(told.wait())
    while not server.started:  # now the application has started to load the judge
        await asyncio.sleep(0.01)
    if service.starting is not None:
        await asyncio.wait({service.starting, hearing}, return_when=asyncio.FIRST_COMPLETED)
    if service.starting is None or not service.starting.done() or service.starting.exception() is None:
        await hearing
        LOGGER.info("stopping")
        least = time.monotonic() + (service.settings.drain_seconds if service.state == "ready" else 0.0)
        service.is_stopping = True
        while service.under_way or time.monotonic() < least:
            await asyncio.sleep(0.02)
    server.should_exit = True


class _PromptHeads(H11Protocol):
    """uvicorn's HTTP/1.1, which closes connections on which no head of a request comes in time (it has no such limit).

    Args:
        head_seconds: Longest time for a head.
        *arguments: Of uvicorn.
        **options: Of uvicorn.
    """

    def __init__(self, *arguments: Any, head_seconds: float, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_seconds = head_seconds
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Time runs."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Time stops with the head of a request, and runs from the first byte of another."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Time stops."""
        super().connection_lost(exc)
        self._stop()

    def _watch(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()
        elif self._timer is None:
            self._timer = self.loop.call_later(self._head_seconds, self._give_up)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing():
            self.transport.close()
