"""Imports TRACE: comparisons of two spoken responses to one spoken instruction, on four dimensions (arXiv 2601.13742).

PATH is ``speakbench.json`` or ``s2sarena.json`` of https://github.com/arjunchandra2/TRACE, or a folder with one or
both. The layout was compared with parts of both files, not with all of them nor with the audio. Each row of the
JSON list has ``index, instruction_path, instruction_text, model_a, model_b, audio1_path, audio2_path,
instruction_id`` and ``label`` {content, voice_quality, paralinguistics, overall}, each ``"1"``, ``"2"``,
``"both_good"`` or ``"both_bad"``.

The audio is published elsewhere (``potsawee/speakbench-v1-labelled-508``, ``FreedomIntelligence/S2S-Arena`` and
``S2S-Arena-output``); --audio names the folder that the paths are relative to. What all paths of a file begin with
may be missing there.

The instruction is the context; ``system_id`` is the model, ``setting`` the name of the file. A stage direction in
front of ``instruction_text`` (``[emotion: sad]``) is taken off: it is a label, and no transcript. ``both_good`` and
``both_bad`` are ties (strength 0): the preferences cannot tell one from the other, so the description counts them.
Who compared is not published: the n-th label of one comparison is ``rater_id`` ``label-n``. Instructions with the
same id, words or clip are one group.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from pathlib import Path

from ..errors import DataError, bad_value
from ..ratings import Dimension
from ..schema import DatasetCard
from ..tables import TableRow
from .assemble import Imported
from .clips import AudioFolder, add_audio_root
from .collector import Collector, source_rows

EXAMPLE = "trace TRACE/data --audio audio_data --out data"

DIMENSIONS = ("content", "voice_quality", "paralinguistics", "overall")
_LABELS = ("1", "2", "both_good", "both_bad")
_AUDIO_FIELDS = ("instruction_path", "audio1_path", "audio2_path")
_FIELDS = ("instruction_text", "model_a", "model_b", *_AUDIO_FIELDS, "label", "instruction_id")
_STAGE_DIRECTION = re.compile(r"\s*\[[^\]]*\]\s*")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of TRACE."""
    parser.add_argument("--audio", metavar="DIR", help="folder of the audio (default: PATH, or the folder it is in)")
    add_audio_root(parser)


def read(path: Path, options: argparse.Namespace) -> Imported:
    """Reads all comparisons."""
    collector = Collector()
    labels: Counter[tuple[str, str]] = Counter()  # dimension and label
    repeats: Counter[tuple[frozenset[str], str]] = Counter()  # comparison and dimension
    audio = options.audio or (path if path.is_dir() else path.parent)
    for row, clips in source_rows(
        path, ["speakbench.json", "s2sarena.json"], _FIELDS, _AUDIO_FIELDS, audio, options.audio_root
    ):
        with collector.skipping(row.place()):
            row_labels = row.values.get("label")
            if not isinstance(row_labels, dict) or set(row_labels) != set(DIMENSIONS):
                raise row.error("label", f"an object with {', '.join(DIMENSIONS)}")
            pairs = _add_pairs(row, clips, collector)
            for dimension in DIMENSIONS:
                with collector.skipping(row.place()):
                    label, where = row_labels[dimension], f"{row.place('label')}, {dimension}"
                    if label not in _LABELS:
                        raise bad_value(where, label, ", ".join(_LABELS))
                    comparison = (frozenset(pairs), dimension)
                    repeats[comparison] += 1
                    chosen, rejected = reversed(pairs) if label == "2" else pairs
                    rater, strength = f"label-{repeats[comparison]}", float(label in ("1", "2"))
                    collector.add_preference(chosen, rejected, rater, dimension, strength, where)
                    labels[dimension, label] += 1
    counts = "; ".join(
        f"{name}: {labels[name, '1'] + labels[name, '2']} decided, {labels[name, 'both_good']} both_good, "
        f"{labels[name, 'both_bad']} both_bad"
        for name in DIMENSIONS
    )
    card = DatasetCard(
        "TRACE",
        tuple(Dimension(name, 0, 1) for name in DIMENSIONS),  # nobody gave scores: the scale is a form
        "https://github.com/arjunchandra2/TRACE (arXiv 2601.13742)",
        "unknown",
        description=f"Preferences without scores. Ties do not say whether both were good or bad; {counts}. "
        "content includes how the style that was asked for was followed.",
    )
    return collector.imported(card, compared=True)


def _add_pairs(row: TableRow, clips: AudioFolder, found: Collector) -> list[str]:
    """Ids of the two pairs of a comparison."""
    instruction, *responses = (clips.clip(row, field) for field in _AUDIO_FIELDS)
    source = row.table.path.stem
    words = _STAGE_DIRECTION.sub("", row.text("instruction_text") or "", count=1)
    links = [f"{source} instruction {row.name('instruction_id')}", f"clip {found.digest(instruction)}"]
    if words:
        links.append(f"words {words.casefold()}")
    systems = [row.name("model_a"), row.name("model_b")]
    if found.digest(responses[0]) == found.digest(responses[1]):
        raise DataError(f"{row.place('audio2_path')}: the same clip as audio1_path; expected two different clips")
    context = [{"role": "user", "audio": instruction}]
    common = {"context_audio": context, "context_text": words or None, "setting": source}
    return [
        found.add_pair({**common, "response_audio": response, "system_id": system}, links)
        for response, system in zip(responses, systems, strict=True)
    ]
