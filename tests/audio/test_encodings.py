"""MP3 and FLAC are read to the last sample of their last frame, or refused by name.

Streams without a Xing or Info header are made from files that have one: an encoder leaves it off where it cannot go
back in its output. soundfile 0.14 with libsndfile 1.2.2 takes their length from size and bit rate.
"""

from __future__ import annotations

import contextlib
import io
import re
import struct

import numpy as np
import pytest
import soundfile
from empathy_judge.audio.decode import load_clip, probe
from empathy_judge.audio.encodings import _mp3_frames, whole_mp3
from empathy_judge.core.errors import AudioError

from ..conftest import encoded

MODES = ("AVERAGE", "VARIABLE", "CONSTANT")
RATES = (8_000, 16_000, 22_050, 24_000, 44_100)
LEVELS = (0.0, 0.2, 0.4, 0.6, 0.8, 0.99)


def speech(seconds: float, rate: int, channels: int = 1) -> np.ndarray:
    """Changes as speech does, so that frames of a variable bit rate differ."""
    times = np.arange(round(seconds * rate)) / rate
    tone = np.sin(2 * np.pi * (180 + 60 * np.sin(9 * times)) * times) * (0.5 + 0.5 * np.sin(5 * times))
    samples = 0.3 * tone + np.random.default_rng(1).normal(0, 0.05, len(times))
    return samples if channels == 1 else np.stack([samples, samples[::-1]], axis=1)


def mp3(samples: np.ndarray, rate: int, mode: str = "CONSTANT", level: float = 0.5) -> bytes:
    return encoded(samples, rate, "MP3", subtype="MPEG_LAYER_III", bitrate_mode=mode, compression_level=level)


def without_header(data: bytes) -> list[bytes]:
    """The frames alone."""
    return [frame for frame, _ in _mp3_frames(data) if b"Xing" not in frame[:60] and b"Info" not in frame[:60]]


def samples_of(frames: list[bytes]) -> int:
    """By ISO/IEC 11172-3 and 13818-3: 1,152 in a frame of MPEG 1, else 576."""
    return sum(1_152 if frame[1] & 0x18 == 0x18 else 576 for frame in frames)


def direct(data: bytes) -> np.ndarray:
    """As libsndfile reads a file with its LAME tag, in one call."""
    return soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)[0].mean(axis=1)


def id3(size: int) -> bytes:
    body = size - 10
    return b"ID3\x03\x00\x00" + bytes(body >> shift & 127 for shift in (21, 14, 7, 0)) + bytes(body)


def ape(size: int) -> bytes:
    """With a footer alone, as many programs write it: its items come first."""
    item = (size - 46).to_bytes(4, "little") + bytes(4) + b"Title\0" + b"\xff\xfb" * ((size - 46) // 2)
    footer = b"APETAGEX" + struct.pack("<IIII", 2_000, len(item) + 32, 1, 0) + bytes(8)
    return item + footer


def ape_of(before: int) -> bytes:
    """A footer that claims all bytes before it."""
    return b"APETAGEX" + struct.pack("<IIII", 2_000, before + 32, 1, 0) + bytes(8)


ID3V1 = b"TAG" + bytes(125)
LIKE_FRAMES = b"ID3\x04\x00\x00\x00\x00\x01\x00" + b"\xff\xfb\x90\x00" * 32
TAGS = {
    "none": (b"", b""),
    "id3v2 45": (id3(45), b""),
    "id3v2 1 kB": (id3(1_024), b""),
    "id3v2 20 kB": (id3(20_480), b""),
    "id3v2 that looks like frames": (LIKE_FRAMES, LIKE_FRAMES),
    "id3v1": (b"", ID3V1),
    "ape": (b"", ape(200)),
    "ape and id3v1": (b"", ape(200) + ID3V1),
    "all": (id3(20_480), id3(45) + ape(1_000) + ID3V1),
    "lyrics": (b"", b"LYRICSBEGININD0000200LYR00005words" + b"000034" + b"LYRICS200" + ID3V1),
    "zeros": (id3(45) + bytes(2_000), bytes(417)),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rate", RATES)
def test_streams_without_a_header_are_read_whole(rate, mode):
    """With every tag; values are those of the file with its header, whose LAME tag trims delay and padding."""
    for level in LEVELS:
        data = mp3(speech(1.0, rate), rate, mode, level)
        frames = without_header(data)
        clip = load_clip(b"".join(frames))
        assert len(clip.samples) == samples_of(frames)
        if len(frames) < len(list(_mp3_frames(data))):
            expected = direct(data)
            np.testing.assert_allclose(load_clip(data).samples, expected, atol=1e-6)  # sums in another order
            begin = len(clip.samples) - 576 - 529
            np.testing.assert_allclose(clip.samples[1_105:][: len(expected)], expected[:begin], atol=1e-6)
        else:  # frames of 8 kbit/s have no room for one
            np.testing.assert_allclose(clip.samples, direct(data), atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("tags", TAGS.values(), ids=list(TAGS))
def test_tags_are_no_audio(tags, mode):
    for rate in (16_000, 24_000, 44_100):
        for channels in (1, 2):
            data = mp3(speech(1.0, rate, channels), rate, mode)
            frames = without_header(data)
            expected = load_clip(b"".join(frames)).samples
            clip = tags[0] + b"".join(frames) + tags[1]
            assert probe(clip).seconds == samples_of(frames) / rate
            np.testing.assert_array_equal(load_clip(clip).samples, expected)
            np.testing.assert_allclose(load_clip(tags[0] + data + tags[1]).samples, direct(data), atol=1e-6)


@pytest.mark.parametrize("seconds", [6.0, 20.0])
def test_long_files_of_variable_bit_rate(seconds, capfd):
    """soundfile seeks after each block, and decoding goes on there without the bytes of earlier frames."""
    data = mp3(speech(seconds, 44_100), 44_100, "VARIABLE", 0.8)
    np.testing.assert_allclose(load_clip(data).samples, direct(data), atol=1e-6)
    capfd.readouterr()
    load_clip(data)
    assert capfd.readouterr().err == ""  # of libmpg123


@pytest.mark.parametrize("mode", ["VARIABLE", "CONSTANT"])
def test_a_stream_from_the_middle_of_a_recording(mode, capfd):
    """Its first frames need bytes of frames before: they are silent, and no noise beyond full scale."""
    for rate in (8_000, 16_000, 44_100):
        frames = without_header(mp3(speech(2.0, rate), rate, mode))
        whole = load_clip(b"".join(frames)).samples
        size = samples_of(frames[:1])
        for first in (1, 2, 3, 7, 20):
            samples = load_clip(b"".join(frames[first:])).samples
            assert len(samples) == samples_of(frames[first:])
            assert np.abs(samples).max() < 0.6
            np.testing.assert_allclose(samples[7 * size :], whole[(first + 7) * size :], atol=1e-4)
    assert capfd.readouterr().err == ""


def wav(content: bytes, rate: int, samples: int) -> bytes:
    """MP3 inside a wav file, with MPEGLAYER3WAVEFORMAT."""
    layout = struct.pack("<HHIIHHHHIHHH", 0x55, 1, rate, 8_000, 1, 0, 12, 1, 2, 576, 1, 0)
    chunks = b"fmt " + struct.pack("<I", len(layout)) + layout + b"fact" + struct.pack("<II", 4, samples)
    chunks += b"data" + struct.pack("<I", len(content)) + content + bytes(len(content) % 2)
    return b"RIFF" + struct.pack("<I", len(chunks) + 4) + b"WAVE" + chunks


@pytest.mark.parametrize("mode", MODES)
def test_mp3_in_wav(mode):
    frames = without_header(mp3(speech(2.0, 16_000), 16_000, mode))
    content, expected = b"".join(frames), load_clip(b"".join(frames)).samples
    np.testing.assert_array_equal(load_clip(wav(content, 16_000, 32_000)).samples, expected)
    assert probe(wav(content, 16_000, 32_000)).seconds == samples_of(frames) / 16_000
    with pytest.raises(AudioError, match="cut off"):
        load_clip(wav(content, 16_000, 32_000)[: -len(content) // 2])


def layer_2(count: int) -> bytes:
    """Frames of MPEG 1 layer II, 44.1 kHz, 64 kbit/s, mono: nothing is allocated, so they hold silence."""
    frames = []
    for number in range(count):
        padding = (number + 1) * 208_980 // 1_000 - number * 208_980 // 1_000 - 208  # 208.98 bytes on the mean
        frames.append(bytes((0xFF, 0xFD, 0x40 | padding << 1, 0xC0)).ljust(208 + padding, b"\0"))
    return b"".join(frames)


@pytest.mark.parametrize("count", [3, 50, 1_000])
def test_layer_2_is_read_whole(count):
    for tag in (b"", id3(1_024)):
        assert len(load_clip(tag + layer_2(count)).samples) == 1_152 * count


def test_files_that_are_not_whole_are_refused():
    """By the count of the header, or in the middle of a frame where there is none."""
    data = mp3(speech(1.0, 16_000), 16_000)
    frames = without_header(data)
    other = without_header(mp3(speech(1.0, 24_000), 24_000))
    header = data[: len(data) - len(b"".join(frames))]
    for broken, message in (
        (data[: len(data) // 2], r"cut off, the last \d+ bytes of its last frame are missing"),
        (b"".join(frames)[:-7], r"cut off, the last 7 bytes of its last frame are missing"),
        (header + b"".join(frames[:-5]), rf"cut off, {len(frames) - 5} of {len(frames)} frames are there"),
        (data + b"".join(frames[:2]), rf"declares {samples_of(frames)} samples and holds {samples_of(frames) + 1_152}"),
        (data + data, "several recordings"),
        (data + ID3V1 + id3(45) + data, "several recordings"),
        (b"".join(frames + other), rf"changes its kind after {len(frames)} frames.*several recordings"),
        (b"".join(frames[:9]) + b"\x07" * 100 + b"".join(frames[9:]), r"damaged: at byte \d+, after 9 frames"),
        (header, rf"cut off, 0 of {len(frames)} frames are there"),
        (bytes((*frames[0][:2], frames[0][2] & 15, *frames[0][3:])) * 9, "free bit rate"),
        (id3(45) + bytes((*frames[0][:2], frames[0][2] & 15, *frames[0][3:])) * 9, "free bit rate"),
        (id3(145)[:45] + b"".join(frames), r"no frame of MPEG audio"),  # a tag that says it is longer
        (
            b"".join(frames) + ape(200)[:-20] + (900).to_bytes(4, "little") + ape(200)[-16:],
            r"cut off, the last \d+ bytes",
        ),
        (b"".join(frames) + b"LYRICSEND", r"damaged: at byte \d+"),
        (b"".join(frames) + ape_of(len(b"".join(frames))), r"damaged: at byte \d+"),
        (id3(45) + b"pair_id,score\n" * 50, "no frame of MPEG audio"),
    ):
        with pytest.raises(AudioError, match=message):
            load_clip(broken)


def test_a_header_that_counts_itself_or_says_nothing():
    data = mp3(speech(1.0, 16_000), 16_000)
    frames = without_header(data)
    place = data.index(b"Info") + 8
    counted = data[:place] + (len(frames) + 1).to_bytes(4, "big") + data[place + 4 :]
    np.testing.assert_allclose(load_clip(counted).samples, direct(data), atol=1e-6)
    silent = data[: place - 4] + bytes(4) + data[place:]  # no flag: neither count nor LAME tag
    assert len(load_clip(silent).samples) == samples_of(frames)
    vbri = bytearray(frames[0][:4]).ljust(len(frames[0]), b"\0")
    vbri[36:40], vbri[50:54] = b"VBRI", len(frames).to_bytes(4, "big")
    assert len(load_clip(bytes(vbri) + b"".join(frames)).samples) == samples_of(frames)


def test_a_constant_bit_rate_without_a_header():
    """Recorded streams have none; soundfile's length is then an estimate."""
    data = mp3(np.random.default_rng(0).normal(0, 0.1, 160_000), 16_000)
    assert len(load_clip(id3(20) + b"".join(without_header(data))).samples) == pytest.approx(160_000, abs=2_000)


def test_an_id3_tag_in_front_of_another_format():
    data = encoded(speech(0.5, 16_000), 16_000, "FLAC")
    assert len(load_clip(id3(45) + data).samples) == 8_000


def test_bytes_that_look_like_frames_do_no_harm():
    """Cut, changed and mixed at random: whole, or refused in one line."""
    draw = np.random.default_rng(0)
    data = id3(45) + b"".join(without_header(mp3(speech(0.5, 16_000), 16_000, "VARIABLE"))) + ape(100)
    for _ in range(300):
        broken = bytearray(data)
        for _ in range(draw.integers(1, 4)):
            at = int(draw.integers(len(broken)))
            broken[at : at + int(draw.integers(0, 9))] = draw.bytes(int(draw.integers(0, 9)))
        with contextlib.suppress(AudioError):  # any other error fails
            assert whole_mp3(bytes(broken)).samples > 0


# ---------------------------------------------------------------- FLAC

FLAC_RATE, FLAC_COUNT = 48_000, 240_000
FLAC = encoded(np.random.default_rng(0).normal(0, 0.1, FLAC_COUNT), FLAC_RATE, "FLAC")


def frames_of(data: bytes) -> list[bytes]:
    """The header of a file, and its frames: those of libFLAC are of one size, and count from 0."""
    starts, at = [], 42
    for number in range(1_000):
        coded = chr(number).encode()
        match = re.compile(rb"\xff\xf8..%b" % re.escape(coded), re.DOTALL).search(data, at)
        if match is None:
            break
        starts.append(match.start())
        at = match.end()
    return [data[start:end] for start, end in zip([0, *starts], [*starts, len(data)], strict=True)]


def with_total(data: bytes, samples: int) -> bytes:
    """Declares so many samples; 0 = as an encoder leaves it that writes to a pipe."""
    return data[:21] + bytes([data[21] & 0xF0]) + samples.to_bytes(4, "big") + data[26:]


@pytest.mark.parametrize("count", [160_000, 1_000])
def test_flac_of_unknown_length(tmp_path, count):
    whole = encoded(np.random.default_rng(0).normal(0, 0.1, count), kind="FLAC")
    (tmp_path / "a.flac").write_bytes(with_total(whole, 0))
    assert probe(tmp_path / "a.flac").seconds == count / 16_000
    np.testing.assert_array_equal(load_clip(tmp_path / "a.flac").samples, load_clip(whole).samples)


@pytest.mark.parametrize("claimed", [100, 28_000, 600 * 8_000 - 10_000])
def test_ten_minutes_of_flac_that_claim_less(claimed):
    data = encoded(np.random.default_rng(0).normal(0, 0.1, 600 * 8_000), 8_000, "FLAC")
    with pytest.raises(AudioError, match=r"declares \d+ samples and holds \d+; expected"):
        load_clip(with_total(data, claimed))


@pytest.mark.parametrize(
    "damaged",
    [lambda own: own[:10] + own[11:], lambda own: own[:11] + own[10:], lambda own: own * 2],
    ids=["a hole", "a frame twice", "all twice"],
)
def test_flac_with_a_hole(damaged):
    head, *frames = frames_of(FLAC)
    assert len(frames) == -(-FLAC_COUNT // 4_096)
    for begin in (head, with_total(head, 0)):
        with pytest.raises(AudioError, match=r"after \d+ samples some are missing or come again"):
            load_clip(begin + b"".join(damaged(frames)))


def test_flac_that_was_cut_without_decoding():
    head, *frames = frames_of(FLAC)
    cut = load_clip(with_total(head, 0) + b"".join(frames[10:])).samples
    np.testing.assert_array_equal(cut, load_clip(FLAC).samples[10 * 4_096 :])


@pytest.mark.parametrize("sizes", [(16, 4_096), (4_096, 65_535), (16, 16)])
def test_flac_whose_header_says_other_sizes_of_blocks(sizes):
    """The header of a stream of unknown length may be a guess; the frames say what they hold."""
    changed = with_total(FLAC[:8] + struct.pack(">HH", *sizes) + FLAC[12:], 0)
    np.testing.assert_array_equal(load_clip(changed).samples, load_clip(FLAC).samples)


def test_flac_that_ends_within_its_header():
    for length in range(4, 42):
        with pytest.raises(AudioError, match=r"FLAC|not a sound file"):
            load_clip(FLAC[:length])
