"""What Prometheus reads at `/metrics`."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_PAIRS = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Of one service; every service has a registry of its own.

    Args:
        waiting: Says how many pairs wait.
    """

    def __init__(self, waiting: Callable[[], float]) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        registry = self.registry
        self._requests = Counter(
            "empathy_judge_requests", "Requests that were answered.", ["route", "status"], registry=registry
        )
        self._latency = Histogram(
            "empathy_judge_request_seconds",
            "From the head of a request to the end of its answer.",
            ["route"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._stages = Histogram(
            "empathy_judge_stage_seconds",
            "Time of scored requests by stage: receive, decode, wait, score.",
            ["stage"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._refused = Counter("empathy_judge_refused", "Requests without a score.", ["code"], registry=registry)
        self._accepted = Counter("empathy_judge_accepted", "Requests that were let in.", registry=registry)
        self._batches = Histogram(
            "empathy_judge_batch_pairs", "Pairs that were scored together.", buckets=_PAIRS, registry=registry
        )
        self._batch_seconds = Counter("empathy_judge_scoring_seconds", "Time that the judge worked.", registry=registry)
        self._audio = Counter("empathy_judge_audio_seconds", "Audio that was scored.", registry=registry)
        self._restarts = Counter("empathy_judge_decoder_restarts", "Decoders that were killed.", registry=registry)
        self.uploads = Gauge("empathy_judge_uploads", "Requests that are received or decoded.", registry=registry)
        queue = Gauge("empathy_judge_queue_pairs", "Pairs that wait.", registry=registry)
        queue.set_function(waiting)

    def answered(self, route: str, status: int, code: str, seconds: float) -> None:
        """A request came to its end; an empty code = no error."""
        self._requests.labels(route, str(status)).inc()
        self._latency.labels(route).observe(seconds)
        if code:
            self._refused.labels(code).inc()

    def accepted(self) -> None:
        """A request was let in."""
        self._accepted.inc()

    def stage(self, name: str, seconds: float) -> None:
        """A stage of a request took so long."""
        self._stages.labels(name).observe(seconds)

    def scored(self, pairs: int, seconds: float) -> None:
        """A batch of so many pairs took so long."""
        self._batches.observe(pairs)
        self._batch_seconds.inc(seconds)

    def heard(self, seconds: float) -> None:
        """So much audio was scored."""
        self._audio.inc(seconds)

    def restarted(self) -> None:
        """A decoder was killed."""
        self._restarts.inc()

    def text(self) -> bytes:
        """In the format of Prometheus."""
        return generate_latest(self.registry)
