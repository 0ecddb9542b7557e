#!/usr/bin/env bash
# soundfile reads a chained Ogg file (two recordings behind each other) as its first part alone, with that part's length in the header.
#
# One would guess: both parts are read, as RFC 3533 allows chains and as FFmpeg does; or a warning says that more follows.
# What happens: soundfile.read and blocks know of the first second only, for Vorbis and for Opus; so do miniaudio (Vorbis) and
#   what stands on libsndfile, such as audiofile. FFmpeg (PyAV) decodes the second part as well; its duration in the header is that of
#   the last part, so the two readers do not agree on the length by either way.
# Who meets it: streams that begin anew while they are recorded, as web radio does for each title; `cat a.ogg b.ogg`.
# Versions: soundfile 0.14.0 with libsndfile 1.2.2, av 18.1.0, miniaudio 1.71, audiofile 1.6.1, numpy 2.4.6; found in a run, 2026-11-28.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet soundfile==0.14.0 av==18.1.0 miniaudio==1.71 audiofile==1.6.1 numpy==2.4.6 2>/dev/null
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version
from pathlib import Path

import audiofile
import av
import miniaudio
import numpy as np
import soundfile

print("soundfile", soundfile.__version__, "with", soundfile.__libsndfile_version__, "| av", av.__version__, "| miniaudio", version("miniaudio"))
rate = 48_000
tone = 0.3 * np.sin(2 * np.pi * 440 * np.arange(rate) / rate)


def decoded(path):
    with av.open(path) as container:
        return sum(frame.samples for frame in container.decode(audio=0)) / rate, container.duration / av.time_base


for codec in ("VORBIS", "OPUS"):
    soundfile.write("first.ogg", tone, rate, format="OGG", subtype=codec)
    soundfile.write("second.ogg", tone[: rate // 2], rate, format="OGG", subtype=codec)
    Path("both.ogg").write_bytes(Path("first.ogg").read_bytes() + Path("second.ogg").read_bytes())
    with soundfile.SoundFile("both.ogg") as file:
        first, more = len(file.read()) / rate, len(file.read())
    blocks = sum(len(block) for block in soundfile.blocks("both.ogg", 1000)) / rate
    ffmpeg, header = decoded("both.ogg")
    print(f"{codec}, 1 s and 0.5 s: soundfile {first} s, then {more} samples; in blocks {blocks} s; audiofile {audiofile.duration('both.ogg')} s")
    print(f"  FFmpeg decodes {ffmpeg:.2f} s, its header says {header:.2f} s")
    assert first == blocks == audiofile.duration("both.ogg") == 1.0 and more == 0, "soundfile reads the chain now"
    assert 1.45 < ffmpeg < 1.53 and abs(header - 0.5) < 0.02, "FFmpeg reads it otherwise now"
    if codec == "VORBIS":
        assert miniaudio.vorbis_read_file("both.ogg").num_frames == rate, "miniaudio reads the chain now"
print("as found")
PYTHON
