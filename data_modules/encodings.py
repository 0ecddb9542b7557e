"""What a compressed file holds, counted from its frames: a header may say less, and decoders believe the header.

libsndfile reads the first of several files that were joined, and as many samples as a header declares. Both would cut
a clip without an error. Uncompressed formats need none of this: their length is that of the file.

Sources: RFC 3533 (Ogg), RFC 6716 and 7845 (Opus), the Vorbis I specification, RFC 9639 (FLAC), ISO/IEC 11172-3 and
13818-3 (MP3), and the Xing and Info headers as LAME writes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

_FLAC_START = re.compile(rb"fLaC[\x00\x80]\x00\x00\x22")
_PLAIN_START = re.compile(  # of files whose samples are not compressed; none occurs by chance in a terabyte
    rb"(?:RIFF.{4}|RF64\xff{4})WAVE|FORM.{4}AIF[FC]|\.snd\x00\x00.{6}\x00\x00\x00[\x01-\x1b]|caff\x00\x01\x00\x00desc|riff\x2e\x91",
    re.DOTALL,
)
_OGG_POSITION = re.compile(rb"OggS\x00.(.{8})", re.DOTALL)
_FLAC_SYNC = re.compile(rb"\xff[\xf8\xf9]")
_MP3_START = re.compile(rb"\xff[\xe0-\xff]|ID3")
_MP3_KILOBITS = {
    True: (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),  # MPEG 1
    False: (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),  # MPEG 2 and 2.5
}
_MP3_RATES = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}  # by version bits
MP3_RATES = tuple(sorted(chain(*_MP3_RATES.values())))
"""Sample rates (Hz) that MP3 has, rising."""
_MP3_TRIMMED = 4_608
"""Samples of encoder delay and padding that decoders take off the ends: at most about four frames."""
_JOINED = "holds several recordings one after the other; expected one recording, joined by decoding"
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
            return _JOINED
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


def plain_problem(data: bytes) -> str | None:
    """Why a file whose samples are not compressed would be read in part; None = nothing is wrong."""
    return _JOINED if len(_PLAIN_START.findall(data)) > 1 else None


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


def flac_problem(data: bytes) -> str | None:
    """Why a FLAC file would be read in part; None = nothing is wrong."""
    if len(_FLAC_START.findall(data)) > 1:
        return _JOINED
    declared, samples = _flac_declared(data), flac_samples(data)
    if 0 < declared < samples:
        return f"declares {declared} samples and holds {samples}; expected a file as encoders write it"
    return None


def with_flac_length(data: bytes) -> bytes:
    """The file with the number of its samples in the header, added if it is missing: libsndfile needs it."""
    start = _FLAC_START.search(data)
    if start is None or _flac_declared(data):
        return data
    samples, offset = flac_samples(data), start.start() + 21
    return (
        data[:offset]
        + (data[offset] & 0xF0 | samples >> 32).to_bytes(1, "big")
        + (samples & 0xFFFFFFFF).to_bytes(4, "big")
        + data[offset + 5 :]
    )


def _flac_declared(data: bytes) -> int:
    start = _FLAC_START.search(data)
    return 0 if start is None else int.from_bytes(data[start.start() + 21 : start.start() + 26], "big") & (1 << 36) - 1


def flac_samples(data: bytes) -> int:
    """Samples (per channel) in the frames of a FLAC file, up to the first that is missing."""
    start = _FLAC_START.search(data)
    if start is None:
        return 0
    smallest, largest = (
        int.from_bytes(data[start.start() + offset : start.start() + offset + 2], "big") for offset in (8, 10)
    )
    total = 0
    for match in _FLAC_SYNC.finditer(data, start.end()):
        frame = _flac_frame(data, match.start())
        if frame is not None:
            number, size, counts_samples = frame
            if total == (number if counts_samples or smallest != largest else number * largest):
                total += size
    return total


def _flac_frame(data: bytes, at: int) -> tuple[int, int, bool] | None:
    """Number and size of the frame whose header is here, and whether the number counts samples; None = no header."""
    header = data[at : at + 16]
    if len(header) < 6 or header[3] & 1 or header[2] >> 4 == 0 or header[2] & 15 == 15:
        return None
    leading_ones = 8 - (header[4] ^ 0xFF).bit_length()  # of the number, which is coded as UTF-8 codes characters
    extra_bytes = max(leading_ones - 1, 0)
    if leading_ones in (1, 8):
        return None
    number = header[4] & (0x7F >> leading_ones)
    for byte in header[5 : 5 + extra_bytes]:
        number = number << 6 | byte & 0x3F
    size_code, end = header[2] >> 4, 5 + extra_bytes
    sizes = {1: 192} | {n: 576 << (n - 2) for n in range(2, 6)} | {n: 256 << (n - 8) for n in range(8, 16)}
    bytes_of_size = {6: 1, 7: 2}.get(size_code, 0)
    size = sizes.get(size_code) or int.from_bytes(header[end : end + bytes_of_size], "big") + 1
    end += bytes_of_size + {12: 1, 13: 2, 14: 2}.get(header[2] & 15, 0)
    if end >= len(header) or _crc8(header[:end]) != header[end]:
        return None
    return number, size, bool(header[1] & 1)


def _crc8(data: bytes) -> int:
    remainder = 0
    for byte in data:
        remainder ^= byte
        for _ in range(8):
            remainder = (remainder << 1 ^ (0x107 if remainder & 0x80 else 0)) & 0xFF
    return remainder


def mp3_problem(data: bytes, decoded: int) -> str | None:
    """Why an MP3 file was read in part; None = nothing is wrong. `decoded`: samples (per channel) that were read."""
    total = headers = 0
    for frame, samples in _mp3_frames(data):
        if any(name in frame[:60] for name in (b"Xing", b"Info", b"VBRI")):
            headers += 1
        else:
            total += samples
    if headers > 1:
        return _JOINED
    if total - decoded > _MP3_TRIMMED:
        return f"holds {total} samples, of which {decoded} can be read; expected one recording as encoders write it"
    return None


def id3_bytes(data: bytes, at: int) -> int:
    """Length of the ID3v2 tag that begins here; 0 = none does."""
    if data[at : at + 3] != b"ID3" or at + 10 > len(data):
        return 0
    size = 0
    for byte in data[at + 6 : at + 10]:
        size = size << 7 | byte & 0x7F
    return 10 + size


def _mp3_frames(data: bytes) -> Iterator[tuple[bytes, int]]:
    """The frames of MPEG layer III, each with its number of samples; tags and other bytes in between are skipped."""
    position = 0
    while position + 4 <= len(data):
        if tag_bytes := id3_bytes(data, position):
            position += tag_bytes
            continue
        length, samples = _mp3_frame(data, position)
        end = position + length
        if length and (
            end + 4 > len(data) or data[end : end + 3] in (b"ID3", b"TAG", b"APE") or _mp3_frame(data, end)[0]
        ):
            yield data[position:end], samples
            position = end
        else:
            match = _MP3_START.search(data, position + 1)
            position = len(data) if match is None else match.start()


def _mp3_frame(data: bytes, at: int) -> tuple[int, int]:
    """Bytes and samples of the frame whose header is here; zeros = no header, or one without a bit rate."""
    header = int.from_bytes(data[at : at + 4], "big")
    version, layer, bitrate_code, rate_code = header >> 19 & 3, header >> 17 & 3, header >> 12 & 15, header >> 10 & 3
    if header >> 21 != 0x7FF or version == 1 or layer != 1 or bitrate_code in (0, 15) or rate_code == 3:
        return 0, 0
    samples = 1_152 if version == 3 else 576
    kilobits = _MP3_KILOBITS[version == 3][bitrate_code - 1]
    return samples * kilobits * 125 // _MP3_RATES[version][rate_code] + (header >> 9 & 1), samples
