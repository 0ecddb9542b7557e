"""What clients send: the forms, as pydantic and the OpenAPI document see them, received within limits of size and time.

The text of a form is checked here, before a clip of it is decoded.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Sequence
from tempfile import SpooledTemporaryFile
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from pydantic.functional_validators import AfterValidator, BeforeValidator
from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from ..data_modules.numerals import parse_number
from ..models.calibration import DEFAULT_LEVEL, LEVELS
from ..models.three_way import MAX_ERRORS
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
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise Problem("not_multipart", "Content-Type; expected multipart/form-data with a boundary")
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
    parser = _Parser(request.headers, _chunks(request, settings, count), form, settings.max_bytes)
    try:
        form_data = await parser.parse()
    except MultiPartException as error:
        raise Problem("bad_request", f"the form cannot be read: {error.__cause__ or error.message}") from None
    if not parser.is_complete:
        raise Problem("bad_request", "the form cannot be read: its end is missing")
    files: dict[str, list[bytes]] = {}
    for name, part in form_data.multi_items():
        assert isinstance(part, UploadFile)  # as `_Parser` makes them
        files.setdefault(name, []).append(await part.read())
    await form_data.close()
    values: dict[str, Any] = {}
    for name, contents in files.items():
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


async def _chunks(
    request: Request, settings: ServiceSettings, count: Callable[[int], None]
) -> AsyncGenerator[bytes, None]:
    """The body of a request as it comes, within limits of time.

    `max_body_size` of Starlette would answer 413 in plain text, also where another error comes first.
    """
    clock, more = asyncio.get_running_loop().time, True
    end = clock() + settings.body_seconds
    while more:
        try:
            async with asyncio.timeout(min(settings.idle_seconds, end - clock())):
                message = await request.receive()
        except TimeoutError:
            limits = f"{settings.body_seconds:g} s in all, {settings.idle_seconds:g} s of silence"
            raise Problem("body_timeout", f"the body came too slowly; expected at most {limits}") from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk, more = message.get("body", b""), message.get("more_body", False)
        count(len(chunk))
        yield chunk


class _Parser(MultiPartParser):
    """Starlette's parser with the rules of our forms: names are known, texts are short, and the end has to be there.

    Every part is a file in memory: clips may come without a file name, and nothing is written to disk.
    """

    def __init__(self, headers: Headers, chunks: AsyncGenerator[bytes, None], form: type[Form], max_bytes: int) -> None:
        super().__init__(headers, chunks)
        self.is_complete = False
        self._names = [*_FILES, *(name for name in form.model_fields if name not in _FILES)]
        self._max_bytes, self._text_bytes = max_bytes, 0

    def on_headers_finished(self) -> None:
        """Open the file of a part that begins, if its name is known."""
        part = self._current_part
        name = parse_options_header(part.content_disposition)[1].get(b"name", b"").decode("utf-8", "replace")
        if name not in self._names:
            raise Problem("invalid", f"a part of the form is not known; expected {', '.join(self._names)}")
        if len(self.items) >= _MAX_PARTS:
            raise Problem("invalid", f"more than {_MAX_PARTS} parts; expected fewer")
        file = SpooledTemporaryFile(max_size=self._max_bytes)  # noqa: SIM115 closed by `parse` or `receive`
        self._files_to_close_on_error.append(file)
        part.field_name, part.file = name, UploadFile(file, size=0)  # pyright: ignore[reportArgumentType] as Starlette

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        """Take further bytes of a part, within the limit of texts."""
        if (name := self._current_part.field_name) not in _FILES:
            self._text_bytes += end - start
            if self._text_bytes > _MAX_TEXT_BYTES:
                raise Problem("invalid", f"{name}: more than {_MAX_TEXT_BYTES} bytes; expected at most {MAX_SITUATION}")
        super().on_part_data(data, start, end)

    def on_end(self) -> None:
        """Note that the form is complete."""
        self.is_complete = True
