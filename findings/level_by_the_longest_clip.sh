#!/usr/bin/env bash
# The feature extractor of wav2vec 2.0 scales a clip by its own length over that of the longest clip in the batch: its level changes.
#
# One would guess: each clip is brought to mean 0 and variance 1 over its own samples ("do_normalize"), alone or in a batch.
# What happens: with the extractor's default settings (return_attention_mask is False) a batch is padded with zeros first and
#   normalised with them. Beside a clip of four times its length a clip comes out at twice the level, beside one of 100
#   times at ten times; one with an offset also gets another mean. With return_attention_mask=True each clip is as it is alone.
# Who meets it: embeddings and scores of short replies that depend on what else is in the batch; results of batch size 1 that do not
#   come again. No warning is given.
# Versions: transformers 5.24.0, numpy 2.4.6 (no torch needed); found in a run, 2026-11-28.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet transformers==5.24.0 numpy==2.4.6 2>/dev/null
"$folder/venv/bin/python" - 2>"$folder/log" <<'PYTHON'
import numpy as np
import transformers
from transformers import Wav2Vec2FeatureExtractor

print("transformers", transformers.__version__)
random = np.random.default_rng(0)
clip = random.normal(size=16_000).astype(np.float32)


def level(times, **how):
    extract = Wav2Vec2FeatureExtractor(**how)
    other = random.normal(size=16_000 * times).astype(np.float32)
    batch = extract([clip, other], sampling_rate=16_000, padding=True, return_tensors="np").input_values
    return float(batch[0, :16_000].std())


alone = float(Wav2Vec2FeatureExtractor()(clip, sampling_rate=16_000, return_tensors="np").input_values.std())
plain = {times: level(times) for times in (1, 4, 25, 100)}
masked = {times: level(times, return_attention_mask=True) for times in (1, 4, 25, 100)}
print(f"level of a clip of 1 s, alone: {alone:.2f}")
for times in plain:
    print(f"beside one of {times} s: {plain[times]:.2f}, with return_attention_mask {masked[times]:.2f}")
assert Wav2Vec2FeatureExtractor().return_attention_mask is False and abs(alone - 1) < 0.01
assert all(abs(plain[times] - times**0.5) < 0.05 * times**0.5 for times in plain), "the level depends on something else now"
assert all(abs(level - 1) < 0.01 for level in masked.values())
print("as found")
PYTHON
