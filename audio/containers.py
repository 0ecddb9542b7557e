"""Containers of samples that are not compressed: the sizes in their headers, and what is there.

A program that streams does not know how long the recording will be. It declares nothing, or far more than will ever
come, and libsndfile believes some of these sizes only. Several streams may stand one after the other in a file; the
later headers would be read as samples.

Sources: Multimedia Programming Interface and Data Specifications 1.0 (RIFF), EBU Tech 3306 (RF64), Audio Interchange
File Format 1.3 (AIFF), au(4) of SunOS, Apple Core Audio Format 1.0 (CAF), and Sony's description of Wave64.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from ..core.errors import AudioError
from .ogg import JOINED
from .unreadable import EXPECTED

_STARTS = {  # how a file of each kind begins
    b"RIFF": re.compile(rb"RIFF.{4}WAVE", re.DOTALL),
    b"RIFX": re.compile(rb"RIFX.{4}WAVE", re.DOTALL),
    b"RF64": re.compile(rb"RF64.{4}WAVE", re.DOTALL),
    b"FORM": re.compile(rb"FORM.{4}AIF", re.DOTALL),
    b".snd": re.compile(rb"\.snd\0\0.{6}\0\0\0", re.DOTALL),
    b"dns.": re.compile(rb"dns\..{2}\0\0.{5}\0\0\0", re.DOTALL),
    b"caff": re.compile(rb"caff\0\x01\0\0desc"),
    b"riff": re.compile(rb"riff\x2e\x91.{18}wave", re.DOTALL),
}
PLAIN = tuple(_STARTS)
"""The first four bytes of the files that this module knows."""
_WIDEST_HEADER = 128  # that a program may have counted to a size, or taken off one
_LEAST_PLACEHOLDER = 100_000_000
_BEYOND_ALL = 0x7FFE0000
_PART = 8
_MOST_CHUNKS = 10_000  # a file of zeros has one in each 8 bytes
_TAG_BYTES = 128  # of ID3v1
_LONGEST_UNKNOWN = 400  # bytes behind the samples; more may be samples
_GSM_BLOCK = 65  # bytes, of GSM 6.10 in WAV
_PADDED = (b"RIFF", b"RIFX", b"RF64", b"FORM")  # chunks of an odd size have a byte of padding
_PCM, _GSM, _EXTENSIBLE = (1, 3), 0x31, 0xFFFE  # codecs of WAV: integers and floats, ...
_WAV_BLOCKS = (2, 6, 7, 0x11)  # ... ADPCM of Microsoft and IMA, and G.711
_AU_BYTES = {1: 1, 2: 1, 3: 2, 4: 3, 5: 4, 6: 4, 7: 8, 27: 1}
_AIFF_PLAIN = (b"NONE", b"twos", b"sowt", b"in24", b"in32", b"23ni", b"fl32", b"FL32", b"fl64", b"FL64", b"raw ")
_AIFF_BYTES = {b"ulaw": 1, b"ULAW": 1, b"alaw": 1, b"ALAW": 1, b"ima4": 34}
_MOST = {"<I": (1 << 32) - 1, ">I": (1 << 32) - 1, "<Q": (1 << 64) - 1, ">q": (1 << 63) - 1}


class _Size(NamedTuple):
    """A size in a header."""

    at: int  # where it stands
    form: str  # how, for `struct`
    declared: int  # bytes
    found: int  # bytes from where it begins to count to the end of the file


class _Header(NamedTuple):
    """What a header says of the samples."""

    sizes: Sequence[_Size] = ()  # of the samples, then of the file where it is not what is there
    block: int = 1  # bytes of one sample of all channels, or of one block of a codec; 1 = not known
    before: int = 0  # bytes between where the size of the samples begins to count and the first of them
    is_gsm: bool = False  # GSM 6.10 in WAV
    problem: str = ""  # why samples would be read as noise


def with_true_sizes(data: bytes) -> bytes:
    """The file of a kind of `PLAIN` with the sizes of what is there, where its header has placeholders, and without
    what stands behind the samples, where libsndfile would read it as samples.

    Raises:
        AudioError: If the header of another recording stands in it, samples are missing at the end, or what may be
            samples follows those that are declared.
    """
    kind, end = data[:4], len(data)
    if kind == b"FORM" and data[8:11] != b"AIF":  # not left to libsndfile, which has trouble with some
        message = f"a FORM file that is no AIFF, which cannot be read; {EXPECTED}"
        raise AudioError(message, "not supported")
    # these bytes do not occur by chance in a terabyte of samples
    if _STARTS[kind].search(data, 4):
        raise AudioError(f"the file {JOINED}")
    header = _HEADERS[kind](data)
    sizes = header.sizes
    # with the size of the samples, which comes first, that of the file is not known either
    wrong = sizes if sizes and _is_placeholder(sizes[0]) else [size for size in sizes if _is_placeholder(size)]
    behind = sizes[0].found - sizes[0].declared if sizes and sizes[0] not in wrong else 0
    if behind < 0:
        raise AudioError(f"the file is cut off, its last {-behind} bytes are missing", "the file is cut off")
    if header.problem:
        raise AudioError(header.problem, "not supported")
    if behind > _LONGEST_UNKNOWN and not _is_known(data, kind, end - behind):
        raise AudioError(f"{behind} bytes follow the samples that the header declares; expected one whole recording")
    is_gsm = header.is_gsm and bool(sizes)
    # libsndfile 1.2.2 reads to the end of the file in Wave64, and in AU of G.721 and G.723
    reads_on = is_gsm or (kind in (b"riff", b".snd", b"dns.") and behind > 0)
    if not wrong and not reads_on:
        return data
    content = bytearray(data[: end - behind] if reads_on else data)
    if sizes[0] in wrong and not is_gsm:
        length = sizes[0].found - header.before
        rest = length % header.block
        if rest and not (kind in _PADDED and rest == 1 and length % 2 == 0):  # an odd number, and a byte of padding
            raise AudioError("the file is cut off in the middle of a sample", "the file is cut off")
    for size in wrong:
        struct.pack_into(size.form, content, size.at, min(size.found, _MOST[size.form]))
    if is_gsm:
        _end_gsm(content, sizes[0])
    elif reads_on and kind == b"riff":
        struct.pack_into("<Q", content, 16, len(content))
    return bytes(content)


def _end_gsm(content: bytearray, size: _Size) -> None:
    """Ends a WAV file of GSM 6.10 with its last block.

    libsndfile 1.2.2 rounds an odd size up and decodes one block more, of noise; of one rounded down it reads all.
    """
    start = size.at + 4
    blocks, rest = divmod(len(content) - start, _GSM_BLOCK)
    if rest > 1:  # not a byte of padding
        raise AudioError("the file is cut off in the middle of a block", "the file is cut off")
    del content[start + blocks * _GSM_BLOCK :]
    struct.pack_into(size.form, content, size.at, blocks * _GSM_BLOCK // 2 * 2)


def _is_known(data: bytes, kind: bytes, start: int) -> bool:
    """Whether what stands here, up to the end, is no samples: zeros, a tag, or chunks."""
    tail = data[start:]
    if tail[-_TAG_BYTES:].startswith(b"TAG"):
        tail = tail[:-_TAG_BYTES]
    if not tail.strip(b"\0") or tail.startswith((b"ID3", b"APETAGEX")):
        return True
    if kind == b"riff":
        at = -start % 8
        return 24 <= int.from_bytes(tail[at + 16 : at + 24], "little") <= len(tail) - at
    form = {b"FORM": ">I", b"RIFX": ">I", b"caff": ">q", b"RIFF": "<I", b"RF64": "<I"}.get(kind)
    return form is not None and any(
        _is_name(name) and 0 <= size <= len(data) - content
        for pad in (0, 1)
        for name, content, size in islice(_chunks(data, start + pad, form), 1)
    )


def wav_content(data: bytes) -> bytes:
    """The content of the data chunk of a RIFF file; where its size is 0 or passes the end, all that follows."""
    for name, start, size in _chunks(data, 12, "<I"):
        if name == b"data":
            return data[start : start + size] if size else data[start:]
    return b""


def without_filling(data: bytes, frames: int) -> int:
    """Frames of a WAV file of ADPCM, without those that only fill its last block, if it says how many these are."""
    order = ">" if data.startswith(b"RIFX") else "<"
    declared = block = 0
    for name, start, size in _chunks(data, 12, f"{order}I"):
        # The last chunk may be cut off within its content
        size = min(size, len(data) - start)
        if name == b"fact" and size >= 4:
            (declared,) = struct.unpack_from(f"{order}I", data, start)
        elif name == b"fmt " and size >= 20:
            (block,) = struct.unpack_from(f"{order}H", data, start + 18)
    return declared if 0 < declared <= frames < declared + block else frames


def _is_placeholder(size: _Size) -> bool:
    """Whether a program that does not know the length writes this size.

    It is one that the format has no room for; or less than an eighth of it is there, and it is at least about 2 GiB, or
    at least 100 MB and round: near a power of two, or of two digits, decimal or hexadecimal, if a header is put aside.
    Both conditions are needed. A recording that was cut rarely leaves so little of so much, and one whose length is
    round by chance is one of thousands: what was cut is refused. A size of 0 is one if what follows is there, and no
    chunk: `_riff` and `_au` see to it.
    """
    declared, found = size.declared, size.found
    if declared == 0:
        return found > 0
    if declared < 0 or declared > _MOST[size.form] - _WIDEST_HEADER:
        return True
    return declared > _PART * found and (declared >= _BEYOND_ALL or _is_round(declared))


def _is_round(number: int) -> bool:
    if number < _LEAST_PLACEHOLDER:
        return False
    power = 1 << (number + _WIDEST_HEADER).bit_length()
    near_power = any(abs(number - p) <= 1 << 17 for p in (power, power >> 1))
    units = (10 ** (len(str(number)) - 2), 16 ** (len(f"{number:x}") - 2))
    return near_power or any((number + _WIDEST_HEADER) % unit <= 2 * _WIDEST_HEADER for unit in units)


def _chunks(data: bytes, start: int, form: str) -> Iterator[tuple[bytes, int, int]]:
    """Names of chunks, where their content begins, and the sizes that they declare; up to one that is cut off."""
    width = struct.calcsize(form)
    for _ in range(_MOST_CHUNKS):
        if start + 4 + width > len(data):
            return
        (size,) = struct.unpack_from(form, data, start + 4)
        yield data[start : start + 4], start + 4 + width, size
        if size < 0:
            return
        start += 4 + width + size + (size % 2 if width == 4 else 0)


def _wav(data: bytes) -> _Header:
    """Of RIFF, RIFX and RF64. A size of 0 counts where no chunks follow: an empty recording may have some behind it."""
    end, order = len(data), ">" if data.startswith(b"RIFX") else "<"
    # the first of each name counts
    chunks = {name: (start, size) for name, start, size in reversed(list(_chunks(data, 12, f"{order}I")))}
    sizes: list[_Size] = []
    if b"data" in chunks:
        start, size = chunks[b"data"]
        at, form, riff_at, riff_form = start - 4, f"{order}I", 4, f"{order}I"
        if data.startswith(b"RF64") and data[12:16] == b"ds64" and end >= 36:
            riff_at, riff_form = 20, "<Q"
            if size == _MOST["<I"]:
                at, form, size = 28, "<Q", int.from_bytes(data[28:36], "little")
        if size > 0 or not _are_chunks(data, start, f"{order}I"):
            sizes.append(_Size(at, form, size, end - start))
            (declared,) = struct.unpack_from(riff_form, data, riff_at)
            if declared > end - 8:
                sizes.append(_Size(riff_at, riff_form, declared, end - 8))
    if b"fmt " not in chunks:
        return _Header(sizes)
    start = chunks[b"fmt "][0]
    fields = data[start : start + 26].ljust(26, b"\0")
    codec, channels, rate, speed, block, bits = struct.unpack(f"{order}HHIIHH", fields[:16])
    if codec == _EXTENSIBLE:
        (codec,) = struct.unpack(f"{order}H", fields[24:26])
    least, problem = channels * ((bits + 7) // 8), ""
    # Decoders go by the bits and read noise where samples take more bytes than their bits need. Where the speed is that
    # of the bits, the block alone is wrong.
    if codec in _PCM and 0 < least < block and speed == rate * block:
        problem = f"the file has blocks of {block} bytes for {channels} x {bits} bits; expected {least}"
    known_block = max(block, 1) if codec in (*_PCM, *_WAV_BLOCKS) else 1
    return _Header(sizes, known_block, is_gsm=codec == _GSM and not data.startswith(b"RF64"), problem=problem)


def _are_chunks(data: bytes, start: int, form: str) -> bool:
    """Whether the rest of the file is a chain of chunks up to its end."""
    reached = start
    for name, content, size in _chunks(data, start, form):
        if not _is_name(name):
            return False
        reached = content + size + size % 2
    return reached - 1 <= len(data) <= reached


def _is_name(name: bytes) -> bool:
    return all(32 <= byte < 127 for byte in name)


def _aiff(data: bytes) -> _Header:
    end, sizes, block = len(data), list[_Size](), 1
    chunks = {name: (start, size) for name, start, size in reversed(list(_chunks(data, 12, ">I")))}
    if b"SSND" in chunks:
        start, size = chunks[b"SSND"]
        sizes.append(_Size(start - 4, ">I", size, end - start))
        if (declared := int.from_bytes(data[4:8], "big")) > end - 8:
            sizes.append(_Size(4, ">I", declared, end - 8))
    if b"COMM" in chunks:
        start = chunks[b"COMM"][0]
        fields = data[start : start + 22]
        channels, bits = struct.unpack(">h4xh", fields[:8].ljust(8, b"\0"))
        codec = fields[18:22] if data[8:12] == b"AIFC" else b"NONE"
        block = channels * _AIFF_BYTES.get(codec, (bits + 7) // 8 if codec in _AIFF_PLAIN else 0)
    return _Header(sizes, max(block, 1), before=8)


def _au(data: bytes) -> _Header:
    order = ">" if data.startswith(b".snd") else "<"
    start, size, codec, _, channels = struct.unpack(f"{order}5I", data[4:24].ljust(20, b"\0"))
    sizes = [_Size(8, f"{order}I", size, len(data) - start)] if 24 <= start <= len(data) else []
    return _Header(sizes, max(_AU_BYTES.get(codec, 0) * channels, 1))


def _caf(data: bytes) -> _Header:
    """A size of -1 says: to the end of the file."""
    sizes = [
        _Size(start - 8, ">q", size, len(data) - start)
        for name, start, size in _chunks(data, 8, ">q")
        if name == b"data" and size
    ]
    return _Header(sizes, max(int.from_bytes(data[36:40], "big"), 1), before=4)


def _w64(data: bytes) -> _Header:
    """Chunks begin with 16 bytes that name them, at multiples of 8; their sizes count these, too."""
    end, start = len(data), 40
    for _ in range(_MOST_CHUNKS):
        if start + 24 > end:
            break
        name, size = struct.unpack_from("<4s12xQ", data, start)
        if name == b"data":
            sizes = [_Size(start + 16, "<Q", size, end - start)]
            if (declared := int.from_bytes(data[16:24], "little")) > end:
                sizes.append(_Size(16, "<Q", declared, end))
            return _Header(sizes)
        start += max(size + -size % 8, 24)
    return _Header()


_HEADERS = {
    b"RIFF": _wav, b"RIFX": _wav, b"RF64": _wav, b"FORM": _aiff, b".snd": _au, b"dns.": _au, b"caff": _caf,
    b"riff": _w64,
}  # fmt: skip
