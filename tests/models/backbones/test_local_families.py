"""The score of a local judge is that which the official classes' logits make, computed here by hand."""

from __future__ import annotations

import asyncio
import io

import numpy as np
import pytest
import soundfile
import torch
from empathy_judge.data_modules.audio import Clip
from empathy_judge.data_modules.schema import Dimension, Pair, Turn
from empathy_judge.eval.judges.prompted.local import LocalProvider
from empathy_judge.eval.judges.prompted.questions import Example, Question, expected_score, score_question
from empathy_judge.eval.judges.prompted.settings import PromptedSettings
from transformers import AutoProcessor, Qwen2_5OmniProcessor

from .conftest import RATE
from .families.qwen2_5_omni import CHAT_TEMPLATE
from .families.voxtral import FEATURES
from .tools import joined, omni_processor

EMPATHY = Dimension("empathy", 1, 5, 1)
SETTINGS = PromptedSettings(samples=1, rubric="plain", answers="logprobs")


def qwen2_audio(family, turns, clips):
    return processed(AutoProcessor.from_pretrained(family.folder), family.model, turns, clips)


def qwen2_5_omni(family, turns, clips):
    processor = omni_processor(Qwen2_5OmniProcessor, family.folder, CHAT_TEMPLATE)
    return processed(processor, family.model, turns, clips)


def processed(processor, model, turns, clips):
    text = processor.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    inputs = processor(text=text, audio=clips, sampling_rate=RATE, return_tensors="pt")
    return processor.tokenizer, model(**inputs).logits


def voxtral(family, turns, clips):
    processor = AutoProcessor.from_pretrained(family.folder, mistral_format=False)
    system, *turns = turns
    said = f"{joined(system, '')}\n\n"
    text = "<s>"
    for turn in turns:
        content = joined(turn, "[BEGIN_AUDIO]" + "[AUDIO]" * 25)  # a window of 2 s each
        text += f"[INST]{said}{content}[/INST]" if turn["role"] == "user" else f"{content}</s>"
        said = ""
    ids = processor.tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    features = processor._retrieve_input_features(clips, **FEATURES)
    return processor.tokenizer, family.model(input_ids=ids, input_features=features).logits


def turns_of(question: Question) -> list[dict]:
    """As a person would write them for the template: a line for each text and each clip."""
    audio = {"type": "audio"}
    ask = question.messages[-1].parts[-1]

    def asked(words):
        lines = ["Context (audio):\n", audio, "\nResponse (audio):\n", audio, f"\n{words}"]
        return [line if isinstance(line, dict) else {"type": "text", "text": line} for line in lines]

    turns = [{"role": "system", "content": [{"type": "text", "text": question.system}]}]
    if len(question.messages) > 1:
        turns.append({"role": "user", "content": asked("Rate the response.")})
        turns.append({"role": "assistant", "content": [{"type": "text", "text": "4"}]})
    return [*turns, {"role": "user", "content": asked(ask)}]


@pytest.mark.parametrize("official", [qwen2_audio, qwen2_5_omni, voxtral])
@pytest.mark.parametrize("shown", [0, 1])
def test_a_score_is_the_mean_under_the_official_logits(official, shown, make_family, noise):
    family = make_family(official.__name__)
    pair, other = (
        Pair(f"p{n}", Clip(noise(16_000, n), RATE), (Turn("user", Clip(noise(16_000, n + 5), RATE)),)) for n in (0, 1)
    )
    question = score_question(pair, [EMPATHY], SETTINGS, 400, [Example(other, {"empathy": 3.8})] * shown)
    provider = LocalProvider(str(family.folder))
    reply, again = (asyncio.run(provider.ask(question)) for _ in range(2))
    found = expected_score(reply.alternatives, EMPATHY)

    clips = [soundfile.read(io.BytesIO(sound.wav), dtype="float32")[0] for sound in question.sounds]
    with torch.no_grad():
        tokenizer, logits = official(family, turns_of(question), clips)
    digits = [logits[0, -1, tokenizer.convert_tokens_to_ids(str(score))].item() for score in range(1, 6)]
    chances = np.exp(digits) / np.exp(digits).sum()
    assert found == pytest.approx(float(chances @ np.arange(1, 6)), abs=1e-4)
    assert np.ptp(chances) > 0.02
    assert reply == again
    assert len(clips) == 2 + 2 * shown
