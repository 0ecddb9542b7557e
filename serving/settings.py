"""The limits of the service: nobody may take more memory, time or places than these."""

from __future__ import annotations

import ctypes
import os
import re
import socket
import sys
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ..data_modules.audio import MIN_SECONDS
from ..data_modules.errors import UserError

TOKEN_VARIABLE = "EMPATHY_JUDGE_TOKEN"
"""Environment variable that holds the token."""
MAX_TURNS = 8
"""Turns of context in a request."""
MAX_RESPONSES = 16
"""Responses that are ranked in one request."""
MAX_SITUATION = 4_000
"""Bytes in UTF-8 of the text about the situation. A judge may read a token for each byte, and the time of a batch grows
with the square of its longest text: of as many characters four requests would take minutes."""
ALL_ADDRESSES = ("0.0.0.0", "::", "")
"""What listens on all addresses of a machine."""
_DAY = 86_400.0
_NAME = re.compile(r"\*|[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*|[0-9a-fA-F:.]+")


class ServiceSettings(BaseModel):
    """Limits of the service; see the options of `empathy-judge serve`.

    Attributes:
        name: What answers call the judge.
        max_bytes: Of the body of one request.
        max_seconds: Longest clip; None = ten times what the backbone hears at once, or once without `windows`.
        windows: Clips longer than the backbone hears at once are heard in windows; False = they are refused.
        max_queue: Pairs that may wait for the judge.
        max_wait: Seconds that the judge waits for requests that are being decoded, to score them together.
        concurrency: Requests that may be received and decoded at once.
        decoders: Processes that decode.
        decode_seconds: Longest time for one clip to be decoded.
        body_seconds: Longest time to receive the body of a request.
        idle_seconds: Longest silence while a request is received.
        request_seconds: Longest time from the last byte of a request to its answer.
        drain_seconds: After SIGTERM at least so long requests are answered with 503, so that load balancers notice.
        grace_seconds: After SIGTERM the service ends within this time, whoever still waits or does not read.
        token: What clients must send as a bearer token, printable ASCII; None = nothing.
        open_metrics: `/metrics` needs no token.
        host: Address or name that the service listens on.
        allowed_hosts: Names by which it is asked, beside `host`, localhost and IP addresses (`origins.OriginCheck`),
            and whose pages may ask; `*` = any. Empty with a token = any.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = "judge"
    max_bytes: int = Field(default=32 * 2**20, ge=2**10, le=2**32)
    max_seconds: float | None = Field(default=None, ge=MIN_SECONDS, le=_DAY)
    windows: bool = True
    max_queue: int = Field(default=128, ge=1, le=10**6)
    max_wait: float = Field(default=0.005, ge=0, le=60)
    concurrency: int = Field(default=256, ge=1, le=10**4)
    decoders: int = Field(default=2, ge=1, le=256)
    decode_seconds: float = Field(default=10.0, gt=0, le=_DAY)
    body_seconds: float = Field(default=60.0, gt=0, le=_DAY)
    idle_seconds: float = Field(default=10.0, gt=0, le=_DAY)
    request_seconds: float = Field(default=60.0, gt=0, le=_DAY)
    drain_seconds: float = Field(default=2.0, ge=0, le=_DAY)
    grace_seconds: float = Field(default=25.0, gt=0, le=_DAY)
    token: str | None = Field(default=None, repr=False)
    open_metrics: bool = False
    host: str = "127.0.0.1"
    allowed_hosts: tuple[str, ...] = ()

    @field_validator("allowed_hosts")
    @classmethod
    def _are_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if wrong := [name for name in names if not _NAME.fullmatch(name)]:
            raise ValueError(f"{wrong[0]!r}; expected names such as judge.example, without scheme and port, or '*'")
        return names

    @field_validator("token")
    @classmethod
    def _can_be_sent(cls, token: str | None) -> str | None:
        if token is not None and not (token.isascii() and token.isprintable() and token == token.strip() != ""):
            raise ValueError("expected printable ASCII characters, at least one of them no blank")
        return token


def read_settings(**options: Any) -> ServiceSettings:
    """Settings out of the options of the command line, and the token out of the environment.

    Raises:
        UserError: If a limit makes no sense, or the token is empty or cannot be sent in a header.
    """
    token = os.environ.get(TOKEN_VARIABLE)
    try:
        return ServiceSettings(token=None if token is None else token.strip(), **options)
    except ValidationError as error:
        name, reason = reason_of(error)
    if name == "token":
        raise UserError(f"{TOKEN_VARIABLE}: {reason}; unset it to let everybody in")
    value = "" if name == "allowed_hosts" else f" {options[name]}"
    raise UserError(f"--{name.replace('_', '-')}{value}: {reason}")


def reason_of(error: ValidationError) -> tuple[str, str]:
    """The first error, without the value that was given: name of the field, and a line that says what is expected."""
    first = error.errors(include_input=False)[0]
    reason = re.sub(r"^\w+ should (have|be)", "expected", first["msg"].removeprefix("Value error, "))
    return str(first["loc"][0]), "missing" if first["type"] == "missing" else reason


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens, before anything that takes time.

    Args:
        host: Address.
        port: 0 = any that is free.

    Raises:
        UserError: If nothing can listen there.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family)
    # `UnicodeError` is raised for a name that no host can have
    except (OSError, OverflowError, UnicodeError) as error:
        raise UserError(
            f"--host {host} --port {port}: {error}; expected an address of this machine and a free port"
        ) from None


# of <malloc.h>
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGE = 2**22  # with 2**18 a pair took twice the time: every tensor was newly allocated memory
_ARENAS = 2


def return_memory() -> None:
    """Let glibc give large blocks back to the system as soon as they are free.

    By default it learns from the first large tensors to keep all later ones in heaps, one for every few threads. Clips
    differ in length, so the heaps fill with holes: the service grew by 0.2 MB with every request
    (`benchmarks/service.py`). Does nothing where there is no glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE)
        mallopt(_M_TRIM_THRESHOLD, _LARGE)
        mallopt(_M_ARENA_MAX, _ARENAS)
