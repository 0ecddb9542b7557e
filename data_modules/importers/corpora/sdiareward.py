"""SDiaReward: two chats in each row become a context with roles, a response and a preference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....core.errors import DataError, bad_value, counted
from ...tables import TableRow
from .. import AudioRoot
from ..assemble import Imported
from ..clips import AudioFolder
from ..collector import Collector, source_rows
from ..preferences import Message, read_message
from .mapping import CorpusMapping

MAPPING = CorpusMapping.of(__file__)
__doc__, EXAMPLE = MAPPING.help, MAPPING.example

RATER = "construction"
_FIELDS = MAPPING.fields
_ROLES = ("user", "assistant", "system")
_TURN = '{"role": "user" or "assistant", "content": a list of {"type": "text", "text"} and {"type": "audio", "audio"}}'


@dataclass(frozen=True, kw_only=True)
class Options(AudioRoot):
    """Options of SDiaReward.

    Attributes:
        audio (DIR): folder of the audio (default: that of each file)
    """

    audio: str | None = None


def read(path: Path, options: Options) -> Imported:
    """Reads all rows."""
    collector = Collector()
    system_turns = without_clip = 0
    for row, folder in source_rows(
        path,
        MAPPING.files,
        _FIELDS,
        lambda row: (value for field in _FIELDS for value in _audio_values(row.values.get(field))),
        options.audio,
        options.audio_root,
    ):
        with collector.skipping(row.place()):
            chats = [_turns(row, field, folder) for field in _FIELDS]
            spoken = [[turn for turn in turns if turn.role != "system"] for turns in chats]
            pairs = [_pair(row, field, turns) for field, turns in zip(_FIELDS, spoken, strict=True)]
            links = {f"clip {collector.digest(clip)}" for turns in spoken for turn in turns for clip in turn.clips}
            links |= {f"text {text}" for turns in spoken if (text := _transcript(turns[:-1]))}
            # Not the chosen one first: its place in the dataset would tell it.
            order = sorted((0, 1), key=lambda index, pairs=pairs: collector.digest(pairs[index]["response_audio"]))
            ids = {index: collector.add_pair(pairs[index], links) for index in order}
            collector.add_preference(ids[0], ids[1], RATER, "dialogue_quality", 1.0, row.place("rejected"))
            system_turns += sum(turn.role == "system" for turns in chats for turn in turns)
            without_clip += sum(not turn.clips for turns in spoken for turn in turns[:-1])
    card = MAPPING.card(
        "Preferences without scores; they follow from how the dialogues were made, no rater gave them. "
        f"Left out: {counted(system_turns, 'system turn')}. Context turns without a clip: {without_clip}."
    )
    return collector.imported(card, compared=True)


def _pair(row: TableRow, field: str, turns: list[Message]) -> dict[str, Any]:
    """Columns of the pair that is made from a chat."""
    if not turns or turns[-1].role != "assistant" or len(turns[-1].clips) != 1:
        raise DataError(f"{row.place(field)}: expected a chat whose last turn is the assistant's and holds one clip")
    *context, response = turns
    return {
        "context_audio": [{"role": turn.role, "audio": clip} for turn in context for clip in turn.clips],
        "response_audio": response.clips[0],
        "context_text": _transcript(context),
        "response_text": " ".join(response.texts) or None,
    }


def _transcript(turns: list[Message]) -> str | None:
    """The words of one turn as they are, those of several as lines with their roles."""
    if len(turns) == 1:
        return " ".join(turns[0].texts) or None
    return "\n".join(f"{turn.role}: {' '.join(turn.texts)}" for turn in turns if turn.texts) or None


def _turns(row: TableRow, field: str, folder: AudioFolder) -> list[Message]:
    """The turns of a chat, with their clips."""
    chat = row.values.get(field)
    if not isinstance(chat, list) or not chat:
        raise row.error(field, f"a list of {_TURN}")
    turns = []
    for number, message in enumerate(chat, start=1):
        where = f"{row.place(field)}, turn {number}"
        turns.append(read_message(message, where, folder.find))
        if turns[-1].role not in _ROLES:
            raise bad_value(where, message, _TURN)
    return turns


def _audio_values(chat: Any) -> Iterator[Any]:
    """Every audio value of a chat, whatever its form."""
    for turn in chat if isinstance(chat, list) else ():
        content = turn.get("content") if isinstance(turn, Mapping) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, Mapping):
                yield part.get("audio")
