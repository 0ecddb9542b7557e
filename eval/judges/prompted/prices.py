"""What vendors ask for their models, and when they retire them."""

from __future__ import annotations

from datetime import date
from typing import NamedTuple

AS_OF = "November 2026"


class Price(NamedTuple):
    """Dollars for a million tokens of text read, of audio read, and written."""

    text_in: float
    audio_in: float
    out: float


PRICES = {
    "openai:gpt-audio-1.5": Price(2.5, 32.0, 10.0),
    **dict.fromkeys(("openai:gpt-audio", "openai:gpt-audio-2025-08-28"), Price(2.5, 32.0, 10.0)),
    **dict.fromkeys(("openai:gpt-audio-mini", "openai:gpt-audio-mini-2025-12-15"), Price(0.6, 10.0, 2.4)),
    "openai:gpt-4o-audio-preview-2025-06-03": Price(2.5, 40.0, 10.0),
    "openai:gpt-4o-audio-preview-2024-12-17": Price(2.5, 40.0, 10.0),
    "openai:gpt-4o-mini-audio-preview-2024-12-17": Price(0.15, 10.0, 0.6),
    "gemini:gemini-3.1-pro-preview": Price(2.0, 2.0, 12.0),
    "gemini:gemini-3.8-flash": Price(0.75, 0.75, 3.75),
    "gemini:gemini-3.7-flash": Price(0.75, 0.75, 3.75),
    "gemini:gemini-3.6-flash": Price(0.75, 0.75, 3.75),
    "gemini:gemini-3.5-flash": Price(1.5, 1.5, 9.0),
    "gemini:gemini-3.5-flash-lite": Price(0.3, 0.3, 2.5),
    "gemini:gemini-3.1-flash-lite": Price(0.25, 0.5, 1.5),
    "gemini:gemini-3-flash-preview": Price(0.5, 1.0, 3.0),
    "gemini:gemini-2.5-pro": Price(1.25, 1.25, 10.0),
    "gemini:gemini-2.5-flash": Price(0.3, 1.0, 2.5),
    "gemini:gemini-omni-1.1-flash": Price(1.5, 1.5, 9.0),
    "qwen:qwen3.8-omni-flash": Price(0.15, 0.15, 0.47),
    "gemini-decision:gemini-decision-1": Price(0.1, 0.1, 0.0),
    "systemone:@cf/cloudflare/clef-omni": Price(0.15, 0.15, 0.0),
}
"""Dollars for a million tokens, as of `AS_OF`; vendors change them, a spec can say ``price=...``. From vendors' pages
and the table of LiteLLM 1.110.2, in which a model without a price for audio takes that of text."""

_NEW_YEAR = date(2027, 1, 20)
RETIRED = {
    "openai:gpt-audio-mini-2025-10-06": date(2026, 7, 23),
    "openai:gpt-audio": _NEW_YEAR,
    "openai:gpt-audio-2025-08-28": _NEW_YEAR,
    "openai:gpt-audio-mini": _NEW_YEAR,
    "openai:gpt-audio-mini-2025-12-15": _NEW_YEAR,
    "openai:gpt-4o-audio-preview-2025-06-03": _NEW_YEAR,
    "openai:gpt-4o-audio-preview-2024-12-17": _NEW_YEAR,
    "openai:gpt-4o-mini-audio-preview-2024-12-17": _NEW_YEAR,
    "gemini:gemini-2.5-pro": date(2026, 12, 1),
    "gemini:gemini-2.5-flash": date(2026, 12, 1),
    "gemini:gemini-omni-1.1-flash": date(2026, 12, 3),
    "gemini:gemini-3.1-flash-lite": date(2027, 5, 7),
}
"""The day on which its vendor retires a model, where one is named (the same table; of Gemini's two services the
Developer API, which is asked here)."""
NOTICE = 90
"""Days before that day on which a warning begins."""


def days_left(model: str) -> int | None:
    """Days until a model is retired, 0 or less = it is; None = no day is known."""
    return (RETIRED[model] - date.today()).days if model in RETIRED else None
