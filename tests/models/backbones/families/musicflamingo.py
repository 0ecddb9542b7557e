"""Audio Flamingo Next, in the classes of Music Flamingo: Audio Flamingo 3, and the time of a clip."""

from functools import partial

from transformers import MusicFlamingoConfig, MusicFlamingoForConditionalGeneration, MusicFlamingoProcessor

from . import audioflamingo3

MAX_SECONDS, LORA_LAYERS = audioflamingo3.MAX_SECONDS, audioflamingo3.LORA_LAYERS
official = partial(audioflamingo3.official, model_class=MusicFlamingoForConditionalGeneration)


def build(folder):
    audioflamingo3.small(
        folder, (*audioflamingo3.SPECIAL, "<|sound_bos|>", "<|sound_eos|>"), MusicFlamingoConfig,
        MusicFlamingoForConditionalGeneration, MusicFlamingoProcessor,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
    )  # fmt: skip
