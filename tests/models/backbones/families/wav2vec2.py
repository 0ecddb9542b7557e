"""wav2vec 2.0: the miniature is built like XLS-R: layer norms in the convolutions and in front of each layer."""

from transformers import Wav2Vec2Model

from ..tools import official_encoder, wave_encoder

MAX_SECONDS, LORA_LAYERS = 30.0, {"audio_tower": 2 * 6}


def build(folder):
    wave_encoder(folder, Wav2Vec2Model, feat_extract_norm="layer", do_stable_layer_norm=True)


def official(folder):
    return official_encoder(Wav2Vec2Model, folder)
