"""Clips as users have them, brought to the form that the package reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from numbers import Real
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .data_modules.audio import AudioSource, Clip
from .data_modules.errors import UserError
from .data_modules.schema import Pair, Turn
from .data_modules.stored_clips import StoredClip

Audio = AudioSource | tuple[np.ndarray, int] | BinaryIO | Mapping[str, Any]
"""A path; the bytes of an audio file, or an open file of them; samples with their rate in Hz, `(array, rate)`; or what
Hugging Face datasets hold, `{"array": ..., "sampling_rate": ...}` or `{"bytes": ..., "path": ...}`."""
Question = tuple[Audio | None, Audio] | Mapping[str, Any]
"""A context (or None) and a response; or by name: `response`, and optionally `context` and `situation`."""
_NAMES = ("response", "context", "situation")


def clip(audio: Audio) -> AudioSource:
    """A clip from outside.

    Raises:
        UserError: For samples without a rate, and for what is no clip at all.
    """
    if isinstance(audio, str | Path | bytes | Clip | StoredClip):
        return audio
    if isinstance(audio, bytearray | memoryview):
        return bytes(audio)
    if isinstance(audio, tuple) and len(audio) == 2 and isinstance(audio[1], Real):
        return Clip(np.asarray(audio[0]), int(audio[1]))  # integers are left as they are: Clip refuses them
    if isinstance(audio, Mapping):
        return _from_dataset(audio)
    read = getattr(audio, "read", None)
    if callable(read) and isinstance(data := read(), bytes):
        return data
    raise UserError(
        f"clip of type {type(audio).__name__}, samples without a rate, or a file opened as text?; expected a path, "
        "bytes of an audio file, a file opened in binary mode, (samples, rate in Hz), or a cell of a Hugging Face "
        "dataset"
    )


def _from_dataset(cell: Mapping[str, Any]) -> AudioSource:
    if cell.get("array") is not None and isinstance(cell.get("sampling_rate"), Real):
        return Clip(np.asarray(cell["array"]), int(cell["sampling_rate"]))
    if isinstance(cell.get("bytes"), bytes):
        return cell["bytes"]
    if isinstance(cell.get("path"), str):
        return cell["path"]
    raise UserError(
        f"clip with {', '.join(map(str, cell)) or 'nothing'}; expected array and sampling_rate, bytes, or path"
    )


def make_pair(pair_id: str, context: AudioSource | None, response: AudioSource, situation: str | None = None) -> Pair:
    """A pair of at most one context turn."""
    turns = () if context is None else (Turn("user", context),)
    return Pair(pair_id, response, turns, situation=situation, group_id=pair_id)


def pairs_of(
    context: Audio | list[Audio | None] | None,
    response: Audio | list[Audio],
    situation: str | list[str | None] | None,
) -> list[Pair]:
    """One or many, as `Scorer.score` takes them: what is no list holds for all responses, and is read once.

    Raises:
        UserError: If lists differ in length, or there is one response and a list of something else.
    """
    if not isinstance(response, list) and (isinstance(context, list) or isinstance(situation, list)):
        raise UserError("one response with lists of contexts or situations; expected lists with a list of responses")
    responses = response if isinstance(response, list) else [response]
    count = len(responses)
    contexts = context if isinstance(context, list) else [None if context is None else clip(context)] * count
    situations = situation if isinstance(situation, list) else [situation] * count
    if len(contexts) != count or len(situations) != count:
        raise UserError(
            f"{count} responses with {len(contexts)} contexts and {len(situations)} situations; expected a list of as "
            "many, or one for all"
        )
    return [
        make_pair(f"{number}", None if first is None else clip(first), clip(second), text)
        for number, (first, second, text) in enumerate(zip(contexts, responses, situations, strict=True))
    ]


def numbered(questions: Iterable[Question]) -> Iterator[Pair]:
    """Questions as pairs, whose ids are their numbers from 0.

    Raises:
        UserError: If one has other names than `response`, `context` and `situation`, or no response.
    """
    for number, question in enumerate(questions):
        values: Mapping[str, Any] = (
            question if isinstance(question, Mapping) else dict(zip(("context", "response"), question, strict=True))
        )
        unknown = [name for name in values if name not in _NAMES]
        if unknown or values.get("response") is None:
            problem = f"{unknown[0]!r}" if unknown else "no response"
            raise UserError(f"pair {number}: {problem}; expected {', '.join(_NAMES)}")
        context = None if values.get("context") is None else clip(values["context"])
        yield make_pair(f"{number}", context, clip(values["response"]), values.get("situation"))
