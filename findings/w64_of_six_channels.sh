#!/usr/bin/env bash
# A Wave64 file that FFmpeg writes with six channels of floats is read by libsndfile as integers: other values, no error.
#
# One would guess: .w64 from FFmpeg (float, mu-law or A-law, more than two channels) is read as it is, or refused.
# What happens: for more than two channels FFmpeg writes WAVE_FORMAT_EXTENSIBLE. libsndfile notes the subformat in its log and then
#   picks the encoding by the bits of a sample alone: floats become 32-bit integers, mu-law and A-law unsigned bytes. 16-bit
#   integers are right, and so are all of these in .wav.
# Who meets it: whoever keeps long multichannel takes in Wave64, since WAV ends at 4 GB.
# Versions: soundfile 0.14.0 with libsndfile 1.2.2, av 18.1.0, numpy 2.4.6; found in a run, 2026-11-28.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet soundfile==0.14.0 numpy==2.4.6 av==18.1.0 2>/dev/null
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import av
import numpy as np
import soundfile

print("soundfile", soundfile.__version__, "with", soundfile.__libsndfile_version__, "| av", av.__version__)
rate = 48_000
samples = (0.4 * np.sin(np.arange(rate) / 20 * np.arange(1, 7)[:, None])).astype(np.float32)  # (channels, samples)


def write(path, kind, codec, sample_format, layout):
    with av.open(path, "w", format=kind) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.layout, stream.format = layout, sample_format
        channels = stream.codec_context.channels
        values = samples[:channels] if sample_format == "flt" else np.round(samples[:channels] * 32_767).astype(np.int16)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(values.T.reshape(1, -1)), format=sample_format, layout=layout)
        frame.sample_rate = rate
        for packet in (*stream.encode(frame), *stream.encode(None)):
            container.mux(packet)


errors = {}
for kind in ("wav", "w64"):
    for codec, sample_format in (("pcm_s16le", "s16"), ("pcm_f32le", "flt"), ("pcm_mulaw", "s16")):
        for layout, channels in (("stereo", 2), ("5.1", 6)):
            path = f"{codec}_{channels}.{kind}"
            write(path, kind, codec, sample_format, layout)
            found, _ = soundfile.read(path, always_2d=True, dtype="float64")
            assert found.shape == (rate, channels), found.shape
            errors[kind, codec, channels] = float(np.abs(found.T - samples[:channels]).max())
            print(f"{path:20} read as {soundfile.info(path).subtype:8} worst error {errors[kind, codec, channels]:.4f}")
wrong = {key for key, error in errors.items() if error > 0.05}
assert wrong == {("w64", "pcm_f32le", 6), ("w64", "pcm_mulaw", 6)}, wrong
print("as found")
PYTHON
