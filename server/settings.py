"""The limits of the service: nobody may take more memory, time or places than these."""

from __future__ import annotations

from dataclasses import dataclass, field

MIB = 2**20


@dataclass(frozen=True)
class Settings:
    """Limits of the service; see the options of `empathy-judge serve`.

    Attributes:
        name: What answers call the judge.
        max_bytes: Of the body of one request.
        max_seconds: Longest clip; None = what the backbone hears, or ten times that of a judge that hears long clips in
            windows.
        max_queue: Pairs that may wait for the judge.
        max_wait: Seconds that the judge waits for requests that are being decoded, to score them together.
        concurrency: Requests that may be received and decoded at once.
        decoders: Processes that decode.
        decode_seconds: Longest time for one clip to be decoded.
        body_seconds: Longest time to receive the body of a request.
        idle_seconds: Longest silence while a request is received.
        request_seconds: Longest time from the last byte of a request to its answer.
        drain_seconds: After SIGTERM at least so long requests are answered with 503, so that load balancers notice.
        token: What clients must send as a bearer token; None = nothing.
        open_metrics: `/metrics` needs no token.
    """

    name: str = "judge"
    max_bytes: int = 32 * MIB
    max_seconds: float | None = None
    max_queue: int = 128
    max_wait: float = 0.005
    concurrency: int = 32
    decoders: int = 2
    decode_seconds: float = 10.0
    body_seconds: float = 60.0
    idle_seconds: float = 10.0
    request_seconds: float = 60.0
    drain_seconds: float = 2.0
    token: str | None = field(default=None, repr=False)
    open_metrics: bool = False


MAX_TURNS = 8
"""Turns of context in a request."""
MAX_RESPONSES = 16
"""Responses that are ranked in one request."""
MAX_SITUATION = 4_000
"""Characters of the text about the situation."""
