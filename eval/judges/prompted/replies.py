"""What servers answer: replies, tokens and errors. No field of an answer is trusted to have a type or to be there."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ....core.numerals import parse_number

ANSWERED, REFUSED, BLOCKED = "answered", "refused", "blocked by safety filter"
EMPTY, CUT_OFF = "empty answer", "cut off"
_MOST_TOKENS = 10**12  # a larger count is taken as this one, which ends any budget
_STATUSES = {
    400: "invalid_request_error invalid_argument failed_precondition out_of_range bad_request badrequesterror "
    "context_length_exceeded",
    401: "unauthenticated unauthorized authentication_error invalid_authentication invalid_api_key",
    402: "payment_required insufficient_credits billing_error",
    403: "permission_denied permission_error forbidden",
    404: "not_found not_found_error model_not_found notfounderror",
    429: "resource_exhausted rate_limit_exceeded rate_limit_error too_many_requests insufficient_quota",
    500: "internal internal_error internal_server_error server_error api_error internalservererror",
    503: "unavailable service_unavailable overloaded overloaded_error",
    504: "deadline_exceeded timeout timeout_error gateway_timeout",
}
# Fields beside which a message is no error
_ANSWERS = {"choices", "candidates", "promptFeedback", "answers", "prompt_feedback"}
_NAMES = ("code", "status", "type")  # fields that tell the kind of an error, the most exact first
_STATUS_OF = {word: status for status, words in _STATUSES.items() for word in words.split()}
_T = TypeVar("_T")


@dataclass(frozen=True)
class Usage:
    """Tokens of an answer: text read, audio read, written (thoughts included); None where the server does not say, or
    says what cannot be."""

    text_in: int | None = None  # all that was read where `audio_in` is None
    audio_in: int | None = None
    out: int | None = None


@dataclass(frozen=True)
class Reply:
    """The reply of a model, with or without a score."""

    kind: str  # `ANSWERED`, or why there is nothing to read
    content: str = ""  # what the model wrote: text, or the arguments of the function it called
    version: str | None = None  # the model that answered, as the server names it
    usage: Usage = Usage()
    # first token that might have been written -> natural logarithm of its probability
    alternatives: Mapping[str, float] = field(default_factory=dict)
    # of a decision model: question -> probability of each level, lowest first, or of each choice; None = it is none,
    # empty = they have other names than 0, 1, 2 ..., or than those of the choices
    levels: Mapping[str, Sequence[float | None]] = field(default_factory=dict)


@dataclass(eq=False)
class RequestError(Exception):
    """A request without an answer."""

    kind: str  # what goes into statistics, such as ``server error``
    detail: str = ""  # the server's words
    retry: bool = False  # whether asking again may help
    wait: float | None = None  # seconds to wait before, where the server says so
    limited: bool = False  # the server wants fewer requests
    final: bool = False  # no other request will do better: a wrong key, no credit, an unknown model
    billed: bool = False  # the model may have answered, so that the vendor may want money for it

    def __str__(self) -> str:
        return self.detail


# ---------------------------------------------------------------- fields


def read(body: Any, path: str, kind: type[_T]) -> _T | None:
    """A field of an answer, by a path such as ``choices.0.message``; None where it is absent or null.

    Raises:
        ValueError: If it, or a container of it, is of another type, or a float is not finite.
    """
    value = _field(body, path)
    if kind is float and type(value) is int and abs(value) < 2**63:
        value = float(value)
    if value is None or (type(value) is kind and not (isinstance(value, float) and not math.isfinite(value))):
        return value
    raise ValueError(f"{path}: {type(value).__name__} in place of a {kind.__name__}")


def tokens(body: Any, path: str) -> int | None:
    """A count of tokens, rounded up; None where it is absent or no count: of another type, negative, not finite."""
    try:
        count = _field(body, path)
    except ValueError:
        return None
    is_count = type(count) in (int, float) and 0 <= count < math.inf
    return min(math.ceil(count), _MOST_TOKENS) if is_count else None


def _field(body: Any, path: str) -> Any:
    value = body
    for step in path.split("."):
        container = list if step.isdigit() else dict
        if not isinstance(value, container):
            raise ValueError(f"{path}: {type(value).__name__} in place of a {container.__name__}")
        value = value.get(step) if isinstance(value, dict) else value[int(step)] if int(step) < len(value) else None
        if value is None:
            return None
    return value


def chances(candidates: Any, name: str) -> dict[str, float]:
    """Token -> logarithm of its probability, a field of the given name; without candidates that lack one of them."""
    found = {read(candidate, "token", str): read(candidate, name, float) for candidate in candidates or ()}
    return {token: chance for token, chance in found.items() if token is not None and chance is not None}


def retry_after(*values: tuple[str | None, float]) -> float | None:
    """Seconds to wait, from pairs of a text and its unit in seconds: the first valid number, at most an hour."""
    for text, unit in values:
        try:
            wait = parse_number(text or "") * unit
        except ValueError:
            continue
        if 0 <= wait <= 3600:
            return wait
    return None


# ---------------------------------------------------------------- errors in a body, also of an answer of status 200


def error_in(body: Any) -> dict[str, Any] | None:
    """The fields of the error that a body holds; None where it holds none.

    The forms: ``{"error": {"message", "code", ...}}`` (OpenAI, Google) or with a text in it, alone or in a list (as
    Google's streams); ``{"choices": [{"error": ...}]}`` (OpenRouter); the fields themselves without an answer (vLLM).
    """
    if isinstance(body, list) and body:
        body = body[0]
    if not isinstance(body, dict):
        return None
    choices = body.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    for holder in (body, first if isinstance(first, dict) else {}):
        inner = holder.get("error")
        fields = {"message": inner} if isinstance(inner, str) else inner
        if isinstance(fields, dict) and (_words(fields) or any(fields.get(name) for name in _NAMES)):
            return fields
    if not _ANSWERS & body.keys() and _words(body):
        return {**body, "message": _words(body)}
    return None


def status_in(fields: dict[str, Any]) -> int | None:
    """The HTTP status (400 to 599) that the fields of an error name, by number or word; None where they name none."""
    for name in _NAMES:
        value = fields.get(name)
        if isinstance(value, str):
            value = int(value) if re.fullmatch("[45][0-9][0-9]", value) else _STATUS_OF.get(value.lower())
        if type(value) is int and 400 <= value <= 599:
            return value
    return None


def page_in_words(page: str) -> str:
    """The title of an HTML page, else its text."""
    title = re.search(r"<title[^>]*>([^<]+)", page, re.IGNORECASE)
    return " ".join((title[1] if title else re.sub(r"<[^>]*>?", " ", page)).split())


def _words(fields: dict[str, Any]) -> str:
    words = [fields[name] for name in ("message", "detail") if isinstance(fields.get(name), str)]
    # FastAPI's list of what is wrong with a request, each with its place; Cloudflare's list of errors
    for name, text in (("detail", "msg"), ("errors", "message")):
        for entry in fields[name] if isinstance(fields.get(name), list) else ():
            if isinstance(entry, dict) and isinstance(entry.get(text), str):
                place = entry["loc"] if isinstance(entry.get("loc"), list) else []
                words.append(": ".join([*([".".join(map(str, place))] if place else []), entry[text]]))
    return next((text for text in words if text.strip()), "")
