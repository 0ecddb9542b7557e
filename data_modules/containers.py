"""Containers of samples that are not compressed: the sizes in their headers, and what is there.

A program that streams does not know how long the recording will be. It declares nothing, or far more than will ever
come, and libsndfile believes some of these sizes only. Several streams may stand one after the other in a file; the
later headers would be heard as samples.

Sources: Multimedia Programming Interface and Data Specifications 1.0 (RIFF), EBU Tech 3306 (RF64), Audio Interchange
File Format 1.3 (AIFF), au(4) of SunOS, Apple Core Audio Format 1.0 (CAF), and Sony's description of Wave64.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO, NamedTuple

from .errors import AudioError
from .ogg import JOINED

_STARTS = {  # how a file begins: a word that is rare in samples, where it stands, and what else has to be there
    b"RIFF": (b"WAVE", 8, {0: b"RIFF"}),
    b"RIFX": (b"WAVE", 8, {0: b"RIFX"}),
    b"RF64": (b"WAVE", 8, {0: b"RF64"}),
    b"FORM": (b"FORM", 0, {8: b"AIF"}),
    b".snd": (b".snd\0\0", 0, {12: b"\0\0\0"}),
    b"dns.": (b"dns.", 0, {6: b"\0\0", 13: b"\0\0\0"}),
    b"caff": (b"caff\0\x01\0\0", 0, {8: b"desc"}),
    b"riff": (b"riff\x2e\x91", 0, {24: b"wave"}),
}
PLAIN = tuple(_STARTS)
"""The first four bytes of the files that this module knows."""
_BLOCK_BYTES = 1 << 22
_HEAD_BYTES = 32
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


class _Size(NamedTuple):
    """A size in a header."""

    at: int  # where it stands
    form: str  # how, for `struct`
    declared: int  # bytes
    found: int  # bytes from where it begins to count to the end of the file


def joined_problem(file: BinaryIO) -> str | None:
    """Why a file of a kind of `PLAIN` would be read with the header of another recording in it; None = it is one.

    The beginning of a second file does not occur by chance in a terabyte of samples. The whole file is read, in blocks.
    """
    file.seek(0)
    word, offset, others = _STARTS[file.read(4)]
    file.seek(4)
    kept = b""
    while block := file.read(_BLOCK_BYTES):
        block = kept + block
        at = block.find(word)
        while at >= 0:
            start = at - offset
            if start >= 0 and all(block[start + o : start + o + len(b)] == b for o, b in others.items()):
                return JOINED
            at = block.find(word, at + 1)
        kept = block[-_HEAD_BYTES:]
    return None


def with_true_sizes(file: BinaryIO) -> bytes | None:
    """The file of a kind of `PLAIN` with the sizes of what is there, where its header has placeholders, and without
    what stands behind the samples, where libsndfile would read it as samples; None = nothing has to change.

    Raises:
        AudioError: If samples are missing at the end, or what may be samples follows those that are declared.
    """
    end = file.seek(0, 2)
    file.seek(0)
    kind = file.read(4)
    sizes = list(_SIZES[kind](file, end))
    # with the size of the samples, which comes first, that of the file is not known either
    wrong = sizes if any(map(_is_placeholder, sizes[:1])) else list(filter(_is_placeholder, sizes))
    behind = sizes[0].found - sizes[0].declared if sizes and sizes[0] not in wrong else 0
    if behind < 0:
        raise AudioError(f"the file is cut off, its last {-behind} bytes are missing", "the file is cut off")
    layout = _layout(file, kind, end)
    is_gsm = kind in (b"RIFF", b"RIFX") and bool(sizes) and layout.codec == _GSM
    # libsndfile 1.2.2 reads to the end of the file in Wave64, and in AU of G.721 and G.723
    reads_on = is_gsm or (kind in (b"riff", b".snd", b"dns.") and behind > 0)
    if behind > _LONGEST_UNKNOWN and not _is_known(file, kind, end - behind, end):
        raise AudioError(f"{behind} bytes follow the samples that the header declares; expected one whole recording")
    if not wrong and not reads_on:
        return None
    file.seek(0)
    content = bytearray(file.read(end - behind if reads_on else end))
    if sizes[0] in wrong and not is_gsm:
        length = sizes[0].found - layout.before
        rest = length % layout.bytes
        if rest and not (kind in _PADDED and rest == 1 and length % 2 == 0):  # an odd number, and a byte of padding
            raise AudioError("the file is cut off in the middle of a sample", "the file is cut off")
    for size in wrong:
        struct.pack_into(size.form, content, size.at, min(size.found, _most(size.form)))
    if is_gsm:
        _end_gsm(content, sizes[0])
    elif reads_on and kind == b"riff":
        struct.pack_into("<Q", content, 16, len(content))
    return bytes(content)


class _Layout(NamedTuple):
    """How samples stand in a file."""

    bytes: int = 1  # of one sample of all channels, or of one block of a codec; 1 = not known
    before: int = 0  # bytes between where the size of the samples begins to count and the first of them
    codec: int | bytes = 0


def _layout(file: BinaryIO, kind: bytes, end: int) -> _Layout:
    file.seek(0)
    head = file.read(40)
    if kind in (b"RIFF", b"RIFX", b"RF64"):
        return _wav_layout(file, ">" if kind == b"RIFX" else "<", end)
    if kind == b"caff":
        return _Layout(max(int.from_bytes(head[36:40], "big"), 1), 4)
    if kind in (b".snd", b"dns."):
        _, codec, _, channels = struct.unpack(">4I" if kind == b".snd" else "<4I", head[8:24].ljust(16, b"\0"))
        return _Layout(max(_AU_BYTES.get(codec, 0) * channels, 1), 0, codec)
    for name, start, _ in _chunks(file, 12, end, ">I") if kind == b"FORM" else ():
        if name == b"COMM":
            file.seek(start)
            fields = file.read(22)
            channels, bits = struct.unpack(">h4xh", fields[:8].ljust(8, b"\0"))
            codec = fields[18:22] if head[8:12] == b"AIFC" else b"NONE"
            one = _AIFF_BYTES.get(codec, (bits + 7) // 8 if codec in _AIFF_PLAIN else 0)
            return _Layout(max(one * channels, 1), 8, codec)
    return _Layout()


def _wav_layout(file: BinaryIO, order: str, end: int) -> _Layout:
    """
    Raises:
        AudioError: If samples take more bytes than their bits need: decoders go by the bits, and read noise.
    """
    for name, start, _ in _chunks(file, 12, end, f"{order}I"):
        if name == b"fmt ":
            file.seek(start)
            fields = file.read(26).ljust(26, b"\0")
            codec, channels, rate, speed, block, bits = struct.unpack(f"{order}HHIIHH", fields[:16])
            if codec == _EXTENSIBLE:
                (codec,) = struct.unpack(f"{order}H", fields[24:26])
            least = channels * ((bits + 7) // 8)
            # where the speed is that of the bits, the block alone is wrong
            if codec in _PCM and 0 < least < block and speed == rate * block:
                raise AudioError(
                    f"the file has blocks of {block} bytes for {channels} x {bits} bits; expected {least}",
                    "not supported",
                )
            return _Layout(max(block, 1) if codec in (*_PCM, *_WAV_BLOCKS) else 1, 0, codec)
    return _Layout()


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


def _is_known(file: BinaryIO, kind: bytes, start: int, end: int) -> bool:
    """Whether what stands here, up to the end, is no samples: zeros, a tag, or chunks."""
    file.seek(start)
    tail = file.read()
    if tail[-_TAG_BYTES:].startswith(b"TAG"):
        tail = tail[:-_TAG_BYTES]
    if not tail.strip(b"\0") or tail.startswith((b"ID3", b"APETAGEX")):
        return True
    if kind == b"riff":
        at = -start % 8
        return 24 <= int.from_bytes(tail[at + 16 : at + 24], "little") <= len(tail) - at
    form = {b"FORM": ">I", b"RIFX": ">I", b"caff": ">q", b"RIFF": "<I", b"RF64": "<I"}.get(kind)
    return form is not None and any(
        _is_name(name) and 0 <= size <= end - content
        for pad in (0, 1)
        for name, content, size in islice(_chunks(file, start + pad, end, form), 1)
    )


def wav_content(file: BinaryIO) -> bytes:
    """The content of the data chunk of a RIFF file; where its size is 0 or passes the end, all that follows."""
    for name, start, size in _chunks(file, 12, file.seek(0, 2), "<I"):
        if name == b"data":
            file.seek(start)
            return file.read(size or -1)
    return b""


def without_filling(file: BinaryIO, frames: int) -> int:
    """Frames of a WAV file of ADPCM, without those that only fill its last block, if it says how many these are."""
    file.seek(0)
    order = ">" if file.read(4) == b"RIFX" else "<"
    declared = block = 0
    for name, start, size in _chunks(file, 12, file.seek(0, 2), f"{order}I"):
        at, form = (0, "I") if name == b"fact" else (18, "H")
        if name in (b"fact", b"fmt ") and size >= at + struct.calcsize(form):
            file.seek(start + at)
            (value,) = struct.unpack(order + form, file.read(struct.calcsize(form)))
            declared, block = (value, block) if name == b"fact" else (declared, value)
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
    if declared < 0 or declared > _most(size.form) - _WIDEST_HEADER:
        return True
    return declared > _PART * found and (declared >= _BEYOND_ALL or _is_round(declared))


def _most(form: str) -> int:
    return (1 << 8 * struct.calcsize(form) - form.endswith("q")) - 1


def _is_round(number: int) -> bool:
    if number < _LEAST_PLACEHOLDER:
        return False
    power = 1 << (number + _WIDEST_HEADER).bit_length()
    near_power = any(abs(number - p) <= 1 << 17 for p in (power, power >> 1))
    units = (10 ** (len(str(number)) - 2), 16 ** (len(f"{number:x}") - 2))
    return near_power or any((number + _WIDEST_HEADER) % unit <= 2 * _WIDEST_HEADER for unit in units)


def _chunks(file: BinaryIO, start: int, end: int, form: str) -> Iterator[tuple[bytes, int, int]]:
    """Names of chunks, where their content begins, and the sizes that they declare; up to one that is cut off."""
    width = struct.calcsize(form)
    for _ in range(_MOST_CHUNKS):
        if start + 4 + width > end:
            return
        file.seek(start)
        name = file.read(4)
        (size,) = struct.unpack(form, file.read(width))
        yield name, start + 4 + width, size
        if size < 0:
            return
        start += 4 + width + size + (size % 2 if width == 4 else 0)


def _riff(file: BinaryIO, end: int) -> Iterator[_Size]:
    """Of WAV and RF64. A size of 0 counts where no chunks follow: an empty recording may have some behind it."""
    file.seek(0)
    head = file.read(36)
    long = head[:4] == b"RF64" and head[12:16] == b"ds64" and len(head) == 36
    order = ">I" if head[:4] == b"RIFX" else "<I"
    for name, start, size in _chunks(file, 12, end, order):
        if name == b"data":
            at, form = start - 4, order
            if long and size == _most("<I"):
                at, form, size = 28, "<Q", int.from_bytes(head[28:36], "little")
            if size == 0 and _are_chunks(file, start, end, order):
                return
            (declared,) = struct.unpack("<Q", head[20:28]) if long else struct.unpack(order, head[4:8])
            riff = _Size(20 if long else 4, form, declared, end - 8)
            yield _Size(at, form, size, end - start)
            if declared > riff.found:
                yield riff
            return


def _are_chunks(file: BinaryIO, start: int, end: int, form: str) -> bool:
    """Whether the rest of the file is a chain of chunks up to its end."""
    reached = start
    for name, content, size in _chunks(file, start, end, form):
        if not _is_name(name):
            return False
        reached = content + size + size % 2
    return reached - 1 <= end <= reached


def _is_name(name: bytes) -> bool:
    return all(32 <= byte < 127 for byte in name)


def _aiff(file: BinaryIO, end: int) -> Iterator[_Size]:
    for name, start, size in _chunks(file, 12, end, ">I"):
        if name == b"SSND":
            yield _Size(start - 4, ">I", size, end - start)
            file.seek(4)
            if (declared := int.from_bytes(file.read(4), "big")) > end - 8:
                yield _Size(4, ">I", declared, end - 8)
            return


def _au(file: BinaryIO, end: int) -> Iterator[_Size]:
    file.seek(0)
    order = ">" if file.read(4) == b".snd" else "<"
    start, size = struct.unpack(f"{order}II", file.read(8).ljust(8, b"\0"))
    if 24 <= start <= end:
        yield _Size(8, f"{order}I", size, end - start)


def _caf(file: BinaryIO, end: int) -> Iterator[_Size]:
    """A size of -1 says: to the end of the file."""
    for name, start, size in _chunks(file, 8, end, ">q"):
        if name == b"data" and size:
            yield _Size(start - 8, ">q", size, end - start)


def _w64(file: BinaryIO, end: int) -> Iterator[_Size]:
    """Chunks begin with 16 bytes that name them, at multiples of 8; their sizes count these, too."""
    start = 40
    for _ in range(_MOST_CHUNKS):
        if start + 24 > end:
            return
        file.seek(start)
        name, size = struct.unpack("<4s12xQ", file.read(24))
        if name == b"data":
            yield _Size(start + 16, "<Q", size, end - start)
            file.seek(16)
            if (declared := int.from_bytes(file.read(8), "little")) > end:
                yield _Size(16, "<Q", declared, end)
            return
        start += max(size + -size % 8, 24)


_SIZES = {
    b"RIFF": _riff, b"RIFX": _riff, b"RF64": _riff, b"FORM": _aiff, b".snd": _au, b"dns.": _au, b"caff": _caf,
    b"riff": _w64,
}  # fmt: skip
