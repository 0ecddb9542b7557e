"""The question put to every backbone, in neutral words: no transcript, no file name, no label."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...data_modules.schema import Pair

Message = Mapping[str, Any]
"""A turn of a chat: its ``role``, and its ``content``: a list of texts and of places of clips, as in `messages`."""

QUESTION = "How well does the voice of the response fit the context?"


def messages(pair: Pair, question: str = QUESTION) -> list[Message]:
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


def as_text(message: Message, audio_token: str) -> str:
    """The content of a message as one text, for chat templates that take no lists."""
    return "".join(piece.get("text", audio_token) for piece in message["content"])


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
