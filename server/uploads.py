"""Bodies of requests: received within limits of size and time, and read as forms. Nothing is written to disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from ..models.calibration import DEFAULT_LEVEL, LEVELS
from .problems import ClientGone, Problem
from .settings import MAX_RESPONSES, MAX_SITUATION, MAX_TURNS, Settings

_TEXTS = ("situation", "level", "dimension")
_MAX_TEXT_BYTES = 4 * MAX_SITUATION


@dataclass(frozen=True)
class Upload:
    """What a client sent.

    Attributes:
        responses: Files that are judged.
        context: Files of the turns before, oldest first.
        situation: Text about the situation.
        level: Of the intervals; None = not asked for.
        dimension: To rank by; None = not asked for.
        size: Bytes of the body.
    """

    responses: tuple[bytes, ...]
    context: tuple[bytes, ...]
    situation: str | None
    level: float | None
    dimension: str | None
    size: int


def check_head(request: Request, settings: Settings) -> None:
    """What can be known before the body.

    Raises:
        Problem: If it is no form, compressed, or too large.
    """
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise Problem("not_multipart", "Content-Type; accepted: multipart/form-data with a boundary")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem("not_multipart", "Content-Encoding; accepted: none, send the form as it is")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > settings.max_bytes:
        raise _too_large(settings)


async def receive(request: Request, settings: Settings, accepted: tuple[str, ...]) -> Upload:
    """Read a form.

    Args:
        request: Its body was not read yet.
        settings: Limits.
        accepted: Names of its fields.

    Raises:
        Problem: If it is too large, too slow, or not what is accepted.
        ClientGone: If the client hung up.
    """
    body = _Body(request, settings)
    parser = MultiPartParser(
        request.headers,
        body.chunks(),
        max_files=MAX_TURNS + MAX_RESPONSES,
        max_fields=len(_TEXTS),
        max_part_size=_MAX_TEXT_BYTES,
    )
    parser.spool_max_size = settings.max_bytes + 1  # in memory
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise Problem("bad_request", f"the form cannot be read: {error.message}") from None
    try:
        return await _read(form, accepted, body.size)
    finally:
        await form.close()


class _Body:
    """The bytes of a request as they come."""

    def __init__(self, request: Request, settings: Settings) -> None:
        self._request, self._settings = request, settings
        self.size = 0

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        clock = asyncio.get_running_loop().time
        end, more = clock() + self._settings.body_seconds, True
        while more:
            try:
                async with asyncio.timeout(min(self._settings.idle_seconds, end - clock())):
                    message = await self._request.receive()
            except TimeoutError:
                limits = f"{self._settings.body_seconds:g} s in all, {self._settings.idle_seconds:g} s of silence"
                raise Problem("body_timeout", f"the body came too slowly; accepted: {limits}") from None
            if message["type"] == "http.disconnect":
                raise ClientGone
            chunk, more = message.get("body", b""), message.get("more_body", False)
            self.size += len(chunk)
            if self.size > self._settings.max_bytes:
                raise _too_large(self._settings)
            yield chunk


async def _read(form: FormData, accepted: tuple[str, ...], size: int) -> Upload:
    files: dict[str, list[bytes]] = {"response": [], "context": []}
    texts: dict[str, str] = {}
    for name, value in form.multi_items():
        if name not in accepted:
            raise Problem("invalid", f"a field of the form is not known; accepted: {', '.join(accepted)}")
        if isinstance(value, UploadFile):
            if name not in files:
                raise Problem("invalid", f"{name}: sent as a file; accepted: text")
            files[name].append(await value.read())
        elif name in files:
            raise Problem("invalid", f"{name}: sent as text; accepted: an audio file")
        elif name in texts:
            raise Problem("invalid", f"{name}: sent twice; accepted: once")
        else:
            texts[name] = value
    if not files["response"]:
        raise Problem("invalid", "response: missing; accepted: an audio file")
    return Upload(
        _at_most(files["response"], MAX_RESPONSES, "response"),
        _at_most(files["context"], MAX_TURNS, "context"),
        _situation(texts.get("situation")),
        _level(texts.get("level")),
        texts.get("dimension"),
        size,
    )


def _at_most(clips: list[bytes], most: int, name: str) -> tuple[bytes, ...]:
    if len(clips) > most:
        raise Problem("invalid", f"{name}: {len(clips)} files; accepted: at most {most}")
    return tuple(clips)


def _situation(text: str | None) -> str | None:
    if text is not None and len(text) > MAX_SITUATION:
        raise Problem("invalid", f"situation: {len(text)} characters; accepted: at most {MAX_SITUATION}")
    return text or None


def _level(text: str | None) -> float | None:
    if text is None:
        return None
    for level in LEVELS:
        if text in (f"{level:g}", f"{level:.2f}"):
            return level
    raise Problem(
        "invalid", f"level; accepted: {', '.join(f'{level:g}' for level in LEVELS)} (default: {DEFAULT_LEVEL:g})"
    )


def _too_large(settings: Settings) -> Problem:
    return Problem("too_large", f"the body is too large; accepted: at most {settings.max_bytes} bytes")
