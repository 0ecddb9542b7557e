"""What an Ogg file holds, counted from its packets: a page may declare less, and decoders believe the page.

Sources: RFC 3533 (Ogg), RFC 6716 and 7845 (Opus), and the Vorbis I specification.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from ..core.errors import AudioError

JOINED = "holds several recordings one after the other; expected one recording, joined by decoding"
_OGG_POSITION = re.compile(rb"OggS\x00.(.{8})", re.DOTALL)
_OPUS_MS = (10, 20, 40, 60)
_OPUS_HEADERS, _VORBIS_HEADERS, _VORBIS_MODE_BITS = 2, 3, 41
_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


@dataclass
class _OggStream:
    """One logical stream of an Ogg file."""

    packets: list[bytes] = field(default_factory=list)  # the first three, and the first two bytes of every other
    open: bool = False  # whether the last packet goes on
    pages: list[slice] = field(default_factory=list)
    ends: list[tuple[int, int]] = field(default_factory=list)  # packets up to the end of a page, and its position


def whole_ogg(data: bytes) -> bytes:
    """An Ogg file as libsndfile reads it to its end.

    Zeros and an ID3v1 tag behind the last page are left out, and so is Skeleton, which says where things are in a file.
    The positions of Opus that was cut without decoding do not begin with 0; libsndfile 1.2.2 would not skip what an
    encoder puts in front, and end as much too early. They are counted from 0.

    Raises:
        AudioError: If several recordings stand one after the other, or side by side, or a page of Opus or Vorbis holds
            more samples than it declares: those would be read in part. The last page does not count within what
            encoders add to the last packets.
    """
    streams, end = _ogg_streams(data)
    sounds = {serial: samples for serial, stream in streams.items() if (samples := _samples(stream)) is not None}
    if len(sounds) > 1:
        raise _unusable(f"holds {len(sounds)} recordings side by side; expected one")
    start = 0
    for serial, (headers, counts) in sounds.items():
        start = _checked_start(streams[serial], headers, counts)
    changed = {}
    for stream in streams.values():
        # A stream may have pages that hold nothing
        head = stream.packets[0] if stream.packets else b""
        if head.startswith(b"fishead\0"):
            changed |= {page.start: b"" for page in stream.pages}
        elif start > 0 and head.startswith(b"OpusHead"):
            changed |= {page.start: _earlier(data[page], start) for page in stream.pages}
    if changed:
        pages = sorted((page for stream in streams.values() for page in stream.pages), key=lambda page: page.start)
        data = b"".join(changed.get(page.start, data[page]) for page in pages) + data[end:]
    return _without_tail(data)


def _unusable(problem: str) -> AudioError:
    return AudioError(f"the file {problem}", "cannot be used")


def _ogg_streams(data: bytes) -> tuple[dict[bytes, _OggStream], int]:
    """The streams of a file by their serial numbers, and where the last page ends."""
    streams: dict[bytes, _OggStream] = {}
    content_seen = False  # a page of content was read: a stream that begins after it is another recording
    position = 0
    while data[position : position + 4] == b"OggS" and position + 27 <= len(data):
        flags, granule = data[position + 5], int.from_bytes(data[position + 6 : position + 14], "little", signed=True)
        lacing = data[position + 27 : position + 27 + data[position + 26]]
        # side by side, streams begin before there is content; a later beginning is that of a second file
        if flags & 2 and content_seen:
            raise _unusable(JOINED)
        content_seen = content_seen or not flags & 2
        stream = streams.setdefault(data[position + 14 : position + 18], _OggStream())
        stream.pages.append(slice(position, position + 27 + len(lacing) + sum(lacing)))
        position += 27 + len(lacing)
        for size in lacing:
            if not stream.open:
                stream.packets.append(b"")
            # two bytes of a packet tell its length; to hold all would copy the file
            limit = size if len(stream.packets) <= _VORBIS_HEADERS else 2 - len(stream.packets[-1])
            stream.packets[-1] += data[position : position + max(min(limit, size), 0)]
            stream.open = size == 255
            position += size
        if granule >= 0:  # -1 = no packet ends on this page
            stream.ends.append((len(stream.packets) - stream.open, granule))
    return streams, position


def _samples(stream: _OggStream) -> tuple[int, list[int]] | None:
    """Number of packets that are headers, and of samples up to the end of each later packet, from 0; None = of a codec
    that is not known."""
    head = stream.packets[0] if stream.packets else b""
    if head[:8] == b"OpusHead":
        return _OPUS_HEADERS, list(accumulate(map(_opus_samples, stream.packets[_OPUS_HEADERS:]), initial=0))
    if head[:7] == b"\x01vorbis" and len(head) > 28:
        return _VORBIS_HEADERS, _vorbis_samples(stream.packets)
    return None


def _checked_start(stream: _OggStream, headers: int, counts: Sequence[int]) -> int:
    """The position of the first sample."""
    ends = [(counts[number - headers], granule) for number, granule in stream.ends if number > headers]
    if not ends:
        return 0
    start = ends[0][1] - ends[0][0] if len(ends) > 1 else max(ends[0][1] - ends[0][0], 0)
    # encoders end before their last packet does: by up to 120 ms of Opus, or a long block of Vorbis on each side
    slack = _OPUS_MS[-1] * 2 * 48 if headers == _OPUS_HEADERS else 2 * (1 << (stream.packets[0][28] >> 4))
    expected = "expected a file as encoders write it"
    declared, least = ends[-1][1] - max(start, 0), counts[-1] - slack
    if declared < least:
        raise _unusable(f"declares {declared} samples and holds at least {least}; {expected}")
    for count, granule in ends[:-1]:
        if start < 0 or granule - start < count:
            raise _unusable(f"declares {granule - max(start, 0)} samples where it holds {count}; {expected}")
    return start


def _earlier(page: bytes, start: int) -> bytes:
    """A page whose position is smaller by `start`, unless it has none or is a header."""
    (granule,) = struct.unpack_from("<q", page, 6)
    if granule <= 0:
        return page
    page = page[:6] + struct.pack("<q", granule - start) + page[14:22] + bytes(4) + page[26:]
    return page[:22] + _ogg_crc(page) + page[26:]


def _ogg_crc(page: bytes) -> bytes:
    """zlib has the same polynomial, with the bits of all bytes reversed, and inverts beginning and end."""
    checksum = zlib.crc32(page.translate(_REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return checksum.to_bytes(4, "big").translate(_REVERSED)


def opus_end(data: bytes) -> int:
    """The last position (samples at 48 kHz) that the pages of an Opus file declare."""
    return max(int.from_bytes(position, "little", signed=True) for position in _OGG_POSITION.findall(data))


def _without_tail(data: bytes) -> bytes:
    """A file without the zeros, or the ID3v1 tag, behind its last page."""
    start = data.rfind(b"OggS")
    lacing = data[start + 27 : start + 27 + int.from_bytes(data[start + 26 : start + 27], "big")]
    end = start + 27 + len(lacing) + sum(lacing)
    tail = data[end:]
    is_tag = len(tail) == 128 and tail.startswith(b"TAG")
    return data[:end] if is_tag or not tail.strip(b"\0") else data


def _vorbis_samples(packets: Sequence[bytes]) -> list[int]:
    """Samples up to the end of each packet of a Vorbis stream, from 0: a quarter of each block and of the one before it
    (Vorbis I, 4.3.8).

    The mode of a block says which of two sizes it has. The modes stand at the end of the setup header: each is a flag,
    32 zero bits and a mapping; before them stands their number, after them a bit that is set (4.2.4).
    """
    setup = int.from_bytes(packets[2] if len(packets) > 2 else b"", "little")
    block_flags: list[int] = []
    is_long: list[int] = []
    bit = setup.bit_length() - 1 - _VORBIS_MODE_BITS
    while bit >= 6 and not setup >> (bit + 1) & 0xFFFFFFFF and len(block_flags) < 64:
        block_flags.insert(0, setup >> bit & 1)
        if setup >> (bit - 6) & 63 == len(block_flags) - 1:
            is_long = list(block_flags)
        bit -= _VORBIS_MODE_BITS
    block_sizes = [1 << (packets[0][28] & 15), 1 << (packets[0][28] >> 4)]
    mask = (1 << max(len(is_long) - 1, 0).bit_length()) - 1
    counts, before = [0], 0
    for packet in packets[_VORBIS_HEADERS:]:
        block = 0
        if packet and not packet[0] & 1:
            mode = packet[0] >> 1 & mask
            block = block_sizes[is_long[mode]] if mode < len(is_long) else block_sizes[0]
        counts.append(counts[-1] + ((before + block) // 4 if before and block else 0))
        before = block or before
    return counts


def _opus_samples(packet: bytes) -> int:
    """Length of an Opus packet at 48 kHz (RFC 6716, section 3.1)."""
    if not packet:
        return 0
    mode, kind = packet[0] >> 3, packet[0] & 3
    if mode < 12:  # SILK
        length = 48 * _OPUS_MS[mode & 3]
    elif mode < 16:  # hybrid
        length = 480 << (mode & 1)
    else:  # CELT
        length = 120 << (mode & 3)
    frames = (1, 2, 2, packet[1] & 63 if len(packet) > 1 else 0)[kind]
    return length * frames
