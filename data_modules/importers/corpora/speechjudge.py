"""SpeechJudge-Data: lists of raters and of what they said become preferences; the voice to be copied gets a name."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from ....core.errors import AudioError, bad_value, shown
from ...tables import TableRow, plain_text
from .. import NoOptions
from ..assemble import Imported
from .mapping import CorpusMapping, CorpusReader

MAPPING = CorpusMapping.of(__file__)
__doc__, EXAMPLE, Options = MAPPING.help, MAPPING.example, NoOptions
_ENTRIES = MAPPING.answers


def read(path: Path, options: NoOptions) -> Imported:
    """Reads all comparisons, one file after the other."""
    reader = CorpusReader(MAPPING, path)
    counts: Counter[str] = Counter()
    for row, clips in reader.rows():
        with reader.found.skipping(row.place()):
            raters, entries = _annotations(row)
            try:  # a name for the voice that was copied
                speaker = reader.found.digest(clips.clip(row, "prompt"))[:16]
            except AudioError:
                speaker = None
            language = row.name("language_setting").rpartition("2")[2] or None
            pairs = reader.add_compared(row, reader.pairs(row, clips), language=language, response_speaker=speaker)
            for rater, entry in zip(raters, entries, strict=True):
                with reader.found.skipping(row.place()):
                    if not isinstance(entry, str) or entry not in _ENTRIES:
                        where = f"{row.place('naturalness_annotation')}, rater {shown(rater)}"
                        raise bad_value(where, entry, " | ".join(_ENTRIES))
                    rater = plain_text(rater) if isinstance(rater, int) else rater
                    reader.add_preference(pairs, entry, rater, "naturalness", row.place("rater"))
                    counts[entry] += 1
    totals = ", ".join(f"{entry}: {counts[entry]}" for entry in _ENTRIES)
    card = MAPPING.card(f"Preferences without scores; {totals}. The naturalness of readings, not the fit to a context.")
    return reader.found.imported(card, compared=True)


def _annotations(row: TableRow) -> tuple[list[Any], list[Any]]:
    """Raters and the entry of each."""
    raters, entries = row.values.get("rater"), row.values.get("naturalness_annotation")
    if not isinstance(raters, list) or not raters:
        raise row.error("rater", "a list of rater ids, not empty")
    if not isinstance(entries, list) or len(entries) != len(raters):
        raise row.error("naturalness_annotation", f"a list of {len(raters)} entries, one per rater")
    return raters, entries
