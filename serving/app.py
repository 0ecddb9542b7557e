"""The routes of the service and its page, and what runs it until everybody who was let in has an answer."""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import hmac
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from fastapi import Depends, FastAPI, Request, Response, Security
from fastapi.responses import HTMLResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from markupsafe import Markup
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.h11_impl import H11Protocol

from .. import __version__
from ..data_modules.errors import AudioError, TextError, UserError
from ..eval.rendering import STYLE, render
from ..models.assessment import Scale, in_order
from ..scorer import Scorer
from . import schemas
from .forms import RankForm, ScoreForm, request_body
from .records import LOGGER, Recorder, record_of
from .schemas import Problem, responses
from .service import Service, ranked_by
from .settings import MAX_SITUATION, Settings

_KEEP_ALIVE_SECONDS = 15
_BACKLOG = 2048
_BEARER = HTTPBearer(auto_error=False, description="The token of this service.")
_ABOUT = """Scores how well the voice of a spoken response fits its context. Clips are sent as files in a form; nothing
is kept. Errors always have the form `{"error": {"code", "message"}}`. The page at `/` does the same by hand."""


def create_app(scorer: Scorer | Callable[[], Scorer], settings: Settings | None = None) -> FastAPI:
    """An ASGI application that asks a judge.

    Args:
        scorer: The judge, or what loads it: then requests are answered with 503 until it is there.
        settings: Limits; by default those of `Settings`.
    """
    settings = settings or Settings()
    service = Service(scorer, settings)
    token = settings.token is not None
    app = FastAPI(
        title="Empathy judge",
        version=__version__,
        description=_ABOUT,
        lifespan=service.lifespan,
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers=dict.fromkeys((Problem, UserError, HTTPException), _on_error),
    )
    app.state.service = service
    app.add_middleware(Recorder, finished=service.finished, is_stopping=lambda: service.is_stopping)
    guarded = [Depends(_token_check(settings.token))] if settings.token is not None else []

    @app.post(
        "/v1/score",
        summary="Score one response",
        operation_id="score",
        dependencies=guarded,
        openapi_extra=request_body(ScoreForm),
        responses=responses(*schemas.SCORING_ERRORS, token=token),
    )
    async def score(request: Request) -> schemas.Scored:
        heard = await service.answer(request, ScoreForm)
        (found,) = heard.assessments
        return schemas.Scored(
            judge=heard.judge.id,
            level=heard.form.level,
            seconds=heard.seconds,
            scores=found.scores,
            warnings=found.warnings,
            windows=found.windows,
        )

    @app.post(
        "/v1/rank",
        summary="Rank several responses to one context",
        operation_id="rank",
        dependencies=guarded,
        openapi_extra=request_body(RankForm),
        responses=responses(*schemas.SCORING_ERRORS, token=token),
    )
    async def rank(request: Request) -> schemas.Ranking:
        heard = await service.answer(request, RankForm)
        dimension = ranked_by(heard.judge, heard.form)
        places = [own.index for own in in_order(heard.assessments, [dimension])]
        return schemas.Ranking(
            judge=heard.judge.id,
            level=heard.form.level,
            seconds=heard.seconds,
            dimension=dimension,
            ranking=[
                schemas.Ranked(response=place + 1, scores=found.scores, warnings=found.warnings, windows=found.windows)
                for place, found in ((place, heard.assessments[place]) for place in places)
            ],
        )

    @app.get(
        "/v1/judge",
        summary="The judge and the limits of the service",
        operation_id="judge",
        dependencies=guarded,
        responses=responses(503, token=token),
    )
    async def judge() -> schemas.About:
        own = service.judge
        return schemas.About(
            judge=own.id,
            dimensions=[
                schemas.AboutDimension(
                    name=dimension.name,
                    scale=Scale(dimension.minimum, dimension.maximum, dimension.higher_is_better),
                )
                for dimension in own.scorer.dimensions
            ],
            calibrated=own.scorer.calibration is not None,
            max_seconds=own.max_seconds,
            max_bytes=settings.max_bytes,
        )

    page = Page(needs_token=token)

    @app.get("/", summary="A page to try the judge", operation_id="page", response_class=HTMLResponse)
    async def index() -> Response:
        return HTMLResponse(page.html, headers=page.headers)

    @app.get("/healthz", summary="Whether the service is alive", operation_id="healthz")
    async def healthz() -> schemas.Health:
        return schemas.Health(status="ok")

    @app.get(
        "/readyz", summary="Whether requests are let in", operation_id="readyz", responses=responses(503, token=False)
    )
    async def readyz() -> schemas.Health:
        _ = service.judge
        return schemas.Health(status="ready")

    @app.get(
        "/metrics",
        summary="Counters for Prometheus",
        operation_id="metrics",
        dependencies=[] if settings.open_metrics else guarded,
        response_class=_Exposition,
        responses=responses(token=token and not settings.open_metrics),
    )
    async def metrics() -> Response:
        return _Exposition(generate_latest(service.metrics.registry))

    def document() -> dict[str, Any]:
        known = FastAPI.openapi(app)
        if service.state == "ready":
            scorer = service.judge.scorer
            schemas.tailor(known, [own.name for own in scorer.dimensions], scorer.calibration is not None)
        return known

    app.openapi = document
    return app


class _Exposition(Response):
    media_type = CONTENT_TYPE_LATEST


def _token_check(token: str) -> Callable[..., None]:
    """A dependency of routes that refuses whoever does not send the token. The comparison takes the same time whatever
    is sent."""

    def check(credentials: HTTPAuthorizationCredentials | None = Security(_BEARER)) -> None:  # noqa: B008
        sent = credentials.credentials if credentials is not None else ""
        if not hmac.compare_digest(sent.encode(), token.encode()):
            raise Problem("unauthorized", schemas.ERRORS["unauthorized"][1], {"WWW-Authenticate": "Bearer"})

    return check


async def _on_error(request: Request, error: Exception) -> Response:
    """The one form that all errors have."""
    if isinstance(error, HTTPException):
        codes: dict[int, schemas.Code] = {404: "not_found", 405: "method_not_allowed"}
        code = codes.get(error.status_code, "bad_request")
        message = schemas.ERRORS[code][1] if code != "bad_request" else "the request cannot be read"
        error = Problem(code, message, error.headers)
    elif not isinstance(error, Problem):
        of_audio = isinstance(error, AudioError) and not isinstance(error, TextError)
        error = Problem("bad_audio" if of_audio else "invalid", str(error))
    record_of(request.scope).code = error.code
    return error.response()


class Page:
    """The page as it is sent.

    Args:
        needs_token: The service wants a token; the page asks for it and keeps it in memory.

    Attributes:
        html: The document.
        headers: What it may do: its own script and style, its own server, clips made in the browser.
    """

    def __init__(self, needs_token: bool) -> None:
        folder = Path(__file__).parent / "page"
        names = ("page.html", "page.css", "page.js")
        template, style, script = ((folder / name).read_text(encoding="utf-8") for name in names)
        self.html: str = render(
            template,
            style,
            script=Markup(script),
            needs_token=needs_token,
            max_situation=MAX_SITUATION,
        )
        policy = {
            "default-src": "'none'",
            "script-src": _hash(script),
            "style-src": _hash(STYLE + style),
            "connect-src": "'self'",
            "media-src": "blob:",
            "img-src": "data:",
            "base-uri": "'none'",
            "form-action": "'none'",
            "frame-ancestors": "'none'",
        }
        self.headers: Mapping[str, str] = {
            "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
            "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
        }


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# ---------------------------------------------------------------- running


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
