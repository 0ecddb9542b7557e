"""The routes of the service and its page."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, Request, Response, Security
from fastapi.responses import HTMLResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from markupsafe import Markup
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException

from ..core.errors import AudioError, TextError, UserError
from ..core.version import __version__
from ..eval.rendering import STYLE, render
from ..scoring.assessment import Assessment, Scale, in_order, reward_of
from ..scoring.scorer import Scorer
from . import schemas
from .forms import RankForm, RewardForm, ScoreForm, request_body
from .origins import OriginCheck
from .records import Recorder, record_of
from .schemas import Problem, responses
from .service import Judged, Service
from .settings import MAX_SITUATION, ServiceSettings
from .systemone import DecisionForm, DecisionRequest, answers_of

_BEARER = HTTPBearer(auto_error=False, description="The token of this service.")
_ABOUT = """Scores how well the voice of a spoken response fits its context. Clips are sent as files in a form, or to
`/v1/systemone` as data URLs; nothing is kept. Errors always have the form `{"error": {"code", "message"}}`, also where
a request is no HTTP/1.1 or has a head that is too large (431). A body in very many small pieces gets 400. The page at
`/` does the same by hand."""


def create_app(load: Callable[[], Scorer], settings: ServiceSettings | None = None) -> FastAPI:
    """An ASGI application that asks a judge.

    Args:
        load: Loads the judge; requests are answered with 503 until it is there.
        settings: Limits; by default those of `ServiceSettings`.
    """
    settings = settings or ServiceSettings()
    service = Service(load, settings)
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
    # Starlette puts the last one outside: refusals of the first are recorded, too
    app.add_middleware(OriginCheck, settings=settings)
    app.add_middleware(Recorder, finished=service.finished, is_stopping=lambda: service.is_stopping)
    guarded = [Depends(_token_check(settings.token))] if settings.token is not None else []

    def scoring(
        name: str, summary: str, body: dict[str, Any], errors: Sequence[int] = schemas.SCORING_ERRORS
    ) -> Callable[[Any], Any]:
        """A route that takes a request with such a body and scores what is in it."""
        return app.post(
            f"/v1/{name}",
            summary=summary,
            operation_id=name,
            dependencies=guarded,
            openapi_extra=body,
            responses=responses(*errors, token=token),
        )

    @scoring("score", "Score one response", request_body(ScoreForm))
    async def score(request: Request) -> schemas.Scored:
        judged = await service.answer(request, ScoreForm)
        (assessment,) = judged.assessments
        return schemas.Scored(**_answer_of(judged), **_scores_of(assessment), levels=assessment.levels)

    @scoring("rank", "Rank several responses to one context", request_body(RankForm))
    async def rank(request: Request) -> schemas.Ranking:
        judged = await service.answer(request, RankForm)
        ranked = in_order(judged.assessments, judged.dimensions)
        over_next = judged.judge.scorer.over_next(ranked, judged.dimensions, judged.form.max_error)
        return schemas.Ranking(
            **_answer_of(judged),
            dimension=judged.dimensions[0],
            ranking=[
                schemas.Ranked(response=item.index + 1, **_scores_of(judged.assessments[item.index]), over_next=verdict)
                for item, verdict in zip(ranked, over_next, strict=True)
            ],
        )

    @scoring("reward", "Rewards of several responses to one context, to train a policy", request_body(RewardForm))
    async def reward(request: Request) -> schemas.Rewards:
        judged = await service.answer(request, RewardForm)
        form, dimensions = judged.form, judged.dimensions
        rewards = [
            reward_of(outcome.found, dimensions, form.deviations, clipped=outcome.clipped)
            for outcome in judged.outcomes
        ]
        return schemas.Rewards(
            judge=judged.judge.id,
            dimensions=dimensions,
            deviations=form.deviations,
            rewards=[
                schemas.RewardOf(
                    response=number,
                    content=key,
                    reward=reward.reward,
                    standard_error=reward.standard_error,
                    reason=None if reward.code is None else schemas.Reason(code=reward.code, text=str(reward.text)),
                )
                for number, (key, reward) in enumerate(zip(form.keys, rewards, strict=True), start=1)
            ],
        )

    @scoring("systemone", "Answer questions, as decision models do", DecisionRequest.body(), schemas.DECISION_ERRORS)
    async def systemone(request: Request) -> schemas.Decision:
        if not service.judge.scorer.knows_levels:
            raise Problem("no_distribution")
        judged = await service.answer(request, DecisionForm)
        (assessment,) = judged.assessments
        asked = judged.form.asked(judged.judge.scorer.dimensions)
        return schemas.Decision(
            **_answer_of(judged),
            model=judged.judge.id.name,
            answers=answers_of(judged.form, asked, assessment),
            warnings=assessment.warnings,
        )

    @app.get(
        "/v1/models",
        summary="The judge as a model, for clients of decision models",
        operation_id="models",
        dependencies=guarded,
        responses=responses(503, token=token),
    )
    async def models() -> schemas.Models:
        names = ", ".join(dimension.name for dimension in service.judge.scorer.dimensions)
        about = f"Expected shares of raters of {names}, heard in the voice of the last clip"
        return schemas.Models(models=[schemas.Model(name=settings.name, description=about, release_date="")])

    @app.get(
        "/v1/judge",
        summary="The judge and the limits of the service",
        operation_id="judge",
        dependencies=guarded,
        responses=responses(503, token=token),
    )
    async def judge() -> schemas.About:
        loaded = service.judge
        return schemas.About(
            judge=loaded.id,
            dimensions=[
                schemas.AboutDimension(name=own.name, scale=Scale(own.minimum, own.maximum, own.higher_is_better))
                for own in loaded.scorer.dimensions
            ],
            calibrated=loaded.scorer.calibration is not None,
            max_seconds=loaded.max_seconds,
            max_bytes=settings.max_bytes,
        )

    page, headers = page_of(needs_token=token)
    open_to_all = responses(token=False)

    # Load balancers ask with HEAD
    @app.head("/", include_in_schema=False)
    @app.get("/", summary="A page to try the judge", response_class=HTMLResponse, responses=open_to_all)
    async def index() -> Response:
        return HTMLResponse(page, headers=headers)

    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz", summary="Whether the service is alive", responses=open_to_all)
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.head("/readyz", include_in_schema=False)
    @app.get("/readyz", summary="Whether requests are let in", responses=responses(503, token=False))
    async def readyz() -> dict[str, str]:
        _ = service.judge  # raises, with 503, while there is no judge to ask
        return {"status": "ready"}

    @app.get(
        "/metrics",
        summary="Counters for Prometheus",
        dependencies=[] if settings.open_metrics else guarded,
        response_class=_Exposition,
        responses=responses(token=token and not settings.open_metrics),
    )
    async def metrics() -> Response:
        return _Exposition(generate_latest(service.metrics.registry))

    return app


def _answer_of(judged: Judged[Any]) -> dict[str, Any]:
    """The fields of `schemas.Answer`."""
    return {"judge": judged.judge.id, "level": judged.form.level, "seconds": judged.seconds}


def _scores_of(found: Assessment) -> dict[str, Any]:
    """Scores, warnings and windows of a response, as answers have them."""
    return {"scores": found.scores, "warnings": found.warnings, "windows": found.windows}


class _Exposition(Response):
    media_type = CONTENT_TYPE_LATEST


def _token_check(token: str) -> Callable[..., None]:
    """A dependency of routes that refuses whoever does not send the token. The comparison takes the same time whatever
    is sent."""

    def check(credentials: HTTPAuthorizationCredentials | None = Security(_BEARER)) -> None:  # noqa: B008
        sent = credentials.credentials if credentials is not None else ""
        # As bytes: `compare_digest` refuses text beyond ASCII, which a client may send
        if not hmac.compare_digest(sent.encode(), token.encode()):
            raise Problem("unauthorized", headers={"WWW-Authenticate": "Bearer"})

    return check


async def _on_error(request: Request, error: Exception) -> Response:
    """Answer an error, in the one form that all errors have."""
    if isinstance(error, HTTPException):
        codes: dict[int, schemas.Code] = {404: "not_found", 405: "method_not_allowed"}
        code = codes.get(error.status_code, "bad_request")
        error = Problem(code, None if code != "bad_request" else "the request cannot be read", error.headers)
    elif not isinstance(error, Problem):
        # A `TextError` is an `AudioError` about the situation text: no clip is to blame
        of_audio = isinstance(error, AudioError) and not isinstance(error, TextError)
        error = Problem("bad_audio" if of_audio else "invalid", str(error))
    record_of(request.scope).code = error.code
    return error.response()


def page_of(needs_token: bool) -> tuple[str, Mapping[str, str]]:
    """The page to try the judge, and the headers that say what it may do: its own script and style, its own server,
    clips made in the browser. If the service wants a token, the page asks for it and keeps it in memory."""
    folder = Path(__file__).parent / "page"
    template, style, script = ((folder / f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js"))
    # By the hash of script and style, so that markup that gets into the page runs nothing
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(STYLE + style)}; connect-src 'self'; "
        "media-src blob:; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {
        "Content-Security-Policy": policy,
        "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    }
    variables = {"script": Markup(script), "needs_token": needs_token, "max_situation": MAX_SITUATION}
    return render(template, style, **variables), headers


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
