"""Gemini: what goes over the wire, and what comes back."""

from __future__ import annotations

from typing import Any

from .conftest import same_sound
from .servers import (
    GOOD,
    answer,
)


def test_gemini_gets_both_clips_and_a_schema(scored, make_pairs):
    from google.genai import types as gemini

    (pair,) = make_pairs(1)
    found = scored("gemini", answer("gemini", GOOD))
    (request,) = found.requests
    assert request.path.endswith("/models/a-model:generateContent")
    (content,) = [gemini.Content.model_validate(one) for one in request.body["contents"]]
    parts: Any = content.parts
    assert [bool(part.text) for part in parts] == [True, False, True, False, True]
    for place, source in ((1, pair.context[0].audio), (3, pair.response)):
        assert parts[place].inline_data.mime_type == "audio/wav"
        same_sound(parts[place].inline_data.data, source)
    config = request.body["generationConfig"]
    assert config["responseMimeType"] == "application/json"
    assert config["responseJsonSchema"]["required"] == ["reason", "vocal_empathy"]
    assert config["temperature"] == 0
    instruction: Any = gemini.Content.model_validate(request.body["systemInstruction"]).parts
    assert "careful rater" in instruction[0].text


def test_a_blocked_prompt_stays_an_outcome_of_its_own(scored):
    blocked = {"promptFeedback": {"blockReason": "OTHER", "message": "x"}, "usageMetadata": {"promptTokenCount": 400}}
    found = scored("gemini", blocked)
    assert (found.row["status"], len(found.requests)) == ("blocked by safety filter", 1)
