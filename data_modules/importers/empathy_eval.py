"""Imports EmpathyEval of the AEQ-Bench team (Hugging Face ``gracehuggingface/EmpathyEval``, HumOmni-2026 track 1).

PATH is the folder of the download, with its zip archives or with what was unpacked from them, or one of the archives.
Nothing is unpacked; ids hold colons, which Windows cannot write into file names.

Training (``--part training``)
    ``empatheticDialogue_t_multi-context.zip`` (one text, two contexts) and
    ``empatheticDialogue_n_multi-emotion.zip`` (one text, many tones), each with ``response_audio/`` and
    ``user_audio/``, and beside each its ``_flat.jsonl``. Two responses stand against each other; which one is
    right says the file name. It becomes a preference and a rating of 0 or 1 by a rater called
    ``how_the_audio_was_made``, because no person rated: the card says synthetic. Groups are dialogues, across
    both sets.

Tests (``--part phase1``, ``--part phase2``)
    ``phase1-test_multi-context_gigaspeech.zip`` and the like with ``phase1-test_gigaspeech_release.json`` in or
    beside them. Answers are hidden: pairs without ratings.

What a judge must not know is gone after the import: ids are hashes of content, rows are ordered by them, and neither
label nor option letter stands in any name. Responses that stand against each other are skipped together, where one is
unusable, and listed as one.

A large share of the label is how natural a response sounds, not how well it fits: a model that hears the response
alone reached 83% (an entrant's figure). The response-only check of ``evaluate`` tells how much that is.

The layout is what entrants' programs read; nobody has held this importer against the true download yet.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ..audio import decode, probe
from ..errors import AudioError, DataError, UserError, bad_value, shown
from ..parallel import map_threads
from ..ratings import Dimension
from ..schema import DatasetCard
from ..tables import SourceTable, read_table, text_of
from .archives import FileTree, SourceFile, open_tree, read_file
from .assemble import Imported, Skipped
from .clips import ClipCell
from .collector import Collector

EXAMPLE = "empathy-eval EmpathyEval --part training --out data"

DIMENSION = Dimension("vocal_empathy", 0, 1, 1)
RATER = "how_the_audio_was_made"
CONTEXT, TONE = "context_variant", "tone_variant"
_PARTS = ("training", "phase1", "phase2")
_GOOD, _BAD = "goodPara", "badPara"


@dataclass(frozen=True)
class _Set:
    """One archive of the release. `source`: the corpus of a test, None = training."""

    name: str
    part: str
    setting: str
    source: str | None = None


_SETS = (
    _Set("empatheticDialogue_t_multi-context", "training", CONTEXT),
    _Set("empatheticDialogue_n_multi-emotion", "training", TONE),
    *(
        _Set(f"{phase}-test_multi-{kind}_{source}", phase, setting, source)
        for phase in ("phase1", "phase2")
        for kind, source, setting in (
            ("context", "gigaspeech", CONTEXT),
            ("context", "meld", CONTEXT),
            ("emotion", "emovdb", TONE),
        )
    ),
)
_RESPONSE = {
    CONTEXT: re.compile(rf"(?P<prefix>.+)_(?P<variant>[12])_(?P<label>{_GOOD}|{_BAD})\.wav"),
    TONE: re.compile(rf"(?P<prefix>.+)_(?P<variant>[a-z]+)_(?P<label>{_GOOD}|{_BAD})\.wav"),
}
_USER = {
    CONTEXT: re.compile(r"(?P<prefix>.+)_(?P<variant>[12])_(?P<emotion>[^_]+)\.wav"),
    TONE: re.compile(r"(?P<prefix>.+)_(?P<variant>[a-z]+)\.wav"),
}
_QUESTION = {
    "gigaspeech": re.compile(r"(?:gigaspeech_)?(\d+)_\d+"),
    "meld": re.compile(r"(?:meld_)?(\d+)_\d+"),
    "emovdb": re.compile(r"(?:emovdb_)?([^_]+)_e\d+"),
}


@dataclass(frozen=True)
class _Contest:
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of EmpathyEval."""
    parser.add_argument(
        "--part", choices=_PARTS,
        help="of a folder: training by default; an archive says by its name what it is",
    )  # fmt: skip


def read(path: Path, options: argparse.Namespace) -> Imported:
    """Reads one part of the release. Responses are decoded, to name pairs by their content."""
    folder, sets = _sets_at(path, options.part)
    found = Collector()
    contests: list[_Contest] = []
    notes = [f"Read: {', '.join(own.name for own, _ in sets)}."]
    for own, tree in sets:
        if own.source is None:
            texts, problems = _training_texts(folder / f"{own.name}_flat.jsonl")
            read = list(_training(own, tree, texts, problems, found))
            silent = len(texts.keys() - {contest.columns["group_id"] for contest in read})
            notes += [f"{silent} texts of {own.name} have no complete pair of responses."] if silent else []
        else:
            read = list(_test(own, tree, folder, found))
        contests += read
    rows, labels = _blind_pairs(contests, found)
    ratings = preferences = None
    if sets[0][0].source is None:
        for better, worse in labels:
            found.add_preference(better, worse, RATER, DIMENSION.name, 1.0, "")
        for pair_id, score in sorted((pair_id, 1.0 - n) for pair in labels for n, pair_id in enumerate(pair)):
            found.add_rating(pair_id, RATER, DIMENSION.name, score, "", DIMENSION)
        ratings, preferences = found.ratings(), found.preferences()
        notes.append("Ratings and preferences tell how the audio was made; no person rated.")
    card = DatasetCard(
        name="",
        dimensions=(DIMENSION,),
        source="EmpathyEval of the AEQ-Bench team (Hugging Face gracehuggingface/EmpathyEval)",
        licence="not stated by the source",
        synthetic=True,
        description=" ".join(notes),
    )
    return Imported(card, rows, ratings, preferences, found.skipped)


def _sets_at(path: Path, part: str | None) -> tuple[Path, list[tuple[_Set, FileTree]]]:
    """The folder of the release and those of its archives that are there and wanted."""
    path = path.absolute()
    name = path.stem if path.suffix.lower() == ".zip" else path.name
    for found in _SETS:
        if found.name == name:
            if part not in (None, found.part):
                raise UserError(f"{path}: --part {part}: this archive belongs to {found.part}")
            return path.parent, [(found, open_tree(path))]
    if not path.is_dir():
        raise DataError(f"{path}: expected a folder, or one of {', '.join(f'{found.name}.zip' for found in _SETS)}")
    wanted = [found for found in _SETS if found.part == (part or "training")]
    sets = []
    for found in wanted:
        # The archive as it was downloaded rather than a folder that may be unpacked in part
        places = [path / f"{found.name}.zip", path / found.name]
        sets += [(found, open_tree(place)) for place in places if place.exists()][:1]
    if not sets:
        names = ", ".join(found.name for found in wanted)
        raise DataError(f"{path}: holds nothing of --part {part or 'training'}; expected {names}, as .zip or unpacked")
    return path, sets


def _training_texts(path: Path) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Rows of the JSONL table by id, and why the row of an id cannot be used."""
    table = read_table(path)
    texts: dict[str, dict[str, Any]] = {}
    problems: dict[str, str] = {}
    for position, row in enumerate(table.rows):
        prefix = row.get("id")
        if not isinstance(prefix, str):
            raise bad_value(table.place(position, "id"), prefix, "text")
        if texts.setdefault(prefix, row) != row:
            problems[prefix] = f"{table.place(position, 'id')}: an earlier row with this id says something else"
    return texts, problems


def _training(
    own: _Set, tree: FileTree, texts: Mapping[str, dict[str, Any]], problems: Mapping[str, str], found: Collector
) -> Iterator[_Contest]:
    """The contests of a labelled archive, in the order of their names."""
    root = _audio_root(tree)
    responses, misnamed = _clips(tree, f"{root}response_audio", _RESPONSE[own.setting], "label")
    users, _ = _clips(tree, f"{root}user_audio", _USER[own.setting], "emotion")
    for path in misnamed:
        found.skipped.append(Skipped(tree.place(path), f"the name has not the form {_RESPONSE[own.setting].pattern}"))
    for (prefix, variant), by_label in responses.items():
        where = f"{tree.root}, responses {prefix}_{variant}"
        with found.skipping(where):
            if len(by_label) < 2:
                raise DataError("only one of the two responses is there")
            if prefix not in texts or prefix in problems:
                raise DataError(problems.get(prefix, f"{own.name}_flat.jsonl has no row with this id"))
            row = texts[prefix]
            user = _user_audio(users.get((prefix, variant), {}), text_of(row.get("emotion")) or "neutral")
            columns = {
                "group_id": prefix,
                "setting": own.setting,
                "language": "en",
                "context_text": text_of(row.get("text")),
                **(_in_context(row, variant) if own.setting == CONTEXT else _in_tone(row, variant)),
            }
            yield _Contest(where, (own.name, prefix, variant), columns, user, [by_label[_GOOD], by_label[_BAD]], 0)


def _clips(
    tree: FileTree, folder: str, pattern: re.Pattern[str], kind: str
) -> tuple[dict[tuple[str, str], dict[str, SourceFile]], list[str]]:
    """(Prefix, variant) -> what the group `kind` of the name says -> clip; and the names that do not fit."""
    clips: dict[tuple[str, str], dict[str, SourceFile]] = {}
    misnamed = []
    for path, file in tree.files.items():
        parent, _, name = path.rpartition("/")
        if parent != folder:
            continue
        if match := pattern.fullmatch(name):
            clips.setdefault((match["prefix"], match["variant"]), {})[match.groupdict().get(kind, "")] = file
        else:
            misnamed.append(path)
    return clips, misnamed


def _audio_root(tree: FileTree) -> str:
    """Path up to ``response_audio/``, which may lie in a folder of its own."""
    roots = {path.rpartition("/")[0] for path in tree.files}
    roots = {root.removesuffix("response_audio") for root in roots if f"/{root}".endswith("/response_audio")}
    if len(roots) != 1:
        raise DataError(f"{tree.root}: {len(roots)} folders called response_audio; expected one, with wav files")
    return roots.pop()


def _user_audio(by_emotion: Mapping[str, SourceFile], emotion: str) -> SourceFile:
    """The user turn. Where none has the emotion that the table says, the only one that is there counts."""
    if emotion in by_emotion:
        return by_emotion[emotion]
    if len(by_emotion) != 1:
        raise DataError(f"{len(by_emotion)} clips in user_audio can be the user's turn; expected one")
    return next(iter(by_emotion.values()))


def _in_context(row: Mapping[str, Any], variant: str) -> dict[str, str | None]:
    """The situation, which the response depends on, and its words."""
    contexts = row.get("contexts")
    context = contexts[int(variant) - 1] if isinstance(contexts, list) and len(contexts) >= int(variant) else None
    situation = text_of(context.get("context")) if isinstance(context, dict) else None
    if not isinstance(context, dict) or situation is None:
        raise DataError(f"its row has no text for context {variant} in 'contexts'")
    return {"situation": situation, "response_text": text_of(context.get("response"))}


def _in_tone(row: Mapping[str, Any], emotion: str) -> dict[str, str | None]:
    """The situation, if any, and the words of the response; it depends on the tone of the user's voice."""
    contexts = row.get("contexts")
    if not isinstance(contexts, dict):
        raise DataError("its row has no object in 'contexts'")
    return {
        "situation": text_of(contexts.get("Context")),
        "response_text": text_of(contexts.get(f"{emotion}_response")),
    }


def _test(own: _Set, tree: FileTree, folder: Path, found: Collector) -> Iterator[_Contest]:
    """The contests of an unlabelled archive, in the order of their table."""
    table, base = _release(own, tree, folder)
    pattern = _QUESTION[str(own.source)]
    seen: set[str] = set()
    for position, row in enumerate(table.rows):
        column = "data_index" if "data_index" in row else "question_id"
        where = table.place(position, column)
        with found.skipping(where):
            question = row.get(column)
            match = pattern.fullmatch(question) if isinstance(question, str) else None
            if match is None or match[0] in seen:
                raise bad_value(where, question, f"the form {pattern.pattern}, each once")
            seen.add(match[0])
            columns = {
                "group_id": f"{own.source}_{match[1]}",
                "setting": own.setting,
                "language": "en",
                "situation": text_of(row.get("context")),
                "context_text": text_of(row.get("utterance")),
                "response_text": text_of(row.get("response")),
            }
            if columns["situation"] is None and own.setting == CONTEXT:
                raise DataError("no text in 'context'")
            user, *options = _released_clips(row, tree, base)
            yield _Contest(where, (own.name, match[0]), columns, user, options, None)


def _release(found: _Set, tree: FileTree, folder: Path) -> tuple[SourceTable, str]:
    """The questions of a test, and the folder in the tree that their paths start from."""
    name = f"{found.part}-test_{found.source}_release.json"
    inside = [path for path in tree.files if f"/{path}".endswith(f"/{name}")]
    if len(inside) == 1:
        return tree.read_json_table(inside[0]), inside[0].removesuffix(name)
    beside = folder / name
    if inside or not beside.is_file():
        raise DataError(f"{tree.root}: {len(inside)} files {name} in it; expected one, in it or beside it")
    return FileTree(folder, {name: beside}).read_json_table(name), ""


def _released_clips(row: Mapping[str, Any], tree: FileTree, base: str) -> list[SourceFile]:
    """The user turn, then the options. A path that leaves the archive is not in it."""
    options = row.get("options")
    if not isinstance(options, dict) or len(options) < 2:
        raise DataError(f"options {shown(options)}; expected two or more clips")
    clips = []
    for name in (row.get("utterance_audio"), *options.values()):
        file = tree.files.get(base + PurePosixPath(name).as_posix()) if isinstance(name, str) else None
        if file is None:
            raise DataError(f"no such file in {tree.root}: {shown(name)}")
        clips.append(file)
    return clips


def _blind_pairs(
    contests: Sequence[_Contest], collector: Collector
) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    """Pairs whose ids and order do not tell which response is right.

    Each is named by the contest's key and the content of its response: 80 bits of a SHA-256. Every response is read and
    decoded here already: where one is unusable, or two are the same audio, those against it are left out too, and the
    list of what was skipped does not tell which one it is.

    Returns:
        Rows as `Imported` takes them, in the order of their ids; and (id of the better pair, id of a worse one).
    """
    distinct = list(dict.fromkeys(file for contest in contests for file in contest.responses))
    hashes = dict(zip(distinct, map_threads(_content_hash, distinct, "Reading responses", len(distinct)), strict=True))
    rows: list[dict[str, Any]] = []
    labels: list[tuple[str, str]] = []
    for contest in contests:
        with collector.skipping(contest.where):
            found = [hashes[file] for file in contest.responses]
            for value in found:
                if isinstance(value, AudioError):
                    raise value
            if len(set(found)) < len(found):
                raise DataError("two of its responses are the same audio")
            ids = [hashlib.sha256(json.dumps([*contest.key, value]).encode()).hexdigest()[:20] for value in found]
            context = [{"role": "user", "audio": ClipCell(contest.user, contest.where)}]
            for pair_id, file in zip(ids, contest.responses, strict=True):
                clips = {"context_audio": context, "response_audio": ClipCell(file, contest.where)}
                rows.append({"pair_id": pair_id, **contest.columns, **clips})
            if contest.right is not None:
                labels += [(ids[contest.right], other) for n, other in enumerate(ids) if n != contest.right]
    return sorted(rows, key=lambda row: row["pair_id"]), sorted(labels)


def _content_hash(file: SourceFile) -> str | AudioError:
    """SHA-256 of a clip, or why it cannot be used, in words without its name: that may hold the label."""
    try:
        data = read_file(file)
    except AudioError:
        return AudioError("a response: cannot be read")
    try:
        decode(data, probe(data, "a response").rate, name="a response")
    except AudioError as error:
        return error
    return hashlib.sha256(data).hexdigest()
