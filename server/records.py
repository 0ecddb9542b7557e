"""One line of JSON for each request: what it was and what became of it, never what was said in it."""

from __future__ import annotations

import json
import logging
import re
import time
import traceback
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from starlette.types import Scope

LOGGER = logging.getLogger("empathy_judge.server")
ROUTES = ("/", "/v1/score", "/v1/rank", "/v1/judge", "/healthz", "/readyz", "/metrics", "/openapi.json")
_KEY = "empathy_judge.record"
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PACKAGE_FRAMES = 6


@dataclass
class Record:
    """What is known of a request.

    Attributes:
        id: Of the client, if it sent a sensible one in `X-Request-ID`.
        method: Of HTTP.
        route: Path if it is one of `ROUTES`, else ``other``: what strangers ask for is not written down.
        begun: `time.monotonic`.
        status: Of the answer.
        code: Of `problems.Code`; empty = no error.
        facts: What the stages add: sizes, durations, batch.
        admitted: It was let in, and has to be finished before the service ends.
    """

    id: str
    method: str
    route: str
    begun: float = field(default_factory=time.monotonic)
    status: int = 0
    code: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    admitted: bool = False

    @property
    def seconds(self) -> float:
        """Since the head of the request."""
        return time.monotonic() - self.begun

    def write(self) -> None:
        """Log it."""
        values = {"id": self.id, "method": self.method, "route": self.route, "status": self.status}
        code = {"code": self.code} if self.code else {}
        took = {"ms": round(1000 * self.seconds, 1)}
        LOGGER.info("request", extra={"facts": {**values, **code, **took, **self.facts}})


def open_record(scope: Scope) -> Record:
    """The record of a request, made when it comes in."""
    headers = dict(scope["headers"])
    asked = headers.get(b"x-request-id", b"").decode("latin-1")
    method = scope["method"] if scope["method"] in ("GET", "POST") else "other"
    route = scope["path"] if scope["path"] in ROUTES else "other"
    record = Record(asked if _ID.fullmatch(asked) else uuid.uuid4().hex, method, route)
    scope[_KEY] = record
    return record


def record_of(scope: Scope) -> Record:
    """The record that was opened for this request."""
    return scope[_KEY]


class JsonLines(logging.Formatter):
    """A log line as a JSON object. Of exceptions only their type and where they were raised: their text may quote
    what a client sent."""

    def format(self, record: logging.LogRecord) -> str:
        """As JSON."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line |= where(record.exc_info[1])
        return json.dumps(line)


def where(error: BaseException) -> dict[str, Any]:
    """Type of an exception, and the last places it came through."""
    frames = traceback.extract_tb(error.__traceback__)[-_PACKAGE_FRAMES:]
    places = [f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} {frame.name}" for frame in frames]
    return {"error": type(error).__name__, "where": places}
