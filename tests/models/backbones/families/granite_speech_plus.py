"""Granite Speech Plus: as Granite Speech, but its projector sees one more layer of the encoder."""

from transformers import GraniteSpeechPlusForConditionalGeneration

from . import granite_speech as plain

MAX_SECONDS, LORA_LAYERS = plain.MAX_SECONDS, plain.LORA_LAYERS


def build(folder):
    plain.build(folder, GraniteSpeechPlusForConditionalGeneration, {"cat_hidden_layers": [1]})


def official(folder):
    return plain.official(folder, GraniteSpeechPlusForConditionalGeneration)
