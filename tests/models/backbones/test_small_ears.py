"""Encoders whose recipes are for few ratings: the probe on a frozen encoder, and windows that are cut."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import cpu_offload
from empathy_judge.audio.decode import Clip
from empathy_judge.cli import main
from empathy_judge.core.disk_store import DiskStore
from empathy_judge.core.errors import UserError
from empathy_judge.data_modules.schema import Pair, PairDataset, Turn
from empathy_judge.eval.judges.baselines import probe
from empathy_judge.eval.judges.baselines.probe import ClipReader, open_probe
from empathy_judge.models import BEST, CHECKPOINTS
from empathy_judge.models.backbones import load_backbone
from empathy_judge.models.backbones.base import Checkpoint
from empathy_judge.models.feature_cache import ClipStates
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.models.settings import HeadInputSettings, JudgeSettings, LoraSettings
from empathy_judge.models.weight_files import read_checkpoint
from empathy_judge.scoring.artifact import load_any
from empathy_judge.scoring.batches import bytes_per_token
from empathy_judge.scoring.predictor import Predictor
from empathy_judge.train.run import train
from lightning.pytorch.callbacks import LambdaCallback
from safetensors.torch import load_file, save_file
from transformers import AutoFeatureExtractor
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from ...conftest import failed, output_of
from ..conftest import saved
from .conftest import RATE, SCALES, judge_of, refused

READ = {
    "judge__head_input__audio": "all_layers", "judge__lora__parts": "[audio_tower]", "cache__what": "auto",
}  # fmt: skip
ENCODERS = ("hubert", "wav2vec2", "wav2vec2_bert", "wavlm", "whisper", "whisper_base", "whisper_small")


@pytest.fixture
def whisper(make_family):
    return make_family("whisper")


def clips_of(folder: Path, *splits: str) -> set[str]:
    return set(itertools.chain(*(pair.clips for pair in PairDataset.load(folder).subset(list(splits)).pairs)))


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("method", ["probe", "auto", "lora"])
def test_the_recipe_of_an_encoder_takes_every_method(name, method, parser):
    recipe = parser.recipe(parser.parse(["--config", name, "--run", "r", "--method", method]))
    assert recipe.judge.head_input.audio == "all_layers"
    # what a method does not train is encoded once; the second step of auto is a recipe of method lora
    assert recipe.cache.what == ("none" if method == "lora" and recipe.judge.lora.trains_tower else "audio")


def test_a_probe_on_a_tower_that_lora_would_train_encodes_each_clip_once_and_trains_nothing(
    whisper, train_arguments, dataset_folder, tmp_path, encoded, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "200")
    words = {**READ, "judge__backbone": whisper.folder, "method": "probe"}
    train(train_arguments(tmp_path / "run", **words, cache__folder=tmp_path / "kept"))
    assert sum(encoded) == len(clips_of(dataset_folder, "train", "validation"))
    table = capsys.readouterr().err.partition("What is trained: nothing")[2]
    rows = {row[0]: row[2] for line in table.splitlines() if len(row := line.replace("│", " ").split()) == 4}
    assert set(rows) >= {"audio_tower", "fusion", "head", "all"}
    assert set(rows.values()) == {"0"}
    encoded.clear()
    train(train_arguments(tmp_path / "second", **words, cache__folder=tmp_path / "kept", seed=1))
    assert encoded == []
    # the untrained fusion has no say
    judge, pairs = load_any(tmp_path / "run").judge, PairDataset.load(dataset_folder).pairs[:4]
    inputs = judge.build_inputs(pairs)
    with torch.no_grad():
        before = judge(inputs)
        for weight in judge.network.fusion.parameters():
            weight.add_(torch.randn(weight.shape))
        torch.testing.assert_close(judge(inputs), before, atol=1e-5, rtol=0)
    assert before.std(0).max() > 0.01


def test_adapters_that_start_at_a_probe_can_use_the_fusion(whisper, train_arguments, tmp_path):
    words = {**READ, "judge__backbone": whisper.folder, "method": "lora", "trainer__max_epochs": 1}
    found: list[torch.Tensor] = []

    def keep(trainer, module, *_):
        found.append(module.judge.network.fusion.feed_forward[0].weight.detach().clone())

    train(train_arguments(tmp_path / "run", **words), watching=[LambdaCallback(on_train_batch_end=keep)])
    assert not torch.equal(found[0], found[-1])


@pytest.mark.parametrize("method", ["lora", "probe"])
def test_spectrograms_are_made_outside_autocast(method, whisper, train_arguments, tmp_path):
    words = {**READ, "judge__backbone": whisper.folder, "method": method, "cache__what": "none"}
    half = {"judge__dtype": "bfloat16", "trainer__precision": "bf16-mixed", "trainer__max_epochs": 1}
    run = train(train_arguments(tmp_path / "run", **words, **half))
    assert run.agreement["empathy"] is not None


def test_a_probe_keeps_of_each_clip_what_it_needs(whisper, dataset_folder, encoded, monkeypatch):
    monkeypatch.setattr(probe, "KEPT_BYTES", 1)  # of states nothing would stay
    dataset = PairDataset.load(dataset_folder).subset(["train"])
    judge = open_probe(f"probe:{whisper.folder}", dataset, 0)
    assert sum(encoded) == len(clips_of(dataset_folder, "train"))
    assert judge.score(dataset.pairs)["status"].eq("ok").all()
    reader = ClipReader(judge_of(whisper, head_input=HeadInputSettings("all_layers")))
    states, _, _ = reader._encoder.encode(dict.fromkeys(dataset.pairs[0].clips))
    for clip in states.values():
        assert sum(tensor.untyped_storage().nbytes() for tensor in (clip[0].states, clip[0].layers)) == 3 * 2 * 32 * 4


def test_a_dry_run_of_scoring_counts_the_states_of_all_layers_of_an_encoder(whisper, clips, tmp_path, capsys):
    saved(_judge(whisper.folder, 1.0), tmp_path / "judge")
    (clips / "rows.csv").write_text("response_audio\nr0.wav\nr1.wav\n")
    words = ["score", tmp_path / "judge", "--manifest", clips / "rows.csv", "--dry-run", "--json"]
    for more, limit in (([], None), (["--gpu-gib", "24"], 16_384)):
        found = json.loads(output_of(capsys, *words, *more))
        assert (found["rows"], found["batch_tokens"]) == (2, limit)
    # three layers of 32 beside what a layer computes with: 4 (6 * 32 + 3 * 128 + 3 * 32) + 4 (2 * 32 + 2 * 128) bytes
    assert bytes_per_token(_judge(whisper.folder, None)) == 3_968


# ---------------------------------------------------------------- windows


@pytest.fixture
def lengths(noise) -> list[Clip]:
    """Around whole seconds, and at the end of the window of 5 s."""
    return [Clip(noise(samples, seed), RATE) for seed, samples in enumerate([16_000, 7_001, 31_360, 32_001, 79_000])]


@torch.no_grad()
@pytest.mark.parametrize(("silence", "seconds"), [(1.0, [2, 2, 3, 4, 5]), (0.5, [2, 1, 3, 3, 5]), (30.0, [5] * 5)])
def test_a_cut_window_is_the_official_encoder_with_a_table_of_positions_that_ends_there(
    silence, seconds, whisper, lengths, tmp_path
):
    backbone = load_backbone(Checkpoint(str(whisper.folder), window_seconds=silence))
    samples = [clip.samples for clip in lengths]
    counts = [backbone.audio_tokens(len(clip)) for clip in samples]
    states = backbone.encode_audio(backbone.prepare_clips(samples)).split(counts)
    for clip, own, window in zip(samples, states, seconds, strict=True):
        official = WhisperEncoder.from_pretrained(_cut(whisper.folder, tmp_path / str(window), window)).eval()
        extractor = AutoFeatureExtractor.from_pretrained(tmp_path / str(window))
        features = extractor(clip, sampling_rate=RATE, return_tensors="pt")
        expected = torch.cat(official(**features, output_hidden_states=True).hidden_states, -1)[0, : len(own)]
        assert (own - expected).abs().max() <= 1e-5 * expected.abs().max()
        alone = backbone.encode_audio(backbone.prepare_clips([clip]))
        assert (own - alone).abs().max() <= 1e-5 * expected.abs().max()


def _cut(folder: Path, out: Path, seconds: int) -> Path:
    """The encoder of a checkpoint with the first rows of the table, in the hub's layout."""
    if not out.exists():
        weights = load_file(folder / "model.safetensors")
        prefix = "model.encoder."
        own = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        own["embed_positions.weight"] = own["embed_positions.weight"][: 50 * seconds].clone()
        out.mkdir()
        save_file(own, out / "model.safetensors", metadata={"format": "pt"})
        for name, values in (
            ("config.json", {"max_source_positions": 50 * seconds}),
            ("preprocessor_config.json", {"chunk_length": seconds, "n_samples": RATE * seconds}),
        ):
            (out / name).write_text(json.dumps({**json.loads((folder / name).read_text()), **values}))
    return out


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"feature_size": 128}, "preprocessor_config.json: feature_size 128; expected 80, which its weights take"),
        ({"chunk_length": 9}, "preprocessor_config.json: chunk_length 9; expected 5.0, which its weights take"),
        (
            {"feature_extractor_type": "Wav2Vec2FeatureExtractor"},
            "preprocessor_config.json: feature_extractor_type Wav2Vec2FeatureExtractor; expected Whisper",
        ),
        (None, "no feature extractor: there is no preprocessor_config.json; expected the file that was published"),
    ],
)
def test_a_feature_extractor_of_other_weights_is_refused(values, message, whisper, tmp_path):
    folder = shutil.copytree(whisper.folder, tmp_path / "other")
    file = folder / "preprocessor_config.json"
    if values is None:
        file.unlink()
    else:
        file.write_text(json.dumps(json.loads(file.read_text()) | values))
    refused(folder, f"^backbone '{folder}': {message}")


def test_the_window_is_the_same_in_training_and_scoring(whisper, train_arguments, dataset_folder, tmp_path):
    words = {**READ, "judge__backbone": whisper.folder, "method": "probe", "judge__window_seconds": 1}
    train(train_arguments(tmp_path / "run", **words))
    assert load_any(tmp_path / "run").judge.settings.window_seconds == 1
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "judge")]) == 0
    pairs = PairDataset.load(dataset_folder).subset(["validation"]).pairs
    best = read_checkpoint(tmp_path / "run" / CHECKPOINTS / BEST)
    expected = best["validations"][best["global_step"]][..., 0].double()
    for folder in (tmp_path / "run", tmp_path / "judge"):
        found = Predictor(load_any(folder).judge, 4).predict(pairs)
        scores = torch.stack([own.score for _, own in found]).double()
        torch.testing.assert_close(scores, expected, atol=1e-5, rtol=0)


def test_a_run_does_not_go_on_in_another_window(whisper, train_arguments, tmp_path):
    words = {**READ, "judge__backbone": whisper.folder, "method": "lora", "judge__lora__parts": "[]"}
    train(train_arguments(tmp_path / "run", **words, judge__window_seconds=1, trainer__max_epochs=1))
    again = train_arguments(tmp_path / "run", **words, judge__window_seconds=0.5, trainer__max_epochs=2)
    with pytest.raises(UserError, match=r"was begun with judge.window_seconds 1.0, now 0.5; expected the same"):
        train([*again, "--resume", "true"])


def test_states_of_two_windows_are_not_mixed_up_in_a_cache(whisper, tmp_path):
    names = {
        ClipStates(_judge(whisper.folder, window), DiskStore(tmp_path)).name(Clip(torch.ones(9_000).numpy(), RATE))
        for window in (None, 1.0, 2.0)
    }
    assert len(names) == 3


def test_a_window_of_a_backbone_that_has_none_and_one_out_of_range_are_refused(make_family, train_arguments, capsys):
    with pytest.raises(UserError, match="it has no fixed window"):
        _judge(make_family("hubert").folder, 1.0)
    for value in (-1, 31):
        words = train_arguments(Path("r"), judge__window_seconds=value)
        assert "judge.window_seconds" in failed(capsys, "train", *words)


@torch.no_grad()
def test_a_score_in_a_cut_window_does_not_depend_on_the_batch(whisper, lengths):
    judge = _judge(whisper.folder, 1.0)
    pairs = [Pair(str(row), clip, (Turn("user", lengths[0]),)) for row, clip in enumerate(lengths)]
    together = judge(judge.build_inputs(pairs))
    alone = torch.cat([judge(judge.build_inputs([pair])) for pair in pairs])
    torch.testing.assert_close(together, alone, atol=1e-4, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize(("name", "silence"), [("whisper", 1.0), ("whisper", None), ("qwen2_audio", None)])
def test_weights_of_a_tower_that_wait_in_main_memory_are_fetched(name, silence, make_family, lengths):
    """As those of a judge that is spread, where the GPUs are full."""
    backbone: Any = load_backbone(Checkpoint(str(make_family(name).folder), window_seconds=silence))
    prepared = backbone.prepare_clips([clip.samples[:16_000] for clip in lengths])
    expected = backbone.encode_audio(prepared)
    cpu_offload(backbone.tower, execution_device=torch.device("cpu"))
    assert torch.equal(backbone.encode_audio(prepared), expected)


def _judge(folder: Path, window: float | None) -> EmpathyJudge:
    settings = JudgeSettings(backbone=str(folder), lora=LoraSettings(parts=[]), window_seconds=window)
    return EmpathyJudge(settings, SCALES).eval()
