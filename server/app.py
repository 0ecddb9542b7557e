"""The routes of the service."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException

from .. import __version__
from ..data_modules.errors import AudioError, UserError
from ..data_modules.schema import Dimension
from ..scorer import Scorer
from . import describing, schemas
from .access import token_check
from .loaded import Loaded
from .metrics import CONTENT_TYPE
from .middleware import AroundRequests
from .page import Page
from .problems import ClientGone, Code, Problem
from .records import record_of
from .service import Heard, Service
from .settings import Settings
from .uploads import Upload, check_head, receive

_T = TypeVar("_T")
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

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
        await service.begin()
        yield
        await service.stop()

    app = FastAPI(
        title="Empathy judge",
        version=__version__,
        description=_ABOUT,
        lifespan=lifespan,
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={
            Problem: _on_problem,
            AudioError: _on_bad_audio,
            UserError: _on_invalid,
            HTTPException: _on_http_error,
        },
    )
    app.state.service = service
    app.add_middleware(AroundRequests, service=service)
    app.include_router(_scoring(service))
    app.include_router(_watching(service))

    def document() -> dict[str, Any]:
        known = FastAPI.openapi(app)
        if service.state == "ready":
            scorer = service.judge.scorer
            describing.tailor(known, [own.name for own in scorer.dimensions], scorer.calibration is not None)
        return known

    app.openapi = document
    return app


def _scoring(service: Service) -> APIRouter:
    """What needs the token, if there is one."""
    settings = service.settings
    has_token = settings.token is not None
    router = APIRouter(dependencies=[Depends(token_check(settings.token))] if settings.token is not None else [])

    @router.post(
        "/v1/score",
        summary="Score one response",
        operation_id="score",
        openapi_extra=describing.form(several=False),
        responses=describing.responses(*describing.SCORING_ERRORS, token=has_token),
    )
    async def score(request: Request) -> schemas.Scored:
        judge, heard, _ = await _answer(service, request, several=False)
        return schemas.scored(judge, settings, heard)

    @router.post(
        "/v1/rank",
        summary="Rank several responses to one context",
        operation_id="rank",
        openapi_extra=describing.form(several=True),
        responses=describing.responses(*describing.SCORING_ERRORS, token=has_token),
    )
    async def rank(request: Request) -> schemas.Ranking:
        judge, heard, upload = await _answer(service, request, several=True)
        return schemas.ranking(judge, settings, heard, _dimension(judge, upload))

    @router.get(
        "/v1/judge",
        summary="The judge and the limits of the service",
        operation_id="judge",
        responses=describing.responses(503, token=has_token),
    )
    async def judge() -> schemas.About:
        return schemas.about(service.judge, settings)

    return router


def _watching(service: Service) -> APIRouter:
    """What watches the service, and the page."""
    settings = service.settings
    hidden = settings.token is not None and not settings.open_metrics
    checks = [Depends(token_check(settings.token))] if settings.token is not None and hidden else []
    router = APIRouter()
    page = Page(needs_token=settings.token is not None)

    @router.get("/", summary="A page to try the judge", operation_id="page", response_class=HTMLResponse)
    async def index() -> Response:
        return HTMLResponse(page.html, headers=page.headers)

    @router.get("/healthz", summary="Whether the service is alive", operation_id="healthz")
    async def healthz() -> schemas.Health:
        return schemas.Health(status="ok")

    @router.get(
        "/readyz",
        summary="Whether requests are let in",
        operation_id="readyz",
        responses=describing.responses(503, token=False),
    )
    async def readyz() -> schemas.Health:
        _ = service.judge
        return schemas.Health(status="ready")

    @router.get(
        "/metrics",
        summary="Counters for Prometheus",
        operation_id="metrics",
        dependencies=checks,
        response_class=_Exposition,
        responses=describing.responses(token=hidden),
    )
    async def metrics() -> Response:
        return _Exposition(service.metrics.text())

    return router


class _Exposition(Response):
    media_type = CONTENT_TYPE


async def _answer(service: Service, request: Request, *, several: bool) -> tuple[Loaded, Heard, Upload]:
    """What both routes that score do."""
    record, settings = record_of(request.scope), service.settings
    boundary = check_head(request, settings)
    judge = service.admit(record)
    with service.uploading():
        upload = await receive(request, boundary, describing.texts(several=several), settings)
        received = record.seconds
        service.metrics.stage("receive", received)
        record.facts |= {"bytes": upload.size, "receive_ms": round(1000 * received, 1)}
        _check(judge, upload, several)
        end = time.monotonic() + settings.request_seconds
        clips = await _unless_gone(request, service.decode(judge, upload, record), end, settings)
    heard = await _unless_gone(request, service.score(judge, upload, clips, record), end, settings)
    return judge, heard, upload


def _check(judge: Loaded, upload: Upload, several: bool) -> None:
    """What only the judge knows of a form."""
    if len(upload.responses) > 1 and not several:
        raise Problem("invalid", f"response: {len(upload.responses)} files; accepted: one, or several at /v1/rank")
    if upload.level is not None and judge.scorer.calibration is None:
        raise Problem("invalid", "level: this judge is not calibrated, it has no intervals; accepted: no level")
    if several:
        _dimension(judge, upload)


def _dimension(judge: Loaded, upload: Upload) -> Dimension:
    """What to rank by."""
    known = {dimension.name: dimension for dimension in judge.scorer.dimensions}
    if upload.dimension is None and len(known) == 1:
        return next(iter(known.values()))
    if upload.dimension is None or upload.dimension not in known:
        raise Problem("invalid", f"dimension; accepted: {', '.join(known)}")
    return known[upload.dimension]


async def _unless_gone(request: Request, work: Coroutine[Any, Any, _T], end: float, settings: Settings) -> _T:
    """The result of some work, which is given up when the client hangs up or time is over.

    Raises:
        ClientGone: If the client hung up.
        Problem: If time is over.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_hung_up(request))
    try:
        left = max(0.0, end - time.monotonic())
        await asyncio.wait({task, gone}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if gone.done():
            raise ClientGone
        limit = f"{settings.request_seconds:g} s"
        raise Problem("timeout", f"no score within {limit}; ask again when the service is less busy")
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _on_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return _refusal(request, error)


async def _on_bad_audio(request: Request, error: Exception) -> Response:
    return _refusal(request, Problem("bad_audio", str(error)))


async def _on_invalid(request: Request, error: Exception) -> Response:
    return _refusal(request, Problem("invalid", str(error)))


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    known: dict[int, tuple[Code, str]] = {
        404: ("not_found", "no such page"),
        405: ("method_not_allowed", "this page does not know the method"),
    }
    code, message = known.get(error.status_code, ("bad_request", "the request cannot be read"))
    return _refusal(request, Problem(code, message, error.headers))


def _refusal(request: Request, problem: Problem) -> JSONResponse:
    record_of(request.scope).code = problem.code
    return problem.response()
