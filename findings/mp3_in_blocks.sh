#!/usr/bin/env bash
# Reading an MP3 of variable bit rate block by block gives other samples than reading it at once.
#
# One would guess: SoundFile.read(8192) in a loop, or soundfile.blocks(), gives the same samples as soundfile.read().
# What happens: soundfile seeks to where it already is after every read. For MP3, libsndfile hands that seek to libmpg123,
#   which starts to decode anew a few frames before, without the bit reservoir of the frames before those. The first
#   samples of the next block are then those of a frame that lacks bits: here up to half of full scale off. Files of constant
#   bit rate, and every other lossy format of libsndfile, come out equal. A subclass whose seekable() is False does, too.
# Who meets it: whoever streams a long MP3 (data loaders, voice activity detection, loudness meters).
# Versions: soundfile 0.14.0 with libsndfile 1.2.2, numpy 2.4.6; source: SoundFile._cdata_io and a run, 2026-11-28.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet soundfile==0.14.0 numpy==2.4.6
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import io
import numpy as np
import soundfile

print("soundfile", soundfile.__version__, "with", soundfile.__libsndfile_version__)
rate = 44_100
t = np.arange(6 * rate) / rate
tone = 0.3 * np.sin(2 * np.pi * (180 + 60 * np.sin(9 * t)) * t) * (0.5 + 0.5 * np.sin(5 * t))
signal = tone + np.random.default_rng(1).normal(0, 0.05, len(t))


class Forward(soundfile.SoundFile):
    def seekable(self):
        return False


def in_blocks(kind, data, size):
    parts = []
    with kind(io.BytesIO(data)) as file:
        while len(part := file.read(size, dtype="float32")):
            parts.append(part)
    return np.concatenate(parts)


worst = {}
for mode in ("CONSTANT", "VARIABLE"):
    buffer = io.BytesIO()
    with soundfile.SoundFile(buffer, "w", rate, 1, "MPEG_LAYER_III", format="MP3", bitrate_mode=mode, compression_level=0.8) as file:
        file.write(signal)
    data = buffer.getvalue()
    whole = soundfile.read(io.BytesIO(data), dtype="float32")[0]
    for size in (1_000, 8_192, 131_072):
        blocks, forward = in_blocks(soundfile.SoundFile, data, size), in_blocks(Forward, data, size)
        assert len(blocks) == len(forward) == len(whole)
        off = np.abs(blocks - whole)
        print(f"{mode:8} blocks of {size:7,}: {(off > 1e-3).mean():6.1%} of the samples differ, by up to {off.max():.3f}; "
              f"not seekable: by up to {np.abs(forward - whole).max():.0e}")
        worst[mode, size] = off.max()
        assert np.abs(forward - whole).max() < 1e-6, "a file that is not seekable differs, too"
assert max(worst["CONSTANT", size] for size in (1_000, 8_192, 131_072)) < 1e-6, "constant bit rate differs now"
assert worst["VARIABLE", 8_192] > 0.05, "blocks of variable bit rate are right now: the guard in audio/decode.py may go"
print("as found")
PYTHON
