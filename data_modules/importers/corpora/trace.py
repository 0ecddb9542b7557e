"""TRACE: the words of an instruction without its stage direction, and a label for each dimension as a preference."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ....core.errors import bad_value
from .. import AudioRoot
from ..assemble import Imported
from .mapping import CorpusMapping, CorpusReader

MAPPING = CorpusMapping.of(__file__)
__doc__, EXAMPLE = MAPPING.help, MAPPING.example
DIMENSIONS = tuple(scale.name for scale in MAPPING.scales)
_ANSWERS = MAPPING.answers
_STAGE_DIRECTION = re.compile(r"\s*\[[^\]]*\]\s*")


@dataclass(frozen=True, kw_only=True)
class Options(AudioRoot):
    """Options of TRACE.

    Attributes:
        audio (DIR): folder of the audio (default: PATH, or the folder it is in)
    """

    audio: str | None = None


def read(path: Path, options: Options) -> Imported:
    """Reads all comparisons."""
    reader = CorpusReader(MAPPING, path)
    labels: Counter[tuple[str, str]] = Counter()  # dimension and label
    repeats: Counter[tuple[frozenset[str], str]] = Counter()  # comparison and dimension
    audio = options.audio or (path if path.is_dir() else path.parent)
    for row, clips in reader.rows(audio, options.audio_root):
        with reader.found.skipping(row.place()):
            row_labels = row.values.get("label")
            if not isinstance(row_labels, dict) or set(row_labels) != set(DIMENSIONS):
                raise row.error("label", f"an object with {', '.join(DIMENSIONS)}")
            words = _STAGE_DIRECTION.sub("", row.text("instruction_text") or "", count=1) or None
            links = [f"words {words.casefold()}"] if words else []
            pairs = reader.add_compared(row, reader.pairs(row, clips), links, context_text=words)
            for dimension in DIMENSIONS:
                with reader.found.skipping(row.place()):
                    label, where = row_labels[dimension], f"{row.place('label')}, {dimension}"
                    if not isinstance(label, str) or label not in _ANSWERS:
                        raise bad_value(where, label, ", ".join(_ANSWERS))
                    comparison = (frozenset(pairs), dimension)
                    # Nobody is named: who compares the same two again counts as another rater
                    repeats[comparison] += 1
                    reader.add_preference(pairs, label, f"label-{repeats[comparison]}", dimension, where)
                    labels[dimension, label] += 1
    counts = "; ".join(
        f"{name}: {labels[name, '1'] + labels[name, '2']} decided, {labels[name, 'both_good']} both_good, "
        f"{labels[name, 'both_bad']} both_bad"
        for name in DIMENSIONS
    )
    card = MAPPING.card(
        f"Preferences without scores. Ties do not say whether both were good or bad; {counts}. "
        "content includes how the style that was asked for was followed."
    )
    return reader.found.imported(card, compared=True)
