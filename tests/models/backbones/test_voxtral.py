"""Voxtral: its prompt without `mistral-common`, windows, and situations that hold control tokens."""

from __future__ import annotations

import base64
import io
import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from empathy_judge.audio.decode import Clip
from empathy_judge.core.errors import UserError
from empathy_judge.data_modules.schema import Pair, Turn
from empathy_judge.models.backbones import load_backbone
from empathy_judge.models.backbones.audio_language_model import messages
from empathy_judge.models.backbones.base import Checkpoint
from transformers import AutoProcessor, VoxtralForConditionalGeneration

from .conftest import RATE, judge_of, loaded, refused

# What mistral-common 1.13.1 makes of the pair below, 25 audio tokens (id 24) for each window of 2 s
BEFORE = [
    1, 3, 123, 145, 156, 157, 137, 156, 145, 301, 98, 72, 116, 137, 156, 141, 86, 50, 107, 301, 156, 141, 160, 156,
]  # fmt: skip
BETWEEN = [50, 306, 98, 72, 25]


@pytest.fixture(scope="module")
def family(make_family):
    return make_family("voxtral")


@pytest.fixture
def pair(noise) -> Pair:
    return Pair("p", Clip(noise(40_000), RATE), (Turn("user", Clip(noise(20_000, 1), RATE)),), situation="Late.")


def test_token_ids_are_those_of_mistral_common(family, pair):
    ids = judge_of(family, pooling="attention").build_inputs([pair]).input_ids[0].tolist()
    assert ids[:24] == BEFORE
    assert ids[24:27] == [98, 72, 25]
    assert ids[27:52] == [24] * 25
    assert ids[52:57] == BETWEEN
    assert ids[57:107] == [24] * 50
    assert ids[107] == 50
    assert ids[-1] == 4


@torch.no_grad()
@pytest.mark.parametrize("situation", [None, "Late.", "Late!\n ", " a  b\n\n", "é 日本 12345 the   ", "x/"])
def test_inputs_are_those_of_the_official_template(family, noise, same, situation):
    pytest.importorskip("mistral_common")
    processor = AutoProcessor.from_pretrained(family.folder)
    model = VoxtralForConditionalGeneration.from_pretrained(family.folder).eval()
    turns = tuple(Turn(role, Clip(noise(n), RATE)) for role, n in (("user", 20_000), ("assistant", 9_000)))
    pair = Pair("p", Clip(noise(40_000), RATE), turns, situation=situation)
    clips = iter([turn.audio.samples for turn in turns] + [pair.response.samples])
    content = []
    for kind, pieces in itertools.groupby(messages(pair)[0]["content"], key=lambda piece: piece["type"]):
        if kind == "text":
            content.append({"type": "text", "text": "".join(piece["text"] for piece in pieces)})
        else:
            content += [{"type": "audio", "base64": wav(next(clips))} for _ in pieces]
    options = {"pad_to_multiple_of": 2 * RATE, "max_source_positions": 200}
    made = processor.apply_chat_template([{"role": "user", "content": content}], processor_kwargs=options)
    judge = judge_of(family, pooling="attention")
    inputs = judge.build_inputs([pair])
    assert torch.equal(inputs.input_ids, made["input_ids"])
    assert same(judge.backbone.hidden_states(inputs), model.model(**made).last_hidden_state)


def wav(samples) -> str:
    stream = io.BytesIO()
    soundfile.write(stream, samples, RATE, format="WAV", subtype="FLOAT")
    return base64.b64encode(stream.getvalue()).decode()


@pytest.mark.parametrize("token", ["[AUDIO]", "[/INST]", "</s>", "<pad>"])
def test_a_situation_may_not_hold_control_tokens(family, noise, token):
    with pytest.raises(UserError, match="situation"):
        judge_of(family).build_inputs([Pair("p", Clip(noise(9_000), RATE), situation=f"a {token} b")])


@pytest.mark.parametrize(("samples", "tokens"), [(800, 25), (32_000, 25), (32_001, 50), (96_000, 75)])
def test_a_clip_costs_whole_windows(family, samples, tokens):
    assert loaded(family.folder).audio_tokens(samples) == tokens


def test_a_missing_tokenizer_is_named(family, tmp_path):
    folder = Path(shutil.copytree(family.folder, tmp_path / "copy"))
    (folder / "tekken.json").unlink()
    refused(folder, "no processor")


def test_the_response_is_pooled_over_what_was_said_and_not_over_the_silence_behind_it(family, pair):
    """40,000 samples are 31.25 of the 50 tokens of two windows."""
    inputs = judge_of(family).build_inputs([pair])
    places = inputs.response_mask[0].nonzero()[:, 0].tolist()
    assert places == list(range(57, 57 + 32))
    one = judge_of(family)
    states = one.encode_clips([one.decode(pair.response)])
    assert [(len(window.states), window.real_tokens) for window in states[0]] == [(50, 32)]


def test_the_tokenizer_of_a_downloaded_checkpoint_is_found_offline(on_the_hub, make_family):
    on_the_hub("voxtral", "somebody/Voxtral", None)
    clip = Clip(torch.zeros(RATE).numpy(), RATE)
    pair = Pair("any", clip, (Turn("user", clip),))
    downloaded, in_a_folder = (
        load_backbone(Checkpoint(name)).question(pair).ids
        for name in ("somebody/Voxtral", str(make_family("voxtral").folder))
    )
    assert (downloaded == 24).sum() == 2
    assert np.array_equal(downloaded, in_a_folder)
