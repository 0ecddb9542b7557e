"""Imports SpeechJudge-Data: which of two synthetic readings of a text sounds more natural (arXiv 2511.07931).

PATH is the folder of ``RMSnow/SpeechJudge-Data`` (gated) as ``hf download --local-dir`` makes it, with Parquet
files that hold the audio, or one file of it; JSONL with paths of audio is read as well. The layout is that of the
data set's card; the files were not opened: look at the first import closely. Fields that count: ``index, subset,
language_setting, target_text, prompt, audioA, audioB, rater, naturalness_annotation``.

Each entry of ``naturalness_annotation`` is the preference of the rater at the same place in ``rater``: ``A+1``,
``A+2``, ``B+1``, ``B+2`` (strength 1 or 2) or ``Tie (missing reason)``, ``Tie (both not good)``, ``Tie (both very
good)`` (strength 0; the preferences cannot tell one from the other, so the description counts them). An entry of
another form or without a rater is skipped and listed.

Not imported: ``naturalness_label`` and ``chosen``, which follow from the entries (``chosen`` is no clip: it says
whether the raters agree), ``audioA_text_accuracy`` and ``audioB_text_accuracy``, and what Gemini said.

There is no context: ``prompt`` is the voice to be copied, not a turn that is answered. The hash of its clip is the
``response_speaker``. Readings of one text are one group; ``setting`` is subset and language setting, such as
``expressive/en2zh``, and ``language`` the second language of the latter.

``test`` holds only items that all raters agree on, and ``other`` those without a winner: accuracy on ``test`` alone
is optimistic.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import AudioError, DataError, bad_value, shown
from ..ratings import Dimension
from ..schema import DatasetCard
from ..tables import TableRow, plain_text
from .assemble import Imported
from .clips import AudioFolder
from .collector import Collector, source_rows

EXAMPLE = "speechjudge SpeechJudge-Data --out data"

# Entry -> (which clip is chosen, strength)
_ENTRIES: Mapping[str, tuple[str, float]] = {
    "A+1": ("A", 1.0),
    "A+2": ("A", 2.0),
    "B+1": ("B", 1.0),
    "B+2": ("B", 2.0),
    "Tie (missing reason)": ("A", 0.0),
    "Tie (both not good)": ("A", 0.0),
    "Tie (both very good)": ("A", 0.0),
}
_AUDIO_FIELDS = ("audioA", "audioB", "prompt")
_FIELDS = ("subset", "language_setting", "target_text", "audioA", "audioB", "rater", "naturalness_annotation")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """SpeechJudge-Data has no options of its own."""


def read(path: Path, options: argparse.Namespace) -> Imported:
    """Reads all comparisons, one file after the other."""
    collector = Collector()
    counts: Counter[str] = Counter()
    for row, folder in source_rows(path, ["*.parquet", "*.jsonl"], _FIELDS, _AUDIO_FIELDS):
        with collector.skipping(row.place()):
            raters, entries = _annotations(row)
            pairs = _add_pairs(row, folder, collector)
            for rater, entry in zip(raters, entries, strict=True):
                with collector.skipping(row.place()):
                    if not isinstance(entry, str) or entry not in _ENTRIES:
                        where = f"{row.place('naturalness_annotation')}, rater {shown(rater)}"
                        raise bad_value(where, entry, " | ".join(_ENTRIES))
                    chosen, strength = _ENTRIES[entry]
                    ids = pairs[chosen], pairs["B" if chosen == "A" else "A"]
                    rater = plain_text(rater) if isinstance(rater, int) else rater
                    collector.add_preference(*ids, rater, "naturalness", strength, row.place("rater"))
                    counts[entry] += 1
    totals = ", ".join(f"{entry}: {counts[entry]}" for entry in _ENTRIES)
    card = DatasetCard(
        "SpeechJudge-Data",
        (Dimension("naturalness", 0, 1),),  # nobody gave scores: the scale is a form
        "https://huggingface.co/datasets/RMSnow/SpeechJudge-Data (arXiv 2511.07931)",
        "CC BY-NC 4.0; access on request",
        description=f"Preferences without scores; {totals}. The naturalness of readings, not the fit to a context.",
    )
    return collector.imported(card, compared=True)


def _add_pairs(row: TableRow, folder: AudioFolder, found: Collector) -> dict[str, str]:
    """``A`` and ``B`` -> pair id."""
    clips = {letter: folder.clip(row, f"audio{letter}") for letter in "AB"}
    if found.digest(clips["A"]) == found.digest(clips["B"]):
        raise DataError(f"{row.place('audioB')}: the same clip as audioA; expected two different clips")
    text, languages = row.text("target_text"), row.name("language_setting")
    try:  # a name for the voice that was copied
        speaker = found.digest(folder.clip(row, "prompt"))[:16]
    except AudioError:
        speaker = None
    common = {
        "response_text": text,
        "setting": f"{row.name('subset')}/{languages}",
        "language": languages.rpartition("2")[2] or None,
        "response_speaker": speaker,
    }
    links = [] if text is None else [f"text {text}"]
    return {letter: found.add_pair({**common, "response_audio": clip}, links) for letter, clip in clips.items()}


def _annotations(row: TableRow) -> tuple[list[Any], list[Any]]:
    """Raters and the entry of each."""
    raters, entries = row.values.get("rater"), row.values.get("naturalness_annotation")
    if not isinstance(raters, list) or not raters:
        raise row.error("rater", "a list of rater ids, not empty")
    if not isinstance(entries, list) or len(entries) != len(raters):
        raise row.error("naturalness_annotation", f"a list of {len(raters)} entries, one per rater")
    return raters, entries
