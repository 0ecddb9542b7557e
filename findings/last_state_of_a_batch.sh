#!/usr/bin/env bash
# The last audio token of a clip in Nemotron 3 Nano Omni depends on the other clips of its batch, where the clip lasts a multiple of 80 ms.
#
# One would guess: a padded batch with its attention mask gives each clip the states that it has alone, up to rounding; if padding leaks,
#   it leaks into every clip that is shorter than the longest.
# What happens: the feature extractor masks the last frame of every clip, but the model counts audio tokens with that frame. A clip of
#   8 n frames has n + 1 tokens, the last of which is masked as a whole. All its scores are the lowest number of the dtype, so that
#   softmax gives equal shares to all positions, padding of the batch included. Clips of 2 s or 2.009 s are changed, one of 2.01 s is not.
# Who meets it: batches of clips cut to whole windows (2 s, 4 s, 10 s), and scores that pool the states of audio tokens: another batch,
#   another score. Encode each clip alone, or leave the last token out where the number of frames is a multiple of 8.
# Versions: transformers 5.23.0, torch 2.11.0; source: get_audio_features in nemotron_h_omni, ParakeetEncoderAttention, and a run, 2026-11-29.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet transformers==5.23.0 torch==2.11.0 numpy==2.4.6 2>/dev/null
"$folder/venv/bin/python" -W ignore - 2>"$folder/log" <<'PYTHON'
from importlib.metadata import version

import numpy as np
import torch
from transformers import NemotronH_Omni_Reasoning_V3, NemotronH_Omni_Reasoning_V3_Config, ParakeetFeatureExtractor

print("transformers", version("transformers"), "torch", version("torch"))
text = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
        "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 1, "ssm_state_size": 16, "layers_block_type": ["linear_attention"]}
audio = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "num_mel_bins": 32,
         "subsampling_conv_channels": 8, "projection_hidden_size": 32, "projection_bias": False, "convolution_bias": False}
vision = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 8, "image_size": 16, "max_img_size": 32,
          "video_temporal_patch_size": 2}
torch.manual_seed(0)
config = NemotronH_Omni_Reasoning_V3_Config(text_config=text, audio_config=audio, vision_config=vision, vision_hidden_size=16)
model = NemotronH_Omni_Reasoning_V3(config).eval()
with torch.no_grad():
    for weight in model.audio_tower.parameters():
        if weight.ndim > 1:
            weight.mul_(3)  # as large as those of a trained model
extractor = ParakeetFeatureExtractor(feature_size=32)
noise = np.random.default_rng(0).normal(0, 0.2, 64_000).astype(np.float32)


@torch.no_grad()
def states(*lengths):
    made = extractor([noise[:length] for length in lengths], sampling_rate=16_000, return_tensors="pt")
    assert "attention_mask" in made
    return model.get_audio_features(made["input_features"], made["attention_mask"]).pooler_output


found = {}
for samples in (31_999, 32_000, 32_159, 32_160):
    alone = states(samples)
    beside = states(samples, 64_000)[: len(alone)]
    apart = (beside - alone).abs().amax(-1) / alone.abs().max()
    found[samples] = float(apart[-1])
    print(f"{samples} samples, {len(alone)} tokens: the last differs by {found[samples]:.1e}, the others by at most {float(apart[:-1].max()):.1e}")
    assert apart[:-1].max() < 1e-5
assert found[32_000] > 1e-3 and found[32_159] > 1e-3, "the last token keeps to its clip now"
assert found[31_999] < 1e-5 and found[32_160] < 1e-5
print("as found")
PYTHON
