#!/usr/bin/env bash
# libsndfile and FFmpeg decode the same IMA ADPCM in AIFF (ima4) to other samples: libsndfile lowers each block of 64 by up to 127 steps.
#
# One would guess: IMA ADPCM is integer arithmetic, so that two decoders of one file agree to the bit, as they do for ADPCM in WAV.
# What happens: a block begins with the upper 9 bits of its predictor. FFmpeg goes on from where the last block ended if that agrees
#   with these bits; libsndfile begins each block at the 9 bits with the other 7 set to 0. Each block is lowered by a constant of
#   0 to 127 of 32,768, 64 on average: an offset of 0.2 % of full scale with a step every 64 samples.
# Who meets it: whoever compares decoders sample by sample, or reads quiet QuickTime-era recordings.
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
rate = 16_000
noise = np.random.default_rng(0).normal(size=rate)
samples = np.round(12_000 * np.sin(np.arange(rate) / 13) + 500 * noise).astype(np.int16)


def written(path, kind, codec, layout="mono"):
    with av.open(path, "w", format=kind) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.layout = layout
        frame = av.AudioFrame.from_ndarray(samples[None], format="s16p", layout=layout)
        frame.sample_rate, frame.pts = rate, 0
        resampler = av.AudioResampler(
            format=stream.codec_context.format, layout=layout, rate=rate, frame_size=stream.codec_context.frame_size
        )
        for part in (*resampler.resample(frame), *resampler.resample(None)):
            for packet in stream.encode(part):
                container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)
    ours, _ = soundfile.read(path, dtype="int16")
    with av.open(path) as container:
        theirs = np.concatenate([frame.to_ndarray().ravel() for frame in container.decode(audio=0)])
    length = min(len(ours), len(theirs))
    return ours[:length].astype(int) - theirs[:length]


wav = written("a.wav", "wav", "adpcm_ima_wav")
aiff = written("a.aiff", "aiff", "adpcm_ima_qt")
blocks = aiff[: len(aiff) // 64 * 64].reshape(-1, 64)
print("IMA ADPCM in WAV: samples that differ", int((wav != 0).sum()))
print(f"IMA ADPCM in AIFF: {(aiff != 0).mean():.1%} of the samples differ, by {aiff.min()} to {aiff.max()}, on average {aiff.mean():.1f}")
print("values of the difference within a block:", {len(set(block)) for block in blocks.tolist()})
assert not wav.any() and aiff.min() >= -127 and aiff.max() == 0 and -70 < aiff.mean() < -58
assert all(len(set(block)) == 1 for block in blocks.tolist())
print("as found")
PYTHON
