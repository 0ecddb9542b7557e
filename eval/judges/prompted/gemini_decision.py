"""Google's decision models: ``gemini-decision-1``."""

from __future__ import annotations

import base64
from typing import Any

from .decisions import DecisionProvider
from .gemini import GeminiProvider
from .questions import Question
from .replies import BLOCKED, Reply, Usage, read, tokens


class GeminiDecisionProvider(DecisionProvider, GeminiProvider):
    """See `DecisionProvider`; address, key, errors and limits are those of `GeminiProvider`."""

    name = "gemini-decision"
    most_levels = 255
    most_questions = 1000

    def request(self, question: Question) -> dict[str, Any]:
        parts = [
            {"type": "text", "text": part}
            if isinstance(part, str)
            else {"type": "audio", "data": base64.b64encode(part.wav).decode(), "mime_type": "audio/wav"}
            for part in (question.system, *question.messages[-1].parts)
        ]
        return {"model": self.model, "input": parts, "questions": question.form.schema()}

    def route(self) -> tuple[str, dict[str, str]]:
        # v1beta is the only version that has it, although google-genai 3.6.1 asks v1
        return "/v1beta/decisions", {"x-goog-api-key": self.key or "none"}

    def reply(self, body: Any) -> Reply:
        """A blocked input has status 200: with the reason, or without answers."""
        feedback = read(body, "prompt_feedback", dict)
        if feedback is not None or read(body, "answers", dict) is None:
            return Reply(BLOCKED)
        return super().reply(body)

    def usage(self, body: Any) -> Usage:
        try:
            kinds = read(body, "usage.input_tokens_by_modality", list) or ()
        except ValueError:
            kinds = ()
        details = [entry for entry in kinds if isinstance(entry, dict)]
        heard = [entry for entry in details if str(entry.get("modality")).lower() == "audio"]
        audio = sum(tokens(entry, "tokens") or 0 for entry in heard) or None
        total = tokens(body, "usage.total_input_tokens")
        return Usage(None if total is None else max(0, total - (audio or 0)), audio, None if total is None else 0)
