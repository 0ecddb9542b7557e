"""What clients send: the forms, as pydantic and the OpenAPI document see them, received within limits of size and time.

The text of a form is checked here, before a clip of it is decoded.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.functional_validators import AfterValidator, BeforeValidator
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from ..core.numerals import parse_number
from ..scoring.calibration import DEFAULT_LEVEL, LEVELS
from ..scoring.three_way import MAX_ERRORS
from .schemas import ClientGone, Code, Problem
from .settings import MAX_RESPONSES, MAX_SITUATION, MAX_TURNS, Limits

_FILES = ("response", "context")
MAX_DEVIATIONS = 10.0
_MAX_PARTS = MAX_TURNS + MAX_RESPONSES + 4  # and the texts
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


class Form(BaseModel):
    """What all routes that score take."""

    MEDIA: ClassVar[str] = "multipart/form-data"
    WRONG_MEDIA: ClassVar[Code] = "not_multipart"

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
    )

    @property
    def responses(self) -> list[bytes]:
        """Files of what is judged: one, or several."""
        value: Any = self.__dict__["response"]
        return value if isinstance(value, list) else [value]

    @property
    def keys(self) -> list[str]:
        """What each response is known by; those with the same key are scored once."""
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
    dimension: str = Field(default="", description="What counts; empty = all dimensions, equally.")
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
    dimension: str = Field(default="", description="What to rank by; may be empty where the judge knows only one.")
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


def check_head(request: Request, form: type[Form], limits: Limits) -> None:
    """Refuse, before the body comes, what is no form, compressed or too large, or has a field in the address."""
    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind != form.MEDIA.encode() or (form.MEDIA == Form.MEDIA and not options.get(b"boundary")):
        raise Problem(form.WRONG_MEDIA)
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem(form.WRONG_MEDIA, "Content-Encoding; expected none, send the body as it is")
    length = request.headers.get("content-length", "")
    # A body in chunks states no length: its bytes are counted as they come
    if length.isdecimal() and int(length) > limits.max_bytes:
        raise too_large(limits)
    # It would be ignored, and the answer given at the default
    for name in form.model_fields:
        if name in request.query_params:
            expected = "expected a part of the form"
            raise Problem("invalid", f"{name}: stands in the address, where it is not read; {expected}")


class _Parser(MultiPartParser):
    """Starlette's parser, which writes nothing to disk and knows whether the form has an end."""

    spool_max_size = 2**40
    is_complete = False

    def on_headers_finished(self) -> None:
        # Starlette makes a text, perhaps of other bytes, of a part without a file name
        if (head := self._current_part.content_disposition) is not None:
            self._current_part.content_disposition = head + b'; filename="part"'
        super().on_headers_finished()

    def on_end(self) -> None:
        self.is_complete = True


async def receive(request: Request, form: type[FormT], limits: Limits, count: Callable[[int], None]) -> FormT:
    """Read a form, in memory.

    Args:
        request: What is read, after `check_head`.
        form: Its kind.
        limits: Of time.
        count: Called with the number of bytes that have come; raises where they are too many.

    Raises:
        Problem: If it is too large, too slow, or not what is expected.
        ClientGone: If the client hung up.
    """
    body = body_of(request, limits, count)
    parser = _Parser(request.headers, body, max_files=_MAX_PARTS)
    try:
        sent = await parser.parse()
    except MultiPartException as error:
        raise Problem("bad_request", f"the form cannot be read: {error.message}") from None
    if not parser.is_complete:
        raise Problem("bad_request")
    values: dict[str, Any] = {}
    for name in sent:
        if name not in form.model_fields:
            names = sorted(form.model_fields, key=lambda own: own != "response")
            raise Problem("invalid", f"a part of the form is not known; expected {', '.join(names)}")
        contents = [await part.read() for part in sent.getlist(name) if isinstance(part, UploadFile)]
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
        first = error.errors(include_input=False)[0]  # the values are those of a stranger
        reason = re.sub(r"^\w+ should (have|be)", "expected", first["msg"].removeprefix("Value error, "))
        reason = "missing" if first["type"] == "missing" else reason
        raise Problem("invalid", f"{first['loc'][0]}: {reason}") from None


def too_large(limits: Limits) -> Problem:
    """The refusal of a body."""
    return Problem("too_large", f"the body is too large; expected at most {limits.max_bytes} bytes")


async def body_of(request: Request, limits: Limits, count: Callable[[int], None]) -> AsyncGenerator[bytes, None]:
    """The body of a request as it comes, within limits of time.

    `max_body_size` of Starlette would answer 413 in plain text, also where another error comes first.
    """
    clock, more = asyncio.get_running_loop().time, True
    end = clock() + limits.body_seconds
    expected = f"expected at most {limits.body_seconds:g} s in all, {limits.idle_seconds:g} s of silence"
    slow = Problem("body_timeout", f"the body came too slowly; {expected}")
    while more:
        if clock() >= end:  # a timer does not fire while bytes lie ready
            raise slow
        try:
            async with asyncio.timeout(min(limits.idle_seconds, end - clock())):
                message = await request.receive()
        except TimeoutError:
            raise slow from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk, more = message.get("body", b""), message.get("more_body", False)
        count(len(chunk))
        yield chunk
