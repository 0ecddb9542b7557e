"""What is known of each request: its line in the log, its counters, and the middleware that writes both.

The log holds what a request was and what became of it, never what was said in it.
"""

from __future__ import annotations

import functools
import json
import logging
import re
import sys
import time
import traceback
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .schemas import ClientGone, Problem

LOGGER = logging.getLogger("empathy_judge.serving")
ROUTES = (
    "/", "/v1/score", "/v1/rank", "/v1/reward", "/v1/systemone", "/v1/judge", "/v1/models", "/healthz", "/readyz",
    "/metrics", "/openapi.json",
)  # fmt: skip
CLIENT_GONE = 499
"""Status in logs and metrics of a request whose client did not wait, as in nginx; it is never sent."""
_KEY = "empathy_judge.record"
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PACKAGE_FRAMES = 6
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_PAIRS = (1, 2, 4, 8, 16, 32, 64, 128)
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Of every answer."""


@dataclass(eq=False)
class RequestRecord:
    """The facts about a request, for log and metrics."""

    id: str  # of the client, if it sent a sensible one in `X-Request-ID`
    method: str  # of HTTP
    route: str  # path if it is one of `ROUTES`, else ``other``: what strangers ask for is not written down
    begun: float = field(default_factory=time.monotonic)  # `time.monotonic`
    status: int = 0  # of the answer
    code: str = ""  # of `schemas.Code`; empty = no error
    bytes: int = 0  # of its body, so far
    facts: dict[str, Any] = field(default_factory=dict)  # what the stages add: durations, batch
    admitted: bool = False  # it was let in, and has to be finished before the service ends
    refused: Problem | None = None  # what the connection answered while the body came, to a client that is gone now

    @property
    def seconds(self) -> float:
        """Seconds since the head of the request."""
        return time.monotonic() - self.begun

    def write(self) -> None:
        """Write the record to the log."""
        facts: dict[str, Any] = {"id": self.id, "method": self.method, "route": self.route, "status": self.status}
        if self.code:
            facts["code"] = self.code
        if self.admitted:
            facts["bytes"] = self.bytes
        LOGGER.info("request", extra={"facts": {**facts, "ms": round(1000 * self.seconds, 1), **self.facts}})


def record_of(scope: Scope) -> RequestRecord:
    """The record of a request, opened where there is none yet."""
    if _KEY not in scope:
        sent_id = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        # Each path or method that a stranger thinks of would be a time series of its own in Prometheus
        method = scope["method"] if scope["method"] in ("GET", "POST") else "other"
        route = scope["path"] if scope["path"] in ROUTES else "other"
        scope[_KEY] = RequestRecord(sent_id if _ID.fullmatch(sent_id) else uuid.uuid4().hex, method, route)
    return scope[_KEY]


class JsonLines(logging.Formatter):
    """A log line as a JSON object. Of exceptions only their type and where they were raised: their text may quote
    what a client sent."""

    def format(self, record: logging.LogRecord) -> str:
        """The line as JSON."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            frames = traceback.extract_tb(error.__traceback__)[-_PACKAGE_FRAMES:]
            places = [f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} {frame.name}" for frame in frames]
            line |= {"error": type(error).__name__, "where": places}
        return json.dumps(line)


def log_json() -> None:
    """Write the log as lines of JSON to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.getLogger().addHandler(handler)
    logging.captureWarnings(True)
    LOGGER.setLevel(logging.INFO)
    # what they say of a client's request tells whoever runs the service nothing: its answer is in our own line
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)


class Metrics:
    """What Prometheus reads at `/metrics`; every service has a registry of its own.

    Args:
        waiting: Returns how many pairs wait.
        uploads: Returns how many requests are received or decoded.
    """

    def __init__(self, waiting: Callable[[], float], uploads: Callable[[], float]) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        counter = functools.partial(Counter, namespace="empathy_judge", registry=self.registry)
        gauge = functools.partial(Gauge, namespace="empathy_judge", registry=self.registry)
        histogram = functools.partial(Histogram, namespace="empathy_judge", registry=self.registry)
        self.requests = counter("requests", "Requests that were answered.", ("route", "status"))
        latency = "From the head of a request to the end of its answer."
        self.latency = histogram("request_seconds", latency, ("route",), buckets=_SECONDS)
        stages = "Time of scored requests by stage: receive, decode, wait, score."
        self.stages = histogram("stage_seconds", stages, ("stage",), buckets=_SECONDS)
        self.refused = counter("refused", "Requests without a score.", ("code",))
        self.accepted = counter("accepted", "Requests that were let in.")
        self.batches = histogram("batch_pairs", "Pairs that were scored together.", buckets=_PAIRS)
        self.batch_seconds = counter("scoring_seconds", "Time that the judge worked.")
        self.audio_seconds = counter("audio_seconds", "Audio that was scored.")
        self.restarts = counter("decoder_restarts", "Decoders that were killed.")
        gauge("uploads", "Requests that are received or decoded.").set_function(uploads)
        gauge("queue_pairs", "Pairs that wait.").set_function(waiting)

    def answered(self, record: RequestRecord) -> None:
        """Count a request that has ended."""
        self.requests.labels(record.route, str(record.status)).inc()
        self.latency.labels(record.route).observe(record.seconds)
        if record.code:
            self.refused.labels(record.code).inc()

    def scored(self, pairs: int, seconds: float) -> None:
        """Count a batch: its pairs, and the seconds that it took."""
        self.batches.observe(pairs)
        self.batch_seconds.inc(seconds)


class Recorder:
    """Middleware around every request: opens and closes its record, and answers where nothing else did.

    Args:
        app: What is inside.
        finished: Called with each record when its answer was sent, or its client is gone.
        is_stopping: Whether connections shall be closed.
    """

    def __init__(
        self, app: ASGIApp, finished: Callable[[RequestRecord], None], is_stopping: Callable[[], bool]
    ) -> None:
        self._app, self._finished, self._is_stopping = app, finished, is_stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, as ASGI calls it."""
        # `lifespan`, by which a server starts and stops the application
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = record_of(scope)

        async def send_recorded(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = record.id
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                # A refused upload goes on: a client whose connection is closed while it sends cannot read why. uvicorn
                # throws away what still comes, and `running` closes the connection after `idle_seconds`
                if self._is_stopping() and (record.status == 200 or scope["method"] != "POST"):
                    headers["Connection"] = "close"
            await send(message)

        try:
            await self._app(scope, receive, send_recorded)
        except ClientGone:
            record.status = CLIENT_GONE
            if record.refused is not None:
                record.status, record.code = record.refused.status, record.refused.code
        except Exception as error:
            LOGGER.error("bug", exc_info=error, extra={"facts": {"id": record.id}})
            record.code = "internal"
            # Where the head of an answer was sent already, there is no other answer any more
            if not record.status:
                problem = Problem("internal", f"the service failed; its log knows more of request {record.id}")
                await problem.response()(scope, receive, send_recorded)
        finally:
            self._finished(record)
