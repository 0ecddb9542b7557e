"""What clients send: the forms, as pydantic and the OpenAPI document see them, received within limits of size and time.

The text of a form is checked here, before a clip of it is decoded.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from pydantic.functional_validators import AfterValidator, BeforeValidator
from starlette.requests import Request

from ..data_modules.numerals import parse_number
from ..models.calibration import DEFAULT_LEVEL, LEVELS
from ..models.three_way import MAX_ERRORS
from .multipart import boundary_of, parts_of
from .schemas import ClientGone, Problem
from .settings import MAX_RESPONSES, MAX_SITUATION, MAX_TURNS, ServiceSettings, reason_of

_FILES = ("response", "context")
MAX_DEVIATIONS = 10.0
_MAX_PARTS = MAX_TURNS + MAX_RESPONSES + 4  # and the texts
_MAX_TEXT_BYTES = 2 * MAX_SITUATION  # of all texts together
_CONTENT_TYPES = "audio/wav, audio/flac, audio/ogg, audio/mpeg, audio/aiff"


def _short(text: str) -> str:
    if (size := len(text.encode())) > MAX_SITUATION:
        raise ValueError(f"{size} bytes in UTF-8; expected at most {MAX_SITUATION}")
    return text


def _number(text: Any) -> Any:
    """The number that a text spells, as in tables: pydantic would take 1_0 for 10."""
    try:
        return parse_number(text) if isinstance(text, str) else text
    except ValueError:
        raise ValueError("expected a finite number") from None


def _one_of(shares: Sequence[float], more: str = "") -> BeforeValidator:
    """A validator that accepts one of these numbers, or its text."""

    def check(text: Any) -> float:
        for share in shares:
            if text in (share, f"{share:g}", f"{share:.2f}"):
                return share
        raise ValueError(f"expected {', '.join(f'{share:g}' for share in shares)}{more}")

    return BeforeValidator(check)


def _without_default(schema: dict[str, JsonValue]) -> None:
    schema.pop("default")


class Form(BaseModel):
    """What all routes that score take."""

    model_config = ConfigDict(extra="forbid")

    context: list[bytes] = Field(
        default=[],
        max_length=MAX_TURNS,
        description="What is answered: one clip, or the turns of a conversation, oldest first; the last one is the "
        "user's, and speakers alternate.",
    )
    situation: Annotated[str, AfterValidator(_short)] = Field(
        default="",
        max_length=MAX_SITUATION,
        description=f"Text about the situation, as raters were given it; at most {MAX_SITUATION} bytes in UTF-8.",
        json_schema_extra=_without_default,
    )

    @property
    def responses(self) -> list[bytes]:
        """Files of what is judged: one, or several."""
        value: Any = self.__dict__["response"]
        return value if isinstance(value, list) else [value]

    @property
    def keys(self) -> list[str]:
        """What each response is known by; those with the same key are heard once."""
        return [str(number) for number in range(len(self.responses))]


class IntervalForm(Form):
    """Of the routes whose answers have intervals."""

    level: Annotated[float, _one_of(LEVELS, f" (default: {DEFAULT_LEVEL:g})")] = Field(
        default=DEFAULT_LEVEL,
        description="Share of pairs that the intervals shall cover; an error where the judge is not calibrated.",
        json_schema_extra={"enum": list(LEVELS)},
    )


class ScoreForm(IntervalForm):
    """What `/v1/score` takes."""

    response: bytes = Field(description="The spoken response that is judged.")


class RewardForm(Form):
    """What `/v1/reward` takes."""

    response: list[bytes] = Field(
        description="Responses, such as the completions of a group.", min_length=1, max_length=MAX_RESPONSES
    )
    dimension: str = Field(
        default="",
        description="What counts; may be left out: then all dimensions count, equally.",
        json_schema_extra=_without_default,
    )
    deviations: Annotated[float, Field(ge=0, le=MAX_DEVIATIONS, allow_inf_nan=False), BeforeValidator(_number)] = Field(
        default=0.0,
        description="Standard errors by which each score is taken to be worse; an error where the judge is not "
        "calibrated.",
    )

    @property
    def keys(self) -> list[str]:
        """SHA-256 of all that an assessment depends on, but for the judge."""
        # Hashes of hashes, each of one length: otherwise bytes could move from one clip to the next unnoticed
        before = hashlib.sha256(hashlib.sha256(self.situation.encode()).digest())
        for clip in self.context:
            before.update(hashlib.sha256(clip).digest())
        return [hashlib.sha256(before.digest() + hashlib.sha256(clip).digest()).hexdigest() for clip in self.response]


class RankForm(IntervalForm):
    """What `/v1/rank` takes."""

    response: list[bytes] = Field(description="Responses to compare.", min_length=1, max_length=MAX_RESPONSES)
    dimension: str = Field(
        default="",
        description="What to rank by; may be left out where the judge knows only one.",
        json_schema_extra=_without_default,
    )
    max_error: Annotated[float | None, _one_of(MAX_ERRORS)] = Field(
        default=None,
        description="Say which of two neighbours is better only where at most this share of such verdicts is wrong; "
        "an error where the calibration knows nothing of preferences.",
        json_schema_extra={"enum": list(MAX_ERRORS), "anyOf": [{"type": "number"}]},
    )


FormT = TypeVar("FormT", bound=Form)


def request_body(form: type[Form]) -> dict[str, Any]:
    """A form as the OpenAPI document has it."""
    audio = {"contentType": _CONTENT_TYPES}
    content = {"schema": form.model_json_schema(), "encoding": dict.fromkeys(_FILES, audio)}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": content}}}


def check_head(request: Request, settings: ServiceSettings) -> None:
    """Check what is known before the body.

    Raises:
        Problem: If it is no form, compressed, or too large.
    """
    boundary_of(request.headers.get("content-type", ""))
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem("not_multipart", "Content-Encoding; expected none, send the form as it is")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > settings.max_bytes:
        raise too_large(settings)


async def receive(
    request: Request, form: type[FormT], settings: ServiceSettings, count: Callable[[int], None]
) -> FormT:
    """Read a form, in memory: nothing is written to disk.

    Args:
        request: What is read.
        form: Its kind.
        settings: Limits of time.
        count: Told how many bytes have come; raises where they are too many.

    Raises:
        Problem: If it is too large, too slow, or not what is expected.
        ClientGone: If the client hung up.
    """
    names = [*_FILES, *(name for name in form.model_fields if name not in _FILES)]
    if (misplaced := next((name for name in names if name in request.query_params), None)) is not None:
        raise Problem(
            "invalid", f"{misplaced}: stands in the address, where it is not read; expected a part of the form"
        )
    body = await _body_of(request, settings, count)
    parts: dict[str, list[bytes]] = {}
    text_bytes = 0
    for name, content in parts_of(body, boundary_of(request.headers["content-type"]), _MAX_PARTS):
        if name not in names:
            raise Problem("invalid", f"a part of the form is not known; expected {', '.join(names)}")
        text_bytes += 0 if name in _FILES else len(content)
        if text_bytes > _MAX_TEXT_BYTES:
            raise Problem("invalid", f"{name}: more than {_MAX_TEXT_BYTES} bytes; expected at most {MAX_SITUATION}")
        parts.setdefault(name, []).append(content)
    values: dict[str, Any] = {}
    for name, contents in parts.items():
        if form.model_fields[name].annotation == list[bytes]:
            values[name] = contents
        elif len(contents) > 1:
            elsewhere = ", or several at /v1/rank" if name == "response" else ""
            raise Problem("invalid", f"{name}: sent {len(contents)} times; expected once{elsewhere}")
        else:
            try:
                values[name] = contents[0] if name in _FILES else contents[0].decode()
            except UnicodeDecodeError:
                raise Problem("invalid", f"{name}: not UTF-8; expected text") from None
    try:
        return form.model_validate(values)
    except ValidationError as error:
        name, reason = reason_of(error)
        raise Problem("invalid", f"{name}: {reason}") from None


def too_large(settings: ServiceSettings) -> Problem:
    """The refusal of a body."""
    return Problem("too_large", f"the body is too large; expected at most {settings.max_bytes} bytes")


async def _body_of(request: Request, settings: ServiceSettings, count: Callable[[int], None]) -> bytearray:
    """CRLF and the body of a request, within limits of time.

    `max_body_size` of Starlette would answer 413 in plain text, also where another error comes first.
    """
    clock, body, more = asyncio.get_running_loop().time, bytearray(b"\r\n"), True
    end = clock() + settings.body_seconds
    limits = f"{settings.body_seconds:g} s in all, {settings.idle_seconds:g} s of silence"
    slow = Problem("body_timeout", f"the body came too slowly; expected at most {limits}")
    while more:
        if clock() >= end:  # a timer does not fire while bytes lie ready
            raise slow
        try:
            async with asyncio.timeout(min(settings.idle_seconds, end - clock())):
                message = await request.receive()
        except TimeoutError:
            raise slow from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk, more = message.get("body", b""), message.get("more_body", False)
        count(len(chunk))
        body += chunk
    return body
