#!/usr/bin/env bash
# torchcodec, and so torchaudio.load and datasets.Audio, reads an eighth of a WAV of ADPCM with FFmpeg 5 or 6, as Debian 12 and Ubuntu 24.04 have it.
#
# One would guess: torchcodec returns what the FFmpeg beneath it decodes, or an error.
# What happens: FFmpeg hands over several blocks of ADPCM at once, and its decoder makes a frame of each. With FFmpeg 5 and 6 torchcodec takes one
#   frame of each packet: of 10 s there are 1.3, in eight pieces of a second that follow each other. The header's length is
#   right (`metadata.duration_seconds`), and so are all samples in PyAV and soundfile. With FFmpeg 7 and 8 it reads the whole.
# Who meets it: telephone recordings and old dictation files. Compare the number of samples with the duration of the header.
# Versions: torchcodec 0.17.0, torch 2.11.0, FFmpeg 6 out of av 12.0.0 (and Debian's 5.1.9, the same counts), soundfile 0.14.0; found in a run, 2026-11-29.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torchcodec==0.17.0 torch==2.11.0 av==12.0.0 soundfile==0.14.0 numpy==2.4.6 2>/dev/null
libraries=("$folder"/venv/lib/python3*/site-packages/av.libs)
mkdir "$folder/ffmpeg"
for file in "${libraries[0]}"/lib*.so.*; do # libavcodec-5e6b81c2.so.60.31.102 -> libavcodec.so.60, which torchcodec looks for
    ln -s "$file" "$folder/ffmpeg/$(basename "$file" | sed -E 's/-[0-9a-f]{8}\.so\.([0-9]+).*/.so.\1/')"
done
cat >"$folder/read.py" <<'PYTHON'
import io
from importlib.metadata import version

import av
import numpy as np
import soundfile
import torchcodec
from torchcodec.decoders import AudioDecoder

print("torchcodec", version("torchcodec"), "with FFmpeg", torchcodec.ffmpeg_major_version)
rate = 16_000
times = np.arange(10 * rate) / rate
found = {}
for subtype in ("PCM_16", "ULAW", "IMA_ADPCM", "MS_ADPCM"):
    buffer = io.BytesIO()
    soundfile.write(buffer, 0.3 * np.sin(2 * np.pi * (100 + 20 * times) * times), rate, format="WAV", subtype=subtype)
    data = buffer.getvalue()
    decoder = AudioDecoder(data)
    samples = decoder.get_all_samples().data[0].numpy()
    with av.open(io.BytesIO(data)) as container:
        by_av = sum(frame.samples for frame in container.decode(audio=0))
    found[subtype] = len(samples), by_av, len(soundfile.read(io.BytesIO(data))[0])
    print(f"{subtype:9}: torchcodec {len(samples):7,} samples, PyAV {by_av:,}, soundfile {found[subtype][2]:,}; duration {decoder.metadata.duration_seconds:.2f} s")
for subtype in ("PCM_16", "ULAW"):
    assert found[subtype] == (160_000,) * 3
for subtype in ("IMA_ADPCM", "MS_ADPCM"):
    read, by_av, by_soundfile = found[subtype]
    assert by_av == by_soundfile > 160_000 and read < by_av / 7, "torchcodec reads the whole now"
print("as found")
PYTHON
LD_LIBRARY_PATH="$folder/ffmpeg:${libraries[0]}" "$folder/venv/bin/python" -W ignore "$folder/read.py"
