"""Files that libsndfile does not read are named, with what to do."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import soundfile
from empathy_judge.audio.decode import load_clip
from empathy_judge.core.errors import AudioError

from ..conftest import encoded

SAMPLES = np.random.default_rng(0).normal(0, 0.1, 8_000)
MP4 = struct.pack(">I", 28) + b"ftyp"


def wav_of(code: int, bits: int = 16, extended: bytes = b"") -> bytes:
    form = struct.pack("<HHIIHH", code, 1, 16_000, 32_000, 2, bits) + extended
    return b"RIFF" + struct.pack("<I", 4_000) + b"WAVEfmt " + struct.pack("<I", len(form)) + form + bytes(3_900)


def flac_of(bits: int) -> bytes:
    data = bytearray(encoded(SAMPLES, kind="FLAC"))
    data[20] |= (bits - 1) >> 4
    data[21] = ((bits - 1) & 15) << 4 | data[21] & 15
    return bytes(data)


def ogg_of(first: bytes) -> bytes:
    return b"OggS\0\2" + bytes(20) + bytes([1, len(first)]) + first + bytes(300)


def sphere(fields: str) -> bytes:
    return f"NIST_1A\n   1024\nsample_count -i 8000\nsample_rate -i 16000\n{fields}\nend_head\n".encode().ljust(
        1_024
    ) + bytes(24_000)


CAF = b"caff\0\1\0\0desc" + struct.pack(">qd", 32, 16_000.0)
SPHERE_24 = "channel_count -i 1\nsample_n_bytes -i 3\nsample_byte_format -s3 012\nsample_sig_bits -i 24"
SHORTEN = "channel_count -i 1\nsample_n_bytes -i 2\nsample_coding -s26 pcm,embedded-shorten-v2.00"


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (flac_of(32), "FLAC with 32 bits"),
        (CAF + b"alac" + bytes(3_000), "CAF with the codec 'alac'"),
        (CAF + b"ima4" + bytes(3_000), "CAF with the codec 'ima4'"),
        (b"ID3\3\0\0\0\0\0\x0a" + bytes(10) + CAF + b"ima4" + bytes(3_000), "CAF with the codec 'ima4'"),
        (CAF + b"lpcm" + struct.pack(">IIIII", 0, 4, 1, 1, 24) + bytes(900), "CAF with 24 bits in packets of 4 bytes"),
        (b"FORM\0\0\x04\0AIFFCOMM" + struct.pack(">IhIh", 18, 1, 90, 4) + bytes(900), "AIFF"),
        (sphere(SPHERE_24), "SPHERE with 24 bits"),
        (sphere(SHORTEN), "SPHERE with 16 bits as pcm,embedded-shorten-v2.00"),
        (ogg_of(b"\x7fFLAC\1\0\0\1fLaC"), "FLAC in Ogg"),
        (ogg_of(b"Speex   1.2"), "Speex in Ogg"),
        (wav_of(0xFF), "WAV with AAC"),
        (wav_of(0x1234), "WAV with the codec 0x1234"),
        (wav_of(1, 64), "WAV with 64 bits"),
        (MP4 + b"M4A \0\0\2\0isom" + bytes(900), "M4A"),
        (MP4 + b"isom\0\0\2\0isom" + bytes(900), "MP4"),
        (MP4 + b"3gp4\0\0\2\0isom" + bytes(900), "3GP"),
        (b"\x1a\x45\xdf\xa3\x9fB\x86\x81\1" + bytes(900), "WebM or Matroska"),
        (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11\xa6\xd9" + bytes(900), "WMA or another kind of ASF"),
        (b"#!AMR\n" + bytes(900), "AMR"),
        (b"#!AMR-WB\n" + bytes(900), "AMR"),
        (b"\x02#!SILK_V3" + bytes(900), "SILK"),
        (b"\xff\xf1\x58\x40\x3c\x3f\xfc" + bytes(900), "AAC"),
        (b"BW64\xff\xff\xff\xffWAVEds64" + bytes(900), "BW64"),
        (b"wvpk" + bytes(900), "WavPack"),
    ],
)  # fmt: skip
def test_a_recording_in_another_format_is_named(tmp_path, data, name):
    path = tmp_path / "a.snd"
    path.write_bytes(data)
    for source in (path, data):
        with pytest.raises(AudioError) as error:
            load_clip(source)
        text = str(error.value)
        assert f": {name}, which cannot be read" in text
        assert "convert it, as with ffmpeg" in text
        assert "Format not recognised" not in text
        assert error.value.kind == "not supported"


def test_what_libsndfile_says_is_told():
    with pytest.raises(AudioError, match=r"FLAC with 32 bits.*\(File contains data in an unimpl"):
        load_clip(flac_of(32))


@pytest.mark.parametrize(
    "data",
    [
        b"pair_id,score\n" * 30, b'{"error": "not found"}' * 20, b"<!DOCTYPE html><html>" * 20, bytes(500),
        b"PK\3\4" * 90,
        b"RIFF", b"fLaC", b"caff\0\1", b"MAChine learning", b"Good morning",
    ],
)  # fmt: skip
def test_what_is_no_recording_is_not_called_one(data):
    with pytest.raises(AudioError, match=r"not a sound file; expected wav") as error:
        load_clip(data)
    assert error.value.kind == "not a sound file"


def test_a_pointer_of_git_lfs_is_told_from_the_file():
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d' * 32}\nsize 12345\n".encode()
    with pytest.raises(AudioError, match=r"a pointer of Git LFS.*git lfs pull"):
        load_clip(pointer)


def sphere_16(declared: int, count: int) -> bytes:
    fields = "channel_count -i 1\nsample_n_bytes -i 2\nsample_byte_format -s2 01\nsample_coding -s3 pcm"
    head = f"NIST_1A\n   1024\nsample_rate -i 16000\n{fields}\nsample_count -i {declared}\nend_head\n"
    return head.encode().ljust(1_024) + np.arange(count, dtype="<i2").tobytes()


def test_sphere_is_read_whole_or_refused():
    """libsndfile 1.2.2 takes its length from the size of the file alone."""
    whole = load_clip(sphere_16(4_000, 4_000)).samples
    np.testing.assert_array_equal(whole, np.arange(4_000, dtype=np.float32) / 32_768)
    np.testing.assert_array_equal(load_clip(b"ID3\3\0\0\0\0\0\0" + sphere_16(4_000, 4_000)).samples, whole)
    for count in (2_000, 3_999, 4_064, 8_512):
        with pytest.raises(AudioError, match=f"declares 4000 samples and has room for {count};"):
            load_clip(sphere_16(4_000, count))


@pytest.mark.parametrize("kind", ["IRCAM", "PAF", "PVF", "AVR", "MPC2K", "MAT4", "MAT5", "VOC"])
def test_formats_that_may_be_cut_unseen_are_named(kind):
    whole = encoded(np.sin(np.arange(8_000) / 20), 16_000, kind, "PCM_16")
    for data in (whole, whole[:9_000]):
        with pytest.raises(AudioError, match=r"cannot be told whether it is whole.*ffmpeg"):
            load_clip(data)


def test_form_files_that_are_no_aiff_are_not_opened(monkeypatch):
    monkeypatch.setattr(soundfile, "SoundFile", None)
    for tag in (b"", b"ID3\x03\x00\x00\x00\x00\x00\x0a" + bytes(10)):
        with pytest.raises(AudioError, match="a FORM file that is no AIFF"):
            load_clip(tag + b"FORM" + (4).to_bytes(4, "big") + b"8SVX")


def wave64(subformat: int, samples: np.ndarray) -> bytes:
    """Of six channels, with WAVE_FORMAT_EXTENSIBLE, as FFmpeg writes it."""
    own, width = bytes.fromhex("f3acd3118cd100c04f8edb8a"), samples.dtype.itemsize
    layout = struct.pack("<HHIIHH", 0xFFFE, 6, 48_000, 288_000 * width, 6 * width, 8 * width)
    layout += struct.pack("<HHIH", 22, 8 * width, 63, subformat) + bytes.fromhex("000000001000800000aa00389b71")
    chunks = b"wave" + own + b"fmt " + own + struct.pack("<Q", 24 + len(layout)) + layout
    chunks += b"data" + own + struct.pack("<Q", 24 + samples.nbytes) + samples.tobytes()
    return b"riff" + bytes.fromhex("2e91cf11a5d628db04c10000") + struct.pack("<Q", 24 + len(chunks)) + chunks


def test_wave64_of_six_channels_is_read_as_what_it_is():
    """libsndfile 1.2.2 reads floats as integers, and mu-law as unsigned bytes."""
    values = np.repeat(0.4 * np.sin(np.arange(9_600) / 20), 6)
    for samples in (np.rint(values * 2**15).astype("<i2"), np.rint(values * 2**31).astype("<i4")):
        np.testing.assert_allclose(load_clip(wave64(1, samples)).samples, values[::6], atol=1e-4)
    floats, bytes_of_mu_law = values.astype("<f4"), np.zeros(57_600, np.uint8)
    for subformat, samples, encoding in ((3, floats, "IEEE float"), (7, bytes_of_mu_law, "u-law")):
        with pytest.raises(AudioError, match=f"Wave64 of {encoding} with more than two channels"):
            load_clip(wave64(subformat, samples))
