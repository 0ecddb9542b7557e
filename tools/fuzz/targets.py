"""Valid sources, what reads them, and the child process that builds them once and damages a file for each job."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soundfile
from empathy_judge.audio.decode import decode, probe
from empathy_judge.commands.options import OneLineParser, add_options
from empathy_judge.core.errors import MAX_MESSAGE_CHARACTERS, UserError
from empathy_judge.data_modules import importers
from empathy_judge.data_modules.importers.assemble import assemble
from empathy_judge.data_modules.schema import PairDataset
from mutations import VALUES, mutate
from sources import RATE, SOURCES

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
        raise LookupError(f"tools/fuzz has no valid source for import {', '.join(sorted(missing))}")
    return ["decode", "decode", "decode", "dataset", *(f"import {name}" for name in SOURCES)]


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
    parser = OneLineParser()
    add_options(parser, importer.Options)
    return assemble(importer.read(path, importer.Options(**parser.read(words))), out, **storing)


# ---------------------------------------------------------------- the child process

MEMORY = 8 << 30


def work(pipe: Connection, limit: float, folder: str) -> None:
    """Answers each target and seed with the outcome; a mutation that takes longer ends the process.

    Args:
        pipe: To the parent.
        limit: Longest time for one mutation (s).
        folder: For the sources. The parent removes it: a child may not live to do so.
    """
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)  # decoders write to both
    os.dup2(silence, 2)
    home = tempfile.mkdtemp(dir=folder)
    os.environ["HF_HOME"] = home  # before the library is imported: it keeps locks and indices there
    built: dict[str, Target] = {}
    with contextlib.suppress(EOFError):
        while True:
            name, seed = pipe.recv()
            if name not in built:
                built[name] = build(name, Path(home))
            start = time.perf_counter()
            signal.setitimer(signal.ITIMER_REAL, limit)  # whose signal nothing catches, not even in C
            outcome, mutation, detail = try_one(built[name], seed)
            signal.setitimer(signal.ITIMER_REAL, 0)
            seconds = time.perf_counter() - start
            pipe.send({"outcome": outcome, "mutation": mutation, "detail": detail, "seconds": seconds})


def try_one(target: Target, seed: int) -> tuple[str, str, str]:
    """Outcome, what was done, and what went wrong."""
    rng = random.Random(f"{target.name}:{seed}")
    tables = [file for file in target.files if file.suffix in VALUES]
    file = rng.choice(tables if tables and rng.random() < 0.6 else target.files)  # there are more clips than tables
    before = file.read_bytes()
    data, mutation = mutate(file.name, before, rng)
    file.write_bytes(data)
    try:
        target.run(file, rng)
    except UserError as error:
        text = str(error)
        if "\n" in text or len(text) > MAX_MESSAGE_CHARACTERS:
            return "failed", mutation, f"the message has {len(text)} characters, not one short line: {text[:200]!r}"
        return "refused", mutation, text
    except BaseException as error:  # whatever it is, it is a bug, and the next mutation is to be tried
        last = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in last if "empathy_judge" in frame.filename or "/data_modules/" in frame.filename]
        where = f"{Path((own or last)[-1].filename).name}:{(own or last)[-1].lineno}"
        return "failed", mutation, f"{type(error).__name__} at {where}: {str(error)[:300]}"
    finally:
        with contextlib.suppress(OSError):
            file.write_bytes(before)
    return "accepted", mutation, ""
