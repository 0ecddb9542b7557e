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
from typing import Any

from ..errors import AudioError, DataError, shown
from ..intake.assemble import Imported, Skipped
from ..intake.opinions import Preferences
from ..intake.pool import PairPool
from ..intake.records import Record, need_fields, read_records, source_files
from ..intake.relocation import AudioFolder
from ..ratings import Dimension
from ..schema import DatasetCard

EXAMPLE = "trace TRACE/data --audio audio_data --out data"

DIMENSIONS = ("content", "voice_quality", "paralinguistics", "overall")
_LABELS = ("1", "2", "both_good", "both_bad")
_AUDIO_FIELDS = ("instruction_path", "audio1_path", "audio2_path")
_FIELDS = ("instruction_text", "model_a", "model_b", *_AUDIO_FIELDS, "label", "instruction_id")
_STAGE_DIRECTION = re.compile(r"\s*\[[^\]]*\]\s*")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of TRACE."""
    parser.add_argument("--audio", metavar="DIR", help="folder of the audio (default: PATH, or the folder it is in)")


def read(path: Path, options: argparse.Namespace) -> Imported:
    """Reads all comparisons."""
    reader = _Reader()
    audio = Path(options.audio or (path if path.is_dir() else path.parent))
    for file in source_files(path, ["speakbench.json", "s2sarena.json"]):
        rows = read_records(file)
        need_fields(rows, _FIELDS)
        folder = AudioFolder(audio, (row.values.get(field) for row in rows for field in _AUDIO_FIELDS))
        for row in rows:
            reader.add(row, folder)
    return reader.imported()


class _Reader:
    """Collects pairs and preferences over all files."""

    def __init__(self) -> None:
        self._pool = PairPool()
        self._preferences = Preferences()
        self._skipped: list[Skipped] = []
        self._labels: dict[str, Counter[str]] = {name: Counter() for name in DIMENSIONS}
        self._repeats: Counter[tuple[frozenset[str], str]] = Counter()

    def add(self, row: Record, folder: AudioFolder) -> None:
        """Takes a comparison in; what cannot be used of it is noted."""
        try:
            labels = _labels(row)
            first, second = self._add_pairs(row, folder)
        except (DataError, AudioError) as error:
            self._skipped.append(row.skipped(error))
            return
        for dimension, label in labels.items():
            try:
                self._add_label(row, first, second, dimension, label)
            except DataError as error:
                self._skipped.append(row.skipped(error))

    def _add_pairs(self, row: Record, folder: AudioFolder) -> tuple[str, str]:
        instruction, *responses = (folder.find(row.values.get(field), row.place(field)) for field in _AUDIO_FIELDS)
        source = row.table.path.stem
        words = _STAGE_DIRECTION.sub("", row.text("instruction_text") or "", count=1)
        links = [f"{source} instruction {row.name('instruction_id')}", f"clip {self._pool.digest(instruction)}"]
        if words:
            links.append(f"words {words.casefold()}")
        systems = [row.name("model_a"), row.name("model_b")]
        if self._pool.digest(responses[0]) == self._pool.digest(responses[1]):
            raise DataError(f"{row.place('audio2_path')}: the same clip as audio1_path; accepted: two different clips")
        first, second = (
            self._pool.add(
                {
                    "context_audio": [{"role": "user", "audio": instruction}],
                    "response_audio": response,
                    "context_text": words or None,
                    "system_id": system,
                    "setting": source,
                },
                links,
            )
            for response, system in zip(responses, systems, strict=True)
        )
        return first, second

    def _add_label(self, row: Record, first: str, second: str, dimension: str, label: Any) -> None:
        where = f"{row.place('label')}, {dimension}"
        if label not in _LABELS:
            raise DataError(f"{where}: value {shown(label)}; accepted: {', '.join(_LABELS)}")
        comparison = (frozenset((first, second)), dimension)
        self._repeats[comparison] += 1
        chosen, rejected = (second, first) if label == "2" else (first, second)
        strength = 1.0 if label in ("1", "2") else 0.0
        self._preferences.add(chosen, rejected, f"label-{self._repeats[comparison]}", dimension, strength, where)
        self._labels[dimension][label] += 1

    def imported(self) -> Imported:
        """All that was read."""
        counts = "; ".join(
            f"{name}: {found['1'] + found['2']} decided, {found['both_good']} both_good, {found['both_bad']} both_bad"
            for name, found in self._labels.items()
        )
        card = DatasetCard(
            "TRACE",
            tuple(Dimension(name, 0, 1) for name in DIMENSIONS),  # nobody gave scores: the scale is a form
            "https://github.com/arjunchandra2/TRACE (arXiv 2601.13742)",
            "unknown",
            description=f"Preferences without scores. Ties do not say whether both were good or bad; {counts}. "
            "content includes how the style that was asked for was followed.",
        )
        return Imported(card, self._pool.rows(), preferences=self._preferences.frame(), skipped=self._skipped)


def _labels(row: Record) -> dict[str, Any]:
    """Dimension -> label, for exactly the four dimensions."""
    labels = row.values.get("label")
    if not isinstance(labels, dict) or set(labels) != set(DIMENSIONS):
        raise row.error("label", f"an object with {', '.join(DIMENSIONS)}")
    return {name: labels[name] for name in DIMENSIONS}
