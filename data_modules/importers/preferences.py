"""Reads preferences in the columns that trainers of language models have: ``chosen``, ``rejected`` and ``prompt``.

``import table`` and ``import hugging-face`` know them by their names. Each row is a comparison of two pairs: the same
context with the chosen and with the rejected response. A cell of ``chosen`` and ``rejected`` is

    - a clip: a path, or bytes; or
    - messages, ``[{"role", "content"}]``, where content is a list of parts, ``{"type": "audio", "audio": clip}`` and
      ``{"type": "text", "text": ...}``. The last message is the response, and has one clip.

``prompt`` (or ``messages``) is the context: a clip, messages, or text. Messages before the response, in ``chosen`` and
``rejected``, are context as well. Text in a message with a clip is its transcript; other text is the situation, which
the judge reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from ...core.errors import DataError, UserError, bad_value, shown
from ...core.numerals import to_number
from ..ratings import Dimension, is_name, is_text
from ..schema import DatasetCard
from ..tables import SourceTable, TableMapping, TableRow, full_mapping
from .assemble import Imported
from .clips import AUDIO_SUFFIXES, ClipCell, path_or_bytes
from .collector import Collector

if TYPE_CHECKING:
    from .repeated_rows import FindClip

_COMPARED = ("chosen", "rejected")
_COLUMNS = (*_COMPARED, "prompt", "situation", "rater_id", "strength")
_AUDIO_FIELDS = ("audio", "audio_url", "path", "url")  # of a part of a message
_NOBODY = "unknown"  # the rater where no column names one


class Message(NamedTuple):
    """What somebody says in a conversation: clips, and texts that are not blank."""

    role: str
    clips: list[ClipCell]
    texts: list[str]

    @property
    def text(self) -> str:
        return "\n".join(self.texts)


def has_preferences(table: SourceTable, columns: Mapping[str, str]) -> bool:
    """Whether the table holds preferences, by its columns and what is mapped to ours."""
    names = {*table.columns, *columns}
    return names.issuperset(_COMPARED) and "response_audio" not in names


def read_preferences(table: SourceTable, mapping: TableMapping, find: FindClip) -> Imported:
    """Every row as a comparison of two pairs. Rows that cannot be used are listed; the description says what was read.

    A mapping without a dimension gives one that is called ``preference``.

    Raises:
        DataError: If a column is missing.
        UserError: If the options say something about ratings, which such a table does not have.
    """
    if mapping.rating_columns or mapping.scores or len(mapping.dimensions) > 1:
        raise UserError(
            f"{table.path}: columns chosen and rejected are preferences; expected one --dimension at most, and no "
            "--rating-column or --scores"
        )
    mapped = dict(mapping.columns)
    if "prompt" not in {*mapped, *table.columns} and "messages" in table.columns:
        mapped["prompt"] = "messages"
    columns = full_mapping(mapped, _COLUMNS, table, _COMPARED)
    rows = table.records()
    reader = _RowReader(columns, _are_paths([row.values.get(columns.get("prompt", "")) for row in rows]), find)
    dimension = mapping.dimensions[0] if mapping.dimensions else Dimension("preference", 0, 1)
    collector = Collector()
    for row in rows:
        with collector.skipping(row.place()):
            (better, context), (worse, rejected_context) = (reader.pair(row, name, collector) for name in _COMPARED)
            if context != rejected_context:
                raise DataError(
                    f"{row.place(columns['rejected'])}: another context than that of chosen; expected the same "
                    "messages before the response"
                )
            ids = collector.add_pair(better, context), collector.add_pair(worse, rejected_context)
            rater = row.optional_name(columns["rater_id"]) if "rater_id" in columns else None
            strength = reader.strength(row)
            collector.add_preference(*ids, rater or _NOBODY, dimension.name, strength, row.place())
    card = DatasetCard(
        "", (dimension,), "unknown", "unknown", mapping.synthetic, description=_description(table, columns, reader)
    )
    return collector.imported(card, compared=True)


class _RowReader:
    """Makes pairs of the cells of a row."""

    def __init__(self, columns: Mapping[str, str], prompt_is_path: bool, find: FindClip) -> None:
        self._columns, self._prompt_is_path, self._find = columns, prompt_is_path, find
        self.kinds: dict[str, str] = {}  # our column -> what its cells are, for the description

    def pair(self, row: TableRow, name: str, found: Collector) -> tuple[dict[str, Any], list[str]]:
        """The columns of a response's pair, and the context that links it to others. Checks that clips can be read."""
        *before, response = self._messages(row, name)
        prompt = self._messages(row, "prompt") if "prompt" in self._columns else []
        # A conversation that begins with the question stands for itself: then the prompt repeats it
        context = before if before and before[0].role != "assistant" else [*prompt, *before]
        if len(response.clips) != 1:
            raise DataError(
                f"{row.place(self._columns[name])}: {len(response.clips)} clips in the response (the last message); "
                'expected one, {"type": "audio", "audio": PATH}'
            )
        texts = [message.text for message in context if not message.clips]
        if "situation" in self._columns:
            texts.insert(0, row.text(self._columns["situation"]) or "")
        turns = [{"role": message.role, "audio": clip} for message in context for clip in message.clips]
        situation = "\n".join(filter(None, texts)) or None
        values = {
            "response_audio": response.clips[0],
            "context_audio": turns,
            "situation": situation,
            "context_text": "\n".join(filter(None, (message.text for message in context if message.clips))) or None,
            "response_text": response.text or None,
        }
        *digests, _ = [found.digest(clip) for clip in (*(turn["audio"] for turn in turns), response.clips[0])]
        # Both responses of a row without a context belong together, and nothing else links them
        return values, [f"context {digests} {situation}" if turns or situation else f"row {row.position}"]

    def strength(self, row: TableRow) -> float:
        """By how much the chosen response is better; 1 where no column says it."""
        if "strength" not in self._columns:
            return 1.0
        value = to_number(row.values.get(self._columns["strength"]))
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise row.error(self._columns["strength"], "a number, 0 (tie) or more")
        return float(value)

    def _messages(self, row: TableRow, name: str) -> list[Message]:
        """The messages of a cell; a clip or a text is one message."""
        where, value = row.place(self._columns[name]), row.values.get(self._columns[name])
        prompt = name == "prompt"
        value = [value] if isinstance(value, Mapping) and "role" in value else path_or_bytes(value)
        if value in (None, "", []):
            if prompt:
                return []
            raise bad_value(where, value, "a clip, or messages")
        if isinstance(value, list):
            self.kinds[name] = "messages"
            return [read_message(message, where, self._find) for message in value]
        role = "user" if prompt else "assistant"
        if prompt and isinstance(value, str) and not self._prompt_is_path:
            self.kinds[name] = "text"
            return [Message(role, [], [value.strip()])]
        self.kinds[name] = "clips"
        return [Message(role, [self._find(value, where)], [])]


def read_message(message: Any, where: str, find: FindClip) -> Message:
    """``{"role", "content"}`` or ``{"role", "audio"}``, with its clips.

    Raises:
        DataError: If it is something else; `where` heads the text.
    """
    if not isinstance(message, Mapping) or not is_name(message.get("role")):
        raise bad_value(where, message, '{"role": ..., "content": ...} for each message')
    content = message.get("content")
    if content is None:
        # {"role", "audio"}, as in our own tables.
        content = [message]
    if not isinstance(content, str | list):
        raise bad_value(where, content, "text or a list of parts as content")
    clips, texts = [], []
    for part in [{"text": content}] if isinstance(content, str) else content:
        if not isinstance(part, Mapping):
            raise bad_value(where, part, '{"type": "audio", "audio": ...} or {"type": "text", "text": ...}')
        values = (path_or_bytes(part.get(field)) for field in _AUDIO_FIELDS)
        audio = next((value for value in values if value is not None), None)
        # {"audio_url": {"url": ...}}, as the chat API of vLLM has it.
        if isinstance(audio, Mapping) and set(audio) == {"url"}:
            audio = audio["url"]
        if audio is not None:
            clips.append(find(audio, where))
        elif is_text(part.get("text")):
            texts.append(part["text"].strip())
        else:
            raise bad_value(where, dict(part), "a part with audio or text")
    return Message(message["role"], clips, [text for text in texts if text])


def _are_paths(prompts: Sequence[Any]) -> bool:
    """Whether prompts that are text are paths of clips, and not what somebody wrote."""
    texts = [text for text in map(path_or_bytes, prompts) if isinstance(text, str) and text]
    has_suffix = any(PurePosixPath(text).suffix.lower() in AUDIO_SUFFIXES for text in texts)
    return has_suffix or all(re.fullmatch(r"\S+\.\w{2,5}", text) for text in texts)


def _description(table: SourceTable, columns: Mapping[str, str], reader: _RowReader) -> str:
    """The description of the card: what was recognised."""
    kinds = [f"{shown(columns[name])} ({kind})" for name in _COLUMNS if (kind := reader.kinds.get(name))]
    mapped = [f"{our} from {shown(columns[our])}" for our in _COLUMNS[3:] if our in columns]
    prompt_note = "" if reader.kinds.get("prompt") != "text" else "; the text of the prompt is the situation"
    rater = "" if "rater_id" in columns else f"; the rater is called {_NOBODY}"
    ignored = [column for column in table.columns if column not in columns.values()]
    rest = f" Columns not imported: {', '.join(ignored)}." if ignored else ""
    return f"Recognised as preferences: {', '.join([*kinds, *mapped])}{prompt_note}{rater}. There are no scores.{rest}"
