"""Duration, level and clipping of every clip of a dataset, each distinct one decoded once and remembered."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import numpy as np

from .audio import AudioSource, decode, probe
from .errors import AudioError
from .folders import kept_file
from .parallel import map_threads
from .schema import PairDataset
from .stored_clips import StoredClip

MEASURED_FILE = ".measured-1.jsonl"
"""In the dataset folder, one line per clip. The number changes when what is measured does."""
FULL_SCALE = 0.99
"""Samples from here on count as full scale: the largest value of an 8-bit file is 127/128."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One clip.

    Attributes:
        seconds: Duration.
        dbfs: RMS level around the mean (dB relative to full scale), at least -200: a constant signal is silent.
        clipped: Share of samples at full scale.
        changed: The content is not what was imported.
    """

    seconds: float
    dbfs: float
    clipped: float
    changed: bool = False


def measure_clips(dataset: PairDataset) -> dict[str, Measured | AudioError]:
    """Measures every distinct clip.

    What was measured is kept under the hash of the content, in the dataset folder or, where that cannot be written, in
    the user's cache: an interrupted call goes on where it stopped, and a later one only reads and hashes the clips.

    Returns:
        Fingerprint of the clip (`PairDataset.fingerprints`) -> the measures, or why the clip is unusable.
    """
    sources: dict[str, AudioSource] = {}
    for pair in dataset.pairs:
        clips = (*(turn.audio for turn in pair.context), pair.response)
        for fingerprint, source in zip(dataset.fingerprints[pair.pair_id], clips, strict=True):
            sources.setdefault(fingerprint, source)
    with _remembered(dataset) as (known, notes):

        def measure(item: tuple[str, AudioSource]) -> tuple[str, Measured | AudioError]:
            try:
                return _measure(*item, known)
            except AudioError as error:
                return "", error

        found: dict[str, Measured | AudioError] = {}
        results = map_threads(measure, sources.items(), "Inspecting audio", len(sources))
        for fingerprint, (content, measured) in zip(sources, results, strict=True):
            found[fingerprint] = measured
            if isinstance(measured, Measured) and content not in known:
                known[content] = measured
                values = {name: value for name, value in asdict(measured).items() if name != "changed"}
                notes.write(json.dumps({"sha256": content, **values}) + "\n")
                notes.flush()
        return found


def _measure(fingerprint: str, source: AudioSource, known: Mapping[str, Measured]) -> tuple[str, Measured]:
    """Hash of what the clip holds by now, and the measures of that."""
    data, name = _read(source)
    content = hashlib.sha256(data).hexdigest()
    measured = known[content] if content in known else _measure_bytes(data, name)
    return content, Measured(measured.seconds, measured.dbfs, measured.clipped, content != fingerprint)


def _read(source: AudioSource) -> tuple[bytes, str]:
    """The encoded bytes, whatever they are by now, and what messages call the clip."""
    if isinstance(source, StoredClip):
        return source.read(), source.name
    assert isinstance(source, Path)  # a loaded dataset holds nothing else
    try:
        return source.read_bytes(), str(source)
    except OSError as error:
        raise AudioError(f"{source}: cannot be read ({error.strerror})", "cannot be read") from None


def _measure_bytes(data: bytes, name: str) -> Measured:
    rate = probe(data, name).rate
    samples = decode(data, rate, name=name)
    power = float(np.var(samples, dtype=np.float64))
    return Measured(
        seconds=len(samples) / rate,
        dbfs=10 * float(np.log10(max(power, 1e-20))),
        clipped=float(np.mean(np.abs(samples) >= FULL_SCALE)),
    )


@contextmanager
def _remembered(dataset: PairDataset) -> Iterator[tuple[dict[str, Measured], IO[str]]]:
    """What is known of clips, and the file to note more in."""
    path = kept_file(dataset.root, dataset.card.content_hash, MEASURED_FILE)
    known: dict[str, Measured] = {}
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                values = json.loads(line)
                sha256 = values.pop("sha256")
                known[sha256] = Measured(**values)
            except (ValueError, TypeError, KeyError, AttributeError):  # cut off by a kill
                continue
    with path.open("a", encoding="utf-8") as notes:
        notes.write("\n")  # ends a line that a kill cut off
        yield known, notes
