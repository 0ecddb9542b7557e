"""The acoustic fingerprint: copies match, other speech does not, and what cannot be compared is said to be so."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile
from empathy_judge.audio.decode import Clip, decode
from empathy_judge.audio.espeak import Tone, Voice, restart, speak
from empathy_judge.data_modules.near_duplicates import (
    MAX_BIT_ERROR_RATE,
    RATE,
    Fingerprint,
    bit_error_rate,
    find_clusters,
    fingerprint,
)

from ..conftest import encoded, real_data

VOICE = Voice("en-us", "f", 200.0, 1.15)
LINE = "You put them in the hall."
TONES = {
    "plain": Tone(),
    "slow": Tone(rate=135),
    "high": Tone(pitch=4.0, range=2.7, rate=205),
    "low and flat": Tone(pitch=-2.5, range=0.0),
}


def spoken(text: str = LINE, voice: Voice = VOICE, tone: Tone = TONES["plain"]) -> Clip:
    restart()  # whatever was spoken before
    samples, rate = speak(text, voice, tone)
    return Clip(samples.astype(np.float32), rate)


def printed(clip: Clip) -> Fingerprint:
    return fingerprint(decode(clip, RATE))


def through(clip: Clip, kind: str, compression: float) -> Clip:
    """The clip encoded and decoded."""
    file = encoded(clip.samples, clip.rate, kind, compression_level=compression)
    return Clip(soundfile.read(io.BytesIO(file), dtype="float32")[0], clip.rate)


def noisy(clip: Clip, snr: float, seed: int = 0) -> Clip:
    noise = np.random.default_rng(seed).standard_normal(len(clip.samples))
    level = np.sqrt(np.mean(clip.samples**2)) * 10 ** (-snr / 20)
    return Clip((clip.samples + level * noise).astype(np.float32), clip.rate)


def changed(clip: Clip) -> dict[str, Clip]:
    samples, rate = clip.samples, clip.rate
    return {
        "gain": Clip(samples * 0.1, rate),
        "clipped": Clip(np.clip(samples * 4, -1, 1), rate),
        "resampled": Clip(decode(clip, 8_000), 8_000),
        "mp3": through(clip, "MP3", 0.8),
        "ogg": through(clip, "OGG", 0.7),
        "noise": noisy(clip, 25),
        "silence in front": Clip(np.concatenate([np.zeros(rate // 2 + 77, np.float32), samples]), rate),
        "trimmed": Clip(samples[len(samples) // 8 : -(len(samples) // 8)], rate),
    }


def test_copies_match():
    clip = spoken("The keys are in the car, and her books are in my bag.")
    rates = {kind: bit_error_rate(printed(clip), printed(copy)) for kind, copy in changed(clip).items()}
    assert all(rate is not None for rate in rates.values())
    assert max(rate for rate in rates.values() if rate is not None) <= 0.16
    assert rates["gain"] == pytest.approx(0, abs=0.001)
    assert len(find_clusters([printed(clip), *(printed(copy) for copy in changed(clip).values())])[0]) == 9


def test_other_speech_does_not_match():
    voices = [VOICE, Voice("en-us", "m", 110.0, 0.97), Voice("en-gb-scotland", "f", 180.0, 1.1)]
    clips = [spoken(tone=tone) for tone in TONES.values()]
    clips += [spoken(voice=voice) for voice in voices[1:]]
    clips += [
        spoken(text) for text in ("Let me check at the bank.", "The maps are on the desk.", "I can look in my bag.")
    ]
    prints = [printed(clip) for clip in clips]
    assert all(one.comparable for one in prints)
    assert find_clusters(prints) == []
    rates = [bit_error_rate(one, other) for n, one in enumerate(prints) for other in prints[:n]]
    assert min(rate for rate in rates if rate is not None) > MAX_BIT_ERROR_RATE + 0.05


def test_clusters_join_chains_and_keep_the_order():
    first, second = spoken(), spoken("Let me check at the bank.")
    prints = [
        printed(clip) for clip in (second, first, Clip(first.samples * 0.3, first.rate), through(second, "MP3", 0.5))
    ]
    assert find_clusters(prints) == [[0, 3], [1, 2]]
    assert find_clusters([]) == find_clusters(prints[:1]) == []


@pytest.mark.parametrize("kind", ["silence", "hum", "short", "one sample", "nothing"])
def test_what_says_too_little_is_not_compared(kind):
    time = np.arange(2 * RATE) / RATE
    samples = {
        "silence": np.zeros(2 * RATE),
        "hum": 0.3 * np.sin(2 * np.pi * 500 * time) + 0.2 * np.sin(2 * np.pi * 900 * time),
        "short": decode(spoken(), RATE)[:800],
        "one sample": np.ones(1),
        "nothing": np.zeros(0),
    }[kind].astype(np.float32)
    found = fingerprint(samples)
    assert not found.comparable
    assert find_clusters([found, found]) == []


def test_many_clips_of_one_sound_are_one_cluster():
    """More copies than are looked at for one sub-fingerprint, among others."""
    clip = spoken("The keys are in the car, and her books are in my bag.")
    others = [printed(spoken(text)) for text in ("Let me check at the bank.", "The maps are on the desk.")]
    copies = [printed(noisy(clip, 25, seed)) for seed in range(60)]
    assert find_clusters([others[0], *copies, others[1]]) == [list(range(1, 61))]


@pytest.mark.long
def test_real_speech():
    """120 clips of 15 people, 8 each: none matches another, and each is found again in its copy."""
    files = sorted(real_data("read_speech/audio").glob("*/*.ogg"))[:120]
    clips = [Clip(decode(file, 16_000), 16_000) for file in files]
    prints = [printed(clip) for clip in clips]
    assert find_clusters(prints) == []
    copies = [
        printed((through(clip, "MP3", 0.7), noisy(clip, 20), Clip(clip.samples[3_333:] * 0.2, 16_000))[n % 3])
        for n, clip in enumerate(clips)
    ]
    found = find_clusters([*prints, *copies])
    assert all(len(cluster) == 2 and cluster[1] - cluster[0] == 120 for cluster in found)
    assert len(found) >= 118
