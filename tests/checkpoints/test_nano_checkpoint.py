"""The shipped backbone: small, plain to load, and it hears."""

import json

import pytest
import torch
from empathy_judge.checkpoints.nano.make import pretrain
from empathy_judge.checkpoints.nano.make.answer import Listener, measure_answers
from empathy_judge.checkpoints.nano.make.architecture import HOP, SECONDS
from empathy_judge.checkpoints.nano.make.clips import ClipStore
from empathy_judge.checkpoints.nano.make.corpus import collect, digest, find_recordings, make_voices, synthetic_shards
from empathy_judge.core.files import file_hash
from empathy_judge.models.backbones import NANO_FOLDER, load_backbone
from empathy_judge.models.backbones.base import Checkpoint
from empathy_judge.models.backbones.qwen2_audio import Qwen2Audio
from safetensors import safe_open
from transformers import AutoProcessor, Qwen2AudioForConditionalGeneration, Qwen2AudioProcessor

from ..conftest import real_data

WHISPER_BASE = "deb2475f999cb8eed7aeeb6df04a0e22ce7916374d6d6ce04f324848f035f0b4"
"""SHA-256 of the encoder that `benchmarks/real_ear.py` writes of the packages it names."""
MEASURED = json.loads((NANO_FOLDER / "measured.json").read_text(encoding="utf-8"))


def test_is_small_and_safe():
    weights = NANO_FOLDER / "model.safetensors"
    assert weights.stat().st_size <= 6_200_000
    assert not [file.name for file in NANO_FOLDER.iterdir() if file.suffix in (".bin", ".pt", ".pkl", ".ckpt")]
    with safe_open(weights, framework="pt") as file:
        assert {file.get_slice(key).get_dtype() for key in file.keys()} == {"F16"}  # noqa: SIM118


def test_loads_as_the_true_classes():
    model, report = Qwen2AudioForConditionalGeneration.from_pretrained(NANO_FOLDER, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert model.dtype == torch.float32  # of its configuration, whatever its file holds
    assert model.config.model_type == "qwen2_audio"
    assert isinstance(AutoProcessor.from_pretrained(NANO_FOLDER), Qwen2AudioProcessor)
    assert load_backbone(Checkpoint("nano")).hidden_size == model.config.text_config.hidden_size


def test_is_what_the_command_makes_by_default(monkeypatch):
    """Weights, architecture, teacher and settings are those that `measured.json`, `make nano` and the program have."""
    assert MEASURED["sha256"]["weights"] == file_hash(NANO_FOLDER / "model.safetensors")
    model = Qwen2AudioForConditionalGeneration.from_pretrained(NANO_FOLDER)
    assert MEASURED["sha256"]["architecture"] == pretrain.architecture_digest(model)
    assert load_backbone(Checkpoint("nano")).max_seconds == SECONDS
    called = []
    monkeypatch.setattr(pretrain, "pretrain", lambda *arguments, teacher: called.append((*arguments, teacher)))
    monkeypatch.setattr("sys.argv", ["pretrain", "--out", "nowhere"])
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    pretrain.main()
    recipe = [MEASURED[name] for name in ("synthetic_clips", "tower_epochs", "steps", "seed")]
    assert list(called[0][3:]) == [*recipe, None]
    command = (NANO_FOLDER.parents[1] / "Makefile").read_text(encoding="utf-8").partition("\nnano:")[2]
    assert "--ears base --sets\n" in command
    assert "--teacher build/ear/base/hub\n" in command
    assert MEASURED["sha256"]["teacher"] == WHISPER_BASE


def test_was_made_from_these_recordings():
    data = real_data("read_speech").parent
    assert MEASURED["sha256"]["recordings"] == digest(find_recordings(data))


def test_readme_states_what_was_measured():
    text = (NANO_FOLDER / "README.md").read_text(encoding="utf-8")
    for name in ("unseen_voices", "real"):
        for row in MEASURED["accuracy"][name]:
            assert f"| {row['question']} | {row['n']} | {row['majority']:.2f} | {row['accuracy']:.2f} |" in text


@pytest.mark.long
def test_hears_delivery_of_voices_it_never_heard():
    """Fresh voices, fresh tones: far above the commonest answer on every question."""
    voices = make_voices(20, seed=991)
    model = Qwen2AudioForConditionalGeneration.from_pretrained(NANO_FOLDER).eval()
    processor = AutoProcessor.from_pretrained(NANO_FOLDER)
    backbone = Qwen2Audio(model.model, processor, Checkpoint("nano"))
    longest = backbone.max_seconds * 16_000 / HOP
    made = collect(synthetic_shards(120, voices, seed=991), "clips")
    store = ClipStore.of([clip for clip in made if len(clip.mel) <= longest])
    rows = {
        r["question"]: r for r in measure_answers(backbone, model, processor, Listener(backbone, store), 80, seed=1)
    }
    assert len(rows) == 20
    gains = {name: row["accuracy"] - row["majority"] for name, row in rows.items()}
    # Below what the README states for 400 pairs, by more than the noise of 80; both clips of a pair together
    least = {"pitch": 0.45, "level": 0.4, "quality": 0.4, "sex": 0.3, "recording": 0.3, "rate": 0.35}
    for name, gain in least.items():
        assert (gains[f"{name} of context"] + gains[f"{name} of response"]) / 2 >= gain, (name, gains)
    for name, gain in {"more pitch": 0.2, "more level": 0.3, "more rate": 0.2}.items():
        assert gains[name] >= gain, (name, gains)
