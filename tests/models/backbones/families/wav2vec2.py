"""wav2vec 2.0: the miniature is built like XLS-R: layer norms in the convolutions and in front of each layer."""

from __future__ import annotations

from transformers import Wav2Vec2Config, Wav2Vec2Model

MAX_SECONDS = 30.0
LORA_LAYERS = {"audio_tower": 2 * 6}
OFFICIAL, PREFIX = Wav2Vec2Model, "wav2vec2."


def build(folder, tools):
    tools.wave_encoder(
        folder, Wav2Vec2Config, Wav2Vec2Model, return_attention_mask=True, feat_extract_norm="layer",
        do_stable_layer_norm=True,
    )  # fmt: skip
