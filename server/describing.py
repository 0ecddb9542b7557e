"""What the OpenAPI document says that FastAPI cannot see: forms, and the errors of each route."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..models.calibration import DEFAULT_LEVEL, LEVELS
from .problems import STATUS
from .schemas import Error
from .settings import MAX_RESPONSES, MAX_SITUATION, MAX_TURNS

_MESSAGES: Mapping[str, str] = {
    "bad_request": "the form cannot be read: Missing boundary in multipart.",
    "unauthorized": "accepted: the header Authorization: Bearer with the token of this service",
    "not_found": "no such page",
    "method_not_allowed": "this page does not know the method",
    "body_timeout": "the body came too slowly; accepted: 60 s in all, 10 s of silence",
    "too_large": "the body is too large; accepted: at most 33554432 bytes",
    "not_multipart": "Content-Type; accepted: multipart/form-data with a boundary",
    "invalid": "response: missing; accepted: an audio file",
    "bad_audio": "response: lasts 12.0 s; accepted: at most 10 s",
    "busy": "too many requests wait; ask again in 2 s",
    "internal": "the service failed; its log knows more of request 3f0c",
    "loading": "the judge is being loaded; ask again soon",
    "stopping": "the service is stopping; ask another one",
    "timeout": "no score within 60 s; ask again when the service is less busy",
}
_TITLES = {
    400: "The form cannot be read.",
    401: "The token is missing or wrong.",
    408: "The body came too slowly.",
    413: "The body is too large.",
    415: "The body is no form.",
    422: "A field is missing or wrong, or a clip cannot be used.",
    429: "Too many requests wait; Retry-After says when to ask again.",
    500: "The service failed.",
    503: "The judge is being loaded, or the service is stopping.",
    504: "There was no score in time.",
}
_AUDIO = {"type": "string", "format": "binary"}
_CONTENT_TYPES = "audio/wav, audio/flac, audio/ogg, audio/mpeg, audio/aiff"
_ID_HEADER = {
    "X-Request-ID": {
        "description": "Of this request, in the log too; the client may choose it.",
        "schema": {"type": "string", "maxLength": 64},
    }
}
_RETRY_HEADER = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}}

SCORING_ERRORS = (400, 408, 413, 415, 422, 429, 500, 503, 504)
"""Statuses of the routes that score."""


def responses(*statuses: int, token: bool) -> dict[int | str, dict[str, Any]]:
    """The errors of a route for FastAPI.

    Args:
        *statuses: That it may answer with.
        token: It wants a token.
    """
    wanted = (*statuses, 401) if token else statuses
    return {status: _response(status) for status in sorted(wanted)}


def _response(status: int) -> dict[str, Any]:
    codes = [code for code, own in STATUS.items() if own == status]
    examples = {code: {"value": {"error": {"code": code, "message": _MESSAGES[code]}}} for code in codes}
    headers = {**_ID_HEADER, **(_RETRY_HEADER if status in (429, 503) else {})}
    return {
        "model": Error,
        "description": _TITLES[status],
        "headers": headers,
        "content": {"application/json": {"examples": examples}},
    }


def form(*, several: bool) -> dict[str, Any]:
    """The request body of a route that scores.

    Args:
        several: It takes several responses.
    """
    properties: dict[str, Any] = {
        "response": _several("Responses to compare.", 1, MAX_RESPONSES)
        if several
        else {**_AUDIO, "description": "The spoken response that is judged."},
        "context": _several(
            "What is answered: one clip, or the turns of a conversation, oldest first; the last one is the user's, and "
            "speakers alternate.",
            0,
            MAX_TURNS,
        ),
        "situation": {
            "type": "string",
            "maxLength": MAX_SITUATION,
            "description": "Text about the situation, as raters were given it.",
        },
        "level": {
            "type": "number",
            "enum": list(LEVELS),
            "default": DEFAULT_LEVEL,
            "description": "Share of pairs that the intervals shall cover; an error where the judge is not calibrated.",
        },
    }
    if several:
        properties["dimension"] = {
            "type": "string",
            "description": "What to rank by; may be left out where the judge knows only one.",
        }
    schema = {
        "type": "object",
        "required": ["response"],
        "additionalProperties": False,
        "properties": properties,
    }
    audio = {"contentType": _CONTENT_TYPES}
    content = {"schema": schema, "encoding": {"response": audio, "context": audio}}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": content}}}


def _several(description: str, least: int, most: int) -> dict[str, Any]:
    return {"type": "array", "items": _AUDIO, "minItems": least, "maxItems": most, "description": description}


def tailor(document: dict[str, Any], dimensions: Sequence[str], calibrated: bool) -> None:
    """Write what only the judge knows into the OpenAPI document.

    Args:
        document: Whole; it is changed.
        dimensions: Names.
        calibrated: There are intervals; if not, no level is accepted.
    """
    for path in ("/v1/score", "/v1/rank"):
        body = document["paths"][path]["post"]["requestBody"]
        properties = body["content"]["multipart/form-data"]["schema"]["properties"]
        if not calibrated:
            properties.pop("level", None)
        if "dimension" in properties:
            properties["dimension"]["enum"] = list(dimensions)


def texts(*, several: bool) -> tuple[str, ...]:
    """Names of the parts of `form` that are texts."""
    return ("situation", "level", *(("dimension",) if several else ()))
