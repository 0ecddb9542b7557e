"""What a file is that libsndfile does not read, or would read wrongly: a message that a user can act on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..core.errors import AudioError

if TYPE_CHECKING:
    from soundfile import SoundFile

EXPECTED = "expected wav, flac, ogg, mp3, aiff, au"
"""Formats that are read, for messages."""
_CONVERT = f"{EXPECTED}: convert it, as with ffmpeg -i IN OUT.wav"
READ_RIGHTLY = ("WAV", "WAVEX", "RF64", "AIFF", "AU", "CAF", "FLAC", "OGG", "MP3")
"""Formats, as libsndfile calls them, whose files are checked to be whole before they are opened. libsndfile does not
look at sizes in the others: a file of half its length, or two files one after the other, would be read."""
HEAD_BYTES = 4_096
"""Bytes at the beginning of a file that tell what it is."""
# The first that fits counts: what several have in common stands behind them
_NAMES = (
    (rb".{4}ftyp(?:M4A|M4B)", "M4A"),
    (rb".{4}ftyp3g", "3GP"),
    (rb".{4}ftypqt", "QuickTime"),
    (rb".{4}ftyp", "MP4"),
    (rb"\x1a\x45\xdf\xa3", "WebM or Matroska"),
    (rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "WMA or another kind of ASF"),
    (rb"#!AMR", "AMR"),
    (rb"\x02?#!SILK", "SILK"),
    (rb"\xff[\xf0\xf1\xf8\xf9]|ADIF", "AAC"),
    (rb"\x0b\x77", "AC-3"),
    (rb"wvpk", "WavPack"),
    (rb"TTA[12]", "True Audio"),
    (rb"MAC ", "Monkey's Audio"),
    (rb"\.SoX|XoS\.", "a file of SoX's own format"),
    (rb"FLV\x01", "Flash video"),
    (rb"RIFF.{4}AVI ", "AVI"),
    (rb"BW64.{4}WAVE", "BW64"),
    (rb"FORM.{4}AIF[FC].*COMM", "AIFF"),
    (rb"G.{187}G", "an MPEG transport stream"),
    (rb"OggS.{24}Speex", "Speex in Ogg"),
    (rb"OggS.{24}\x7fFLAC", "FLAC in Ogg"),
    (rb"OggS", "a codec in Ogg that is not Vorbis or Opus"),
)
_STARTS = tuple((re.compile(start, re.DOTALL), name) for start, name in _NAMES)
_UNKNOWN = "Format not recognised."  # what libsndfile says of most of them
_WAV_CODECS = {
    0x42: "G.723.1", 0x45: "G.726", 0x55: "MP3", 0xFF: "AAC", 0x160: "WMA", 0x161: "WMA", 0x162: "WMA", 0x163: "WMA",
    0x1610: "AAC", 0x2000: "AC-3", 0x704F: "Opus",
}  # fmt: skip
_NIST = re.compile(rb"sample_n_bytes -i (\d+).*", re.DOTALL)
_NIST_SAMPLES = re.compile(rb"sample_count -i (\d+)")
_SUBFORMAT = re.compile(r"^ +format : (.+)$", re.MULTILINE)
_NIST_CODING = re.compile(rb"sample_coding -s\d+ ([\w.,+-]+)")


def described(head: bytes) -> str | None:
    """What a file is, which begins with these bytes; None = nothing that is known to be a recording.

    Of formats that are read in general it is the part of them that is not: bits, or a codec.
    """
    if head[:4] == b"fLaC" and len(head) > 21:
        return f"FLAC with {((head[20] & 1) << 4 | head[21] >> 4) + 1} bits"
    if head[:4] == b"caff" and head[8:12] == b"desc" and len(head) >= 52:
        codec = head[28:32].decode("latin-1").strip()
        if codec == "lpcm":
            packet, bits = (int.from_bytes(head[at : at + 4], "big") for at in (36, 48))
            return f"CAF with {bits} bits in packets of {packet} bytes"
        return f"CAF with the codec {codec!r}" if codec.isprintable() else None
    if head[:8] == b"NIST_1A\n":
        width, coding = _NIST.search(head), _NIST_CODING.search(head)
        bits = f"{8 * int(width[1])} bits" if width else "samples"
        return f"SPHERE with {bits}" + (f" as {coding[1].decode()}" if coding else "")
    if head[:4] in (b"RIFF", b"RF64") and head[8:12] == b"WAVE":
        start = head.find(b"fmt ", 12)
        code, bits, extended = (int.from_bytes(head[start + at : start + at + 2], "little") for at in (8, 22, 32))
        if start < 0:
            return None
        # WAVE_FORMAT_EXTENSIBLE: the codec is the first two bytes of the sub-format
        code = extended if code == 0xFFFE else code
        codec = f"{bits} bits" if code in (1, 3) else _WAV_CODECS.get(code, f"the codec 0x{code:04X}")
        return f"WAV with {codec}"
    return next((name for start, name in _STARTS if start.match(head)), None)


def unreadable(head: bytes, reason: str) -> AudioError:
    """The error for a file that libsndfile refuses and that begins with `head`; `reason`: what libsndfile says."""
    if head.startswith(b"version https://git-lfs"):
        message = "a pointer of Git LFS, not a sound file; get the file itself: git lfs pull"
        return AudioError(message, "not a sound file")
    name = described(head)
    if name is None:
        return AudioError(f"not a sound file; {EXPECTED}", "not a sound file")
    details = "" if reason in ("", _UNKNOWN) else f" ({reason.rstrip('.')})"
    return AudioError(f"{name}, which cannot be read{details}; {_CONVERT}", "not supported")


def check_read_rightly(sound: SoundFile, head: bytes) -> None:
    """Refuses a file of another format than `READ_RIGHTLY` that libsndfile opens but would read in part, or with other
    values.

    Args:
        sound: The open file.
        head: Its first `HEAD_BYTES`.
    """
    if sound.format == "NIST":  # libsndfile 1.2.2 takes its length from the size of the file alone
        samples = _NIST_SAMPLES.search(head)
        if samples is not None and int(samples[1]) == sound.frames:
            return
        declared = "no number of samples" if samples is None else f"{int(samples[1])} samples"
        problem = f"SPHERE that declares {declared} and has room for {sound.frames}; expected one whole recording"
    elif sound.format == "W64":
        # libsndfile 1.2.2 takes the encoding from the bits of a sample: floats are read as integers
        encoding = _SUBFORMAT.search(sound.extra_info)
        if encoding is None or encoding[1] == "pcm":
            return
        problem = f"Wave64 of {encoding[1]} with more than two channels, which cannot be read; {_CONVERT}"
    else:
        problem = f"{sound.format_info}, of which it cannot be told whether it is whole; {_CONVERT}"
    raise AudioError(problem, "not supported")
