"""Players, texts and single ratings (as dots on their scale) of an item on a page.

Clips are embedded in a page, or copied beside it under names made of their hash.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from markupsafe import Markup

from ...audio.decode import AudioSource, Clip, audio_hash, decode, load_clip, probe
from ...audio.encodings import MP3_RATES
from ...audio.stored_clips import StoredClip
from ...core.errors import AudioError, UserError, counted
from ...core.files import replace_file
from ...data_modules.schema import Pair, PairDataset
from ..rendering import plain, render

AUDIO_FOLDER = "audio"
RULE = (
    "Clips that browsers play (wav, flac, ogg, mp3) are copied unchanged; others are converted to 16-bit mono wav. "
    "Each is named after its content."
)
"""How clips are stored beside the page, for its readers."""
MAX_EMBEDDED = 300_000
"""Most bytes of a clip that is embedded unchanged; a larger one is converted to MP3."""
EMBEDDED_RULE = f"They stand in this file: those above {MAX_EMBEDDED // 1000} kB as mono MP3, the others as they are."
"""How clips are embedded in the page, for its readers."""

_SUFFIXES = {"WAV": "wav", "WAVEX": "wav", "FLAC": "flac", "OGG": "ogg", "MP3": "mp3"}
# What Chromium, Firefox and Safari all decode
_WAV_SUBTYPES = ("PCM_U8", "PCM_16", "PCM_24", "FLOAT")
_TYPES = {"wav": "audio/wav", "flac": "audio/flac", "ogg": "audio/ogg", "mp3": "audio/mpeg"}
# Hz; beyond, browsers differ
_RATES = (8_000, 192_000)
_OWN_NAME = re.compile(r"clip-([0-9a-f]{16})\.(?:wav|flac|ogg|mp3)")


@dataclass(frozen=True)
class Player:
    """A clip on the page, or the reason why there is nothing to play."""

    address: str | None  # relative to the page, or with the clip in it
    seconds: float | None
    problem: str | None = None


def embedded(source: AudioSource) -> Player:
    """A player whose address contains the clip, by the `EMBEDDED_RULE`; without an address if it cannot be decoded."""
    try:
        content, suffix, seconds = playable(source)
        if len(content) > MAX_EMBEDDED:
            source_rate = probe(source).rate
            rate = min(MP3_RATES, key=lambda candidate: abs(candidate - source_rate))
            content, suffix = _encoded(source, rate, "MP3", "MPEG_LAYER_III"), "mp3"
    except AudioError as error:
        return Player(None, None, str(error))
    return Player(f"data:{_TYPES[suffix]};base64,{base64.b64encode(content).decode()}", seconds)


class AudioCopies:
    """The clips beside one page; each is stored once, however often it is added."""

    def __init__(self, page_folder: Path) -> None:
        """`page_folder` is the existing folder of the page; the clips go into its `AUDIO_FOLDER`."""
        self._folder = page_folder / AUDIO_FOLDER
        self._players: dict[str, Player] = {}

    def add(self, source: AudioSource) -> Player:
        """Stores a clip and returns its player; without an address if it cannot be decoded.

        Raises:
            UserError: If something else has the name of its copy.
        """
        try:
            key = audio_hash(source)
            if key not in self._players:
                content, suffix, seconds = playable(source)
                name = f"clip-{hashlib.sha256(content).hexdigest()[:16]}.{suffix}"
                self._folder.mkdir(exist_ok=True)
                # `exists` would say no of a link that leads nowhere, which the copy would replace
                if not os.path.lexists(self._folder / name):
                    replace_file(self._folder / name, lambda path: path.write_bytes(content))
                elif not _is_copy(self._folder / name):
                    found = "exists, and is not the clip of this name"
                    raise UserError(f"{self._folder / name}: {found}; expected another place, or that it is moved away")
                self._players[key] = Player(f"{AUDIO_FOLDER}/{name}", seconds)
        except AudioError as error:
            return Player(None, None, str(error))
        return self._players[key]

    def remove_others(self) -> None:
        """Deletes the copies of an earlier page in the same folder; files that are none stay, whatever their names."""
        addresses = {player.address for player in self._players.values()}
        for path in self._folder.glob("clip-*"):
            if f"{AUDIO_FOLDER}/{path.name}" not in addresses and _is_copy(path):
                path.unlink()


def _is_copy(path: Path) -> bool:
    """Whether a file has the name and the content that a copy has."""
    name = _OWN_NAME.fullmatch(path.name)
    if name is None or path.is_symlink() or not path.is_file():
        return False
    return hashlib.sha256(path.read_bytes()).hexdigest().startswith(name[1])


def playable(source: AudioSource) -> tuple[bytes, str, float]:
    """A clip in a format that browsers play, by the `RULE`: its bytes, its suffix without a dot, and its seconds.

    The format is read from the content, not from the name of the file.

    Raises:
        AudioError: If the clip cannot be decoded.
    """
    source = source.read_checked() if isinstance(source, StoredClip) else source
    clip = load_clip(source)
    samples, rate = clip.samples, clip.rate
    seconds = len(samples) / rate
    if not isinstance(source, Clip):
        encoded = source if isinstance(source, bytes) else Path(source).read_bytes()
        with soundfile.SoundFile(io.BytesIO(encoded)) as sound:
            plays = sound.format in _SUFFIXES and _RATES[0] <= rate <= _RATES[1]
            if plays and (_SUFFIXES[sound.format] != "wav" or sound.subtype in _WAV_SUBTYPES):
                return encoded, _SUFFIXES[sound.format], seconds
    rate = min(max(rate, _RATES[0]), _RATES[1])
    return _encoded(source, rate, "WAV", "PCM_16"), "wav", seconds


def _encoded(source: AudioSource, rate: int, kind: str, subtype: str) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, decode(source, rate), rate, format=kind, subtype=subtype)
    return buffer.getvalue()


def pair_view(pair: Pair, play: Callable[[AudioSource], Player]) -> dict[str, Any]:
    """Players and facts of a pair for the macros of ``sound``; `play` makes the player of each clip."""
    facts = {
        "group": pair.group_id,
        "system": pair.system_id,
        "speaker": pair.response_speaker,
        "setting": pair.setting,
        "language": pair.language,
        "split": pair.split,
        **dict(pair.tags),
    }
    several = len(pair.context) > 1
    return {
        "pair": pair,
        "facts": ", ".join(f"{name} {value}" for name, value in facts.items() if value),
        "context": [
            (play(turn.audio), f"Context{f' {position}' if several else ''} ({turn.role})")
            for position, turn in enumerate(pair.context, start=1)
        ],
        "response": play(pair.response),
    }


_STRIP_ENDS = (4.0, 96.0)  # percent of the width
_DOT = 4.5  # radius in pixels
_STACK_HEIGHT = 66.0  # pixels; taller stacks are compressed


def dot_strip(ratings: Sequence[tuple[str, float]], scale: tuple[float, float], ticks: Sequence[float]) -> Markup:
    """The ratings of one item, in rising order, as dots on the scale, equal ones on top of each other; a line at their
    mean."""
    # Positions in percent let the strip scale with the page while dots and letters keep their size
    low, high = scale
    levels: list[int] = []  # how many dots lie below each
    start = float("-inf")
    for _, score in ratings:
        stacked = score - start < (high - low) / 45  # so close to the first of a stack
        levels.append(levels[-1] + 1 if stacked else 0)
        start = start if stacked else score
    step = min(2 * _DOT, _STACK_HEIGHT / (max(levels) + 1))
    ground = 8 + 2 * _DOT + step * max(levels)

    def across(value: float) -> str:
        share = (min(max(value, low), high) - low) / (high - low)
        return f"{_STRIP_ENDS[0] + share * (_STRIP_ENDS[1] - _STRIP_ENDS[0]):.2f}%"

    mean = float(np.mean([score for _, score in ratings]))
    scores = ", ".join(plain(score) for _, score in ratings)
    return Markup(
        render(
            "strip",
            alt=f"{counted(len(ratings), 'rating')} on a scale from {plain(low)} to {plain(high)}: {scores}; "
            f"mean {mean:.2f}",
            dots=[(*rating, ground - 2 - _DOT - level * step) for rating, level in zip(ratings, levels, strict=True)],
            ticks=ticks,
            low=low,
            high=high,
            ground=ground,
            mean=mean,
            radius=_DOT,
            across=across,
        )
    )


_CLEAR_OF = 0.12
"""Ends of the scale nearer to the judge's score than this share of the scale have no label, so that none overlap."""


def disagreements(
    rows: list[dict[str, Any]], dimension: str, scale: tuple[float, float], dataset: PairDataset
) -> list[dict[str, Any]]:
    """Adds to rows of `evaluate.Results.items` of a dimension their players with embedded clips and single ratings."""
    low, high = scale
    pairs = {pair.pair_id: pair for pair in dataset.pairs}
    given = dataset.ratings.loc[dataset.ratings["dimension"] == dimension].sort_values(["score", "rater_id"])
    ratings_of = {pair_id: own[["rater_id", "score"]].values.tolist() for pair_id, own in given.groupby("pair_id")}
    entries = []
    for row in rows:
        ratings = ratings_of[row["pair_id"]]
        # A judge may score beyond the scale, whose end the mark then stands at
        inside = min(max(row["score"], low), high)
        ticks = [end for end in scale if abs(end - inside) > _CLEAR_OF * (high - low)]
        ticks.append(round(row["score"], 2))  # last, as the page marks it
        shown = {"ratings": ratings, "strip": dot_strip(ratings, scale, ticks)}
        entries.append({**row, **shown, "view": pair_view(pairs[row["pair_id"]], embedded)})
    return entries
