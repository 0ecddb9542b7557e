"""Errors that servers put into the body of an answer, also of one with status 200."""

from __future__ import annotations

import re
from typing import Any

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
_NAMES = ("code", "status", "type")  # fields that tell the kind of an error, the most exact first
_STATUS_OF = {word: status for status, words in _STATUSES.items() for word in words.split()}


def error_in(body: Any) -> dict[str, Any] | None:
    """The fields of the error that a body holds; None where it holds none.

    The forms: ``{"error": {"message", "code", ...}}`` (OpenAI, Google) or with a text in it, alone or in a list (as
    Google's streams); ``{"choices": [{"error": ...}]}`` (OpenRouter); the fields themselves beside no answer (vLLM).
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
    if not {"choices", "candidates", "promptFeedback"} & body.keys() and _words(body):
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
    return next((text for text in words if text.strip()), "")
