"""EmpathyEval: which of two responses was made well becomes a preference; no name tells it after the import."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

from ....audio.decode import load_clip
from ....core.errors import AudioError, DataError, UserError, counted, shown
from ....core.processes import map_threads
from ...tables import read_records, text_of
from ..assemble import Imported, Skipped
from ..clips import ClipCell, folder_files, read_clip
from ..collector import Collector
from .mapping import CorpusMapping

MAPPING = CorpusMapping.of(__file__)
__doc__, EXAMPLE = MAPPING.help, MAPPING.example

(_SCALE,) = MAPPING.scales
RATER = "how_the_audio_was_made"
CONTEXT, TONE = "context_variant", "tone_variant"
_GOOD, _BAD = "goodPara", "badPara"


class _Archive(NamedTuple):
    """One archive of the release. `source`: the corpus of a test, None = training."""

    name: str
    part: str
    setting: str
    source: str | None = None


_ARCHIVES = [_Archive(*archive) for archive in MAPPING.names["archives"]]
_RESPONSE = {
    CONTEXT: re.compile(rf"(?P<prefix>.+)_(?P<variant>[12])_(?P<label>{_GOOD}|{_BAD})\.wav"),
    TONE: re.compile(rf"(?P<prefix>.+)_(?P<variant>[a-z]+)_(?P<label>{_GOOD}|{_BAD})\.wav"),
}
_USER = {
    CONTEXT: re.compile(r"(?P<prefix>.+)_(?P<variant>[12])_(?P<label>[^_]+)\.wav"),
    TONE: re.compile(r"(?P<prefix>.+)_(?P<variant>[a-z]+)(?P<label>)\.wav"),
}
_QUESTION = {
    "gigaspeech": re.compile(r"(?:gigaspeech_)?(\d+)_\d+"),
    "meld": re.compile(r"(?:meld_)?(\d+)_\d+"),
    "emovdb": re.compile(r"(?:emovdb_)?([^_]+)_e\d+"),
}


class _Contest(NamedTuple):
    """Responses to one user turn that stand against each other. `where` and `key` tell neither label nor option."""

    where: str  # for messages and the list of what was skipped
    key: Sequence[str]  # identifies the contest among all
    columns: Mapping[str, str | None]  # of its pairs, without ids and clips
    user: Path  # the user turn
    responses: Sequence[Path]  # two or more; in training the better one first


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of EmpathyEval.

    Attributes:
        part: of the whole download: training by default; a folder of one archive says by its name what it is
    """

    part: Literal["training", "phase1", "phase2"] | None = None


def read(path: Path, options: Options) -> Imported:
    """Reads one part of the release. Responses are decoded, to name pairs by their content."""
    folder, archives = _archives_at(path.absolute(), options.part)
    collector = Collector()
    contests: list[_Contest] = []
    notes = [f"Read: {', '.join(archive.name for archive in archives)}."]
    for archive in archives:
        # An archive may hold one folder of its own name.
        inner = folder / archive.name / archive.name
        unpacked = inner if inner.is_dir() else inner.parent
        if archive.source is None:
            contests += _training(archive, unpacked, folder, collector, notes)
        else:
            contests += _test(archive, archive.source, unpacked, folder, collector)
    is_labelled = archives[0].source is None
    rows, labels = _blind_pairs(contests, collector)
    if is_labelled:
        for better, worse in labels:
            collector.add_preference(better, worse, RATER, _SCALE.name, 1.0, "")
        for pair_id, score in sorted((pair_id, 1.0 - n) for pair in labels for n, pair_id in enumerate(pair)):
            collector.add_rating(pair_id, RATER, _SCALE.name, score, "", _SCALE)
        notes.append("Ratings and preferences tell how the audio was made; no person rated.")
    return collector.imported(MAPPING.card(" ".join(notes)), rows, rated=is_labelled, compared=is_labelled)


def _archives_at(path: Path, part: str | None) -> tuple[Path, list[_Archive]]:
    """The folder of the release, and those archives of the part that are there."""
    for archive in _ARCHIVES:
        if archive.name == path.name:
            if part not in (None, archive.part):
                raise UserError(f"{path}: --part {part}: this folder belongs to {archive.part}")
            return path.parent, [archive]
    part = part or "training"
    archives = [archive for archive in _ARCHIVES if archive.part == part]
    present = [archive for archive in archives if (path / archive.name).is_dir()]
    if not present:
        names = ", ".join(archive.name for archive in archives)
        raise DataError(f"{path}: holds nothing of --part {part}; expected {names}, unpacked")
    return path, present


def _training(archive: _Archive, place: Path, folder: Path, found: Collector, notes: list[str]) -> list[_Contest]:
    """The contests of a labelled archive, in the order of their names."""
    texts: dict[str, Mapping[str, Any]] = {}
    problems: dict[str, str] = {}  # why the row of an id cannot be used
    for row in read_records(folder / f"{archive.name}_flat.jsonl"):
        prefix = row.values.get("id")
        if not isinstance(prefix, str):
            raise row.error("id", "text")
        if texts.setdefault(prefix, row.values) != row.values:
            problems[prefix] = f"{row.place('id')}: an earlier row with this id says something else"
    files = folder_files(place)
    parents = {name.rpartition("/")[0] for name in files}
    roots = [root.removesuffix("response_audio") for root in parents if f"/{root}".endswith("/response_audio")]
    if len(roots) != 1:
        raise DataError(f"{place}: {len(roots)} folders called response_audio; expected one, with wav files")
    form = _RESPONSE[archive.setting]
    responses, misnamed = _clips(files, f"{roots[0]}response_audio", form)
    users, _ = _clips(files, f"{roots[0]}user_audio", _USER[archive.setting])
    found.skipped += [Skipped(f"{place}/{name}", f"the name has not the form {form.pattern}") for name in misnamed]
    contests = []
    for (prefix, variant), by_label in responses.items():
        where = f"{place}, responses {prefix}_{variant}"
        with found.skipping(where):
            if len(by_label) < 2:
                raise DataError("only one of the two responses is there")
            if prefix not in texts or prefix in problems:
                raise DataError(problems.get(prefix, f"{archive.name}_flat.jsonl has no row with this id"))
            text, user_clips = texts[prefix], users.get((prefix, variant), {})
            user = user_clips.get(text_of(text.get("emotion")) or "neutral")
            # Where no clip has the emotion that the table states, the only clip that is there counts.
            if user is None:
                if len(user_clips) != 1:
                    raise DataError(f"{len(user_clips)} clips in user_audio can be the user's turn; expected one")
                (user,) = user_clips.values()
            columns = {"group_id": prefix, "setting": archive.setting, "language": "en"}
            columns |= {"context_text": text_of(text.get("text"))} | _words(
                text.get("contexts"), archive.setting, variant
            )
            both = [by_label[_GOOD], by_label[_BAD]]
            contests.append(_Contest(where, (archive.name, prefix, variant), columns, user, both))
    incomplete = len(texts.keys() - {contest.columns["group_id"] for contest in contests})
    if incomplete:
        those = counted(incomplete, f"text of {archive.name} has", f"texts of {archive.name} have")
        notes.append(f"{those} no complete pair of responses.")
    return contests


def _clips(
    files: Mapping[str, Path], folder: str, form: re.Pattern[str]
) -> tuple[dict[tuple[str, str], dict[str, Path]], list[str]]:
    """(Prefix, variant) -> label in the name -> clip; and the names that do not fit."""
    clips: dict[tuple[str, str], dict[str, Path]] = {}
    misnamed = []
    for path, file in files.items():
        parent, _, name = path.rpartition("/")
        if match := form.fullmatch(name) if parent == folder else None:
            clips.setdefault((match["prefix"], match["variant"]), {})[match["label"]] = file
        elif parent == folder:
            misnamed.append(path)
    return clips, misnamed


def _words(contexts: Any, setting: str, variant: str) -> dict[str, str | None]:
    """The situation and the words of the response. Context sets have two situations, tone sets one at most."""
    if setting == TONE:
        if not isinstance(contexts, dict):
            raise DataError("its row has no object in 'contexts'")
        response = text_of(contexts.get(f"{variant}_response"))
        return {"situation": text_of(contexts.get("Context")), "response_text": response}
    context = contexts[int(variant) - 1] if isinstance(contexts, list) and len(contexts) >= int(variant) else None
    situation = text_of(context.get("context")) if isinstance(context, dict) else None
    if not isinstance(context, dict) or situation is None:
        raise DataError(f"its row has no text for context {variant} in 'contexts'")
    return {"situation": situation, "response_text": text_of(context.get("response"))}


def _test(archive: _Archive, source: str, place: Path, folder: Path, found: Collector) -> list[_Contest]:
    """The contests of an unlabelled archive, in the order of their table, which lies in the archive or beside it."""
    files, name = folder_files(place), f"{archive.part}-test_{source}_release.json"
    inside = [path for path in files if f"/{path}".endswith(f"/{name}")]
    if len(inside) > 1 or not (inside or (folder / name).is_file()):
        raise DataError(f"{place}: {len(inside)} files {name} in it; expected one, in it or beside it")
    base = inside[0].removesuffix(name) if inside else ""
    form, seen = _QUESTION[source], set[str]()
    contests = []
    for record in read_records(files[inside[0]] if inside else folder / name):
        row = record.values
        column = "data_index" if "data_index" in row else "question_id"
        where, question = record.place(column), row.get(column)
        with found.skipping(where):
            match = form.fullmatch(question) if isinstance(question, str) else None
            if match is None or match[0] in seen:
                raise record.error(column, f"the form {form.pattern}, each once")
            seen.add(match[0])
            columns = {"group_id": f"{source}_{match[1]}", "setting": archive.setting, "language": "en"}
            theirs = {"situation": "context", "context_text": "utterance", "response_text": "response"}
            columns |= {ours: text_of(row.get(their)) for ours, their in theirs.items()}
            if columns["situation"] is None and archive.setting == CONTEXT:
                raise DataError("no text in 'context'")
            options = row.get("options")
            if not isinstance(options, dict) or len(options) < 2:
                raise DataError(f"options {shown(options)}; expected two or more clips")
            clips: list[Any] = []
            for path in (row.get("utterance_audio"), *options.values()):
                # A path that leaves the folder is none of its files
                clips.append(files.get(base + PurePosixPath(path).as_posix()) if isinstance(path, str) else None)
                if clips[-1] is None:
                    raise DataError(f"no such file in {place}: {shown(path)}")
            user, *responses = clips
            contests.append(_Contest(where, (archive.name, match[0]), columns, user, responses))
    return contests


def _blind_pairs(contests: Sequence[_Contest], found: Collector) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    """Pairs whose ids and order do not tell which response is right, sorted by id; and (first, other) ids of a contest.

    Each is named by the contest's key and the content of its response: 80 bits of a SHA-256. Every response is read and
    decoded here already: where one is unusable, or two are the same audio, those against it are left out too, and the
    list of what was skipped does not tell which one it is.
    """
    distinct = list(dict.fromkeys(file for contest in contests for file in contest.responses))
    hashes = dict(zip(distinct, map_threads(_content_hash, distinct, "Reading responses", len(distinct)), strict=True))
    rows: list[dict[str, Any]] = []
    labels: list[tuple[str, str]] = []
    for contest in contests:
        with found.skipping(contest.where):
            contents = [hashes[file] for file in contest.responses]
            for digest in contents:
                if isinstance(digest, AudioError):
                    raise digest
            if len(set(contents)) < len(contents):
                raise DataError("two of its responses are the same audio")
            ids = [hashlib.sha256(json.dumps([*contest.key, digest]).encode()).hexdigest()[:20] for digest in contents]
            context = [{"role": "user", "audio": ClipCell(contest.user, contest.where)}]
            for pair_id, file in zip(ids, contest.responses, strict=True):
                clips = {"context_audio": context, "response_audio": ClipCell(file, contest.where)}
                rows.append({"pair_id": pair_id, **contest.columns, **clips})
            labels += [(ids[0], worse_id) for worse_id in ids[1:]]
    return sorted(rows, key=lambda row: row["pair_id"]), sorted(labels)


def _content_hash(file: Path) -> str | AudioError:
    """SHA-256 of a clip, or why it cannot be used, in words without its name: that may hold the label."""
    try:
        data = read_clip(file)
    except AudioError:
        return AudioError("a response: cannot be read")
    try:
        load_clip(data, name="a response")
    except AudioError as error:
        return error
    return hashlib.sha256(data).hexdigest()
