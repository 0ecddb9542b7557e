"""HuBERT (Hsu et al., 2021): convolutions over the waveform and a transformer, trained to predict clusters of sound.

Exact: every layer's states equal `hidden_states` of `HubertModel` on each clip alone (transformers 5: the last ones are
those before the layer norm behind all layers, where there is one). The hub has most of its checkpoints as pickles only;
see `common/loading.py`.
"""

from __future__ import annotations

from transformers import AutoConfig, HubertModel

from ...data_modules.errors import UserError
from .common.base import Checkpoint, Part
from .common.loading import load_feature_extractor
from .common.pair_encoder import PairEncoder, load_tower
from .common.wave_ears import FRONT_END, WaveEars, layer_states

PART = Part(
    "encoder",
    ("q_proj", "k_proj", "v_proj", "out_proj", "intermediate_dense", "output_dense"),
    layers="encoder.encoder.layers",
)


def load(checkpoint: Checkpoint) -> PairEncoder:
    """Load encoder and feature extractor from the hub or a folder; heads of recognizers are left behind.

    Raises:
        UserError: If the checkpoint lacks weights of the encoder or has weights that belong to none, or if its
            positions go through a batch norm.
    """
    config = AutoConfig.from_pretrained(checkpoint.name, revision=checkpoint.revision)
    if config.conv_pos_batch_norm:
        raise UserError(f"backbone {checkpoint.name!r}: conv_pos_batch_norm lets padding in; accepted: false")
    tower = load_tower(HubertModel, checkpoint, config, float32_parts=[FRONT_END])
    extractor = load_feature_extractor(checkpoint)
    ears = WaveEars(
        tower, extractor, lambda features, real: layer_states(tower, tower.feature_projection(features), real)
    )
    layers = config.num_hidden_layers + 1
    return PairEncoder(tower, checkpoint, extractor=extractor, ears=ears, layers=layers, part=PART)
