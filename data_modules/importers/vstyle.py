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
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import DataError, counted
from ..ratings import Dimension
from ..schema import DatasetCard
from ..tables import TableRow, read_records
from .assemble import Imported
from .clips import AudioFolder
from .collector import Collector, source_files, source_rows

EXAMPLE = "vstyle VStyle-responses --ratings VStyle-eval-results --category empathy --out data"

_LANGUAGES = ("en", "zh")
_METADATA_FIELDS = ("id", "instruct_id", "model_name", "ability", "instruct_text", "response_audio_path")
_AUDIO_FIELDS = ("response_audio_path", "instruction_audio_path")
_RATING_FIELDS = ("id", "instruct_id", "mos")
_SCALE = Dimension("mos", 1, 5)
_HAN = re.compile(r"[\u3400-\u9fff]")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of VStyle."""
    parser.add_argument("--ratings", metavar="DIR", help="folder that holds human_eval_res (default: PATH)")
    parser.add_argument(
        "--category", metavar="NAME", help="only abilities of this category, such as empathy (default: all)"
    )


def read(path: Path, options: argparse.Namespace) -> Imported:
    """Reads the metadata of all responses and the files of all raters."""
    root = path if path.is_dir() else path.parent
    collector = Collector()
    responses: dict[tuple[str, str], tuple[str, dict[str, Any] | None]] = {}  # by language and key: place and pair
    keys: set[str] = set()
    categories: Counter[str] = Counter()
    for row, folder in source_rows(path, ["metadata.jsonl"], _METADATA_FIELDS, _AUDIO_FIELDS):
        with collector.skipping(row.place()):
            key, language, category = _key(row), _language(row, root), row.name("ability").partition("/")[0]
            categories[category] += 1
            if (language, key) in responses:
                where = f"{row.place('id')}: {key} stands at {responses[language, key][0]} already"
                raise DataError(f"{where}; expected each response once")
            pair = _pair(row, key, language, folder)
            if key in keys:  # in the other language
                pair["pair_id"] = f"{language}-{key}"
            keys.add(key)
            wanted = options.category in (None, "", category)
            responses[language, key] = row.place("id"), pair if wanted else None
    pairs = [pair for _, pair in responses.values() if pair is not None]
    if categories and options.category not in (None, "", *categories):  # with none, all were skipped
        present = ", ".join(sorted(categories))
        raise DataError(f"{path}: no ability of category {options.category!r}; it has {present}")
    _add_ratings(Path(options.ratings or root), responses, collector)
    unrated = {pair["pair_id"] for pair in pairs} - {pair_id for pair_id, *_ in collector.ratings}
    in_steps = all(score.is_integer() for score, _ in collector.ratings.values())
    description = (
        f"mos is one overall score for words and style. {len(unrated)} of {len(pairs)} responses have no rating. "
        f"The instruction was heard in {sum(bool(pair['context_audio']) for pair in pairs)} and is text in the rest."
    )
    if options.category:
        left_out = len(responses) - len(pairs)
        description += f" Only abilities {options.category}/...: {counted(left_out, 'response')} of others left out."
    card = DatasetCard(
        "VStyle",
        (replace(_SCALE, step=1 if in_steps else None),),
        "https://huggingface.co/datasets/zhanjun/VStyle-responses and VStyle-eval-results (arXiv 2509.09716)",
        "unknown",
        description=description,
    )
    return collector.imported(card, pairs, rated=True)


def _pair(row: TableRow, key: str, language: str, folder: AudioFolder) -> dict[str, Any]:
    """Columns of the pair; the instruction as the rater heard or read it, see the module docstring."""
    audio_fields = ["instruction_audio_path"] if row.values.get("instruction_audio_path") not in (None, "") else []
    return {
        "context_audio": [{"role": "user", "audio": folder.clip(row, field)} for field in audio_fields],
        "context_text" if audio_fields else "situation": row.text("instruct_text"),
        "pair_id": key,
        "group_id": f"{language}-{row.name('instruct_id')}",
        "language": language,
        "response_audio": folder.clip(row, "response_audio_path"),
        "response_text": row.text("response_text"),
        "system_id": row.name("model_name"),
        "setting": row.name("ability"),
    }


def _add_ratings(
    folder: Path, responses: dict[tuple[str, str], tuple[str, dict[str, Any] | None]], found: Collector
) -> None:
    if folder.is_file():
        raise DataError(f"{folder}: a file; expected the folder that holds human_eval_res")
    for file in source_files(folder, [f"human_eval_res/{language}/*.jsonl" for language in _LANGUAGES]):
        language = file.parent.name
        for row in read_records(file, _RATING_FIELDS):
            with found.skipping(row.place()):
                key = _key(row)
                if (language, key) not in responses:
                    raise DataError(f"{row.place('id')}: no response {key} (id_instruct_id) in {language}")
                pair = responses[language, key][1]
                if pair is not None:
                    found.add_rating(pair["pair_id"], file.stem, "mos", row.values.get("mos"), row.place("mos"), _SCALE)


def _key(row: TableRow) -> str:
    return f"{row.name('id')}_{row.name('instruct_id')}"


def _language(row: TableRow, root: Path) -> str:
    paths = [row.table.path.relative_to(root).as_posix(), row.values.get("response_audio_path")]
    parts = [part for path in paths if isinstance(path, str) for part in PurePosixPath(path).parts[:-1]]
    languages = [part for part in parts if part in _LANGUAGES]
    if languages:
        return languages[-1]
    return "zh" if _HAN.search(row.text("instruct_text") or "") else "en"
