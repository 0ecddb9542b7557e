"""The settings of the service: nobody may take more memory, time or places than its limits."""

from __future__ import annotations

import ctypes
import os
import re
import socket
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from ..core.errors import UserError
from ..core.numerals import parse_number, parse_whole
from ..core.option_values import number_between

TOKEN_VARIABLE = "EMPATHY_JUDGE_TOKEN"
"""Environment variable that holds the token."""
MAX_TURNS = 8
"""Turns of context in a request."""
MAX_RESPONSES = 16
"""Responses that are ranked in one request."""
MAX_SITUATION = 4_000
"""Bytes in UTF-8 of the text about the situation. A judge may read a token for each byte, and the time of a batch grows
with the square of its longest text: four requests with as many characters of four bytes would take minutes."""
ALL_ADDRESSES = ("0.0.0.0", "::", "")
"""What listens on all addresses of a machine."""
_NAME = re.compile(r"\*|[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*|[0-9a-fA-F:.]+")


def _seconds(least: float, most: float = 86_400) -> Callable[[str], Any]:
    return number_between(parse_number, least, most, f"seconds from {least:.10g} to {most:.10g}")


def _whole(least: int, most: int) -> Callable[[str], Any]:
    return number_between(parse_whole, least, most, f"a whole number from {least} to {most}")


_Duration = Annotated[float, _seconds(0.001)]


def host_name(text: str) -> str:
    """A name in `--allowed-hosts`."""
    if not _NAME.fullmatch(text):
        raise ArgumentTypeError(f"{text!r}: expected names such as judge.example, without scheme and port, or '*'")
    return text


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What no client may exceed; options of `empathy-judge serve`.

    Attributes:
        max_queue (PAIRS): most pairs that wait; further requests are refused with 429
        max_bytes (BYTES): largest request; a larger one is refused with 413
        concurrency (REQUESTS): most requests received and decoded at once; further ones are refused with 429
        decoders (PROCESSES): processes that decode clips
        decode_seconds (SECONDS): longest time to decode a clip, which is then refused
        body_seconds (SECONDS): longest time to receive a request, which is then refused with 408
        idle_seconds (SECONDS): longest silence while a request is received, which is then refused with 408
        request_seconds (SECONDS): longest time from the last byte of a request to its answer; then it is a 504
        kept_bytes (BYTES): memory for the audio states of clips that come again
        drain_seconds (SECONDS): shortest time after SIGTERM in which requests are refused with 503
        grace_seconds (SECONDS): longest time from SIGTERM to the end; requests that still wait are dropped
        max_seconds (SECONDS): longest clip (default: ten times what the backbone hears at once; with --no-windows once)
    """

    TITLE: ClassVar[str] = "limits"

    max_queue: Annotated[int, _whole(1, 10**6)] = 128
    max_bytes: Annotated[int, _whole(2**10, 2**32)] = 32 * 2**20
    concurrency: Annotated[int, _whole(1, 10**4)] = 256
    decoders: Annotated[int, _whole(1, 256)] = 2
    decode_seconds: _Duration = 10.0
    body_seconds: _Duration = 60.0
    idle_seconds: _Duration = 10.0
    request_seconds: _Duration = 60.0
    kept_bytes: Annotated[int, _whole(1, 10**12)] = 128 * 2**20
    drain_seconds: Annotated[float, _seconds(0)] = 2.0
    grace_seconds: _Duration = 25.0
    # The shortest clip that the package accepts lasts 0.05 s (`audio.decode.MIN_SECONDS`)
    max_seconds: Annotated[float, _seconds(0.05)] | None = None


@dataclass(frozen=True, kw_only=True)
class ServiceSettings(Limits):
    """The limits, and who may ask.

    Attributes:
        name: What answers call the judge.
        windows: Clips longer than the backbone hears at once are read in windows; False = they are refused.
        token: What clients must send as a bearer token; None = nothing.
        open_metrics: `/metrics` needs no token.
        host: Address or name that the service listens on.
        allowed_hosts: Names by which clients ask, besides `host`, localhost and IP addresses (`origins.OriginCheck`),
            and whose pages may ask; `*` = any. Empty with a token = any.
    """

    name: str = "judge"
    windows: bool = True
    token: str | None = field(default=None, repr=False)
    open_metrics: bool = False
    host: str = "127.0.0.1"
    allowed_hosts: Sequence[str] = ()


def read_token() -> str | None:
    """The token out of the environment, if it can be sent in a header; None = there is none, and everybody may ask."""
    if (token := os.environ.get(TOKEN_VARIABLE)) is None:
        return None
    token = token.strip()
    if not (token and token.isascii() and token.isprintable()):
        expected = "expected printable ASCII characters, at least one of them no blank"
        raise UserError(f"{TOKEN_VARIABLE}: {expected}; unset it to let everybody in")
    return token


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens, before anything that takes time; port 0 = any that is free."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family)
    # `UnicodeError` is raised for a name that no host can have
    except (OSError, OverflowError, UnicodeError) as error:
        expected = "expected an address of this machine and a free port"
        raise UserError(f"--host {host} --port {port}: {error}; {expected}") from None


def return_memory() -> None:
    """Let glibc give large blocks back to the system as soon as they are free.

    By default it learns from the first large tensors to keep all later ones in heaps, one for every few threads. Clips
    differ in length, so the heaps fill with holes: the service grew by 0.2 MB with every request
    (`benchmarks/service.py`). Does nothing where there is no glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return
    trim_threshold, mmap_threshold, arena_max = -1, -3, -8  # of <malloc.h>
    # With 2**18 a pair took twice the time: every tensor was newly allocated memory
    large = 2**22
    mallopt(mmap_threshold, large)
    mallopt(trim_threshold, large)
    mallopt(arena_max, 2)
