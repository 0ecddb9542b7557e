"""Clips on pages, copied, converted or embedded, and the ratings of an item as dots."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
import soundfile
from empathy_judge.audio.decode import Clip, decode
from empathy_judge.core.errors import AudioError
from empathy_judge.eval.pages.sound import MAX_EMBEDDED, dot_strip, embedded, playable

from ...conftest import encoded, tone

RATE = 16_000


def test_dots_stand_at_their_ratings_and_equal_ones_on_each_other():
    ratings = [("a", 1.0), ("b", 1.0), ("c", 3.0), ("d", 5.0)]
    strip = str(dot_strip(ratings, (1.0, 5.0), (1.0, 3.0, 5.0)))
    dots = re.findall(r'<circle cx="([\d.]+)%" cy="([\d.]+)".*?<title>(.*?)</title>', strip)
    assert [(float(x), name) for x, _, name in dots] == [(4, "a: 1"), (4, "b: 1"), (50, "c: 3"), (96, "d: 5")]
    heights = [float(y) for _, y, _ in dots]
    assert heights[0] == heights[2] == heights[3] == heights[1] + 9
    assert re.search(r'class="mean" x1="38.50%"', strip)  # 2.5
    assert 'aria-label="4 ratings on a scale from 1 to 5: 1, 1, 3, 5; mean 2.50"' in strip
    # A tall stack stays low
    strip = str(dot_strip([(f"r{n}", 3.0) for n in range(100)], (1.0, 5.0), (1.0, 5.0)))
    height = re.search(r' height="([\d.]+)">', strip)
    assert float(height[1]) < 110
    assert all(float(y) > 4 for y in re.findall(r'cy="([\d.]+)"', strip))


@pytest.mark.parametrize(
    ("kind", "subtype", "suffix", "copied"),
    [
        ("WAV", "PCM_16", "wav", True), ("WAV", "PCM_24", "wav", True), ("FLAC", "PCM_16", "flac", True),
        ("OGG", "VORBIS", "ogg", True), ("OGG", "OPUS", "ogg", True), ("MP3", None, "mp3", True),
        ("WAV", "ULAW", "wav", False), ("WAV", "DOUBLE", "wav", False), ("WAV", "IMA_ADPCM", "wav", False),
        ("AIFF", None, "wav", False), ("AU", None, "wav", False), ("W64", "PCM_16", "wav", False),
    ],
)  # fmt: skip
def test_clips_are_copied_where_browsers_play_them_and_else_converted(kind, subtype, suffix, copied):
    source = encoded(tone(0.5, 300, 0.4), kind=kind, subtype=subtype)
    content, found, seconds = playable(source)
    assert (found, content == source) == (suffix, copied)
    assert seconds == pytest.approx(0.5, abs=0.05)
    if not copied:
        assert soundfile.info(io.BytesIO(content)).subtype == "PCM_16"
        np.testing.assert_allclose(decode(content, RATE), decode(source, RATE), atol=1 / 32_000)


def test_samples_and_odd_rates_become_wav():
    content, suffix, seconds = playable(Clip(tone(0.25, 300, 0.4), RATE))
    assert (suffix, seconds, soundfile.info(io.BytesIO(content)).frames) == ("wav", 0.25, 4_000)
    content, suffix, _ = playable(encoded(tone(0.2, 100, 0.4)[::4], rate=4_000))
    assert (suffix, soundfile.info(io.BytesIO(content)).samplerate) == ("wav", 8_000)
    with pytest.raises(AudioError, match="not a sound file"):
        playable(b"no sound")


def test_large_clips_are_embedded_as_mp3_and_damaged_ones_named(tmp_path):
    samples = 0.3 * np.sin(2 * np.pi * 440 * np.arange(30 * 44_100) / 44_100)
    soundfile.write(tmp_path / "long.wav", np.stack([samples, samples], 1), 44_100)
    (tmp_path / "damaged.wav").write_bytes(b"RIFF no")
    player = embedded(tmp_path / "long.wav")
    assert player.seconds == pytest.approx(30)
    content = base64.b64decode(player.address.removeprefix("data:audio/mpeg;base64,"))
    assert len(content) < MAX_EMBEDDED + 200_000 < (tmp_path / "long.wav").stat().st_size
    heard, rate = soundfile.read(io.BytesIO(content))
    assert rate == 44_100
    assert heard.ndim == 1
    assert heard.std() == pytest.approx(samples.std(), rel=0.05)
    damaged = embedded(tmp_path / "damaged.wav")
    assert damaged.address is None
    assert damaged.problem
