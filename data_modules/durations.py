"""How long every clip of a dataset is, read once from the heads of its files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from .audio import AudioSource, probe
from .errors import AudioError, UserError
from .folders import kept_file, replace_file
from .near_identical import distinct_clips
from .parallel import map_threads
from .schema import PairDataset
from .storage import DataPath

DURATIONS_FILE = "durations.json"


def clip_seconds(dataset: PairDataset) -> dict[AudioSource, float]:
    """Duration in seconds of every distinct clip of a dataset; 0 where it cannot be read (training stops at it).

    From ``durations.json`` in its folder where that is of this content; otherwise every file is opened and the result
    written, to the user's cache where the folder cannot be written.

    Args:
        dataset: All pairs (not a subset).
    """
    sources = distinct_clips(dataset)
    kept = kept_file(dataset.root, dataset.card.content_hash, DURATIONS_FILE)
    found = _stored(dataset.root / DURATIONS_FILE, dataset.card.content_hash) or _stored(
        kept, dataset.card.content_hash
    )
    if found is None or found.keys() != sources.keys():
        seconds = map_threads(_seconds, sources.values(), "Measuring audio", len(sources))
        found = dict(zip(sources, seconds, strict=True))
        _store(found, kept, dataset.card.content_hash)
    by_source = {source: found[name] for name, source in sources.items()}
    for pair in dataset.pairs:  # one clip may lie in several files
        clips = [*(turn.audio for turn in pair.context), pair.response]
        by_source.update(zip(clips, (found[name] for name in dataset.fingerprints[pair.pair_id]), strict=True))
    return by_source


def _seconds(source: AudioSource) -> float:
    try:
        return probe(source).seconds
    except AudioError:
        return 0.0


def _store(found: Mapping[str, float], path: Path, content_hash: str) -> None:
    content = json.dumps({"content_hash": content_hash, "seconds": found})
    with suppress(OSError):
        replace_file(path, lambda temporary: temporary.write_text(content, encoding="utf-8"))


def _stored(path: DataPath, content_hash: str) -> dict[str, float] | None:
    """What the file says; None where it is missing, damaged, or of other clips."""
    try:
        stored = json.loads(path.read_bytes())
        found = {str(name): float(value) for name, value in stored["seconds"].items()}
        return found if stored["content_hash"] == content_hash and all(map(_possible, found.values())) else None
    except (OSError, UserError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _possible(seconds: float) -> bool:
    return math.isfinite(seconds) and seconds >= 0
