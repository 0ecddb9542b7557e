"""Imports VStyle: spoken responses of several systems, rated from 1 to 5 (arXiv 2509.09716).

PATH is the folder of ``zhanjun/VStyle-responses`` as ``hf download --local-dir`` makes it, or one that holds it.
The layout was taken from the publishers' scripts and not from the files: look at the first import closely.

    - ``metadata.jsonl``, in any subfolder: ``id, instruct_id, model_name, ability, instruct_text,
      response_audio_path`` (mp3, relative to the file's folder) and, where there are, ``response_text`` and
      ``instruction_audio_path``. A folder ``en`` or ``zh`` in a path says the language; else the script of
      ``instruct_text`` does (Chinese characters: zh).
    - ``human_eval_res/{en,zh}/RATER.jsonl`` of ``zhanjun/VStyle-eval-results``, below PATH or --ratings: ``id,
      instruct_id, mos``. The rater's id is the name of the file. ``id`` and ``instruct_id`` together name the
      response.

Dimension ``mos`` is one overall score from 1 to 5: whether the words and the style do what was asked. Responses to
one instruction in one language are one group. ``system_id`` is ``model_name``, ``setting`` is ``ability``.

Where ``instruction_audio_path`` names a clip, it is the context and ``instruct_text`` its transcript, which the
judge does not see. Elsewhere the text is the only form in which the instruction exists, and nobody can say how well
a style was followed without it: it becomes the ``situation``, which the judge reads.

A response without ratings is imported. A rating without a response, without a score or off the scale is skipped and
listed.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import DataError
from ..intake.assemble import Imported, Skipped
from ..intake.opinions import Ratings
from ..intake.records import Record, need_fields, read_records, source_files
from ..intake.relocation import AudioFolder
from ..schema import DatasetCard

EXAMPLE = "vstyle VStyle-responses --ratings VStyle-eval-results --category empathy --out data"

_LANGUAGES = ("en", "zh")
_METADATA_FIELDS = ("id", "instruct_id", "model_name", "ability", "instruct_text", "response_audio_path")
_RATING_FIELDS = ("id", "instruct_id", "mos")
_HAN = re.compile(r"[\u3400-\u9fff]")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of VStyle."""
    parser.add_argument("--ratings", metavar="DIR", help="folder that holds human_eval_res (default: PATH)")
    parser.add_argument(
        "--category", metavar="NAME", help="only abilities of this category, such as empathy (default: all)"
    )


def read(path: Path, options: argparse.Namespace) -> Imported:
    """Reads the metadata of all responses and the files of all raters."""
    responses = _Responses(path if path.is_dir() else path.parent, options.category)
    for file in source_files(path, ["metadata.jsonl"]):
        responses.read(file)
    if not responses.pairs:
        raise DataError(f"{path}: no ability of category {options.category!r}; it has {responses.categories()}")
    ratings, skipped = _ratings(Path(options.ratings or (path if path.is_dir() else path.parent)), responses)
    pairs = list(responses.pairs.values())
    unrated = {pair["pair_id"] for pair in pairs} - ratings.pair_ids()
    description = (
        f"mos is one overall score for words and style. {len(unrated)} of {len(pairs)} responses have no rating. "
        f"The instruction was heard in {sum(bool(pair['context_audio']) for pair in pairs)} and is text in the rest."
    )
    if options.category:
        description += f" Only abilities {options.category}/...: {responses.left_out} responses of others left out."
    card = DatasetCard(
        "VStyle",
        (ratings.scale("mos"),),
        "https://huggingface.co/datasets/zhanjun/VStyle-responses and VStyle-eval-results (arXiv 2509.09716)",
        "unknown",
        description=description,
    )
    return Imported(card, pairs, ratings.frame(), skipped=[*responses.skipped, *skipped])


class _Responses:
    """What the metadata say: pairs by (language, "id_instruct_id")."""

    def __init__(self, root: Path, category: str | None) -> None:
        self.pairs: dict[tuple[str, str], dict[str, Any]] = {}
        self.skipped: list[Skipped] = []
        self.left_out = 0
        self._root = root
        self._category = category
        self._places: dict[tuple[str, str], str] = {}
        self._keys: set[str] = set()
        self._categories: Counter[str] = Counter()

    def read(self, file: Path) -> None:
        rows = read_records(file)
        need_fields(rows, _METADATA_FIELDS)
        values = [row.values.get(name) for row in rows for name in ("response_audio_path", "instruction_audio_path")]
        folder = AudioFolder(file.parent, values)
        for row in rows:
            try:
                self._add(row, folder)
            except DataError as error:
                self.skipped.append(row.skipped(error))

    def _add(self, row: Record, folder: AudioFolder) -> None:
        key, ability, language = _key(row), row.name("ability"), _language(row, self._root)
        self._categories[ability.partition("/")[0]] += 1
        if (language, key) in self._places:
            where = self._places[language, key]
            raise DataError(f"{row.place('id')}: {key} stands at {where} already; accepted: each response once")
        pair = {**_context(row, folder), "group_id": f"{language}-{row.name('instruct_id')}", "language": language}
        pair["pair_id"] = f"{language}-{key}" if key in self._keys else key
        pair["response_audio"] = folder.find(row.values.get("response_audio_path"), row.place("response_audio_path"))
        pair["response_text"] = row.text("response_text")
        pair["system_id"], pair["setting"] = row.name("model_name"), ability
        self._places[language, key] = row.place("id")
        self._keys.add(key)
        if self._category and ability.partition("/")[0] != self._category:
            self.left_out += 1
        else:
            self.pairs[language, key] = pair

    def pair_id(self, row: Record, language: str) -> str | None:
        """The response that a rating is of; None = it is of a category that was left out."""
        key = _key(row)
        if (language, key) in self.pairs:
            return self.pairs[language, key]["pair_id"]
        if (language, key) not in self._places:
            raise DataError(f"{row.place('id')}: no response {key} (id_instruct_id) in {language}")
        return None

    def categories(self) -> str:
        return ", ".join(sorted(self._categories))


def _key(row: Record) -> str:
    return f"{row.name('id')}_{row.name('instruct_id')}"


def _language(row: Record, root: Path) -> str:
    paths = [row.table.path.relative_to(root).as_posix(), row.values.get("response_audio_path")]
    parts = [part for path in paths if isinstance(path, str) for part in PurePosixPath(path).parts[:-1]]
    named = [part for part in parts if part in _LANGUAGES]
    if named:
        return named[-1]
    return "zh" if _HAN.search(row.text("instruct_text") or "") else "en"


def _context(row: Record, folder: AudioFolder) -> dict[str, Any]:
    """The instruction as the rater met it; see the head of this file."""
    text = row.text("instruct_text")
    value, where = row.values.get("instruction_audio_path"), row.place("instruction_audio_path")
    if value in (None, ""):
        return {"context_audio": [], "situation": text}
    return {"context_audio": [{"role": "user", "audio": folder.find(value, where)}], "context_text": text}


def _ratings(folder: Path, responses: _Responses) -> tuple[Ratings, list[Skipped]]:
    ratings, skipped = Ratings(1, 5), []
    if folder.is_file():
        raise DataError(f"{folder}: a file; accepted: the folder that holds human_eval_res")
    patterns = [f"human_eval_res/{language}/*.jsonl" for language in _LANGUAGES]
    for file in source_files(folder, patterns):
        rows = read_records(file)
        need_fields(rows, _RATING_FIELDS)
        for row in rows:
            try:
                pair_id = responses.pair_id(row, file.parent.name)
                if pair_id is not None:
                    ratings.add(pair_id, file.stem, "mos", row.values.get("mos"), row.place("mos"))
            except DataError as error:
                skipped.append(row.skipped(error))
    return ratings, skipped
