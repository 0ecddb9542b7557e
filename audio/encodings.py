"""What a compressed file holds, counted from its frames: a header may say less, and decoders believe the header.

libsndfile reads the first of several files that were joined, and as many samples as a header declares. Both would cut
a clip without an error. `containers` is about samples that are not compressed.

Sources: RFC 9639 (FLAC), ISO/IEC 11172-3 and 13818-3 (MP3), the Xing and Info headers as LAME writes them, and for tags
ID3v2.4, APEv2 and Lyrics3.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from ..core.errors import AudioError
from .ogg import JOINED

_FLAC_START = re.compile(rb"fLaC[\x00\x80]\x00\x00\x22")
_FLAC_HEADER_BYTES = 42
_FLAC_SYNC = re.compile(rb"\xff[\xf8\xf9]")
_FLAC_SIZES = {1: 192} | {n: 576 << (n - 2) for n in range(2, 6)} | {n: 256 << (n - 8) for n in range(8, 16)}
_ID3V1_BYTES = 128
_ZEROS = re.compile(rb"\0+")
_MP3_KILOBITS = {  # by MPEG 1 or not, and layer
    (True, 1): tuple(range(32, 449, 32)),
    (True, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, 3): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, 1): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (False, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, 3): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_MP3_RATES = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}  # by version bits
MP3_RATES = tuple(sorted(chain(*_MP3_RATES.values())))
"""Sample rates (Hz) that MP3 has, rising."""
_MP3_DECODER_DELAY = 529
"""Samples that pass through a decoder's filters before the first of the encoder comes out."""


def whole_flac(data: bytes) -> bytes:
    """A FLAC file with the number of its samples in the header, added if it is missing: libsndfile needs it.

    Raises:
        AudioError: If several recordings stand one after the other, samples are missing in the middle or come twice, or
            the header declares fewer than there are.
    """
    if len(_FLAC_START.findall(data)) > 1:
        raise AudioError(f"the file {JOINED}", "cannot be used")
    if _FLAC_START.match(data) is None or len(data) < _FLAC_HEADER_BYTES:
        return data
    declared, samples = int.from_bytes(data[21:26], "big") & (1 << 36) - 1, _flac_samples(data)
    if 0 < declared < samples:
        said = f"declares {declared} samples and holds {samples}"
        raise AudioError(f"the file {said}; expected a file as encoders write it", "cannot be used")
    if declared:
        return data
    if not samples:
        raise AudioError("the file holds no samples", "the file is empty")
    return data[:21] + (data[21] & 0xF0 | samples >> 32).to_bytes(1, "big") + samples.to_bytes(8, "big")[4:] + data[26:]


def _flac_samples(data: bytes) -> int:
    """Samples (per channel) in the frames of a FLAC file.

    A frame has its number, or that of its first sample; the header of the file and older encoders do not say which.
    """
    start, last = 4, False
    while not last and start < len(data):
        last = data[start] >= 0x80
        start += 4 + int.from_bytes(data[start + 1 : start + 4], "big")
    found = ((match.start(), _flac_frame(data, match.start())) for match in _FLAC_SYNC.finditer(data, start))
    frames = [(at, *frame) for at, frame in found if frame is not None]
    # Numbers count from the first frame that is there
    first = frames[0][1] if frames else 0  # not 0 if the recording was cut without decoding
    total = count = 0
    # Most of these are no frames, but samples that look like a header: a sync code and a CRC of 8 bits occur by chance.
    # The CRC of a whole frame, which takes long here, is computed for them alone.
    others: list[int] = []
    for index, (_, number, size, counts_samples) in enumerate(frames):
        if number - first == total or (not counts_samples and number - first == count):
            total, count = total + size, count + 1
        else:
            others.append(index)
    ends = [*(at for at, *_ in frames[1:]), len(data)]
    if any(_crc(data[frames[index][0] : ends[index]], 16, 0x8005) == 0 for index in others):
        raise AudioError(
            f"the file is damaged, after {total} samples some are missing or come again; expected one whole recording",
            "the file is damaged",
        )
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
    bytes_of_size = {6: 1, 7: 2}.get(size_code, 0)
    size = _FLAC_SIZES.get(size_code) or int.from_bytes(header[end : end + bytes_of_size], "big") + 1
    end += bytes_of_size + {12: 1, 13: 2, 14: 2}.get(header[2] & 15, 0)
    if end >= len(header) or _crc(header[:end], 8, 0x07) != header[end]:
        return None
    return number, size, bool(header[1] & 1)


def _crc(data: bytes, width: int, polynomial: int) -> int:
    remainder = 0
    for byte in data:
        remainder ^= byte << (width - 8)
        for _ in range(8):
            remainder <<= 1
            if remainder >> width:
                remainder ^= 1 << width | polynomial
    return remainder


@dataclass(frozen=True)
class Mp3:
    """An MP3 stream as libsndfile reads it to its end.

    libsndfile believes the number of frames in a Xing or Info header, and without one takes the length from the size of
    the file and the bit rate of the first frame: it then loses the end where later frames are smaller, and counts tags
    as audio. So the stream is given a header that holds the true number. libsndfile takes 529 samples off the beginning
    of a stream with such a header, the delay of a decoder; a silent frame in front leaves all samples of the file.
    """

    data: bytes
    """The frames of the file, and the header and silent frames that were added; no tags."""
    skipped: int
    """Samples (per channel) at the beginning that are not of the recording: of silent frames and of the encoder."""
    samples: int
    """Samples (per channel) of the recording: those of all frames, less the delay and padding of a LAME tag."""


def whole_mp3(data: bytes) -> Mp3:
    """The frames of an MP3 file (MPEG 1, 2 and 2.5, layers I to III) so that none is lost.

    A frame at the beginning that needs bytes of frames before the file (a recording that was cut without decoding) is
    silent: a decoder would take those of the silent frame in front, and make noise of them. Layers I and II have no
    header for a length. Their files have one bit rate, and silent frames at the end make up for what libsndfile's
    estimate lacks.

    Raises:
        AudioError: If a frame is cut off or damaged, the header declares another number of frames, several recordings
            stand one after the other, or there is no frame.
    """
    frames = [frame for frame, _ in _mp3_frames(data)]
    kind = _mp3_kind(frames[0])
    declared = delay = padding = 0
    if (header := _mp3_header(frames[0], kind)) is not None:
        declared, delay, padding = header
        frames = frames[1:]
    if any(_mp3_header(frame, kind) is not None for frame in frames):
        raise AudioError(f"the file {JOINED}")
    total = len(frames) * kind.samples
    # some encoders count the frame with the header, too
    if declared > len(frames) + 1:
        raise AudioError(f"the file is cut off, {len(frames)} of {declared} frames are there", "the file is cut off")
    if 0 < declared < len(frames):
        said = f"declares {declared * kind.samples} samples and holds {total}"
        raise AudioError(f"the file {said}; expected a file as encoders write it")
    if not frames:
        raise AudioError("the file holds no samples", "the file is empty")
    head = bytes((frames[0][0], frames[0][1] | 1, *frames[0][2:4]))  # no checksum
    if kind.layer != 3:
        silence = head.ljust(_mp3_kind(head).length, b"\0")
        return Mp3(b"".join((*frames, silence * (len(frames) // 50 + 2))), 0, total)
    # 128 or 80 kbit/s, whatever the file has: a frame of 8 kbit/s has no room for a header
    head = bytes((*head[:2], head[2] & 0x0C | 0x90, head[3]))
    length = _mp3_kind(head).length
    count = (len(frames) + 1).to_bytes(4, "big")
    header = (head + bytes(kind.side_bytes) + b"Info\0\0\0\1" + count).ljust(length, b"\0")
    silence = head.ljust(length, b"\0")
    begin = delay + _MP3_DECODER_DELAY if delay or padding else 0
    end = total - max(padding - _MP3_DECODER_DELAY, 0)
    return Mp3(
        b"".join((header, silence, *_without_noise(frames, kind))),
        kind.samples - _MP3_DECODER_DELAY + begin,
        max(end - begin, 0),
    )


def is_mp3(head: bytes) -> bool:
    """Whether a file begins with a frame of MPEG audio."""
    return _mp3_kind(head[:4]).length > 0


def id3_bytes(data: bytes, at: int) -> int:
    """Length of the ID3v2 tag that begins here; 0 = none does."""
    if data[at : at + 3] != b"ID3" or at + 10 > len(data):
        return 0
    return 10 + _id3_size(data, at) + (10 if data[at + 5] & 0x10 else 0)  # a footer


def _id3_size(data: bytes, at: int) -> int:
    size = 0
    for byte in data[at + 6 : at + 10]:
        size = size << 7 | byte & 0x7F
    return size


@dataclass(frozen=True)
class _Mp3Kind:
    """What the header of a frame says."""

    length: int = 0  # bytes; 0 = no header, or one without a bit rate
    samples: int = 0
    layer: int = 0
    rate: int = 0
    mono: bool = False
    side_bytes: int = 0  # of layer III, between the header (and its checksum) and what is coded
    reference_bits: int = 9  # of layer III, the first of the side information: bytes of earlier frames that are needed


def _mp3_kind(header: bytes) -> _Mp3Kind:
    bits = int.from_bytes(header[:4], "big")
    version, layer, bitrate_code, rate_code = bits >> 19 & 3, 4 - (bits >> 17 & 3), bits >> 12 & 15, bits >> 10 & 3
    if bits >> 21 != 0x7FF or version == 1 or layer == 4 or bitrate_code in (0, 15) or rate_code == 3:
        return _Mp3Kind()
    newest, mono = version == 3, bits >> 6 & 3 == 3
    rate = _MP3_RATES[version][rate_code]
    samples = 384 if layer == 1 else 576 if layer == 3 and not newest else 1_152
    slot = 4 if layer == 1 else 1
    kilobits = _MP3_KILOBITS[newest, layer][bitrate_code - 1]
    length = (samples // slot * kilobits * 125 // rate + (bits >> 9 & 1)) * slot
    side_bytes = (17 if mono else 32) if newest else (9 if mono else 17)
    return _Mp3Kind(length, samples, layer, rate, mono, side_bytes, 9 if newest else 8)


def _mp3_frames(data: bytes) -> list[tuple[bytes, int]]:
    """The frames of MPEG audio, each with its number of samples; between them stand tags and zero bytes alone."""
    frames: list[tuple[bytes, int]] = []
    position = 0
    while size := _not_audio(data, position):
        position += size
    kind = _mp3_kind(data[position : position + 4])
    if not kind.length:
        free = int.from_bytes(data[position : position + 3], "big") & 0xFFE0F0 == 0xFFE000
        problem = "has a free bit rate; expected one of the standard's" if free else "holds no frame of MPEG audio"
        raise AudioError(f"the file {problem}", "not supported" if free else "not a sound file")
    end = _mp3_end(data, position)
    while position < end:
        here = _mp3_kind(data[position : position + 4])
        if here.length:
            if (here.samples, here.layer, here.rate, here.mono) != (kind.samples, kind.layer, kind.rate, kind.mono):
                raise AudioError(f"the file changes its kind after {len(frames)} frames and {JOINED}")
            if position + here.length > end:
                missing = position + here.length - end
                raise AudioError(
                    f"the file is cut off, the last {missing} bytes of its last frame are missing",
                    "the file is cut off",
                )
            frames.append((data[position : position + here.length], here.samples))
            position += here.length
        elif size := _not_audio(data, position):
            position += size
        else:
            raise AudioError(
                f"the file is damaged: at byte {position}, after {len(frames)} frames, stands what is no frame and no "
                "tag; expected one recording as encoders write it",
                "the file is damaged",
            )
    return frames


def _not_audio(data: bytes, at: int) -> int:
    """Length of the tag, or of the zero bytes, that begin here; 0 = neither does."""
    if size := id3_bytes(data, at):
        return size
    if data[at : at + 3] == b"TAG":
        return _ID3V1_BYTES
    zeros = _ZEROS.match(data, at)
    return len(zeros[0]) if zeros else 0


def _mp3_end(data: bytes, start: int) -> int:
    """Where the tags begin that stand at the end: ID3v1, APE, Lyrics3 and ID3v2 with a footer."""
    end = len(data)
    while True:
        size = 0
        if data[end - _ID3V1_BYTES :][:3] == b"TAG":
            size = _ID3V1_BYTES
        elif data[end - 32 : end - 24] == b"APETAGEX":
            has_header = data[end - 9] & 0x80
            size = int.from_bytes(data[end - 20 : end - 16], "little") + (32 if has_header else 0)
        elif data[end - 9 : end] == b"LYRICS200" and data[end - 15 : end - 9].isdigit():
            size = int(data[end - 15 : end - 9]) + 15
        elif data[end - 9 : end] == b"LYRICSEND":
            size = end - max(data.rfind(b"LYRICSBEGIN", start, end), 0)
        elif data[end - 10 : end - 7] == b"3DI":
            size = _id3_size(data, end - 10) + 20
        # A size that leaves no frame at the start is a mistake, or the words of a tag stand there by chance
        if not 0 < size < end - start:
            return end
        end -= size


def _mp3_header(frame: bytes, kind: _Mp3Kind) -> tuple[int, int, int] | None:
    """Number of frames (0 = not said), delay and padding (samples) that a Xing, Info or VBRI header declares; None =
    the frame is none. `kind` = of all frames of the file."""
    if kind.layer != 3:
        return None
    if frame[36:40] == b"VBRI":
        return int.from_bytes(frame[50:54], "big"), 0, 0
    at = next(
        (at for at in (4 + kind.side_bytes, 6 + kind.side_bytes) if frame[at : at + 4] in (b"Xing", b"Info")), None
    )
    if at is None:
        return None
    flags = frame[at + 7] & 15
    if not flags & 1:
        return 0, 0, 0
    count = int.from_bytes(frame[at + 8 : at + 12], "big")
    lame = at + 8 + 4 + (4 if flags & 2 else 0) + (100 if flags & 4 else 0) + (4 if flags & 8 else 0)
    delays = int.from_bytes(frame[lame + 21 : lame + 24], "big") if frame[lame : lame + 1] > b"\0" else 0
    return count, delays >> 12, delays & 0xFFF


def _without_noise(frames: list[bytes], kind: _Mp3Kind) -> Iterator[bytes]:
    """Frames of layer III; those that need more bytes of earlier frames than there are hold silence.

    Their bytes stay, and they pass on those of earlier frames: later frames need both.
    """
    reservoir = 0
    for frame in frames:
        # where the side information begins: behind the header and, if there is one, a checksum of two bytes
        side = 4 if frame[1] & 1 else 6
        shift = 16 - kind.reference_bits
        if int.from_bytes(frame[side : side + 2], "big") >> shift > reservoir:
            head = bytes((frame[0], frame[1] | 1, *frame[2:4])) + (reservoir << shift).to_bytes(2, "big")
            yield head.ljust(4 + kind.side_bytes, b"\0") + frame[4 + kind.side_bytes :]
        else:
            yield frame
        reservoir += len(frame) - side - kind.side_bytes
