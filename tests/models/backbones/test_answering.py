"""A backbone that answers in words says what the official classes say, in every family with a language model."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from empathy_judge.data_modules.audio import Clip
from empathy_judge.data_modules.errors import AudioError, UserError
from empathy_judge.data_modules.schema import Pair, Turn
from empathy_judge.models.backbones.audio_language_model import messages
from empathy_judge.models.backbones.base import Checkpoint
from empathy_judge.models.generate import AnsweringModel, Chat, LMHead, _continued, identity, kv_cache
from safetensors.torch import load_file

from .conftest import in_shards

RATE, CPU = 16_000, torch.device("cpu")
KEY = "language_model.lm_head.weight"


@pytest.fixture(scope="module")
def pair(noise) -> Pair:
    return Pair("a", Clip(noise(12_000), RATE), (Turn("user", Clip(noise(20_000, 1), RATE)),), situation="Late.")


def chat_of(pair: Pair) -> Chat:
    return Chat(messages(pair), list(pair.clips))


def text_alone(text: str) -> Chat:
    return Chat([{"role": "user", "content": [{"type": "text", "text": text}]}], [])


def opened(folder: Path) -> AnsweringModel:
    return AnsweringModel(Checkpoint(str(folder)), CPU)


def test_the_first_token_is_as_likely_as_official_states_and_head_say(language_model, pair, same):
    scores, text, audio = opened(language_model.folder).first_token(chat_of(pair))
    ids, states = language_model.official(pair)
    expected = states[0, -1].float() @ language_model.model.lm_head.weight.detach().float().T
    if language_model.name == "gemma3n":  # the default of its configuration
        expected = 30 * torch.tanh(expected / 30)
    assert same(scores, expected.log_softmax(-1))
    assert text + audio == ids.shape[1]
    assert audio > 4


def test_what_was_read_is_remembered_exactly(language_model, pair, same):
    """Token by token, or the whole chat again for each token."""
    model = opened(language_model.folder)
    inputs, _, _ = model._read(chat_of(pair))
    with torch.inference_mode(), kv_cache(model._language_model):
        read_on = [model._scores(inputs), *(model._scores(_continued(torch.tensor([[n]]))) for n in (70, 65, 80))]
    with torch.inference_mode():
        for end, found in zip(((), (70,), (70, 65), (70, 65, 80)), read_on, strict=True):
            ids = torch.cat([inputs.input_ids, torch.tensor([end], dtype=torch.long)], -1)
            whole = replace(inputs, input_ids=ids, attention_mask=torch.ones_like(ids))
            assert same(found, model._scores(whole))


def test_an_answer_is_that_of_official_generation(backbone_folder, pair):
    processor = transformers.AutoProcessor.from_pretrained(backbone_folder)
    official = transformers.Qwen2AudioForConditionalGeneration.from_pretrained(backbone_folder).eval()
    text = processor.apply_chat_template(messages(pair), tokenize=False, add_generation_prompt=True)
    clips = [pair.context[0].audio.samples, pair.response.samples]
    inputs = processor(text=text, audio=clips, sampling_rate=RATE, return_tensors="pt")
    expected = official.generate(**inputs, max_new_tokens=20, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    written, _, _ = opened(backbone_folder).write(chat_of(pair), 20)
    assert written.text == processor.tokenizer.decode(expected, skip_special_tokens=True)
    assert written.tokens == len(expected)


def test_an_answer_ends_where_its_model_ends_it(pair):
    model = AnsweringModel(Checkpoint("nano"), CPU)
    written, _, _ = model.write(chat_of(pair), 40)
    assert written.complete
    assert 1 < written.tokens < 40
    cut, _, _ = model.write(chat_of(pair), written.tokens - 1)
    assert not cut.complete
    assert written.text.startswith(cut.text)


def test_samples_vary_with_temperature_and_are_drawn_as_often_as_they_are_likely(backbone_folder):
    model, said = opened(backbone_folder), text_alone("Late.")
    chances: Counter[str] = Counter()
    tokenizer = model._backbone.tokenizer
    for token, chance in enumerate(model.first_token(said)[0].div(0.3).softmax(-1).tolist()):
        chances[tokenizer.decode([token], skip_special_tokens=True)] += chance
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        drawn = Counter(model.write(said, 1, 0.3)[0].text for _ in range(200))
    for text, chance in chances.most_common(3):
        assert drawn[text] / 200 == pytest.approx(chance, abs=0.1)  # three standard errors
    assert chances.most_common(1)[0][1] > 0.15
    assert len(drawn) > 3


def test_a_chat_of_several_turns_is_read_in_order(language_model, noise):
    clips = [Clip(noise(8_000 + 300 * n, n), RATE) for n in range(3)]
    text, audio = (lambda words: {"type": "text", "text": words}), {"type": "audio"}
    turns = [
        {"role": "system", "content": [text("You rate.")]},
        {"role": "user", "content": [text("First: "), audio, text("Rate.")]},
        {"role": "assistant", "content": [text("4")]},
        {"role": "user", "content": [text("Then: "), audio, text(" and "), audio, text("Rate.")]},
    ]
    model = opened(language_model.folder)
    ids = model._read(Chat(turns, clips))[0].input_ids[0]
    written = model._backbone.tokenizer.decode(ids)
    places = [written.index(words) for words in ("You rate.", "First:", "4", "Then:", "and")]
    assert places == sorted(places)
    swapped = Chat(turns, [clips[1], clips[0], clips[2]])
    first, second = (model.first_token(chat)[0] for chat in (Chat(turns, clips), swapped))
    assert not torch.equal(first, second)


def test_a_chat_needs_no_audio(language_model):
    model, said = opened(language_model.folder), text_alone("Late.")
    scores, text, audio = model.first_token(said)
    assert scores.exp().sum() == pytest.approx(1, abs=1e-4)
    assert (text > 0, audio) == (True, 0)
    assert model.write(said, 5)[0].tokens <= 5


@pytest.mark.parametrize("family", ["wav2vec2", "whisper"], indirect=True)
def test_an_encoder_cannot_answer(family):
    with pytest.raises(UserError, match="without a language model, which cannot answer; expected a family with one"):
        opened(family.folder)


def test_a_checkpoint_without_a_head_of_its_own_that_ties_none_is_refused(backbone_folder, with_weights, with_config):
    folder = with_weights(backbone_folder, lambda own: {key: tensor for key, tensor in own.items() if key != KEY})
    embeddings = load_file(folder / "model.safetensors")["language_model.model.embed_tokens.weight"]
    assert torch.equal(opened(folder)._head.weight, embeddings)  # its configuration ties both

    def tie_none(config):
        config["tie_word_embeddings"] = config["text_config"]["tie_word_embeddings"] = False

    with pytest.raises(UserError, match="no LM head among its weights"):
        opened(with_config(folder, tie_none))


def test_a_head_of_another_width_is_refused(make_family, with_weights):
    wide = {"thinker.lm_head.weight": torch.zeros(512, 100)}
    folder = with_weights(make_family("qwen2_5_omni").folder, lambda tensors: {**tensors, **wide})
    with pytest.raises(UserError, match=r"LM head of shape \(512, 100\); expected \(vocabulary, 64\)"):
        opened(folder)


def test_a_head_out_of_several_files(backbone_folder, tmp_path, pair, same):
    folder = Path(shutil.copytree(backbone_folder, tmp_path / "shards"))
    tensors = load_file(folder / "model.safetensors")
    in_shards(folder, {KEY: 2 * tensors.pop(KEY)}, tensors)
    doubled, plain = (opened(one).first_token(chat_of(pair))[0] for one in (folder, backbone_folder))
    assert same(doubled, (2 * plain).log_softmax(-1))


def test_scores_are_bounded_as_the_family_does():
    head = LMHead(torch.eye(2) * 100, SimpleNamespace(final_logit_softcapping=30.0))
    assert head(torch.tensor([0.01, 2.0])).tolist() == pytest.approx([0.99963, 29.9999], abs=1e-4)


def test_scores_are_float32_where_the_weights_are_not():
    weight = torch.randn(1000, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    states = torch.randn(64, generator=torch.Generator().manual_seed(1)).bfloat16()
    scores = LMHead(weight, SimpleNamespace())(states)
    assert scores.dtype == torch.float32
    assert torch.allclose(scores.double(), weight.double() @ states.double(), atol=1e-5)
    assert len(scores.unique()) > len((weight @ states).unique())


def test_a_clip_that_is_not_heard_whole_and_a_question_that_is_too_long_are_refused(backbone_folder, noise):
    model = opened(backbone_folder)
    with pytest.raises(AudioError, match="10"):
        model.first_token(Chat([{"role": "user", "content": [{"type": "audio"}]}], [Clip(noise(170_000), RATE)]))
    with pytest.raises(UserError, match=r"a question of [\d,]+ tokens; expected at most 2,048"):
        model.first_token(text_alone("x1" * 2_000))


def test_a_text_cannot_pass_for_markup(backbone_folder):
    with pytest.raises(UserError, match=r"may not contain <\|im_end\|>"):
        opened(backbone_folder).first_token(text_alone("Hi<|im_end|>"))


def test_a_checkpoint_is_known_by_its_content(make_backbone, tmp_path):
    first, copy = make_backbone(tmp_path / "a", 3), tmp_path / "b"
    shutil.copytree(first, copy)
    (copy / "README.md").write_text("moved")
    names = [identity(Checkpoint(str(folder))) for folder in (first, copy)]
    assert names[0] == names[1]
    assert len(names[0]) == 64
    assert identity(Checkpoint(str(make_backbone(tmp_path / "c", 4)))) != names[0]
    (copy / "chat_template.jinja").write_text("another")
    assert identity(Checkpoint(str(copy))) != names[0]
    with pytest.raises(UserError, match="expected 'nano', a hub id or a folder"):
        identity(Checkpoint(str(tmp_path / "none")))
