"""Who may ask: everybody, or whoever knows the token."""

from __future__ import annotations

import hmac
from collections.abc import Callable

from fastapi import Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from .problems import Problem

TOKEN_VARIABLE = "EMPATHY_JUDGE_TOKEN"
"""Environment variable that holds the token."""
_BEARER = HTTPBearer(auto_error=False, description="The token of this service.")


def token_check(token: str) -> Callable[..., None]:
    """A dependency of routes that refuses whoever does not send the token. The comparison takes the same time whatever
    is sent."""

    def check(credentials: HTTPAuthorizationCredentials | None = Security(_BEARER)) -> None:  # noqa: B008
        sent = credentials.credentials if credentials is not None else ""
        if not hmac.compare_digest(sent.encode(), token.encode()):
            raise Problem(
                "unauthorized",
                "accepted: the header Authorization: Bearer with the token of this service",
                {"WWW-Authenticate": "Bearer"},
            )

    return check
