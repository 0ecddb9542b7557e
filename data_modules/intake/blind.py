"""Responses that stand against each other, as pairs whose ids and order do not tell which one is right."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..audio import decode, probe
from ..errors import AudioError
from ..parallel import map_threads
from .assemble import Skipped
from .clips import ClipCell, read_clip
from .trees import SourceFile


@dataclass(frozen=True)
class Contest:
    """Responses to one user turn that stand against each other.

    Attributes:
        where: For messages and the list of what was skipped; tells neither label nor option.
        key: What tells it from all other contests; neither does this.
        columns: Of its pairs, without ids and clips.
        user: The user turn.
        responses: Two or more.
        right: Position of the better response; None = not known.
    """

    where: str
    key: Sequence[str]
    columns: Mapping[str, str | None]
    user: SourceFile
    responses: Sequence[SourceFile]
    right: int | None


@dataclass(frozen=True)
class BlindPairs:
    """Pairs of contests.

    Attributes:
        rows: As `Imported` takes them, in the order of their ids.
        labels: (Id of the better pair, id of a worse one), in order.
        skipped: Contests that cannot be used: a response cannot be decoded, or two are the same audio.
    """

    rows: list[dict[str, Any]]
    labels: list[tuple[str, str]]
    skipped: list[Skipped]


def blind_pairs(contests: Sequence[Contest]) -> BlindPairs:
    """Names each pair by the contest's key and the content of its response: 80 bits of a SHA-256.

    Every response is read and decoded here already: where one is unusable, those against it are left out too, and the
    list of what was skipped does not tell which one it is.
    """
    hashes = _content_hashes([file for contest in contests for file in contest.responses])
    pairs = BlindPairs([], [], [])
    for contest in contests:
        found = [hashes[file] for file in contest.responses]
        failed = [value for value in found if isinstance(value, AudioError)]
        if failed:
            pairs.skipped.append(Skipped(contest.where, str(failed[0])))
        elif len(set(found)) < len(found):
            pairs.skipped.append(Skipped(contest.where, "two of its responses are the same audio"))
        else:
            ids = [hashlib.sha256(json.dumps([*contest.key, value]).encode()).hexdigest()[:20] for value in found]
            pairs.rows.extend(
                _row(contest, pair_id, file) for pair_id, file in zip(ids, contest.responses, strict=True)
            )
            if contest.right is not None:
                pairs.labels.extend((ids[contest.right], other) for n, other in enumerate(ids) if n != contest.right)
    pairs.rows.sort(key=lambda row: row["pair_id"])
    pairs.labels.sort()
    return pairs


def _row(contest: Contest, pair_id: str, response: SourceFile) -> dict[str, Any]:
    return {
        "pair_id": pair_id,
        **contest.columns,
        "context_audio": [{"role": "user", "audio": ClipCell(contest.user, contest.where)}],
        "response_audio": ClipCell(response, contest.where),
    }


def _content_hashes(files: Sequence[SourceFile]) -> dict[SourceFile, str | AudioError]:
    """SHA-256 of each clip, or why it cannot be used, in words without its name: that may hold the label."""

    def content_hash(file: SourceFile) -> str | AudioError:
        try:
            data = read_clip(file)
        except AudioError:
            return AudioError("a response: cannot be read")
        try:
            decode(data, probe(data, "a response").rate, name="a response")
        except AudioError as error:
            return error
        return hashlib.sha256(data).hexdigest()

    distinct = list(dict.fromkeys(files))
    hashes = map_threads(content_hash, distinct, "Reading responses", len(distinct))
    return dict(zip(distinct, hashes, strict=True))
