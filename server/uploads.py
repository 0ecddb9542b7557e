"""Bodies of requests, received within limits of size and time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from python_multipart.multipart import parse_options_header
from starlette.requests import Request

from ..models.calibration import DEFAULT_LEVEL, LEVELS
from .forms import Form
from .problems import ClientGone, Problem
from .settings import MAX_RESPONSES, MAX_SITUATION, MAX_TURNS, Settings

FILES = ("response", "context")
"""Parts that are clips."""
_MAX_TEXT_BYTES = 4 * MAX_SITUATION  # a character takes at most four


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


def check_head(request: Request, settings: Settings) -> bytes:
    """What can be known before the body.

    Returns:
        The boundary of the form.

    Raises:
        Problem: If it is no form, compressed, or too large.
    """
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not boundary:
        raise Problem("not_multipart", "Content-Type; accepted: multipart/form-data with a boundary")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem("not_multipart", "Content-Encoding; accepted: none, send the form as it is")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > settings.max_bytes:
        raise _too_large(settings)
    return boundary


async def receive(request: Request, boundary: bytes, texts: tuple[str, ...], settings: Settings) -> Upload:
    """Read a form.

    Args:
        request: Its body was not read yet.
        boundary: Of `check_head`.
        texts: Names of the parts that are texts.
        settings: Limits.

    Raises:
        Problem: If it is too large, too slow, or not what is accepted.
        ClientGone: If the client hung up.
    """
    form, size = Form(boundary, FILES, texts, _MAX_TEXT_BYTES, MAX_TURNS + MAX_RESPONSES + len(texts)), 0
    async for chunk in _chunks(request, settings):
        size += len(chunk)
        if size > settings.max_bytes:
            raise _too_large(settings)
        form.write(chunk)
    form.finish()
    return _read(form, size)


async def _chunks(request: Request, settings: Settings) -> AsyncGenerator[bytes, None]:
    clock = asyncio.get_running_loop().time
    end, more = clock() + settings.body_seconds, True
    while more:
        try:
            async with asyncio.timeout(min(settings.idle_seconds, end - clock())):
                message = await request.receive()
        except TimeoutError:
            limits = f"{settings.body_seconds:g} s in all, {settings.idle_seconds:g} s of silence"
            raise Problem("body_timeout", f"the body came too slowly; accepted: {limits}") from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        more = message.get("more_body", False)
        yield message.get("body", b"")


def _read(form: Form, size: int) -> Upload:
    files: dict[str, list[bytes]] = {name: [] for name in FILES}
    texts: dict[str, str] = {}
    for name, content in form.parts:
        if name in files:
            files[name].append(bytes(content))
        elif name in texts:
            raise Problem("invalid", f"{name}: sent twice; accepted: once")
        else:
            texts[name] = _text(name, content)
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


def _text(name: str, content: bytearray) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise Problem("invalid", f"{name}: no UTF-8; accepted: text") from None


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
    known = ", ".join(f"{level:g}" for level in LEVELS)
    raise Problem("invalid", f"level; accepted: {known} (default: {DEFAULT_LEVEL:g})")


def _too_large(settings: Settings) -> Problem:
    return Problem("too_large", f"the body is too large; accepted: at most {settings.max_bytes} bytes")
