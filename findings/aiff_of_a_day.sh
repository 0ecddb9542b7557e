#!/usr/bin/env bash
# libsndfile writes more than 4 GiB into AIFF and WAV without an error; of the AIFF only the first minute is read back.
#
# One would guess: both formats count bytes in 32 bits, so that the write which passes the limit raises, or the file becomes RF64.
# What happens: write and close succeed. 2,148,532,224 samples of 16 bits are read back as 1,048,576 from AIFF (the size has gone round
#   2 to the 32), and as 2,147,483,647 from WAV, whose header says "as many as can be": the last minute is missing. FFmpeg reads that WAV
#   whole, Python's `wave` does not. RF64, W64, AU and CAF come back whole.
# Who meets it: recordings of a day in one file: 37 hours at 16 kHz, 6 at 48 kHz in two channels.
# Versions: soundfile 0.14.0 with libsndfile 1.2.2, av 18.1.0, numpy 2.4.6; found in a run, 2026-11-28.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet soundfile==0.14.0 av==18.1.0 numpy==2.4.6 2>/dev/null
cd "$folder" # the files are sparse: they take some KiB of the disk
"$folder/venv/bin/python" - <<'PYTHON'
import os
import wave

import av
import numpy as np
import soundfile

print("soundfile", soundfile.__version__, "with", soundfile.__libsndfile_version__, "| av", av.__version__)
total, ends = 2**31 + 2**20, np.arange(1, 11, dtype=np.int16)
found = {}
for kind in ("AIFF", "WAV", "RF64", "W64", "AU", "CAF"):
    with soundfile.SoundFile("long", "w", 16_000, 1, "PCM_16", format=kind) as file:
        file.write(ends)
        file.seek(total - len(ends))  # silence, which the file system does not store
        file.write(ends)
        told = file.frames
    with soundfile.SoundFile("long") as file:
        found[kind] = file.frames
        file.seek(-10, soundfile.SEEK_END)
        last = file.read(dtype="int16")
    print(f"{kind}: {os.path.getsize('long'):,} bytes written, {found[kind]:,} of {total:,} samples read, the last of them", *last)
    if kind == "WAV":
        with av.open("long") as container, wave.open("long") as plain:
            theirs, python = container.streams.audio[0].duration, plain.getnframes()
    os.remove("long")
print(f"the WAV in FFmpeg: {theirs:,}; in Python's wave: {python:,}")
assert found["AIFF"] == 2**20 and found["WAV"] == python == 2**31 - 1 and theirs == total, "other lengths now"
assert all(found[kind] == total for kind in ("RF64", "W64", "AU", "CAF"))
print("as found")
PYTHON
