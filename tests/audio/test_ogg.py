"""Ogg that was cut, mixed, damaged, or that says less than it holds: read whole, to the sample, or refused."""

from __future__ import annotations

import re
import struct

import numpy as np
import pytest
from empathy_judge.audio.decode import decode, load_clip, probe
from empathy_judge.core.errors import AudioError

from ..conftest import encoded

RATE = 48_000
COUNT = 5 * RATE
SAMPLES = np.random.default_rng(0).normal(0, 0.1, COUNT)
OPUS, VORBIS = (encoded(SAMPLES, RATE, "OGG", codec) for codec in ("OPUS", "VORBIS"))


def pages_of(data: bytes) -> list[bytes]:
    starts = [match.start() for match in re.finditer(b"OggS\0", data)]
    return [data[start:end] for start, end in zip(starts, [*starts[1:], len(data)], strict=True)]


def with_changes(page: bytes, later: int = 0, most: int | None = None, serial: int | None = None) -> bytes:
    """A page with a later position, at most this one, or another serial number, and its checksum (RFC 3533)."""
    (granule,) = struct.unpack_from("<q", page, 6)
    granule = granule + later if granule > 0 else granule
    granule = granule if most is None else min(granule, most)
    page = page[:6] + struct.pack("<q", granule) + page[14:22] + bytes(4) + page[26:]
    if serial is not None:
        page = page[:14] + struct.pack("<I", serial) + page[18:]
    checksum = 0
    for byte in page:
        checksum ^= byte << 24
        for _ in range(8):
            checksum = (checksum << 1 ^ (0x104C11DB7 if checksum >> 31 else 0)) & 0xFFFFFFFF
    return page[:22] + struct.pack("<I", checksum) + page[26:]


def with_granules(data: bytes, most: int, last: bool = False) -> bytes:
    """A file whose pages, or the last of them, declare less."""
    *pages, end = pages_of(data)
    pages = pages if last else [with_changes(page, most=most) for page in pages]
    return b"".join([*pages, with_changes(end, most=most)])


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
    # An empty page of another stream changes nothing
    pages = pages_of(data)
    pages.insert(1, with_changes(b"OggS\0\x02" + bytes(21), serial=1))
    np.testing.assert_array_equal(load_clip(b"".join(pages)).samples, load_clip(OPUS).samples)
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


@pytest.mark.parametrize("whole", [OPUS, VORBIS])
def test_the_last_page(whole):
    """Cut off in it, or damaged, so that the decoder passes it over; tags and zeros around the pages are no content."""
    for source in (whole[:-100], whole[:-100] + bytes(100)):
        with pytest.raises(AudioError, match="cut off in the middle of an Ogg page"):
            load_clip(source)
    for changed in (b"ID3\x03\0\0\0\0\0\x0a" + bytes(10) + whole, whole + bytes(500), whole + b"TAG" + bytes(125)):
        np.testing.assert_array_equal(load_clip(changed).samples, load_clip(whole).samples)


@pytest.mark.parametrize("other", [OPUS, encoded(SAMPLES[:4_000], 8_000, "OGG")])
def test_a_chain_of_unlike_parts(other):
    with pytest.raises(AudioError, match="several recordings"):
        load_clip(VORBIS + other)


@pytest.mark.parametrize(("codec", "times"), [("VORBIS", 1), ("OPUS", 6)])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("claimed", [28_000, 60 * 8_000 - 10_000])
def test_a_minute_that_claims_less(codec, times, last, claimed):
    """The decoder would read the first samples: of what all pages or the last page say."""
    data = encoded(np.random.default_rng(0).normal(0, 0.1, 60 * 8_000), 8_000, "OGG", codec)
    with pytest.raises(AudioError, match=r"declares \d+ samples and holds (at least )?\d+; expected"):
        load_clip(with_granules(data, claimed * times, last))


@pytest.mark.parametrize("rate", [8_000, 44_100])
@pytest.mark.parametrize("compression", [0.1, 0.9])
def test_vorbis_is_counted_to_the_last_blocks(rate, compression):
    """Loud and quiet stretches: long blocks and short ones."""
    times = np.arange(5 * rate)
    samples = 0.2 * np.sin(times / 20) * (times % 9_000 < 2_000) + 0.5 * (times % 4_000 == 0)
    data = encoded(samples, rate, "OGG", "VORBIS", compression_level=compression)
    assert len(decode(data, rate)) == 5 * rate
    with pytest.raises(AudioError, match="the file declares"):
        decode(with_granules(data, 5 * rate - 6_000, last=True), rate)


@pytest.mark.parametrize(("rate", "compression"), [(16_000, 0.5), (16_000, 0.99), (24_000, 0.9)])
def test_opus_is_counted_in_all_its_modes(rate, compression):
    """For music, for speech at low bit rates, and both."""
    tone = 0.5 * np.sin(2 * np.pi * 440 * np.arange(3 * rate) / rate)
    data = encoded(tone, rate, "OGG", "OPUS", compression_level=compression)
    assert len(decode(data, rate)) == 3 * rate
    with pytest.raises(AudioError, match=r"declares 96000 samples and holds at least 1[34]"):
        decode(with_granules(data, 96_000), rate)
