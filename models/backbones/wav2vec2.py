"""wav2vec 2.0 (Baevski et al., 2020): convolutions over the waveform and a transformer, trained to tell frames apart.

Exact: every layer's states equal `hidden_states` of `Wav2Vec2Model` on each clip alone (transformers 5: the last ones
are those before the layer norm behind all layers, where there is one). Also XLS-R and other checkpoints of this type.
"""

from __future__ import annotations

from transformers import AutoConfig, Wav2Vec2Model

from .common.base import Checkpoint
from .common.loading import load_feature_extractor
from .common.pair_encoder import PairEncoder, load_tower
from .common.wave_ears import FRONT_END, WaveEars, layer_states
from .hubert import PART

# of models with a head: what tells frames apart in pre-training, recognizers and classifiers, what shortens their input
LEFT_BEHIND = (
    r"^(?:quantizer|project_q|project_hid|lm_head|projector|classifier)\.|masked_spec_embed$|^(?:wav2vec2\.)?adapter\."
)


def load(checkpoint: Checkpoint) -> PairEncoder:
    """Load encoder and feature extractor from the hub or a folder; heads and what pre-training needs are left behind.

    Raises:
        UserError: If the checkpoint lacks weights of the encoder or has weights that belong to none.
    """
    config = AutoConfig.from_pretrained(checkpoint.name, revision=checkpoint.revision)
    config.add_adapter = False  # it stands behind the states that are read
    tower = load_tower(Wav2Vec2Model, checkpoint, config, left_behind=LEFT_BEHIND, float32_parts=[FRONT_END])
    extractor = load_feature_extractor(checkpoint)
    ears = WaveEars(
        tower, extractor, lambda features, real: layer_states(tower, tower.feature_projection(features)[0], real)
    )
    layers = config.num_hidden_layers + 1
    return PairEncoder(tower, checkpoint, extractor=extractor, ears=ears, layers=layers, part=PART)
