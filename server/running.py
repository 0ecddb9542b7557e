"""Runs the service until it is told to stop, and then until everybody who was let in has an answer."""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import sys
import time
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..data_modules.errors import UserError
from .records import LOGGER, JsonLines
from .service import Service

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
    with _listen(host, port) as listener:
        asyncio.run(_serve(app, listener))


def log_json() -> None:
    """Write the log as lines of JSON to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.getLogger().addHandler(handler)
    logging.captureWarnings(True)
    LOGGER.setLevel(logging.INFO)


async def _serve(app: FastAPI, listener: socket.socket) -> None:
    service: Service = app.state.service
    server = Server(config_of(app), service)
    host, port = listener.getsockname()[:2]
    LOGGER.info("listening", extra={"facts": {"host": host, "port": port}})
    await server.serve(sockets=[listener])
    starting = service.starting
    if starting is not None and starting.done() and not starting.cancelled():
        starting.result()  # why it never was ready
    if server.force_exit:
        raise KeyboardInterrupt
    LOGGER.info("stopped", extra={"facts": {"let_in": service.let_in, "lost": service.under_way}})


def config_of(app: FastAPI) -> uvicorn.Config:
    """How uvicorn runs the application: one parser of HTTP, no WebSockets, limits of time wherever clients wait."""
    service: Service = app.state.service
    return uvicorn.Config(
        app,
        http=functools.partial(PromptHeads, head_seconds=service.settings.idle_seconds),  # type: ignore[arg-type]
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        backlog=_BACKLOG,
    )


class Server(uvicorn.Server):
    """uvicorn that goes on answering after a signal: with 503 to those who come, until those who were let in are done.

    Args:
        config: Of uvicorn.
        service: Asked for what is under way.
    """

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._told = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """On the first signal begin to end, on the second end."""
        if self._told.is_set():
            self.should_exit = self.force_exit = True
        self._loop.call_soon_threadsafe(self._told.set)

    async def main_loop(self) -> None:
        """Until a signal, or until it is clear that the judge cannot be loaded."""
        ending = asyncio.create_task(self._end())
        await super().main_loop()
        ending.cancel()

    async def _end(self) -> None:
        starting = self._service.starting
        told = asyncio.create_task(self._told.wait())
        if starting is not None:
            await asyncio.wait({starting, told}, return_when=asyncio.FIRST_COMPLETED)
        if not (starting is not None and starting.done() and starting.exception()):
            await told
            LOGGER.info("stopping")
            begun, was_ready = time.monotonic(), self._service.state == "ready"
            self._service.stop_admitting()
            await self._service.finish()
            least = self._service.settings.drain_seconds if was_ready else 0.0
            await asyncio.sleep(max(0.0, begun + least - time.monotonic()))
        self.should_exit = True


class PromptHeads(H11Protocol):
    """uvicorn's HTTP/1.1, which closes connections on which no head of a request comes in time (it has no such limit).

    Args:
        head_seconds: Longest time for a head.
        *arguments: Of uvicorn.
        **options: Of uvicorn.
    """

    def __init__(self, *arguments: Any, head_seconds: float, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_seconds = head_seconds
        self._head_timer: asyncio.TimerHandle | None = None

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
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self._head_seconds, self._give_up)

    def _stop(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self._head_timer = None
        if (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing():
            self.transport.close()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        raise UserError(
            f"--host {host} --port {port}: {error}; accepted: an address of this machine and a free port"
        ) from None
