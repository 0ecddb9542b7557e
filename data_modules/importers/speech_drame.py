"""Imports Speech-DRAME: role-play speech, rated by six annotators from 1 to 5 (arXiv 2511.01261).

PATH is a JSONL file of https://github.com/Anuttacon/speech_drame or a folder with such files. The layout was
compared with the two samples in that repository (four rows), not with the full data. Each line has ``id``,
``wav_path`` and ``annotations``, one list per question; the place in a list is the annotator. The ``wav_path`` of
the publishers begins with folders of their own: what all paths of a file begin with may be missing here.

    - realism: ``local_scene``, ``char_profile``, ``char_age``, ``char_style``, ``transcript`` and ten dimensions,
      from ``pitch_variation`` to ``global_story_coherence``;
    - archetype: ``question`` and ``audio_quality, human_likeness, appropriateness``, null where an annotator found
      that the content fails (``content_pass`` false): no rating.

The scene and character, or the question, are what the annotators were given: the ``situation``. Both layouts can be
imported together; rater ids are ``realism-1`` or ``archetype-1`` and so on, since nothing says that they are the
same people. Pairs with the same scene, question, transcript or clip are one group. What is no score (the
annotators' confidence, booleans, comments) is not imported; the description counts it. A value off the scale is
skipped and listed.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import DataError, counted, shown
from ..ratings import Dimension
from ..schema import DatasetCard
from ..tables import TableRow
from .assemble import Imported
from .clips import AudioFolder
from .collector import Collector, source_rows

EXAMPLE = "speech-drame speech_drame/data --out data"

REALISM = (
    "pitch_variation", "rhythmic_naturalness", "stress_and_emphasis", "emotion_accuracy", "emotion_intensity_control",
    "dynamic_range", "voice_identity_matching", "trait_embodiment", "local_story_fit", "global_story_coherence",
)  # fmt: skip
ARCHETYPE = ("audio_quality", "human_likeness", "appropriateness")
_DIMENSIONS = {"realism": REALISM, "archetype": ARCHETYPE}
_SCALE = Dimension("score", 1, 5, 1)
_SITUATION = {
    "Question": "question",
    "Scene": "local_scene",
    "Character": "char_profile",
    "Age": "char_age",
    "Style": "char_style",
}
# 250814_zh_SocialIdentity_0051_Qwen2.5-Omni-7B.wav: day, language, kind of role, number, system
_ARCHETYPE_ID = re.compile(r"\d+_(?P<language>en|zh)_(?P<kind>[A-Za-z]+)_\d+_(?P<system>.+?)(\.wav)?")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Speech-DRAME has no options of its own."""


def read(path: Path, options: argparse.Namespace) -> Imported:
    """Reads all lists of annotations."""
    collector = Collector()
    not_scores: Counter[str] = Counter()
    panels: Counter[int] = Counter()
    nulls = 0
    dimensions: dict[str, None] = {}
    places: dict[str, str] = {}  # of each id
    for row, folder in source_rows(path, ["*.jsonl"], ("id", "wav_path", "annotations"), ["wav_path"]):
        with collector.skipping(row.place()):
            layout, lists = _annotations(row)
            pair_id = _add_pair(row, layout, folder, collector, places)
            panels[len(next(iter(lists.values())))] += 1
            for question, answers in lists.items():
                if question not in _DIMENSIONS[layout]:
                    not_scores[question] += len(answers)
                    continue
                dimensions[question] = None
                nulls += answers.count(None)
                for number, answer in enumerate(answers, start=1):
                    where = f"{row.place('annotations')}, {question}, annotator {number}"
                    if answer is not None:
                        with collector.skipping(row.place()):
                            rater = f"{layout}-{number}"
                            collector.add_rating(pair_id, rater, question, answer, where, _SCALE, whole=True)
    sizes = ", ".join(f"{size} ({counted(count, 'response')})" for size, count in sorted(panels.items()))
    other_questions = ", ".join(f"{name} ({count})" for name, count in sorted(not_scores.items()))
    card = DatasetCard(
        "Speech-DRAME",
        tuple(replace(_SCALE, name=name) for name in dimensions or ARCHETYPE),
        "https://github.com/Anuttacon/speech_drame (arXiv 2511.01261)",
        "Apache-2.0 (code); data unknown",
        description=f"Annotators per response: {sizes or 'none'}. Null instead of a score (the content failed, "
        f"or was not rated): {nulls}. Not imported, since no scores: {other_questions or 'nothing'}.",
    )
    return collector.imported(card, rated=True)


def _add_pair(row: TableRow, layout: str, folder: AudioFolder, found: Collector, places: dict[str, str]) -> str:
    source_id = row.name("id")
    if source_id in places:
        raise DataError(f"{row.place('id')}: {source_id} stands at {places[source_id]} already")
    parts = [(label, row.text(field)) for label, field in _SITUATION.items()]
    situation = "\n".join(f"{label}: {text}" for label, text in parts if text is not None)
    transcript, scene = row.text("transcript"), row.text("question") or row.text("local_scene")
    response = folder.clip(row, "wav_path")
    match = _ARCHETYPE_ID.fullmatch(source_id) if layout == "archetype" else None
    pair = {
        "response_audio": response,
        "situation": situation or None,
        "response_text": transcript,
        "setting": f"archetype/{match['kind']}" if match else layout,
        "language": match["language"] if match else None,
        "system_id": match["system"] if match else None,
    }
    links = [f"clip {found.digest(response)}", *(f"text {text}" for text in (scene, transcript) if text)]
    places[source_id] = row.place("id")
    return found.add_pair(pair, links, source_id)


def _annotations(row: TableRow) -> tuple[str, dict[str, list[Any]]]:
    """The layout and question -> one answer per annotator."""
    lists = row.values.get("annotations")
    if not isinstance(lists, dict) or not all(isinstance(answers, list) and answers for answers in lists.values()):
        raise row.error("annotations", "an object of lists, one per question")
    layouts = [layout for layout, names in _DIMENSIONS.items() if any(name in lists for name in names)]
    if len(layouts) != 1:
        expected = " or ".join(f"{layout} ({', '.join(names)})" for layout, names in _DIMENSIONS.items())
        raise DataError(f"{row.place('annotations')}: questions {shown(list(lists))}; expected those of {expected}")
    lengths = {len(answers) for answers in lists.values()}
    if len(lengths) > 1:  # then a place in a list names no annotator
        raise DataError(f"{row.place('annotations')}: lists of {sorted(lengths)} answers; expected all of one length")
    return layouts[0], lists
