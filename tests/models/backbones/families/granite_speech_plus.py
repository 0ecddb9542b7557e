"""Granite Speech Plus: as Granite Speech, but its projector sees one more layer of the encoder."""

import importlib.util
from pathlib import Path

from transformers import GraniteSpeechPlusForConditionalGeneration

_spec = importlib.util.spec_from_file_location("granite_speech_family", Path(__file__).with_name("granite_speech.py"))
plain = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(plain)

MAX_SECONDS, LORA_LAYERS = plain.MAX_SECONDS, plain.LORA_LAYERS


def build(folder, tools):
    plain.build(folder, tools, GraniteSpeechPlusForConditionalGeneration, {"cat_hidden_layers": [1]})


def official(folder, tools):
    return plain.official(folder, tools, GraniteSpeechPlusForConditionalGeneration)
