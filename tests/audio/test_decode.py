"""Decoding: what is accepted comes out at the wanted rate with the right values, what is not is named."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import soundfile
from empathy_judge.audio.decode import AudioInfo, Clip, audio_hash, decode, is_clipped, load_clip, probe, resample
from empathy_judge.core.errors import AudioError

from ..conftest import encoded


def sine(seconds: float, rate: int, hertz: float = 440.0) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)


def write(path: Path, samples: np.ndarray, rate: int = 16_000, subtype: str | None = None) -> Path:
    soundfile.write(path, samples, rate, subtype)
    return path


def test_native_rate_is_exact(tmp_path):
    samples = sine(0.5, 16_000).astype(np.float32)
    path = write(tmp_path / "a.wav", samples, subtype="FLOAT")
    decoded = decode(path, 16_000)
    assert decoded.dtype == np.float32
    np.testing.assert_array_equal(decoded, samples)


@pytest.mark.parametrize("rates", [(44_100, 16_000), (16_000, 48_000), (115, 100)])
@pytest.mark.parametrize("length", [1, 997, 240_001])
def test_resampling_takes_samples_that_may_not_be_written(rates, length):
    samples = np.random.default_rng(length).standard_normal(length).astype(np.float32)
    before = samples.copy()
    samples.flags.writeable = False
    with warnings.catch_warnings(action="error"):
        found = resample(samples, *rates)
    assert len(found) == -(-length * rates[1] // rates[0])
    assert found.dtype == np.float32
    assert np.array_equal(samples, before)


def test_stereo_48_khz_is_averaged_and_resampled(tmp_path):
    left = sine(1.0, 48_000)
    path = write(tmp_path / "a.wav", np.stack([left, 0 * left], axis=1), 48_000)
    decoded = decode(path, 16_000)
    assert decoded.shape == (16_000,)
    np.testing.assert_allclose(decoded[200:-200], 0.5 * sine(1.0, 16_000)[200:-200], atol=1e-3)
    assert probe(path) == AudioInfo(1.0, 48_000, 2)


@pytest.mark.parametrize("kind", ["FLAC", "OGG", "AIFF", "MP3"])
def test_other_formats(kind):
    decoded = decode(encoded(sine(1.0, 16_000), kind=kind), 16_000)
    assert abs(len(decoded) - 16_000) <= 1_200  # MP3 has whole frames
    assert np.sqrt(np.mean(decoded[2_000:-2_000] ** 2)) == pytest.approx(0.5 / np.sqrt(2), rel=0.05)


def test_rates_without_a_common_divisor_need_little_memory(tmp_path):
    path = write(tmp_path / "a.wav", sine(0.5, 11_127), 11_127)
    decoded = decode(path, 16_000)
    assert len(decoded) == pytest.approx(8_000, abs=1)
    np.testing.assert_allclose(decoded[200:7_800], sine(0.5, 16_000)[200:7_800], atol=5e-3)


def test_hash_follows_the_content(tmp_path):
    path = write(tmp_path / "a.wav", sine(0.5, 16_000))
    other = write(tmp_path / "b.wav", sine(0.5, 16_000, 441.0))
    assert audio_hash(path) == audio_hash(path.read_bytes()) == audio_hash(str(path))
    assert len({audio_hash(path), audio_hash(other)}) == 2
    samples = sine(0.5, 16_000)
    assert audio_hash(Clip(samples, 16_000)) == audio_hash(Clip(samples.copy(), 16_000))
    assert audio_hash(Clip(samples, 16_000)) != audio_hash(Clip(samples, 8_000))


ENCODED = {
    "MP3": encoded(sine(1.0, 16_000), kind="MP3"),
    "FLAC": encoded(sine(1.0, 16_000), kind="FLAC"),
    "Vorbis": encoded(sine(1.0, 16_000), kind="OGG"),
    "Opus": encoded(sine(1.0, 16_000), kind="OGG", subtype="OPUS"),
    **{kind: encoded(sine(1.0, 16_000), kind=kind) for kind in ("WAV", "AIFF", "AU", "CAF", "RF64", "W64")},
}


@pytest.mark.parametrize("count", [2, 50, 200])
@pytest.mark.parametrize("kind", list(ENCODED))
def test_joined_files_are_not_read_in_part(tmp_path, kind, count):
    path = tmp_path / "joined"
    path.write_bytes(ENCODED[kind] * count)
    for source in (path, path.read_bytes()):
        with pytest.raises(AudioError, match=r"several recordings one after the other|bytes follow the samples that"):
            decode(source, 16_000)


@pytest.mark.parametrize("kind", ["WAV", "WAVEX", "FLAC", "OGG", "AIFF", "AU", "W64", "RF64"])
def test_cut_off_file(tmp_path, kind):
    path = tmp_path / "cut.snd"
    data = encoded(np.random.default_rng(0).normal(0, 0.1, 40_000), kind=kind)
    assert abs(len(decode(data, 16_000)) - 40_000) < 10
    path.write_bytes(data[: len(data) * 2 // 3])
    with pytest.raises(AudioError, match=r"cut\.snd: .*(cut off|damaged)"):
        decode(path, 16_000)


TEXT = b"pair_id,score\n" * 200


@pytest.mark.parametrize(
    ("name", "content", "message", "kind"),
    [
        ("missing.wav", None, "no such file", "no such file"),
        ("zero.wav", b"", r"empty \(0 bytes\)", "the file is empty"),
        ("none.wav", encoded(np.zeros(0)), "no samples", "the file is empty"),
        (".", None, "not a file", "cannot be read"),
        # libsndfile takes any content for samples where a name ends so
        *((f"text.{suffix}", TEXT, "not a sound file; expected wav", "not a sound file")
          for suffix in ("wav", "raw", "au", "snd", "vox", "gsm")),
    ],
)  # fmt: skip
def test_missing_empty_and_foreign_files(tmp_path, name, content, message, kind):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(AudioError, match=message) as caught:
        decode(tmp_path / name, 16_000)
    assert str(tmp_path / name) in str(caught.value)
    assert caught.value.kind == pickle.loads(pickle.dumps(caught.value)).kind == kind


def test_the_name_of_a_file_does_not_matter(tmp_path):
    data = encoded(sine(0.5, 16_000))
    for name in ("a.raw", "a.RAW", "a.au", "a.vox", "a"):
        (tmp_path / name).write_bytes(data)
        np.testing.assert_array_equal(decode(tmp_path / name, 16_000), decode(data, 16_000))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 32_767.0])
def test_samples_that_are_no_amplitudes(tmp_path, value):
    samples = sine(0.5, 16_000)
    samples[800] = value
    path = write(tmp_path / "a.wav", samples, subtype="FLOAT")
    with pytest.raises(AudioError, match=r"a\.wav: sample 800 \(at 0\.05 s\).*expected finite samples") as caught:
        decode(path, 16_000)
    assert caught.value.kind == "not finite or not scaled"
    with pytest.raises(AudioError, match="sample 800"):
        decode(Clip(samples, 16_000), 16_000)


SPEECH = np.random.default_rng(0).laplace(0, 0.05, 16_000).clip(-1, 1)


@pytest.mark.parametrize("scale", [32_767, 0.016 * 32_767, 0.001 * 32_767, 127, 0.1 * 127])
@pytest.mark.parametrize("channels", [1, 2, 3, 6])
def test_whole_numbers_are_not_scaled(tmp_path, scale, channels):
    """Integers as floats, loud and quiet, of 16 bits and of 8, also after their channels were averaged."""
    whole = np.stack([np.rint(np.roll(SPEECH, n) * scale) for n in range(channels)], axis=1).astype(np.float32)
    for source in (Clip(whole.mean(axis=1), 16_000), write(tmp_path / "a.wav", whole, subtype="FLOAT")):
        with pytest.raises(AudioError, match=r"expected finite samples with full scale 1\.0") as caught:
            decode(source, 16_000)
        assert caught.value.kind == "not finite or not scaled"


def test_the_message_says_that_numbers_are_whole():
    with pytest.raises(AudioError, match="the samples are whole numbers up to 9, not scaled"):
        decode(Clip(np.resize(np.arange(-7.0, 10), 8_000), 22_050, "a"), 16_000)
    with pytest.raises(AudioError, match=r"the samples are whole numbers up to 3, not scaled; expected finite"):
        decode(Clip(np.resize(np.float32([0, 1, -3]), 8_000), 16_000, "a"), 16_000)


def test_integers_that_were_resampled_are_too_loud_to_be_scaled():
    for scale in (127, 0.016 * 32_767):
        changed = resample(np.rint(SPEECH * scale).astype(np.float32), 16_000, 22_050)
        with pytest.raises(AudioError, match=r"is -?\d+\.?\d*, \d+ such samples"):
            decode(Clip(changed, 22_050), 16_000)


@pytest.mark.parametrize(
    "samples",
    [
        np.zeros(8_000),  # silence
        np.sign(sine(0.5, 16_000)),  # a square wave of full scale
        np.resize([0.0, 1.0], 8_000),
        2.0 * sine(0.5, 16_000) * 2,  # a decoder's overshoot, far beyond what there is
        9.9 * sine(0.5, 16_000) * 2,
        np.rint(sine(0.5, 16_000) * 32_768) / 32_768 * 3,  # 16 bits, scaled, and loud
        np.rint(sine(0.5, 16_000) * 128) / 128 * 3,
    ],
)
def test_floats_that_pass_full_scale_are_read(samples):
    np.testing.assert_array_equal(decode(Clip(samples, 16_000), 16_000), samples.astype(np.float32))


CODECS = [
    ("WAV", "PCM_16", 32_767 / 32_768), ("WAV", "PCM_U8", 127 / 128), ("FLAC", "PCM_S8", 127 / 128),
    ("WAV", "ULAW", 32_124 / 32_768), ("WAV", "ALAW", 32_256 / 32_768), ("AU", "ULAW", 32_124 / 32_768),
    ("AU", "ALAW", 32_256 / 32_768), ("WAV", "GSM610", None), ("WAV", "IMA_ADPCM", None), ("WAV", "MS_ADPCM", None),
    ("OGG", "OPUS", None), ("WAV", "FLOAT", 1.0),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "codec", "highest"), CODECS)
def test_clipping_is_seen_at_the_highest_value_of_an_encoding(kind, codec, highest):
    """Those of G.711 are 8,031 and 4,032 of ITU-T G.711, of 8,192 and 4,096."""
    noise = np.convolve(np.random.default_rng(0).laplace(0, 1, 16_000), np.hanning(12), "same")
    noise /= np.abs(noise).max()
    clipped, loud, whole = (
        load_clip(encoded((gain * noise).clip(-1, 1), 8_000, kind, codec)) for gain in (8.0, 1.0, 0.9)
    )
    if highest is not None:
        assert clipped.samples.max() == np.float32(highest) == loud.samples.max()
    assert [is_clipped(clip) for clip in (clipped, loud, whole)] == [True, False, False]


TONE = 2 * sine(1.0, 8_000, 200.0)


@pytest.mark.parametrize(
    ("samples", "clipped"),
    [
        ((8 * TONE).clip(-0.97, 0.97), False),
        ((8 * TONE).clip(-0.98, 0.3), True),
        ((8 * TONE).clip(-0.3, 0.99), True),
        (0.99 * TONE, False),  # a peak is reached again in each period of a tone, but for one sample
        (1.2 * TONE, True),
        (np.zeros(8_000), False),
    ],
)
def test_only_what_ends_at_full_scale_is_clipped(samples, clipped):
    assert is_clipped(Clip(samples, 8_000)) == clipped


def test_too_short_and_too_long(tmp_path):
    short, long = (write(tmp_path / f"{n}.wav", np.zeros(n), 8_000) for n in (392, 300 * 8_000))
    for path, most, message, kind in (
        (short, None, r"lasts 0\.049 s; expected at least 0\.05 s", "too short"),
        (long, 30, r"lasts 300\.0 s; expected at most 30 s", "too long"),
    ):
        with pytest.raises(AudioError, match=message) as refused:
            decode(path, 16_000, most)
        assert refused.value.kind == kind
    assert len(decode(write(tmp_path / "a.wav", np.zeros(400), 8_000), 8_000)) == 400
    assert len(decode(long, 16_000, max_seconds=300)) == 300 * 16_000


@pytest.mark.parametrize("rate", [1, 3_999, 384_001, 655_350])
def test_rates_that_no_microphone_has(tmp_path, rate):
    path = write(tmp_path / "a.wav", sine(0.5, 8_000), rate)
    with pytest.raises(AudioError, match=f"sample rate {rate} Hz; expected 4000 to 384000 Hz"):
        decode(path, 16_000)


def test_what_may_not_be_read_is_said_as_such(tmp_path, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with pytest.raises(AudioError, match=r"cannot be read \(File name too long\)") as long:
        decode(tmp_path / f"{'a' * 300}.wav", 16_000)
    null = "embedded null byte|stat: embedded null character in path"  # Python 3.11 and 3.13
    with pytest.raises(AudioError, match=rf"cannot be read \(({null})\)"):
        decode("a\0b.wav", 16_000)
    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(AudioError, match=r"a\.wav: cannot be read \(Permission denied\)") as denied:
        decode("a.wav", 16_000)
    assert denied.value.kind == long.value.kind == "cannot be read"


def test_clip_wants_mono_floats():
    with pytest.raises(AudioError, match=r"shape \(2, 8000\)"):
        Clip(np.zeros((2, 8_000), np.float32), 16_000)
    with pytest.raises(AudioError, match="type int16"):
        Clip(np.zeros(8_000, np.int16), 16_000)
    clip = Clip(np.zeros(8_000), 16_000)
    assert clip.samples.dtype == np.float32
    assert clip.seconds == 0.5


def test_what_is_too_large_for_float32_is_one_line(recwarn):
    with pytest.raises(AudioError, match=r"sample 0 .* is inf, 1600 such samples"):
        load_clip(Clip(np.full(1_600, 1e300), 16_000))
    assert not recwarn.list
