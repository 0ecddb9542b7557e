"""Ogg and FLAC that were cut, mixed or damaged without decoding: read whole, to the sample, or refused."""

from __future__ import annotations

import io
import re
import struct

import numpy as np
import pytest
import soundfile
from empathy_judge.data_modules.audio import load_clip, probe
from empathy_judge.data_modules.errors import AudioError

RATE = 48_000
COUNT = 5 * RATE
SAMPLES = np.random.default_rng(0).normal(0, 0.1, COUNT)


def encoded(kind: str, subtype: str | None = None) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, SAMPLES, RATE, subtype, format=kind)
    return file.getvalue()


def pages_of(data: bytes) -> list[bytes]:
    starts = [match.start() for match in re.finditer(b"OggS\0", data)]
    return [data[start:end] for start, end in zip(starts, [*starts[1:], len(data)], strict=True)]


def with_changes(page: bytes, later: int = 0, serial: int | None = None) -> bytes:
    """A page with another position or serial number, and its checksum (RFC 3533)."""
    (granule,) = struct.unpack_from("<q", page, 6)
    page = (
        page[:6] + struct.pack("<q", granule + later if granule > 0 else granule) + page[14:22] + bytes(4) + page[26:]
    )
    if serial is not None:
        page = page[:14] + struct.pack("<I", serial) + page[18:]
    checksum = 0
    for byte in page:
        checksum ^= byte << 24
        for _ in range(8):
            checksum = (checksum << 1 ^ (0x104C11DB7 if checksum >> 31 else 0)) & 0xFFFFFFFF
    return page[:22] + struct.pack("<I", checksum) + page[26:]


OPUS, VORBIS, FLAC = encoded("OGG", "OPUS"), encoded("OGG", "VORBIS"), encoded("FLAC")


@pytest.mark.parametrize("whole", [OPUS, VORBIS])
def test_a_page_that_is_lost_or_damaged(whole):
    """Decoders pass over a page with a wrong checksum, as over one that is missing."""
    assert len(load_clip(whole).samples) == COUNT
    pages = pages_of(whole)
    assert len(pages) > 5
    middle = len(pages) // 2
    damaged = pages[middle][:100] + bytes([pages[middle][100] ^ 1]) + pages[middle][101:]
    for page in (b"", damaged):
        with pytest.raises(AudioError, match=rf"\d+ of {COUNT} samples are there"):
            load_clip(b"".join((*pages[:middle], page, *pages[middle + 1 :])))


@pytest.mark.parametrize("start", [960, 3_600 * RATE])
def test_opus_whose_positions_do_not_begin_with_0(start):
    """As ffmpeg -ss -c copy and recorders of streams write it: what the encoder put in front is skipped as ever."""
    data = b"".join(with_changes(page, later=start) for page in pages_of(OPUS))
    np.testing.assert_array_equal(load_clip(data).samples, load_clip(OPUS).samples)
    pages = pages_of(OPUS)
    first = struct.unpack_from("<q", pages[2], 6)[0]
    assert probe(b"".join(pages[:2] + pages[3:])).seconds == (COUNT - first) / RATE
    # the first samples after a cut differ: a decoder needs some to settle
    cut = load_clip(b"".join(pages[:2] + pages[3:])).samples
    np.testing.assert_allclose(cut[RATE:], load_clip(OPUS).samples[first + RATE :], atol=1e-3)


def test_vorbis_whose_positions_begin_below_0_is_refused():
    """libsndfile would take the samples from the middle."""
    data = b"".join(with_changes(page, later=-500) for page in pages_of(VORBIS))
    with pytest.raises(AudioError, match=r"declares \d+ samples where it holds \d+; expected a file as encoders"):
        load_clip(data)


@pytest.mark.parametrize("whole", [OPUS, VORBIS])
def test_an_index_of_skeleton_is_no_other_recording(whole):
    fishead = b"fishead\0" + struct.pack("<HHqqqq20s", 3, 0, 0, 1_000, 0, 1_000, b"")
    head = with_changes(b"OggS\0\2" + bytes(16) + bytes(4) + bytes([1, len(fishead)]) + fishead, serial=7)
    last = with_changes(b"OggS\0\4" + bytes(12) + struct.pack("<I", 1) + bytes(4) + b"\1\0", serial=7)
    first, second, *others = pages_of(whole)
    data = b"".join((head, first, second, last, *others))
    np.testing.assert_array_equal(load_clip(data).samples, load_clip(whole).samples)


def test_recordings_side_by_side_are_refused():
    ours, others = pages_of(OPUS), [with_changes(page, serial=7) for page in pages_of(OPUS)]
    mixed = b"".join(page for pair in zip(ours, others, strict=True) for page in pair)
    with pytest.raises(AudioError, match="holds 2 recordings side by side; expected one"):
        load_clip(mixed)


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


def without_total(head: bytes) -> bytes:
    return head[:21] + bytes([head[21] & 0xF0]) + bytes(4) + head[26:]


def test_flac_of_unknown_length_with_a_hole():
    head, *frames = frames_of(FLAC)
    assert len(frames) == -(-COUNT // 4_096)
    unknown = without_total(head)
    np.testing.assert_array_equal(load_clip(unknown + b"".join(frames)).samples, load_clip(FLAC).samples)
    for damaged in (frames[:10] + frames[11:], frames[:11] + frames[10:], frames * 2):
        for begin in (head, unknown):
            with pytest.raises(AudioError, match=r"after \d+ samples some are missing or come again"):
                load_clip(begin + b"".join(damaged))


def test_flac_that_was_cut_without_decoding():
    head, *frames = frames_of(FLAC)
    np.testing.assert_array_equal(
        load_clip(without_total(head) + b"".join(frames[10:])).samples, load_clip(FLAC).samples[10 * 4_096 :]
    )


@pytest.mark.parametrize("sizes", [(16, 4_096), (4_096, 65_535), (16, 16)])
def test_flac_whose_header_says_other_sizes_of_blocks(sizes):
    """The header of a stream of unknown length may be a guess; the frames say what they hold."""
    changed = without_total(FLAC[:8] + struct.pack(">HH", *sizes) + FLAC[12:])
    np.testing.assert_array_equal(load_clip(changed).samples, load_clip(FLAC).samples)


def test_flac_that_ends_within_its_header():
    for length in range(4, 42):
        with pytest.raises(AudioError, match=r"FLAC|not a sound file"):
            load_clip(FLAC[:length])


def test_a_file_that_steps_back_beyond_its_beginning_says_one_line(capfd):
    whole = encoded("AIFF", "FLOAT")
    for length in range(12, 100):
        with pytest.raises(AudioError):
            load_clip(whole[:length])
    assert capfd.readouterr().err == ""
