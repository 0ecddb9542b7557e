"""The question put to every backbone, in neutral words: no transcript, no file name, no label."""

from __future__ import annotations

from typing import Any

from ....data_modules.schema import Pair

QUESTION = "How well does the voice of the response fit the context?"


def messages(pair: Pair, question: str = QUESTION) -> list[dict[str, Any]]:
    """A chat of one user message that names each clip; `{"type": "audio"}` marks where one goes.

    Audio comes in the order of the context turns, the response last.
    """
    content: list[dict[str, Any]] = []
    if pair.situation:
        content.append(_text(f"Situation: {pair.situation}\n"))
    for turn in pair.context:
        # one turn needs no role; several need to be told apart
        content.append(_text("Context: " if len(pair.context) == 1 else f"Context, {turn.role}: "))
        content += [{"type": "audio"}, _text("\n")]
    content += [_text("Response: "), {"type": "audio"}, _text(f"\n{question}")]
    return [{"role": "user", "content": content}]


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
