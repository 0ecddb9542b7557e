"""What goes wrong, as clients see it: a status, and one line of JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from starlette.responses import JSONResponse

Code = Literal[
    "bad_request",
    "unauthorized",
    "not_found",
    "method_not_allowed",
    "body_timeout",
    "too_large",
    "not_multipart",
    "invalid",
    "bad_audio",
    "busy",
    "internal",
    "loading",
    "stopping",
    "timeout",
]

STATUS: Mapping[Code, int] = {
    "bad_request": 400,
    "unauthorized": 401,
    "not_found": 404,
    "method_not_allowed": 405,
    "body_timeout": 408,
    "too_large": 413,
    "not_multipart": 415,
    "invalid": 422,
    "bad_audio": 422,
    "busy": 429,
    "internal": 500,
    "loading": 503,
    "stopping": 503,
    "timeout": 504,
}
"""HTTP status of each code."""
CLIENT_GONE = 499
"""Status in logs and metrics of a request whose client did not wait, as nginx has it; nobody is sent it."""


class Problem(Exception):
    """An answer that is an error.

    Args:
        code: For programs.
        message: For people; one line that says what is accepted.
        headers: Of the answer.
    """

    def __init__(self, code: Code, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.code: Code = code
        self.headers = headers

    def response(self) -> JSONResponse:
        """The answer."""
        return problem_response(STATUS[self.code], self.code, str(self), self.headers)


class ClientGone(Exception):
    """The client hung up."""


def problem_response(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """An answer in the one form that all errors have."""
    return JSONResponse({"error": {"code": code, "message": message}}, status, headers=dict(headers or {}))
