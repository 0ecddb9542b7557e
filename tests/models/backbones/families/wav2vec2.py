"""wav2vec 2.0: the miniature is built like XLS-R: layer norms in the convolutions and in front of each layer."""

from transformers import Wav2Vec2Model

OFFICIAL = Wav2Vec2Model
SETTINGS = {"return_attention_mask": True, "feat_extract_norm": "layer", "do_stable_layer_norm": True}
