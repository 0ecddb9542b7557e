"""Valid sources, and what reads them."""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soundfile
from empathy_judge.data_modules import importers
from empathy_judge.data_modules.audio import decode, probe
from empathy_judge.data_modules.importers.assemble import assemble
from empathy_judge.data_modules.schema import PairDataset
from sources import RATE, SOURCES

HAS_DATASETS = importlib.util.find_spec("datasets") is not None
FORMATS = {
    "PCM_U8": "wav", "PCM_16": "wav", "PCM_24": "wav", "FLOAT": "wav", "ULAW": "au", "PCM_S8": "flac",
    "VORBIS": "ogg", "OPUS": "ogg", "MPEG_LAYER_III": "mp3", "PCM_32": "aiff",
}  # fmt: skip
"""Subtype of libsndfile -> suffix."""


class Target(NamedTuple):
    """Something that reads files."""

    name: str  # ``decode``, ``dataset``, or ``import SOURCE``
    files: Sequence[Path]  # those that are damaged
    run: Callable[[Path, random.Random], None]  # reads everything, given the damaged file


def _raise(file: Path, rng: random.Random) -> None:
    raise ValueError("not a UserError")


PLANTED: dict[str, Callable[[Path, random.Random], None]] = {
    "planted exception": _raise,
    "planted crash": lambda file, rng: os.abort(),
    "planted hang": lambda file, rng: time.sleep(3_600),
    "planted waste": lambda file, rng: np.ones(2**31).sum(),
}
"""Faults that must be found out: they test the program itself."""


def names() -> list[str]:
    """All targets; the decoder comes three times as often as each of the others.

    Raises:
        LookupError: If an importer has no valid source here.
    """
    missing = set(importers.SOURCES) - {source.importer for source in SOURCES.values()}
    if missing:
        raise LookupError(f"tests/fuzz has no valid source for import {', '.join(sorted(missing))}")
    usable = [name for name, source in SOURCES.items() if source.importer != "hugging-face" or HAS_DATASETS]
    return ["decode", "decode", "decode", "dataset", *(f"import {name}" for name in usable)]


def build(name: str, folder: Path) -> Target:
    """Writes the valid source into a folder of its own."""
    home = folder / name.replace(" ", "-")
    home.mkdir()
    if name == "decode":
        return _decode(home)
    if name == "dataset":
        return _dataset(home)
    if name in PLANTED:
        (home / "any.bin").write_bytes(bytes(100))
        return Target(name, [home / "any.bin"], PLANTED[name])
    return _import(name.removeprefix("import "), home)


def _decode(home: Path) -> Target:
    phase = 2 * np.pi * np.arange(round(0.3 * RATE)) / RATE
    samples = np.stack([0.4 * np.sin(220 * phase), 0.4 * np.sin(330 * phase)], axis=1)
    files = []
    for subtype, suffix in FORMATS.items():
        for channels in (1, 2):
            files.append(home / f"{subtype.lower()}-{channels}.{suffix}")
            soundfile.write(files[-1], samples[:, :channels], RATE, subtype)

    def run(file: Path, rng: random.Random) -> None:
        source = file if rng.random() < 0.5 else file.read_bytes()
        if rng.random() < 0.2:
            probe(source)
        decoded = decode(source, rng.choice([RATE, 24_000]), max_seconds=rng.choice([None, 30.0]))
        if decoded.dtype != np.float32 or decoded.ndim != 1 or not len(decoded) or not np.isfinite(decoded).all():
            raise AssertionError(f"decoded to {decoded.dtype}, shape {decoded.shape}")

    return Target("decode", files, run)


def _dataset(home: Path) -> Target:
    """A dataset folder as import writes it, with files and with embedded audio."""
    path, words = SOURCES["table"].write(home / "source")
    for out, embed in ((home / "files", False), (home / "embedded", True)):
        _imported("table", path, words, out, embed_audio=embed)
    files = sorted(file for kind in ("files", "embedded") for file in (home / kind).rglob("*") if file.is_file())

    def run(file: Path, rng: random.Random) -> None:
        dataset = PairDataset.load(home / file.relative_to(home).parts[0])
        for pair in dataset.pairs:
            for source in pair.clips:
                decode(source, RATE)

    return Target("dataset", files, run)


def _import(name: str, home: Path) -> Target:
    source = home / "source"
    importer = SOURCES[name].importer
    path, words = SOURCES[name].write(source)
    files = sorted(file for file in source.rglob("*") if file.is_file())
    _imported(importer, path, words, home / "valid", max_skipped=0.0)

    def run(file: Path, rng: random.Random) -> None:
        try:
            most, embed = rng.choice([0.01, 1.0]), rng.random() < 0.2
            _imported(importer, path, words, home / "out", max_skipped=most, embed_audio=embed)
        finally:
            shutil.rmtree(home / "out", ignore_errors=True)

    return Target(f"import {name}", files, run)


def _imported(name: str, path: Path, words: Sequence[str], out: Path, **storing: Any) -> PairDataset:
    importer = importers.load(name)
    parser = argparse.ArgumentParser()
    importer.add_arguments(parser)
    return assemble(importer.read(path, parser.parse_args(list(words))), out, **storing)
