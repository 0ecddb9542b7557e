"""Qwen2-Audio: hears 10 s in the miniature of `checkpoints/nano/make`, 30 s on the hub."""

from empathy_judge.checkpoints.nano.make.architecture import build_model, build_processor
from empathy_judge.models.backbones.audio_language_model import QUESTION
from transformers import AutoProcessor, Qwen2AudioForConditionalGeneration

from ..tools import louder, processed

MAX_SECONDS = 10.0
LORA_LAYERS = {"language_model": 4 * 7, "projector": 1, "audio_tower": 4 * 6}


def build(folder):
    processor = build_processor([QUESTION, "Situation: Context: Response: the user the assistant"], seconds=10)
    model = build_model(processor)
    louder(model)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


def official(folder):
    model = Qwen2AudioForConditionalGeneration.from_pretrained(folder).eval()
    processor = AutoProcessor.from_pretrained(folder)

    def run(pair):
        inputs = processed(processor, pair, sampling_rate=16_000)
        return inputs["input_ids"], model.model(**inputs).last_hidden_state

    return model, run
