#!/usr/bin/env bash
# Whisper's feature extractor gives a mask of 480,000 beside 3,000 frames where its settings ask for a mask, and of 3,000 where the call does.
#
# One would guess: WhisperFeatureExtractor(return_attention_mask=True), as folders of models that hear set it,
#   and extractor(..., return_attention_mask=True) make the same mask: one value for each frame.
# What happens: the mask is brought from samples to frames by the argument of the call alone. By the setting it stays one of samples:
#   (1, 480000) beside features of (1, 80, 3000), and its sum is 160 times the number of frames. return_attention_mask=False in the
#   call does not switch it off. Official processors pass the argument, and hide it.
# Who meets it: whoever calls the extractor itself: `lengths = mask.sum(-1)` of a clip of 1 s is 16,000 frames of 3,000.
# Versions: transformers 5.23.0, numpy 2.4.6; source: WhisperFeatureExtractor.__call__ and a run, 2026-11-29.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet transformers==5.23.0 numpy==2.4.6 2>/dev/null
"$folder/venv/bin/python" -W ignore - 2>"$folder/log" <<'PYTHON'
from importlib.metadata import version

import numpy as np
from transformers import WhisperFeatureExtractor

print("transformers", version("transformers"))
clip = np.random.default_rng(0).normal(0, 0.1, 16_001).astype(np.float32)
found = {}
for setting in (False, True):
    extractor = WhisperFeatureExtractor(return_attention_mask=setting)
    for asked in (None, False, True):
        made = extractor(clip, sampling_rate=16_000, return_tensors="np", return_attention_mask=asked)
        mask = made.get("attention_mask")
        found[setting, asked] = None if mask is None else (mask.shape[-1], int(mask.sum()))
        print(f"setting {setting!s:5}, call {asked!s:5}: features {made['input_features'].shape}, mask and its sum: {found[setting, asked]}")
assert found[False, None] is None and found[False, True] == found[True, True] == (3_000, 101)
assert found[True, None] == found[True, False] == (480_000, 16_001), "the setting gives a mask of frames now"
print("as found")
PYTHON
