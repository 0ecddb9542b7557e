"""The script that made the shipped backbone: its questions have right answers, and it runs from nothing to a README."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from empathy_judge.models.backbones import load_backbone
from empathy_judge.models.backbones.base import Checkpoint
from empathy_judge.models.backbones.qwen2_audio import Qwen2Audio
from empathy_judge.train.nano import answer
from empathy_judge.train.nano.architecture import build_model, build_processor
from empathy_judge.train.nano.corpus import LABELS, MEASURES, Clip, ClipStore, make_voices, pitch_range
from empathy_judge.train.nano.pretrain import pretrain
from empathy_judge.train.nano.questions import CLOSED, OPEN, Delivery

QUESTIONS = {question.name: question for question in (*CLOSED, *OPEN)}


def _delivery(quality: int = -1, sex: int = -1, recording: int = -1, **measures: float) -> Delivery:
    return Delivery([measures.get(name, math.nan) for name in MEASURES], [quality, sex, recording])


LOW = _delivery(pitch=-0.7, rate=3.5, level=-38.0, pitch_range=0.5, pitch_shift=-3.0, quality=1, sex=1, recording=2)
HIGH = _delivery(pitch=0.8, rate=3.7, level=-20.0, pitch_range=5.0, pitch_shift=0.0, quality=0, sex=0, recording=0)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("pitch of context", "very low"), ("pitch of response", "very high"), ("pitch_range of context", "flat"),
        ("level of response", "very loud"), ("pitch_shift of context", "lowered"), ("quality of context", "breathy"),
        ("sex of response", "female"), ("recording of context", "noisy"), ("more pitch", "response"),
        ("more rate", "same"), ("more level", "response"),
    ],
)  # fmt: skip
def test_answers(name, answer):
    assert QUESTIONS[name].answer(LOW, HIGH) == answer


def test_unknown_is_not_asked():
    assert QUESTIONS["rate of response"].answer(LOW, _delivery(pitch=0.0)) is None
    assert QUESTIONS["more rate"].answer(LOW, _delivery(pitch=0.0)) is None
    assert QUESTIONS["pitch of context"].answer(None, HIGH) is None
    assert QUESTIONS["describe response"].answer(None, _delivery(level=-30.0)) == "level medium"


def test_pitch_range_ignores_octave_errors():
    octaves = np.linspace(-0.1, 0.1, 21)
    assert pitch_range(octaves) == pytest.approx(12 * 0.12, abs=1e-6)
    wild = np.concatenate([octaves, [1.0, 1.0, -1.0]])
    assert pitch_range(wild) == pytest.approx(pitch_range(octaves), abs=0.2)
    assert math.isnan(pitch_range(np.array([0.1, np.nan, 0.2])))


def test_clip_store_round_trip_and_padding(tmp_path):
    rng = np.random.default_rng(0)
    clips = [
        Clip(
            rng.normal(size=(frames, 128)).astype(np.float16),
            np.full(len(MEASURES), frames, np.float32),
            np.zeros(len(LABELS), np.int64),
            np.full((frames // 4, 2), frames, np.float32),
        )
        for frames in (40, 63)
    ]
    ClipStore.of(clips).save(tmp_path / "clips.npz")
    store = ClipStore.load(tmp_path / "clips.npz")
    mel, lengths, frames = store.batch([1, 0])
    assert lengths.tolist() == [60, 40]  # whole audio tokens only
    torch.testing.assert_close(mel[0, :, :60].T, torch.from_numpy(clips[1].mel[:60]).float())
    assert frames[1, 10:].isnan().all()


def test_voices_are_half_women_and_repeat():
    voices = make_voices(40, seed=1)
    assert [voice.sex for voice in voices].count("f") == 20
    assert voices == make_voices(40, seed=1)
    assert not set(voices) & set(make_voices(40, seed=2))


def test_architecture_is_qwen2_audio_in_miniature():
    processor = build_processor(["How fast is the response?"])
    model = build_model(processor)
    weights = sum(weight.numel() for weight in model.parameters())
    assert 2.5e6 < weights <= 3.0e6
    for text in ("How fast?", "Größe: 12 €\n", "<|im_start|>user\nhi<|im_end|>"):
        assert processor.tokenizer.decode(processor.tokenizer(text)["input_ids"]) == text


def _teach(kept: Path) -> dict[str, torch.Tensor]:
    """Four steps of the language model on random clips."""
    rng = np.random.default_rng(0)
    clips = [
        Clip(
            rng.normal(size=(40, 128)).astype(np.float16),
            rng.normal(size=len(MEASURES)).astype(np.float32),
            np.zeros(len(LABELS), np.int64),
            np.zeros((10, 2), np.float32),
        )
        for _ in range(12)
    ]
    processor = build_processor(["How fast is the response?"])
    torch.manual_seed(0)
    model = build_model(processor)
    backbone = Qwen2Audio(model.model, processor, Checkpoint("nano"))
    listener = answer.Listener(backbone, ClipStore.of(clips))
    answer.train_language_model(backbone, model, processor, listener, steps=4, seed=1, kept=kept)
    return dict(model.state_dict())


@pytest.mark.long
def test_an_interrupted_language_model_ends_as_the_uninterrupted_one(tmp_path, monkeypatch):
    monkeypatch.setattr(answer, "_SAVE_EVERY", 2)
    whole = _teach(tmp_path / "whole.pt")
    draw, drawn = answer._draw, []

    def interrupted(*arguments):
        drawn.append(1)
        if len(drawn) == 4:
            raise KeyboardInterrupt
        return draw(*arguments)

    monkeypatch.setattr(answer, "_draw", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _teach(tmp_path / "cut.pt")
    resumed = _teach(tmp_path / "cut.pt")
    assert len(drawn) == 4 + 2  # steps 3 and 4 of the resumed call
    for name, weight in whole.items():
        assert torch.equal(weight, resumed[name]), name


@pytest.mark.long
def test_script_runs_from_nothing(tmp_path):
    pretrain(tmp_path / "out", tmp_path / "work", None, clips=64, tower_epochs=1, steps=3, seed=1, measured_pairs=12)
    assert load_backbone(Checkpoint(str(tmp_path / "out"))).sampling_rate == 16_000
    measured = json.loads((tmp_path / "out" / "measured.json").read_text())
    assert measured["clips"] == {"train": 64, "unseen_voices": 40}
    assert set(measured["seconds"]) == {"corpora", "audio tower", "language model"}
    assert "| question | n | majority | accuracy |" in (tmp_path / "out" / "README.md").read_text()
