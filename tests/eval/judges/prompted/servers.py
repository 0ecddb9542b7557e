"""Servers on this machine that speak the vendors' protocols, and misbehave when told to."""

from __future__ import annotations

import email
import hashlib
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

GOOD = {"reason": "a warm voice", "vocal_empathy": 4}
"""What a model that behaves writes."""


class Request(NamedTuple):
    """What a client sent."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]


class Response(NamedTuple):
    """What the server sends."""

    body: Any  # JSON, or bytes as they are
    status: int = 200
    headers: Mapping[str, str] = {}  # beside the type and the length
    delay: float = 0.0  # seconds before
    cut: bool = False  # promise more bytes than are sent, and hang up
    drip: float = 0.0  # seconds between one byte and the next


class Server(NamedTuple):
    """A running server."""

    url: str  # its root, without a path
    requests: list[Request]  # all that it got, in the order in which they came


@contextmanager
def serve(behave: Callable[[Request], Response]) -> Iterator[Server]:
    """Runs a server on a free port; `behave` may be called by several threads at once."""
    seen: list[Request] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            kind = self.headers["Content-Type"]
            sent = json.loads(body) if "json" in kind else form_of(kind, body)
            request = Request(self.path, dict(self.headers), sent)
            seen.append(request)
            response = behave(request)
            time.sleep(response.delay)
            sent = response.body if isinstance(response.body, bytes) else json.dumps(response.body).encode()
            try:
                self.send_response(response.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(sent) + (100 if response.cut else 0)))
                for name, value in response.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                for place in range(len(sent)) if response.drip else ():
                    self.wfile.write(sent[place : place + 1])
                    time.sleep(response.drip)
                if not response.drip:
                    self.wfile.write(sent)
                self.close_connection |= response.cut
            except ConnectionError:  # the client did not wait
                self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    server = Quiet(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield Server(f"http://127.0.0.1:{server.server_address[1]}", seen)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def form_of(kind: str, body: bytes) -> dict[str, Any]:
    """The parts of a form by name, in order: JSON as what it says, all else as bytes."""
    message = email.message_from_bytes(b"Content-Type: " + kind.encode() + b"\r\n\r\n" + body)
    parts = {}
    for part in message.walk():
        if name := part.get_param("name", header="content-disposition"):
            content: Any = part.get_payload(decode=True)
            parts[name] = json.loads(content) if part.get_content_type() == "application/json" else content
    return parts


def in_turn(responses: Sequence[Response]) -> Callable[[Request], Response]:
    """One after the other, the last one for ever."""
    left = list(responses)
    return lambda request: left.pop(0) if len(left) > 1 else left[0]


# ---------------------------------------------------------------- what the vendors answer


def openai_answer(content: str | None = None, **changes: Any) -> dict[str, Any]:
    """A chat completion, in the shape that OpenAI's API gives it."""
    refusal, calls = changes.pop("refusal", None), changes.pop("calls", None)
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": refusal, "annotations": []}
    if calls is not None:
        function = {"name": "rate", "arguments": json.dumps(calls)}
        message["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
    choice = {
        "index": 0,
        "message": message,
        "logprobs": changes.pop("logprobs", None),
        "finish_reason": changes.pop("finish_reason", "tool_calls" if calls is not None else "stop"),
    }
    return {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1_760_000_000,
        "model": "gpt-audio-1.5-2026-02-23", "choices": [choice],
        "usage": {
            "prompt_tokens": 350,
            "completion_tokens": 25,
            "total_tokens": 375,
            "prompt_tokens_details": {"audio_tokens": 100, "text_tokens": 250, "cached_tokens": 0, "image_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0, "text_tokens": 25},
        },
        "system_fingerprint": "fp_1", **changes,
    }  # fmt: skip


def openai_error(
    status: int, message: str, code: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """An error, in the shape that OpenAI's API gives it."""
    body = {"error": {"message": message, "type": "error", "param": None, "code": code}}
    return Response(body, status, headers or {})


def gemini_answer(text: str | None = None, **changes: Any) -> dict[str, Any]:
    """What ``generateContent`` gives."""
    candidate: dict[str, Any] = {"index": 0, "finishReason": changes.pop("finish_reason", "STOP")}
    if text is not None:
        candidate["content"] = {"role": "model", "parts": [{"text": text}]}
    candidate |= changes.pop("candidate", {})
    return {
        "candidates": [candidate],
        "usageMetadata": {
            "promptTokenCount": 420, "candidatesTokenCount": 20, "thoughtsTokenCount": 200, "totalTokenCount": 640,
            "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 100}, {"modality": "AUDIO", "tokenCount": 320}],
        },
        "modelVersion": "gemini-3.1-pro-preview-05-20",
        "responseId": "r1",
        **changes,
    }  # fmt: skip


def gemini_error(code: int, status: str, message: str, details: list[dict[str, Any]] | None = None) -> Response:
    """An error of Google's APIs."""
    return Response({"error": {"code": code, "message": message, "status": status, "details": details or []}}, code)


SHARES = (0, 0.125, 0.125, 0.375, 0.375)
"""Probabilities of the steps 1 to 5 of a scale, whose mean is 4."""


def level_answers(shares: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """The answers of a decision model, which all vendors write alike; score and confidence say something else."""
    return {
        name: {
            "type": "score",
            "score": 0.5,
            "confidence": 0.375,
            "legend": {str(number): f"level {number}" for number in range(len(given))},
            "probabilities": {str(number): share for number, share in enumerate(given)},
        }
        for name, given in shares.items()
    }


def gemini_decision_answer(shares: Mapping[str, Sequence[Any]], **changes: Any) -> dict[str, Any]:
    """What ``/v1beta/decisions`` gives: the types of google-genai 3.6.1 (`google.genai.decisions`)."""
    by_kind = [{"modality": "audio", "tokens": 320}, {"modality": "text", "tokens": 100}]
    usage = {"total_input_tokens": 420, "total_output_tokens": 0, "input_tokens_by_modality": by_kind}
    return {"answers": level_answers(shares), "usage": usage, **changes}


def systemone_answer(shares: Mapping[str, Sequence[Any]], **changes: Any) -> dict[str, Any]:
    """What ``/v1/systemone`` gives (vLLM 0.33.0)."""
    usage = {"input_tokens": 420, "output_tokens": 0}
    known = {"id": "d1", "object": "structured_decision", "created": 1_790_000_000, "model": "clef-omni-1"}
    return {**known, "answers": level_answers(shares), "usage": usage, "diagnostics": {}, **changes}


def hume_answer(shares: Mapping[str, Sequence[Any]], **changes: Any) -> dict[str, Any]:
    """What ``/v0/decisions/file`` gives, by its documentation of November 2026."""
    run = {"run_id": "5a4e7a50-0000-4000-8000-000000000000", "received": {"input_tokens": 420}}
    return {"answers": level_answers(shares), **run, **changes}


DECIDING = {"gemini-decision": gemini_decision_answer, "systemone": systemone_answer, "hume": hume_answer}
"""Decision models: vendor -> what it answers."""


def answer(vendor: str, content: Any, **changes: Any) -> dict[str, Any]:
    """What a vendor answers; content that is no text is written as JSON. A decision model gives levels for `GOOD`."""
    if vendor in DECIDING:
        return DECIDING[vendor]({"vocal_empathy": SHARES} if content is GOOD else content, **changes)
    text = content if isinstance(content, str) or content is None else json.dumps(content)
    return openai_answer(text, **changes) if vendor in ("openai", "qwen") else gemini_answer(text, **changes)


def asked_about(request: Request) -> str:
    """What stands for the question: its audio."""
    return hashlib.sha256(json.dumps(request.body.get("messages") or request.body.get("contents")).encode()).hexdigest()


FAULTS = [openai_error(500, "oops"), openai_error(503, "busy"), Response(answer("openai", GOOD), cut=True)]


class LimitedServer:
    """Lets `rate` requests a second through (a bucket of one second), and fails a fifth of those, each question once.

    Attributes:
        charged: Question -> answers with a bill.
    """

    def __init__(self, rate: float = 1e9, hints: bool = True) -> None:
        self.rate, self.hints = rate, hints
        self.charged: Counter[str] = Counter()
        self.begun: float | None = None
        self.refused = 0
        self._tokens, self._filled = rate, time.monotonic()
        self._random = random.Random(0)
        self._failed: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Response:
        with self._lock:
            now = time.monotonic()
            self.begun = self.begun or now
            self._tokens = min(self.rate, self._tokens + self.rate * (now - self._filled))
            self._filled = now
            if self._tokens < 1:
                self.refused += 1
                headers = {"retry-after-ms": f"{1000 * (1 - self._tokens) / self.rate:.0f}"} if self.hints else {}
                return openai_error(429, "slow down", "rate_limit_exceeded", headers)
            self._tokens -= 1
            key = asked_about(request)
            if key not in self._failed and self._random.random() < 0.2:
                self._failed.add(key)
                return self._random.choice(FAULTS)
            self.charged[key] += 1
        return Response(answer("openai", GOOD), delay=0.05)
