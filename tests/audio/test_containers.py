"""Sizes in headers: those of programs that stream are no cut, those of recordings that were cut are."""

from __future__ import annotations

import io
import struct
import wave

import numpy as np
import pytest
import soundfile
from empathy_judge.audio import containers
from empathy_judge.audio.decode import Clip, decode, load_clip, probe
from empathy_judge.core.errors import AudioError

COUNT = 24_000
RATE = 24_000
PCM = np.round(0.3 * 32_767 * np.sin(np.arange(COUNT) / 20)).astype("<i2")
TAG = b"TAG" + bytes(125)
ID3 = b"ID3\x03\x00\x00\x00\x00\x00\x0a" + bytes(10)
CHUNKS = b"LIST" + struct.pack("<I", 5) + b"INFO\0\0" + b"id3 " + struct.pack("<I", 4) + b"ID3\3"


def wav(data_bytes: int, riff_bytes: int | None = None, samples: bytes = PCM.tobytes(), rate: int = RATE) -> bytes:
    """A WAV file whose header declares so many bytes."""
    riff = min(data_bytes + 36, 0xFFFFFFFF) if riff_bytes is None else riff_bytes
    form = struct.pack("<IHHIIHH", 16, 1, 1, rate, 2 * rate, 2, 16)
    return b"RIFF" + struct.pack("<I", riff) + b"WAVEfmt " + form + b"data" + struct.pack("<I", data_bytes) + samples


def stored(kind: str, codec: str = "PCM_16", samples: np.ndarray = PCM, rate: int = RATE, **how: str) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, codec, format=kind, **how)
    return file.getvalue()


def patched(data: bytes, changes: list[tuple[int, bytes]]) -> bytes:
    content = bytearray(data)
    for at, new in changes:
        content[at : at + len(new)] = new
    return bytes(content)


def check_whole(data: bytes) -> None:
    clip = load_clip(data)
    assert clip.rate == RATE
    np.testing.assert_array_equal(clip.samples, PCM / np.float32(32_768))
    assert probe(data).seconds == COUNT / RATE


def check_cut(data: bytes) -> None:
    with pytest.raises(AudioError, match=r"the file is cut off, its last \d+ bytes are missing") as error:
        load_clip(data)
    assert error.value.kind == "the file is cut off"


@pytest.mark.parametrize(
    "declared",
    [
        0, 0xFFFFFFFF, 0xFFFFFFFF - 36, 0x7FFFFFFF, 0x7FFFFFFF - 36, 0x7FFFF000, 0x7FFE0000, 0x80000000, 0x3FFFFFFF,
        0x10000000, 2_000_000_000, 2_000_000_000 - 36, 200_000_000, 100_000_000, 400_000_000, 3_123_456_789,
    ],
)  # fmt: skip
def test_sizes_that_streaming_programs_declare_are_no_cut(tmp_path, declared):
    data = wav(declared)
    check_whole(data)
    check_whole(ID3 + data)
    (tmp_path / "a.wav").write_bytes(data)
    np.testing.assert_array_equal(decode(tmp_path / "a.wav", RATE), PCM / np.float32(32_768))


def test_the_size_of_the_file_may_be_unknown_alone():
    for riff in (0, 2_000_000_000, 0xFFFFFFFF):
        check_whole(wav(2 * COUNT, riff))
    check_whole(wav(0, 0))
    check_cut(wav(2 * COUNT + 100, 0xFFFFFFFF))


@pytest.mark.parametrize("declared", [2 * COUNT + 2, 100 * COUNT, 57_600_000, 115_200_000, 691_200_000, 1_234_567_890])
def test_a_recording_that_was_cut_is_refused(declared):
    """Two samples more, and an hour or more in formats of today."""
    check_cut(wav(declared))


def test_a_long_recording_that_was_cut_in_the_middle_is_refused():
    """Recorders end their files at 2 GiB; also where the size is round, a large part of it is a cut."""
    for declared in (0x7FFFFFFE, 2_000_000_000, 200_000_000, 3_123_456_789):
        for part, placeholder in ((2, False), (7, False), (9, True)):
            size = containers._Size(40, "<I", declared, declared // part)
            assert containers._is_placeholder(size) == placeholder
    assert containers._is_placeholder(containers._Size(40, "<I", 0xFFFFFFFF, 0xF0000000))
    head = wav(200_000_000, samples=b"")
    check_cut(head + bytes(26_000_000))
    assert probe(head + bytes(24_000_000)).seconds == 500


def test_an_empty_recording_has_no_samples_whatever_follows():
    for tail in (b"", CHUNKS, CHUNKS[:13]):
        with pytest.raises(AudioError, match="no samples") as error:
            load_clip(wav(0, samples=tail))
        assert error.value.kind == "the file is empty"
    with pytest.raises(AudioError, match="no samples"):
        load_clip(wav(0xFFFFFFFF, samples=b""))


def test_chunks_behind_the_samples_are_no_samples():
    for size in (2 * COUNT + 36, 0xFFFFFFFF, 0):
        check_whole(wav(2 * COUNT, size) + CHUNKS)
    with wave.open(io.BytesIO(wav(2 * COUNT) + CHUNKS)) as file:
        assert file.readframes(COUNT * 2) == PCM.tobytes()


def test_other_formats_of_unknown_size():
    """As FFmpeg writes them to a pipe, and with the placeholders of WAV."""
    au, aiff, caf, w64, rf64 = (stored(kind) for kind in ("AU", "AIFF", "CAF", "W64", "RF64"))
    for data in (au, aiff, caf, w64, rf64):
        check_whole(data)
    for size in (b"\xff" * 4, b"\0" * 4, struct.pack(">I", 2_000_000_000), b"\x7f\xff\xff\xff"):
        check_whole(patched(au, [(8, size)]))
    at = aiff.index(b"SSND") + 4
    frames = aiff.index(b"COMM") + 10
    for size in (b"\0" * 4, struct.pack(">I", 2_000_000_000), b"\xff" * 4):
        check_whole(patched(aiff, [(4, size), (frames, b"\0" * 4), (at, size)]))
        check_whole(patched(aiff, [(4, size)]))
    start = caf.index(b"data\0\0\0\0") + 4
    check_whole(patched(caf, [(start, b"\xff" * 8)]))
    start = w64.index(b"data\xf3\xac") + 16
    for size in (b"\xff" * 8, struct.pack("<Q", 1 << 40)):
        check_whole(patched(w64, [(16, size), (start, size)]))
        check_whole(patched(w64, [(16, size)]))
    for size in (b"\0" * 8, b"\xff" * 8, struct.pack("<Q", 1 << 40)):
        check_whole(patched(rf64, [(20, size), (28, size)]))


@pytest.mark.parametrize("kind", ["AU", "AIFF", "CAF", "W64", "RF64"])
def test_other_formats_that_were_joined_or_cut(tmp_path, kind):
    data = stored(kind)
    with pytest.raises(AudioError, match=r"the file (is cut off|cannot be|is damaged)|which cannot be read"):
        load_clip(data[:-1_000])
    (tmp_path / "joined").write_bytes(data * 2)
    with pytest.raises(AudioError, match="joined: the file holds several recordings one after the other"):
        load_clip(tmp_path / "joined")


@pytest.mark.parametrize("kind", ["WAV", "AU", "AIFF", "CAF", "W64", "RF64"])
def test_tags_and_zeros_around_the_samples_are_no_samples(tmp_path, kind):
    data = stored(kind)
    for start in (b"", ID3):
        for tail in (b"", TAG, bytes(1), bytes(5_000), bytes(7) + TAG):
            check_whole(start + data + tail)
    (tmp_path / "a").write_bytes(ID3 + data)
    check_whole((tmp_path / "a").read_bytes())
    np.testing.assert_array_equal(decode(tmp_path / "a", RATE), PCM / np.float32(32_768))
    noise = np.random.default_rng(0).bytes(5_000)
    with pytest.raises(AudioError, match=r"\d+ bytes follow the samples that the header declares; expected one whole"):
        load_clip(data + noise)


def test_a_header_that_says_less_than_there_is():
    with pytest.raises(AudioError, match="40000 bytes follow the samples that the header declares"):
        load_clip(wav(8_000))


def test_long_chunks_are_no_samples():
    check_whole(stored("WAV") + b"LIST" + struct.pack("<I", 4_000) + b"INFO" + bytes(3_996))
    check_whole(stored("AIFF") + b"ANNO" + struct.pack(">I", 1_000) + b"x" * 1_000)
    check_whole(stored("CAF") + b"uuid" + struct.pack(">q", 1_000) + b"x" * 1_000)
    own = bytes.fromhex("f3acd3118cd100c04f8edb8a")
    check_whole(stored("W64") + b"note" + own + struct.pack("<Q", 1_024) + b"x" * 1_000)


@pytest.mark.parametrize(("kind", "endian"), [("WAV", "BIG"), ("AU", "LITTLE")])
def test_files_of_the_other_byte_order(kind, endian):
    data = stored(kind, endian=endian)
    assert data[:4] in (b"RIFX", b"dns.")
    at = data.index(b"data") + 4 if kind == "WAV" else 8
    for whole in (data, ID3 + data, data + TAG, patched(data, [(at, b"\xff" * 4)])):
        check_whole(whole)
    check_cut(data[:-1])
    for noise in (600, 9_000):
        with pytest.raises(AudioError, match=f"{noise} bytes follow the samples that the header declares"):
            load_clip(data + np.random.default_rng(0).bytes(noise))
    with pytest.raises(AudioError, match="several recordings"):
        load_clip(data * 2)


def test_caf_that_lacks_a_few_bytes_is_refused():
    """libsndfile 1.2.2 reads the samples that are there."""
    data = stored("CAF")
    start = data.index(b"data\0\0\0\0") + 4
    for missing in (1, 2, 3, 4):
        check_cut(data[:-missing])
    open_end = patched(data, [(start, b"\xff" * 8)])
    for missing in (1, 3):
        with pytest.raises(AudioError, match="the file is cut off in the middle of a sample"):
            load_clip(open_end[:-missing])


@pytest.mark.parametrize("kind", ["RF64", "W64"])
def test_a_size_of_the_file_that_counts_its_first_bytes_is_no_cut(kind):
    """All samples are there, which the size of the samples says."""
    data = stored(kind)
    at, size = (20, len(data)) if kind == "RF64" else (16, len(data) + 8)
    check_whole(patched(data, [(at, struct.pack("<Q", size))]))
    check_cut(patched(data, [(at, struct.pack("<Q", size))])[:-100])


def without_sizes(kind: str, codec: str, channels: int) -> bytes:
    """A file as a program writes it that cannot go back to the header, of a whole number of blocks."""
    data = stored(kind, codec, np.stack([PCM[:16_192] / 32_768] * channels, axis=1))
    place, form = {"AIFF": (b"SSND", ">I"), "AU": (b".snd", ">I"), "WAV": (b"data", "<I")}[kind]
    at = data.index(place) + (8 if kind == "AU" else 4)
    size = {"AIFF": 0, "AU": 0xFFFFFFFF, "WAV": 0xFFFFFFFF}[kind]
    return patched(data, [(at, struct.pack(form, size)), *([(4, bytes(4))] if kind == "AIFF" else [])])


@pytest.mark.parametrize(
    ("kind", "codec", "channels", "block"),
    [
        ("WAV", "PCM_16", 1, 2), ("WAV", "PCM_24", 2, 6), ("WAV", "FLOAT", 2, 8), ("WAV", "MS_ADPCM", 1, 1_024),
        ("WAV", "IMA_ADPCM", 2, 2_048), ("WAV", "ULAW", 2, 2), ("AIFF", "PCM_16", 2, 4), ("AIFF", "ULAW", 2, 2),
        ("AIFF", "IMA_ADPCM", 1, 34), ("AU", "PCM_24", 1, 3), ("AU", "DOUBLE", 2, 16), ("AU", "ALAW", 2, 2),
    ],
)  # fmt: skip
def test_what_ends_within_a_sample_was_cut(kind, codec, channels, block):
    """Of a cut file without sizes it is the one sign; the rest of a block would be heard as noise or silence."""
    data = without_sizes(kind, codec, channels)
    whole = load_clip(data).samples
    assert len(whole) >= 16_192
    for missing in {1, block // 2, block - 1} | set(range(2, min(block, 9))):
        with pytest.raises(AudioError, match="the file is cut off in the middle of a sample"):
            load_clip(data[:-missing])
    assert len(whole) > len(load_clip(data[:-block]).samples) > len(whole) - 2_100


@pytest.mark.parametrize(("codec", "channels"), [("MS_ADPCM", 1), ("IMA_ADPCM", 2)])
@pytest.mark.parametrize("count", [16_192, 16_193, 20_000])
def test_what_fills_the_last_block_of_adpcm_is_no_recording(codec, channels, count):
    data = stored("WAV", codec, np.stack([PCM[:count] / 32_768] * channels, axis=1))
    at = data.index(b"fact") + 8
    frames = soundfile.info(io.BytesIO(data)).frames
    block = int.from_bytes(data[38:40], "little")
    assert 0 <= frames - count < block
    for declared, expected in ((count, count), (frames - block, frames), (0, frames), (frames + 1, frames)):
        clip = load_clip(patched(data, [(at, struct.pack("<I", declared))]))
        assert len(clip.samples) == expected
        assert np.abs(clip.samples[count - 1_000 : count] - PCM[count - 1_000 : count] / 32_768).max() < 0.01
    for cut_off in (b"fact\x04\0\0\0", b"fmt \x20\0\0\0" + bytes(10)):
        assert len(load_clip(data + cut_off).samples) == len(load_clip(data).samples)


def test_a_byte_of_padding_is_no_sign_of_a_cut():
    data = wav(0xFFFFFFFF, samples=bytes([128]) * 24_001 + b"\0")
    data = patched(data, [(32, struct.pack("<HH", 1, 8)), (28, struct.pack("<I", RATE))])
    assert len(load_clip(data).samples) in (24_001, 24_002)
    odd = np.zeros((8_001, 3), np.uint8)
    data = patched(wav(0xFFFFFFFF, samples=odd.tobytes() + b"\0"), [(32, struct.pack("<HH", 3, 24))])
    assert len(load_clip(data).samples) == 8_001


@pytest.mark.parametrize(("bits", "width"), [(24, 4), (16, 4), (16, 3), (20, 4), (12, 3), (8, 2)])
@pytest.mark.parametrize("channels", [1, 2])
def test_samples_in_wider_containers_are_not_read_as_noise(bits, width, channels):
    """libsndfile and ffmpeg go by the bits; of 24 in four bytes libsndfile guesses the place."""
    block = channels * width
    form = struct.pack("<HHIIHH", 1, channels, RATE, RATE * block, block, bits)
    data = patched(wav(2 * COUNT), [(20, form)])
    with pytest.raises(AudioError, match=rf"blocks of {block} bytes for {channels} x {bits} bits; expected "):
        load_clip(data)
    # one number alone is wrong: the samples are as their bits say
    least = channels * -(-bits // 8)
    data = patched(data, [(28, struct.pack("<I", RATE * least))])
    assert len(load_clip(data).samples) == 2 * COUNT // least


@pytest.mark.parametrize(
    ("kind", "codec", "block", "samples"),
    [("WAV", "GSM610", 65, 320), ("W64", "GSM610", 65, 320), ("AU", "G721_32", 60, 120)],
)
@pytest.mark.parametrize("blocks", [74, 75])
def test_nothing_behind_the_last_block_is_decoded(kind, codec, block, samples, blocks):
    """libsndfile 1.2.2 decodes the byte behind an odd number of blocks, and what stands behind samples, as noise."""
    values = 0.3 * np.sin(np.arange(blocks * samples) / 20)
    data = stored(kind, codec, values, 8_000)
    whole = load_clip(data).samples
    assert len(whole) == len(values)
    np.testing.assert_array_equal(whole, soundfile.read(io.BytesIO(data), dtype="float32")[0][: len(values)])
    for changed in (data + TAG, data + bytes(1_000), ID3 + data):
        np.testing.assert_array_equal(load_clip(changed).samples, whole)
    with pytest.raises(AudioError, match="cut off"):
        load_clip(data[: -block // 2])


def test_gsm_of_unknown_size_ends_with_its_last_block():
    data = stored("WAV", "GSM610", rate=8_000)
    at = data.index(b"data") + 4
    for size in (b"\0" * 4, b"\xff" * 4, struct.pack("<I", 75 * 65 + 1)):
        np.testing.assert_array_equal(load_clip(patched(data, [(at, size)])).samples, load_clip(data).samples)
    with pytest.raises(AudioError, match="the file is cut off in the middle of a block"):
        load_clip(patched(data, [(at, b"\xff" * 4)])[:-5])


@pytest.mark.parametrize("declared", [2 * COUNT, 0, 0xFFFFFFFF, 0x7FFFFFFF, 2_000_000_000, 200_000_000, 4 * COUNT + 44])
def test_streams_one_after_the_other_are_refused_whatever_their_sizes(declared):
    """Each inner header would be heard as 22 samples, a second recording at the rate of the first."""
    first = wav(declared)
    for other in (first, wav(declared, rate=8_000), wav(2 * COUNT), first * 3):
        for start in (b"", ID3):
            with pytest.raises(AudioError, match="the file holds several recordings one after the other; expected"):
                load_clip(start + first + other)


def test_a_second_header_is_found_at_any_place():
    whole = wav(0xFFFFFFFF)
    for length in range(200, 270):
        with pytest.raises(AudioError, match="several recordings"):
            load_clip(whole[: 44 + 2 * length] + whole)
    check_whole(whole)


def test_a_file_of_zeros_takes_no_time():
    data = wav(0)[:36] + bytes(20_000_000)
    with pytest.raises(AudioError):
        load_clip(data)


def test_voc_of_several_blocks_is_refused():
    """libsndfile reads the headers of its blocks as samples."""
    block = struct.pack("<IBBHI", RATE, 16, 1, 4, 0)
    body = PCM.tobytes()
    head = b"Creative Voice File\x1a\x1a\x00\x14\x01\x1f\x11"
    data = head + b"\x09" + (12 + len(body)).to_bytes(3, "little") + block + body
    more = b"\x02" + len(body).to_bytes(3, "little") + body
    with pytest.raises(AudioError, match=r"VOC \(Creative Labs\), of which it cannot be told"):
        load_clip(data + more + b"\0")


def test_the_rule_for_round_numbers():
    for number in (1 << 28, (1 << 30) + 36, 0x77000000, 150_000_000, 990_000_000, 2 * 10**8 - 44, 0x3FFFF000):
        assert containers._is_round(number), number
    for number in (99_999_999, 115_200_000, 158_760_000, 345_600_000, 691_200_000, 635_040_000, 172_800_000):
        assert not containers._is_round(number), number
    rng = np.random.default_rng(0)
    found = [containers._is_round(int(n)) for n in rng.integers(10**8, 2**31, 20_000)]
    assert sum(found) < 0.005 * len(found)


def test_clips_in_memory_are_not_touched():
    clip = Clip(PCM / np.float32(32_768), RATE)
    assert load_clip(clip).samples is clip.samples


def test_a_file_that_steps_back_beyond_its_beginning_says_one_line(capfd):
    whole = stored("AIFF", "FLOAT", PCM / 32_768)
    for length in range(12, 100):
        with pytest.raises(AudioError):
            load_clip(whole[:length])
    assert capfd.readouterr().err == ""
