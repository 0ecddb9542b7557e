"""Speech-DRAME: two layouts of questions, each with a list of the annotators' answers; what is no score is counted."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

from ....core.errors import DataError, counted, shown
from ...tables import TableRow
from .. import NoOptions
from ..assemble import Imported
from ..clips import AudioFolder
from .mapping import CorpusMapping, CorpusReader

MAPPING = CorpusMapping.of(__file__)
__doc__, EXAMPLE, Options = MAPPING.help, MAPPING.example, NoOptions
_SCALES = {scale.name: scale for scale in MAPPING.scales}
ARCHETYPE = ("audio_quality", "human_likeness", "appropriateness")
REALISM = tuple(name for name in _SCALES if name not in ARCHETYPE)
_LAYOUTS = {"realism": REALISM, "archetype": ARCHETYPE}
# 250814_zh_SocialIdentity_0051_Qwen2.5-Omni-7B.wav: day, language, kind of role, number, system
_ARCHETYPE_ID = re.compile(r"\d+_(?P<language>en|zh)_(?P<kind>[A-Za-z]+)_\d+_(?P<system>.+?)(\.wav)?")


def read(path: Path, options: NoOptions) -> Imported:
    """Reads all lists of annotations."""
    reader = CorpusReader(MAPPING, path)
    not_scores, panels, nulls = Counter[str](), Counter[int](), 0
    dimensions: dict[str, None] = {}
    places: dict[str, str] = {}  # of each id
    for row, clips in reader.rows():
        with reader.found.skipping(row.place()):
            layout, lists = _annotations(row)
            pair_id = _add_pair(row, layout, clips, reader, places)
            panels[len(next(iter(lists.values())))] += 1
            for question, answers in lists.items():
                if question not in _LAYOUTS[layout]:
                    not_scores[question] += len(answers)
                    continue
                dimensions[question] = None
                nulls += answers.count(None)
                for number, answer in enumerate(answers, start=1):
                    place = f"{row.place('annotations')}, {question}, annotator {number}"
                    rating = pair_id, f"{layout}-{number}", question, answer, place, _SCALES[question]
                    if answer is not None:
                        with reader.found.skipping(row.place()):
                            reader.found.add_rating(*rating, whole=True)
    sizes = ", ".join(f"{size} ({counted(count, 'response')})" for size, count in sorted(panels.items()))
    others = ", ".join(f"{name} ({count})" for name, count in sorted(not_scores.items()))
    description = (
        f"Annotators per response: {sizes or 'none'}. Null instead of a score (the content failed, or was not rated): "
        f"{nulls}. Not imported, since no scores: {others or 'nothing'}."
    )
    card = MAPPING.card(description, [_SCALES[name] for name in dimensions or ARCHETYPE])
    return reader.found.imported(card, rated=True)


def _add_pair(row: TableRow, layout: str, clips: AudioFolder, reader: CorpusReader, places: dict[str, str]) -> str:
    pair_id = row.name("id")
    if pair_id in places:
        raise DataError(f"{row.place('id')}: {pair_id} stands at {places[pair_id]} already")
    (pair,) = reader.pairs(row, clips)
    match = _ARCHETYPE_ID.fullmatch(pair_id) if layout == "archetype" else None
    pair["setting"] = f"archetype/{match['kind']}" if match else layout
    pair |= {"language": match["language"], "system_id": match["system"]} if match else {}
    scene = row.text("question") or row.text("local_scene")
    links = [*reader.links(row, pair), *([f"text {scene}"] if scene else [])]
    places[pair_id] = row.place("id")
    return reader.found.add_pair(pair, links, pair_id)


def _annotations(row: TableRow) -> tuple[str, dict[str, list[Any]]]:
    """The layout and question -> one answer per annotator."""
    lists = row.values.get("annotations")
    if not isinstance(lists, dict) or not all(isinstance(answers, list) and answers for answers in lists.values()):
        raise row.error("annotations", "an object of lists, one per question")
    layouts = [layout for layout, names in _LAYOUTS.items() if any(name in lists for name in names)]
    if len(layouts) != 1:
        expected = " or ".join(f"{layout} ({', '.join(names)})" for layout, names in _LAYOUTS.items())
        raise DataError(f"{row.place('annotations')}: questions {shown(list(lists))}; expected those of {expected}")
    lengths = {len(answers) for answers in lists.values()}
    # Otherwise a place in a list names no annotator.
    if len(lengths) > 1:
        raise DataError(f"{row.place('annotations')}: lists of {sorted(lengths)} answers; expected all of one length")
    return layouts[0], lists
