"""Clips as users have them, brought to the form that the package reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from ..audio.decode import AudioSource
from ..audio.samples import clip_of, decoded
from ..core.errors import AudioError, UserError, counted, os_reason, shown
from ..data_modules.schema import Pair, Turn, check_situation
from ..data_modules.writing import is_missing


class Decoder(Protocol):
    """torchcodec's `AudioDecoder`, which is what a cell of audio is since version 4 of datasets."""

    def get_all_samples(self) -> Any:
        """An object with `data`, of shape (channels, samples), and `sample_rate` in Hz."""


Audio = AudioSource | tuple[np.ndarray, int] | BinaryIO | Mapping[str, Any] | Decoder
"""A path; the bytes of an audio file, or an open file of them; samples with their rate in Hz, `(array, rate)`; or what
Hugging Face datasets hold: torchcodec's `AudioDecoder`, whose channels are averaged, `{"array": ..., "sampling_rate":
...}` or `{"bytes": ..., "path": ...}`."""
Question = tuple[Audio | None, Audio] | Mapping[str, Any]
"""A context (or None) and a response; or by name: `response`, and optionally `context` and `situation`."""
_SINGLE = (str, bytes, bytearray, memoryview, tuple)  # sequences that are one value
_NAMES = ("response", "context", "situation")


def clip(audio: Audio) -> AudioSource:
    """A clip from outside.

    Raises:
        UserError: For samples without a rate, and for what is no clip at all.
        AudioError: For samples that are not one-dimensional floats, rates that no recording has, impossible paths, and
            open files that cannot be read or have been read.
    """
    if isinstance(audio, str | Path) and "\0" in str(audio):
        raise AudioError(f"path {shown(str(audio))}: holds a zero byte; expected the path of a file", "no such file")
    if isinstance(audio, AudioSource):
        return audio
    if isinstance(audio, bytearray | memoryview):
        return bytes(audio)
    if isinstance(audio, tuple) and len(audio) == 2 and isinstance(audio[1], Real):
        return clip_of(*audio)
    if isinstance(audio, Mapping):
        return _from_dataset(audio)
    if (samples := decoded(audio)) is not None:
        return samples
    read = getattr(audio, "read", None)
    if callable(read) and isinstance(data := _read(read), bytes):
        return data
    raise UserError(
        f"clip of type {type(audio).__name__}, samples without a rate, or a file opened as text?; expected a path, "
        "bytes of an audio file, a file opened in binary mode, (samples, rate in Hz), or a cell of a Hugging Face "
        "dataset"
    )


def _read(read: Callable[[], Any]) -> Any:
    try:
        data = read()
    except (OSError, ValueError) as error:  # closed, or opened for writing
        raise AudioError(f"an open file cannot be read ({os_reason(error)})", "cannot be read") from None
    # A file that was just written or read stands at its end
    if isinstance(data, bytes) and not data:
        raise AudioError(
            "an open file is empty, or at its end; expected one at its beginning: seek(0)", "the file is empty"
        )
    return data


def _from_dataset(cell: Mapping[str, Any]) -> AudioSource:
    if cell.get("array") is not None and isinstance(cell.get("sampling_rate"), Real):
        return clip_of(cell["array"], cell["sampling_rate"])
    if isinstance(cell.get("bytes"), bytes | bytearray | memoryview):
        return bytes(cell["bytes"])
    if isinstance(cell.get("path"), str | Path):
        return clip(cell["path"])
    raise UserError(
        f"clip with {', '.join(map(str, cell)) or 'nothing'}; expected array and sampling_rate, bytes, or path"
    )


def column(values: Any) -> list[Any] | None:
    """A column as a list, with None where it is missing; None = it is no column but one value.

    NumPy arrays of samples are no columns, those of objects or texts are, and the `Column` of a Hugging Face dataset.
    """
    if isinstance(values, list) or (isinstance(values, Sequence) and not isinstance(values, _SINGLE)):
        return [None if is_missing(value) else value for value in values]
    kind = getattr(getattr(values, "dtype", None), "kind", "O" if hasattr(values, "iloc") else None)
    return column(list(values)) if kind in ("O", "U", "T") else None


def make_pair(pair_id: str, context: Any, response: Any, situation: Any = None) -> Pair:
    """A pair of at most one context turn, from clips and a text from outside. What is missing in a table is no context
    or no situation.

    Raises:
        UserError: As `clip`; also for a situation that is no text.
        AudioError: As `clip`.
    """
    if situation is not None:
        situation = None if is_missing(situation) else situation
        check_situation(situation)
    given = isinstance(context, AudioSource) or not is_missing(context)
    turns = (Turn("user", clip(context)),) if given else ()
    return Pair(pair_id, clip(response), turns, situation=situation, group_id=pair_id)


def pairs_of(context: Any, response: Any, situation: Any) -> tuple[list[Pair], bool]:
    """One pair or many, as `Scorer.score` takes them, and whether responses were given as a list. What is no list holds
    for all responses, and is read once.

    All are checked before any is decoded.

    Raises:
        UserError: If lists differ in length, there is one response and a list of something else, or one is no clip or
            no text.
    """
    contexts, responses, situations = column(context), column(response), column(situation)
    if responses is None and (contexts is not None or situations is not None):
        raise UserError("one response with lists of contexts or situations; expected lists with a list of responses")
    several, listed = responses is not None, [response] if responses is None else responses
    count = len(listed)
    if contexts is None:
        # An open file can be read once, and one context stands in every pair
        contexts = [clip(context) if several and not is_missing(context) else context] * count
    situations = [situation] * count if situations is None else situations
    if len(contexts) != count or len(situations) != count:
        raise UserError(
            f"{counted(count, 'response')} with {counted(len(contexts), 'context')} and "
            f"{counted(len(situations), 'situation')}; expected a list of as many, or one for all"
        )
    pairs = []
    for number, values in enumerate(zip(contexts, listed, situations, strict=True)):
        try:
            pairs.append(make_pair(str(number), *values))
        except UserError as error:
            raise error.at(f"pair {number}") from None
    return pairs, several


def numbered(questions: Iterable[Question]) -> Iterator[Pair | AudioError]:
    """Questions as pairs, whose ids are their numbers from 0; or what is wrong with the clips or the text of one.

    Raises:
        UserError: If one has other names than `response`, `context` and `situation`, or no response.
    """
    for number, question in enumerate(questions):
        if isinstance(question, Mapping):
            values: Mapping[str, Any] = question
        elif isinstance(question, Sequence) and not isinstance(question, str | bytes) and len(question) == 2:
            values = dict(zip(("context", "response"), question, strict=True))
        else:
            raise UserError(f"pair {number}: {shown(question)}; expected (context, response), or {', '.join(_NAMES)}")
        # A misspelt name would be scored as if it were not there
        unknown = [name for name in values if name not in _NAMES]
        if unknown or is_missing(values.get("response")):
            problem = f"{unknown[0]!r}" if unknown else "no response"
            raise UserError(f"pair {number}: {problem}; expected {', '.join(_NAMES)}")
        try:
            yield make_pair(str(number), values.get("context"), values["response"], values.get("situation"))
        except AudioError as error:  # the others are scored
            yield error.at(f"pair {number}")
        except UserError as error:
            raise error.at(f"pair {number}") from None
