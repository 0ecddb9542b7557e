"""A judge that is quick, says what it was asked, and misbehaves when told to; and services around it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import anyio.from_thread
import httpx
import numpy as np
from empathy_judge.audio.decode import Clip, decode, is_clipped
from empathy_judge.core.errors import AudioError, TextError, UserError
from empathy_judge.data_modules.schema import Dimension, Pair
from empathy_judge.scoring.assessment import Assessment, Caution, Scale, Score
from empathy_judge.serving.app import create_app
from empathy_judge.serving.decoding import Decoded, decode_safely
from empathy_judge.serving.running import serve
from empathy_judge.serving.settings import ServiceSettings

from ..conftest import encoded, until

PART = b'--b\r\nContent-Disposition: form-data; name="response"\r\n\r\n'
"""The head of a form with the boundary b."""
RATE = 16_000
MAX_SECONDS = 10.0


class FakeScorer:
    """Scores a response by its peak: 0 gets 1 point, 1 gets 5. It has what the service uses of a `Scorer`."""

    def __init__(self) -> None:
        self.dimensions: Sequence[Dimension] = (Dimension("empathy", 1, 5, 1),)
        self.description: dict[str, Any] = {}
        self.sampling_rate, self.max_seconds, self.windows = RATE, MAX_SECONDS, False
        self.calibration: object | None = object()
        self.batch_size, self.knows_preferences, self.knows_levels = 4, False, False
        self.batches: list[tuple[list[Pair], float]] = []
        self.open = threading.Event()  # while it is not set, a batch that was begun does not end
        self.open.set()
        self.fails: Callable[[Pair], Exception | None] = lambda pair: None
        self.warnings: tuple[Caution, ...] = ()

    def assess_pairs(self, pairs: Iterable[Pair], level: float) -> Iterator[Assessment | AudioError]:
        some = list(pairs)
        self.batches.append((some, level))
        assert self.open.wait(30)
        for pair in some:
            error = self.fails(pair)
            if isinstance(error, AudioError):
                yield error
            elif error is not None:
                raise error
            else:
                yield self._assess(pair, level)

    def _assess(self, pair: Pair, level: float) -> Assessment:
        assert isinstance(pair.response, Clip)
        score = 1 + 4 * float(np.abs(pair.response.samples).max())
        known = (0.5, score - level, score + level, False, "fair")
        scales = {own.name: Scale(own.minimum, own.maximum, own.higher_is_better) for own in self.dimensions}
        scores = {name: Score(score, scale, *known) for name, scale in scales.items()}
        return Assessment(scores, self.warnings, levels=self._levels(score) if self.knows_levels else None)

    def _levels(self, score: float) -> dict[str, tuple[float, ...]]:
        """The two steps around the score, with their mean."""
        shares = {}
        for own in self.dimensions:
            place = (score - own.minimum) / (own.step or 1)
            distances = np.abs(np.arange(own.steps) - place)
            shares[own.name] = tuple(np.clip(1 - distances, 0, 1).tolist())
        return shares

    def compared_on(self, by: Sequence[str] | None) -> str:
        """As a judge whose calibration knows nothing of preferences."""
        raise UserError("nothing is known of preferences")

    def over_next(self, ranked: Sequence[Any], by: Sequence[str], max_error: float | None = None) -> list[None]:
        """As above."""
        return [None] * len(ranked)

    def check_text(self, pair: Pair) -> None:
        if "<|AUDIO|>" in (pair.situation or ""):
            raise TextError("situation text may not contain <|AUDIO|>")

    @property
    def heard(self) -> list[Pair]:
        """All pairs it was asked for, but for the trial at the start."""
        return [pair for pairs, _ in self.batches for pair in pairs if pair.pair_id != "trial"]

    def sizes(self) -> list[int]:
        """Pairs in each batch, but for the trial."""
        return [len(pairs) for pairs, _ in self.batches[1:]]


class InProcess:
    """A service without sockets; requests may be made from any thread."""

    def __init__(self, app: Any, portal: anyio.from_thread.BlockingPortal) -> None:
        self.app, self._portal = app, portal

    def __call__(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await client.request(method, path, **options)

        return self._portal.call(send)

    def score(self, *clips: bytes, path: str = "/v1/score", context: Sequence[bytes] = (), **fields: str) -> Any:
        """Posts a form of responses."""
        files = [("response", ("r.wav", clip)) for clip in clips] + [("context", ("c.wav", clip)) for clip in context]
        return self("POST", path, files=files, data=fields)


def reward(service: InProcess, *clips: bytes, **fields: Any) -> Any:
    """Asks for rewards."""
    return service.score(*clips, path="/v1/reward", **fields)


def numbers(answer: Any) -> list[float | None]:
    """The rewards in an answer."""
    return [own["reward"] for own in answer.json()["rewards"]]


class InThreads:
    """Stands in for `Decoders` where a test is about something else: no process has to start."""

    def __init__(self, count: int, rate: int, max_seconds: float, *_: Any) -> None:
        self._rate, self._max_seconds = rate, max_seconds

    async def start(self) -> None:
        """Nothing to do."""

    async def stop(self) -> None:
        """Nothing to do."""

    async def decode(self, data: bytes, name: str) -> Decoded:
        """As the processes do it."""
        clip = await asyncio.to_thread(decode_safely, data, name, self._max_seconds)
        return Decoded(Clip(decode(clip, self._rate), self._rate, name), clip.seconds, is_clipped(clip))


def _without_processes() -> Any:
    return mock.patch("empathy_judge.serving.service.Decoders", InThreads)


def _app(scorer: Any, limits: dict[str, Any]) -> Any:
    load = scorer if callable(scorer) else lambda: scorer
    return create_app(load, ServiceSettings(**{"decoders": 1, "drain_seconds": 0.0, **limits}))


@contextmanager
def in_process(scorer: Any, processes: bool = False, **limits: Any) -> Iterator[InProcess]:
    """A service that is ready, unless it is given what loads its judge; it decodes in processes only if told to."""
    app = _app(scorer, limits)
    with anyio.from_thread.start_blocking_portal() as portal, ExitStack() as stack:
        if not processes:
            stack.enter_context(_without_processes())
        stack.enter_context(portal.wrap_async_context_manager(app.router.lifespan_context(app)))
        if not callable(scorer):
            portal.call(lambda: app.state.service.starting)
        yield InProcess(app, portal)


class Live:
    """A service on a socket of this machine."""

    def __init__(self, app: Any) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self.url = f"http://127.0.0.1:{self.address[1]}"
        self.app = app
        self.thread = threading.Thread(target=lambda: asyncio.run(serve(app, self._listener)), daemon=True)
        self.thread.start()
        until(lambda: hasattr(app.state, "server") and app.state.server.started and app.state.service.is_ready, 60)

    def stop(self) -> None:
        """As SIGTERM does."""
        self.app.state.server.handle_exit(15, None)

    def raw(self, sent: bytes = b"") -> socket.socket:
        """A connection on which something was sent."""
        connection = socket.create_connection(self.address, timeout=10)
        connection.sendall(sent)
        return connection


@contextmanager
def live(scorer: Any, **limits: Any) -> Iterator[Live]:
    """A service on a socket, stopped at the end; it decodes in threads."""
    with _without_processes():
        service = Live(_app(scorer, limits))
        try:
            yield service
        finally:
            if service.thread.is_alive():
                service.stop()
            service.thread.join(30)
            assert not service.thread.is_alive()


def wav(peak: float = 0.5, seconds: float = 0.5, rate: int = RATE, channels: int = 1, kind: str = "WAV") -> bytes:
    """A clip whose samples rise from 0 to a peak."""
    ramp = np.linspace(0, peak, round(seconds * rate))
    return encoded(np.repeat(ramp[:, None], channels, axis=1), rate, kind, "PCM_16")


def post(service: Live, clip: bytes) -> httpx.Response:
    """Asks for the score of a response. Without what httpx prepares for TLS, which takes longer than the rest."""
    with httpx.Client(verify=False, trust_env=False, timeout=30) as client:
        return client.post(f"{service.url}/v1/score", files={"response": clip})


def get(service: Live, path: str) -> httpx.Response:
    """Asks for a page."""
    with httpx.Client(verify=False, trust_env=False, timeout=30) as client:
        return client.get(service.url + path)


def metric(service: Live, line: str) -> float:
    """The value of a line of `/metrics` of a service on a socket."""
    return counter(lambda _, path: get(service, path), line)


def error_of(answer: Any) -> tuple[int, str, str]:
    """Status, code and message of an error, which has the form of all errors."""
    body = answer.json()
    assert list(body) == ["error"]
    assert list(body["error"]) == ["code", "message"]
    assert "\n" not in body["error"]["message"]
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    return answer.status_code, body["error"]["code"], body["error"]["message"]


def counter(service: Callable[[str, str], httpx.Response], line: str) -> float:
    """The value of a line of `/metrics`."""
    (found,) = [own for own in service("GET", "/metrics").text.splitlines() if own.startswith(f"{line} ")]
    return float(found.rsplit(" ", 1)[1])
