"""What an Ogg file holds, counted from its packets: a page may declare less, and decoders believe the page.

Sources: RFC 3533 (Ogg), RFC 6716 and 7845 (Opus), and the Vorbis I specification.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

JOINED = "holds several recordings one after the other; expected one recording, joined by decoding"
_OGG_POSITION = re.compile(rb"OggS\x00.(.{8})", re.DOTALL)
_OPUS_MS = (10, 20, 40, 60)
_VORBIS_HEADERS, _VORBIS_MODE_BITS = 3, 41


@dataclass
class _OggStream:
    """One logical stream of an Ogg file: its first three packets, the first two bytes of every other packet, and the
    position that its last page declares, which is what decoders believe."""

    packets: list[bytes] = field(default_factory=list)
    open: bool = False
    declared: int = 0


def ogg_problem(data: bytes) -> str | None:
    """Why an Ogg file would be read in part; None = nothing is wrong.

    Chained streams (one after the other) are found in every codec. A declared position that is too small is found in
    Opus and Vorbis; the last packets do not count, because they may be cut.
    """
    streams: dict[bytes, _OggStream] = {}
    content_seen = False  # a page of content was read: a stream that begins after it is another recording
    position = 0
    while data[position : position + 4] == b"OggS" and position + 27 <= len(data):
        flags, granule = data[position + 5], int.from_bytes(data[position + 6 : position + 14], "little", signed=True)
        lacing = data[position + 27 : position + 27 + data[position + 26]]
        if flags & 2 and content_seen:
            return JOINED
        content_seen = content_seen or not flags & 2
        stream = streams.setdefault(data[position + 14 : position + 18], _OggStream())
        position += 27 + len(lacing)
        for size in lacing:
            if not stream.open:
                stream.packets.append(b"")
            limit = size if len(stream.packets) <= _VORBIS_HEADERS else 2 - len(stream.packets[-1])
            stream.packets[-1] += data[position : position + max(min(limit, size), 0)]
            stream.open = size == 255
            position += size
        if granule >= 0:  # -1 = no packet ends on this page
            stream.declared = granule
    for stream in streams.values():
        head = stream.packets[0] if stream.packets else b""
        if head[:8] == b"OpusHead":
            samples = sum(map(_opus_samples, stream.packets[2:])) - _OPUS_MS[-1] * 2 * 48
        elif head[:7] == b"\x01vorbis" and len(head) > 28:
            samples = _vorbis_samples(stream.packets) - 2 * (1 << (head[28] >> 4))
        else:
            continue
        if stream.declared < samples:
            return (
                f"declares {stream.declared} samples and holds at least {samples}; expected a file as encoders write it"
            )
    return None


def opus_end(data: bytes) -> int:
    """The last position (samples at 48 kHz) that the pages of an Opus file declare."""
    return max(int.from_bytes(position, "little", signed=True) for position in _OGG_POSITION.findall(data))


def without_tail(data: bytes) -> bytes:
    """An Ogg file without the zeros, or the ID3v1 tag, behind its last page."""
    start = data.rfind(b"OggS")
    lacing = data[start + 27 : start + 27 + int.from_bytes(data[start + 26 : start + 27], "big")]
    end = start + 27 + len(lacing) + sum(lacing)
    tail = data[end:]
    is_tag = len(tail) == 128 and tail.startswith(b"TAG")
    return data[:end] if is_tag or not tail.strip(b"\0") else data


def _vorbis_samples(packets: Sequence[bytes]) -> int:
    """Samples in the packets of a Vorbis stream: a quarter of each block and of the one before it (Vorbis I, 4.3.8).

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
    modes = [packet[0] >> 1 & mask for packet in packets[_VORBIS_HEADERS:] if packet and not packet[0] & 1]
    blocks = [block_sizes[is_long[mode]] if mode < len(is_long) else block_sizes[0] for mode in modes]
    return sum(previous + current for previous, current in pairwise(blocks)) // 4


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
