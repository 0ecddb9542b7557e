"""Measures every distinct clip of a dataset once: its duration, level and clipping."""

from __future__ import annotations

import hashlib
import io
import json
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Annotated

import numpy as np
from pydantic import Field

from ..audio.decode import AudioSource, load_clip, probe
from ..audio.stored_clips import StoredClip
from ..core.errors import AudioError, os_reason
from ..core.files import kept_file
from ..core.json_text import parse_json
from ..core.processes import map_threads
from .schema import PairDataset
from .stored_results import StoredResult, read_result, store_result

MEASURED_FILE = ".measured-2.jsonl"
"""In the dataset folder, one line per clip. The number changes when what is measured does."""
DURATIONS_FILE = "durations.json"
FULL_SCALE = 0.99
"""Samples from here on count as full scale: the largest value of an 8-bit file is 127/128."""


def distinct_clips(dataset: PairDataset) -> dict[str, AudioSource]:
    """SHA-256 -> clip, each once."""
    sources: dict[str, AudioSource] = {}
    for pair in dataset.pairs:
        for fingerprint, clip in zip(dataset.fingerprints[pair.pair_id], pair.clips, strict=True):
            sources.setdefault(fingerprint, clip)
    return sources


class _Durations(StoredResult):
    seconds: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]]


def clip_seconds(dataset: PairDataset) -> dict[AudioSource, float]:
    """Duration in seconds of every clip of a dataset (all pairs); 0 where it cannot be read (training stops at it).

    From ``durations.json`` where that is of this content; otherwise the header of every file is read.
    """
    sources = distinct_clips(dataset)
    stored = read_result(dataset, DURATIONS_FILE, _Durations)
    seconds = {} if stored is None else stored.seconds
    if seconds.keys() != sources.keys():

        def measure(source: AudioSource) -> float:
            try:
                return probe(source).seconds
            except AudioError:
                return 0.0

        measured = map_threads(measure, sources.values(), "Measuring audio", len(sources))
        seconds = dict(zip(sources, measured, strict=True))
        store_result(dataset, DURATIONS_FILE, _Durations(content_hash=dataset.card.content_hash, seconds=seconds))
    by_source: dict[AudioSource, float] = {}
    for pair in dataset.pairs:  # one clip may lie in several files
        by_source.update(zip(pair.clips, (seconds[name] for name in dataset.fingerprints[pair.pair_id]), strict=True))
    return by_source


@dataclass(frozen=True, slots=True)
class ClipMeasures:
    """One clip."""

    seconds: float  # duration
    dbfs: float  # RMS level around the mean (dB relative to full scale), at least -200: a constant signal is silent
    clipped: float  # share of samples at full scale
    changed: bool = False  # the content is not what was imported


def measure_clips(dataset: PairDataset) -> dict[str, ClipMeasures | AudioError]:
    """Measures every distinct clip.

    Measures are stored under the hash of the content at once: an interrupted call continues where it stopped, and a
    later one only reads and hashes the clips.

    Returns:
        Fingerprint of the clip (`PairDataset.fingerprints`) -> the measures, or why the clip is unusable.
    """
    sources = distinct_clips(dataset)
    with _measures_file(dataset) as (known, file):

        def measure(item: tuple[str, AudioSource]) -> tuple[str, ClipMeasures | AudioError]:
            """Hash of the present content of the clip, and its measures."""
            fingerprint, source = item
            try:
                if isinstance(source, StoredClip):
                    data, name = source.read(), source.name
                else:
                    assert isinstance(source, Path)  # a loaded dataset holds nothing else
                    data, name = source.read_bytes(), str(source)
                content = hashlib.sha256(data).hexdigest()
                measured = known.get(content) or _measure(data, name)
                return content, replace(measured, changed=content != fingerprint)
            except AudioError as error:
                return "", error
            except OSError as error:
                return "", AudioError(f"{source}: cannot be read ({os_reason(error)})", "cannot be read")

        by_clip: dict[str, ClipMeasures | AudioError] = {}
        results = map_threads(measure, sources.items(), "Inspecting audio", len(sources))
        for fingerprint, (content, measured) in zip(sources, results, strict=True):
            by_clip[fingerprint] = measured
            if isinstance(measured, ClipMeasures) and content not in known:
                known[content] = measured
                # Whether a clip changed is a matter of the dataset; measures belong to the content alone
                values = {name: value for name, value in asdict(measured).items() if name != "changed"}
                line = {"sha256": content, **values, "check": _check(content, values)}
                with suppress(OSError):
                    file.write(json.dumps(line).encode() + b"\n")
        return by_clip


def _measure(data: bytes, name: str) -> ClipMeasures:
    clip = load_clip(data, name=name)
    power = float(np.var(clip.samples, dtype=np.float64))
    clipped = float(np.mean(np.abs(clip.samples) >= FULL_SCALE))
    return ClipMeasures(clip.seconds, 10 * float(np.log10(max(power, 1e-20))), clipped)


def _check(sha256: str, values: dict[str, float]) -> int:
    """CRC-32 of a line of `MEASURED_FILE`."""
    # A line that lost a digit is still JSON: only a checksum shows it
    return zlib.crc32(json.dumps([sha256, values]).encode())


@contextmanager
def _measures_file(dataset: PairDataset) -> Iterator[tuple[dict[str, ClipMeasures], IO[bytes]]]:
    """The measures that were stored, and the open file to which more are appended."""
    path = kept_file(dataset.root, dataset.card.content_hash, MEASURED_FILE)
    known: dict[str, ClipMeasures] = {}
    if path.is_file():
        for line in path.read_bytes().splitlines():
            with suppress(ValueError, TypeError, KeyError, AttributeError):  # cut off by a kill, damaged by a disk
                values = parse_json(line)
                sha256, check = values.pop("sha256"), values.pop("check")
                if check == _check(sha256, values):
                    known[sha256] = ClipMeasures(**values)
    with ExitStack() as opened:
        file: IO[bytes] = io.BytesIO()  # on a full disk the measures are lost, not the call
        with suppress(OSError):
            # without a buffer: a call that is killed has stored what it measured
            file = opened.enter_context(path.open("ab", buffering=0))
            file.write(b"\n")  # ends a line that a kill cut off
        yield known, file
