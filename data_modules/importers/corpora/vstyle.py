"""VStyle: the instruction as the raters met it, and a file for each rater, joined by the two ids of a response."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from ....core.errors import DataError, counted
from ...tables import TableRow, read_records
from ..assemble import Imported
from ..collector import Collector, source_files
from .mapping import CorpusMapping, CorpusReader

MAPPING = CorpusMapping.of(__file__)
__doc__, EXAMPLE = MAPPING.help, MAPPING.example
(_SCALE,) = MAPPING.scales
_LANGUAGES = ("en", "zh")
_HAN = re.compile(r"[\u3400-\u9fff]")
_Responses = dict[
    tuple[str, str], tuple[str, dict[str, Any] | None]
]  # language and key -> place, and pair, None = other category


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of VStyle.

    Attributes:
        ratings (DIR): folder that holds human_eval_res (default: PATH)
        category (NAME): only abilities of this category, such as empathy (default: all)
    """

    ratings: str | None = None
    category: str | None = None


def read(path: Path, options: Options) -> Imported:
    """Reads the metadata of all responses and the files of all raters."""
    root = path if path.is_dir() else path.parent
    reader = CorpusReader(MAPPING, path)
    responses: _Responses = {}
    keys: set[str] = set()
    categories: Counter[str] = Counter()
    for row, clips in reader.rows():
        with reader.found.skipping(row.place()):
            key, language, category = _key(row), _language(row, root), row.name("ability").partition("/")[0]
            categories[category] += 1
            if (language, key) in responses:
                where = f"{row.place('id')}: {key} stands at {responses[language, key][0]} already"
                raise DataError(f"{where}; expected each response once")
            (pair,) = reader.pairs(row, clips)
            pair |= {"language": language, "group_id": f"{language}-{row.name('instruct_id')}", "context_audio": []}
            if row.values.get("instruction_audio_path") in (None, ""):
                pair["situation"] = row.text("instruct_text")
            else:
                pair["context_audio"] = [{"role": "user", "audio": clips.clip(row, "instruction_audio_path")}]
                pair["context_text"] = row.text("instruct_text")
            # The two languages number their responses alike.
            if key in keys:
                pair["pair_id"] = f"{language}-{key}"
            keys.add(key)
            responses[language, key] = row.place("id"), pair if options.category in (None, "", category) else None
    pairs = [pair for _, pair in responses.values() if pair is not None]
    # Without any category every row was skipped, and the list of skipped rows says more.
    if categories and options.category not in (None, "", *categories):
        present = ", ".join(sorted(categories))
        raise DataError(f"{path}: no ability of category {options.category!r}; it has {present}")
    _add_ratings(Path(options.ratings or root), responses, reader.found)
    unrated = {pair["pair_id"] for pair in pairs} - {pair_id for pair_id, *_ in reader.found.ratings}
    description = (
        f"mos is one overall score for words and style. {len(unrated)} of {len(pairs)} responses have no rating. "
        f"The instruction was heard in {sum(bool(pair['context_audio']) for pair in pairs)} and is text in the rest."
    )
    if options.category:
        left_out = len(responses) - len(pairs)
        description += f" Only abilities {options.category}/...: {counted(left_out, 'response')} of others left out."
    in_steps = all(score.is_integer() for score, _ in reader.found.ratings.values())
    card = MAPPING.card(description, [replace(_SCALE, step=1 if in_steps else None)])
    return reader.found.imported(card, pairs, rated=True)


def _add_ratings(folder: Path, responses: _Responses, found: Collector) -> None:
    if folder.is_file():
        raise DataError(f"{folder}: a file; expected the folder that holds human_eval_res")
    for file in source_files(folder, [f"human_eval_res/{language}/*.jsonl" for language in _LANGUAGES]):
        language = file.parent.name
        for row in read_records(file, ("id", "instruct_id", "mos")):
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
