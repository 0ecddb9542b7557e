"""Clips as a browser plays them: inside a page, or copied beside it under names that say nothing."""

from __future__ import annotations

import base64
import hashlib
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import soundfile

from ...data_modules.audio import AudioSource, Clip, audio_hash, decode, probe
from ...data_modules.errors import AudioError
from ...data_modules.folders import replace_file
from ...data_modules.stored_clips import StoredClip

AUDIO_FOLDER = "audio"
RULE = (
    "Clips that browsers play (wav, flac, ogg, mp3) are copied unchanged; others are converted to 16-bit mono wav. "
    "Each is named after its content."
)
"""How clips come beside the page, for its readers."""
MAX_EMBEDDED = 300_000
"""Bytes of a clip that stands in a page as it is; a larger one is made an MP3."""
EMBEDDED_RULE = f"They stand in this file: those above {MAX_EMBEDDED // 1000} kB as mono MP3, the others as they are."
"""How clips come into the page, for its readers."""

_SUFFIXES = {"WAV": "wav", "WAVEX": "wav", "FLAC": "flac", "OGG": "ogg", "MP3": "mp3"}
_WAV_SUBTYPES = ("PCM_U8", "PCM_16", "PCM_24", "FLOAT")  # what Chromium, Firefox and Safari all decode
_TYPES = {"wav": "audio/wav", "flac": "audio/flac", "ogg": "audio/ogg", "mp3": "audio/mpeg"}
_RATES = (8_000, 192_000)  # Hz; beyond, browsers differ
_MP3_RATES = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)  # Hz, those of the format
_OWN_NAME = re.compile(r"clip-[0-9a-f]{16}\.(wav|flac|ogg|mp3)")


@dataclass(frozen=True)
class Player:
    """A clip on the page.

    Attributes:
        address: Relative to the page, or with the clip in it; None where the clip cannot be played.
        seconds: Duration (s); None where it cannot be decoded.
        problem: Why there is nothing to play.
    """

    address: str | None
    seconds: float | None
    problem: str | None = None


class Players(Protocol):
    """Where the clips of a page go."""

    def add(self, source: AudioSource) -> Player:
        """Takes a clip in; one that cannot be decoded is named as such."""
        ...


class EmbeddedClips:
    """The clips of a page that is one file."""

    def add(self, source: AudioSource) -> Player:
        """The clip as an address that holds it, by the `EMBEDDED_RULE`."""
        try:
            content, suffix, seconds = playable(source)
            if len(content) > MAX_EMBEDDED:
                content, suffix = _mp3(source), "mp3"
        except AudioError as error:
            return Player(None, None, str(error))
        return Player(f"data:{_TYPES[suffix]};base64,{base64.b64encode(content).decode()}", seconds)


class AudioCopies:
    """The clips beside one page, each stored once however often it is asked for."""

    def __init__(self, page_folder: Path) -> None:
        """`page_folder` exists and is that of the page; the clips lie in its `AUDIO_FOLDER`."""
        self._folder = page_folder / AUDIO_FOLDER
        self._players: dict[str, Player] = {}
        self._names: set[str] = set()

    def add(self, source: AudioSource) -> Player:
        """Stores a clip; one that cannot be decoded is named as such."""
        try:
            key = audio_hash(source)
            if key not in self._players:
                self._players[key] = self._store(source)
        except AudioError as error:
            return Player(None, None, str(error))
        return self._players[key]

    def remove_others(self) -> None:
        """Deletes the copies of an earlier page in the same folder; files with other names stay."""
        if self._folder.is_dir():
            for path in self._folder.iterdir():
                if _OWN_NAME.fullmatch(path.name) and path.name not in self._names:
                    path.unlink()

    def _store(self, source: AudioSource) -> Player:
        content, suffix, seconds = playable(source)
        name = f"clip-{hashlib.sha256(content).hexdigest()[:16]}.{suffix}"
        self._folder.mkdir(exist_ok=True)
        replace_file(self._folder / name, lambda path: path.write_bytes(content))
        self._names.add(name)
        return Player(f"{AUDIO_FOLDER}/{name}", seconds)


def playable(source: AudioSource) -> tuple[bytes, str, float]:
    """A clip as browsers play it, by the `RULE`. The content decides, not the name of the file.

    Returns:
        The encoded clip, the suffix of its format without a dot, and its duration (s).

    Raises:
        AudioError: If the clip cannot be decoded.
    """
    source = source.read_checked() if isinstance(source, StoredClip) else source
    rate = probe(source).rate
    samples = decode(source, rate)
    seconds = len(samples) / rate
    if not isinstance(source, Clip):
        encoded = source if isinstance(source, bytes) else Path(source).read_bytes()
        with soundfile.SoundFile(io.BytesIO(encoded)) as sound:
            plays = sound.format in _SUFFIXES and _RATES[0] <= rate <= _RATES[1]
            if plays and (_SUFFIXES[sound.format] != "wav" or sound.subtype in _WAV_SUBTYPES):
                return encoded, _SUFFIXES[sound.format], seconds
    rate = min(max(rate, _RATES[0]), _RATES[1])
    buffer = io.BytesIO()
    soundfile.write(buffer, decode(source, rate), rate, format="WAV", subtype="PCM_16")
    return buffer.getvalue(), "wav", seconds


def _mp3(source: AudioSource) -> bytes:
    source = source.read_checked() if isinstance(source, StoredClip) else source
    rate = min(_MP3_RATES, key=lambda known: abs(known - probe(source).rate))
    buffer = io.BytesIO()
    soundfile.write(buffer, decode(source, rate), rate, format="MP3", subtype="MPEG_LAYER_III")
    return buffer.getvalue()
