"""Qwen-Omni at Alibaba Cloud Model Studio: OpenAI's protocol with clips as data URLs; most models only stream."""

from __future__ import annotations

from typing import Any

import pydantic_core

from .openai import OpenAIProvider
from .questions import Question
from .replies import error_in, read
from .settings import PromptedSettings

# Models that answer in one piece (its pages of October 2026); all others, and those before, must be read as a stream
_IN_ONE_PIECE = "qwen3.8-omni"


class QwenProvider(OpenAIProvider):
    """See `OpenAIProvider`. Each workspace has an address of its own, which `DASHSCOPE_BASE_URL` or a spec names."""

    name = "qwen"
    likely_tokens = 600  # most of them thoughts
    max_tokens = 8192
    official = "https://dashscope-intl.aliyuncs.com/compatible-mode/v1"
    domains = ("aliyuncs.com",)
    url_variable = "DASHSCOPE_BASE_URL"
    key_variables = ("DASHSCOPE_API_KEY",)
    before_audio = "data:;base64,"

    def __init__(self, model: str, settings: PromptedSettings, dry_run: bool = True) -> None:
        super().__init__(model, settings, dry_run)
        self.audio_tokens_per_second = 25.0  # of the older models; newer ones take fewer
        self.modes = tuple(mode for mode in self.modes if mode != "logprobs")

    def request(self, question: Question) -> dict[str, Any]:
        body = super().request(question) | {"modalities": ["text"]}
        if not self.model.startswith(_IN_ONE_PIECE):
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body

    def decode(self, content: bytes) -> Any:
        """A stream of server-sent events as the body that would have come in one piece."""
        if not content.lstrip().startswith(b"data:"):
            return super().decode(content)
        events = (line[5:].strip() for line in content.splitlines() if line.startswith(b"data:"))
        chunks = [pydantic_core.from_json(event) for event in events if event != b"[DONE]"]
        for chunk in chunks:
            if error_in(chunk) is not None:
                return chunk
        reasons = [reason for chunk in chunks if (reason := read(chunk, "choices.0.finish_reason", str))]
        if not reasons:
            raise ValueError("the stream ends before the answer does")
        # The arguments of a call come in pieces of their text
        calls = [
            read(call, "function.arguments", str) or ""
            for chunk in chunks
            for call in read(chunk, "choices.0.delta.tool_calls", list) or ()
        ]
        message: dict[str, Any] = {
            name: "".join(read(chunk, f"choices.0.delta.{name}", str) or "" for chunk in chunks)
            for name in ("content", "refusal")
        }
        if calls:
            message["tool_calls"] = [{"function": {"arguments": "".join(calls)}}]
        # Tokens are counted in an event of its own, behind the answer
        last = next((chunk for chunk in reversed(chunks) if isinstance(chunk, dict) and chunk.get("usage")), {})
        return {
            "model": read(chunks[0], "model", str),
            "choices": [{"message": message, "finish_reason": reasons[-1]}],
            "usage": last.get("usage"),
        }
