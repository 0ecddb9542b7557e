"""`train --dry-run`: what it reads, counts and refuses; the shapes that come with the package."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
import torch
from empathy_judge.core.errors import UserError
from empathy_judge.data_modules.clip_measures import clip_seconds
from empathy_judge.data_modules.schema import PairDataset, hashed_pairs
from empathy_judge.data_modules.writing import complete_dataset
from empathy_judge.models import hub
from empathy_judge.models.shapes import shapes_of, without_hub
from empathy_judge.models.work import CUDA_CONTEXT, GIB
from empathy_judge.train.dry_run import processes_of, shards_of
from empathy_judge.train.left_out import AllPairs
from empathy_judge.train.memory import step_memory
from empathy_judge.train.recipe import RecipeParser
from empathy_judge.train.run import train
from empathy_judge.train.settings import CONFIGS, shipped_recipes

from ..conftest import failed, output_of
from .conftest import LAST_FILE, OF_CLIPS, metrics

MILLIONS = {
    "qwen2_audio": 7_798, "qwen2_5_omni": 7_730, "qwen3_asr": 2_055, "voxtral": 4_328, "wavlm": 317, "whisper": 92,
    "whisper_base": 22,
}  # fmt: skip
"""Weights of a judge, adapters and fusion among them; docs/reference/backbones.md has those of the backbones."""


def test_a_dry_run_with_a_length_of_clips_reads_no_data(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    words = ["train", "--dry-run", "--judge.lora.rank", "4", "--data.path", "nowhere", "--data.batch_size", "16"]
    words += ["--clip-seconds", "8"]
    out = output_of(capsys, *words, "--gpu-gib", "24")
    trained = 4 * 4 * (4 * (192 + 192) + 3 * (192 + 416))
    assert f"{trained:,}" in out
    assert "16 pairs of two clips of 8 s" in " ".join(out.split())
    assert "of a GPU with 24 GiB: fits" in out
    found = json.loads(output_of(capsys, *words, "--gpu-gib", "24", "--json"))
    assert found["parts"]["language_model"]["trainable"] == trained
    assert sum(found["bytes"].values()) == 2 * found["bytes"]["all"]
    assert (found["pairs"], found["gpu_bytes"], found["fits"]) == (16, 24 * 2**30, True)
    small = output_of(capsys, *words, "--gpu-gib", "0.8")
    assert "of a GPU with 0.8 GiB: does not fit" in small
    assert "To fit: --data.batch_size " in small
    line = failed(capsys, *words, "--expected_trainable", "{language_model: 7}")
    assert f"language_model has {trained} trainable parameters, expected 7" in line
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_of_a_probe_counts_no_adapters(capsys, monkeypatch):
    """They are left out when it is trained."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    words = ["train", "--config", "whisper_base", "--dry-run", "--clip-seconds", "2", "--json"]
    frozen, adapted = (
        json.loads(output_of(capsys, *words, "--method", "probe", "--judge.lora.parts", parts))
        for parts in ("[]", "[audio_tower]")
    )
    assert adapted["parts"] == frozen["parts"]
    assert adapted["parts"]["audio_tower"]["trainable"] == 0


def test_with_fsdp2_each_gpu_of_a_machine_holds_its_share(make_judge):
    judge = make_judge()
    whole = step_memory(judge.settings, batch=1, seconds=1.0, mixed_precision=False, gradient_checkpointing=False)
    of_layers = sorted(
        sum(weight.nbytes for weight in layer.parameters())
        for layer in (*judge.network.language_model.layers, *judge.network.audio_tower.layers)
    )
    assert whole.gathered == whole.weights - sum(of_layers[:-2])
    held = whole.sharded(4)
    assert held.weights == whole.weights // 4 + whole.gathered
    assert (held.gradients, held.optimizer) == (whole.gradients // 4, whole.optimizer // 4)
    assert held.activations == whole.activations
    assert whole.sharded(1) == whole
    strategy = {"class_path": "empathy_judge.train.strategies.ShardedStrategy"}
    trainer = {"accelerator": "gpu", "devices": 8, "num_nodes": 2}
    assert (shards_of(trainer), shards_of({**trainer, "strategy": strategy})) == (1, 8)


@pytest.mark.parametrize(("share", "pairs"), [("preference", 32), ("counterfactual", 20)])
def test_without_data_a_comparison_counts_as_two_pairs_too(share, pairs, capsys):
    words = ["--config", "nano", "--dry-run", "--clip-seconds", "2", "--data.path", "nowhere"]
    share = f"--data.{share}_share={1 if share == 'preference' else 0.25}"
    alone = json.loads(output_of(capsys, "train", *words, "--data.batch_size", str(pairs), "--json"))
    found = json.loads(output_of(capsys, "train", *words, "--data.batch_size", "16", share, "--json"))
    assert (found["pairs"], found["bytes"]) == (pairs, alone["bytes"])


@pytest.mark.slow
def test_a_dry_run_says_the_steps_and_the_checkpoint_that_training_has(
    train_arguments, dataset_folder, tmp_path, capsys
):
    options = {"trainer__max_epochs": 2, "data__batch_size": 5, "trainer__accumulate_grad_batches": 2}
    words = [*train_arguments(tmp_path / "run", **options)]
    found = json.loads(output_of(capsys, "train", *words, "--dry-run", "--json"))
    assert not (tmp_path / "run").exists()
    plan, dataset = found["plan"], PairDataset.load(dataset_folder)
    assert (plan["training_pairs"], plan["validation_pairs"], plan["raters"]) == (12, 9, 3)
    assert plan["ratings"] == len(dataset.subset("train").ratings)
    read = dataset.subset(["train", "validation"]).pairs
    seconds = [clip_seconds(dataset)[clip] for pair in read for clip in pair.clips]
    assert plan["clip_seconds"][::2] == pytest.approx([min(seconds), max(seconds)])
    assert (plan["batch"], plan["accumulated"], plan["steps_per_epoch"], plan["steps"]) == (5, 2, 2, 4)
    assert found["pairs"] == 5
    assert plan["h200_hours"] is None  # on a CPU
    train(words)
    assert metrics(tmp_path / "run")["step"].max() in (3, 4)  # counted from 0; the last rows are told after it
    assert (tmp_path / "run" / LAST_FILE).stat().st_size == pytest.approx(found["checkpoint_bytes"], rel=0.4)
    # What training refuses, a dry run refuses
    assert "already holds a run" in failed(capsys, "train", *words, "--dry-run")
    words = train_arguments(tmp_path / "other", data__train_split="nobody")
    assert "no pair is in split 'nobody'" in failed(capsys, "train", *words, "--dry-run")


def test_hours_are_those_of_the_operations_and_batches_may_have_a_budget_of_tokens(train_arguments, tmp_path, capsys):
    options = {"trainer__devices": 2, "trainer__max_epochs": 3, "trainer__accelerator": "gpu"}
    words = train_arguments(tmp_path / "run", data__batch_tokens=200, **options)
    found = json.loads(output_of(capsys, "train", *words, "--dry-run", "--json"))
    plan = found["plan"]
    assert plan["processes"] == 2
    assert plan["tokens_per_step"] <= 200
    assert found["pairs"] * found["tokens_per_pair"] <= 200 + found["tokens_per_pair"]
    tokens = plan["tokens_per_step"] * (1 - plan["padding"]) * plan["steps"]
    operations = found["operations"] / (found["pairs"] * found["tokens_per_pair"]) * tokens
    assert plan["h200_hours"] == pytest.approx(operations / (770e12 * 0.36) / 3600)
    shown = " ".join(output_of(capsys, "train", *words, "--dry-run").split())
    assert "36% of 770 TFLOP/s" in shown


@pytest.mark.parametrize(("folds", "groups"), [(0, 3), (5, 7)])
def test_auto_says_where_it_would_train_no_adapters(folds, groups, train_arguments, tmp_path, capsys):
    """`can_decide` counts the same groups: those of validation, or of all pairs that folds score."""
    words = [*train_arguments(tmp_path / "run", method="auto", folds=folds, **OF_CLIPS), "--dry-run"]
    shown = " ".join(output_of(capsys, "train", *words).replace("│", " ").split())
    assert (f"come from {groups} groups (or speakers), at least 5 needed" in shown) == (groups < 5)
    assert ("the probe before" in shown) == (groups >= 5)
    assert json.loads(output_of(capsys, "train", *words, "--json"))["plan"]["compared_groups"] == groups


def test_groups_of_auto_are_speakers_where_all_pairs_have_enough_of_them(
    train_arguments, dataset_folder, tmp_path, capsys
):
    """Two speakers of validation are too few for folds of their own; with those of training they are kept together."""
    data = shutil.copytree(dataset_folder, tmp_path / "data")
    dataset = PairDataset.load(data)
    speakers = [f"{pair.split}-{number % 2}" for number, pair in enumerate(dataset.pairs)]
    table = pq.read_table(data / "pairs.parquet")
    field = table.schema.get_field_index("response_speaker")
    pq.write_table(table.set_column(field, table.schema.field(field), [speakers]), data / "pairs.parquet")
    pairs = [replace(pair, response_speaker=name) for pair, name in zip(dataset.pairs, speakers, strict=True)]
    complete_dataset(data, dataset.card, hashed_pairs(pairs, dataset.fingerprints), dataset.ratings, None)
    words = train_arguments(tmp_path / "run", method="auto", data__path=data, **OF_CLIPS)
    found = json.loads(output_of(capsys, "train", *words, "--dry-run", "--json"))
    assert found["plan"]["compared_groups"] == 2  # of three groups
    whole = AllPairs.of(RecipeParser().recipe(RecipeParser().parse(words)))  # what training counts
    assert whole.count_groups({pair.pair_id for pair in whole.of_validation}) == 2


def test_data_and_options_are_wrong_before_the_hub_is_asked(dataset_folder, tmp_path, capsys, monkeypatch):
    asked = []
    monkeypatch.setattr(hub, "require_hub", lambda name, *_: asked.append(name))
    # on a machine without a GPU its lack is said first
    base = ["train", "--config", "qwen2_audio", "--run", str(tmp_path / "run"), "--trainer.accelerator", "cpu"]
    assert "not a pair dataset" in failed(capsys, *base, "--data.path", str(tmp_path))
    line = failed(capsys, *base, "--data.path", str(dataset_folder), "--data.train_split", "x")
    assert "no pair is in split 'x'" in line
    for word, key in (
        ("lr", "optimizer.learning_rate"),
        ("epochs", "trainer.max_epochs"),
        ("batch", "data.batch_size"),
    ):
        assert f"did you mean {key}?" in failed(capsys, *base, f"--{word}", "3")
    assert failed(capsys, *base, "--data", "here") == "error: --data here: expected --data.path here"
    assert asked == []


@pytest.mark.parametrize(("option", "value"), [("--gpu-gib", "24"), ("--clip-seconds", "8")])
def test_options_of_a_dry_run_are_refused_without_one(option, value, tmp_path, capsys):
    words = ["train", "--config", "nano", "--data.path", "nowhere", "--run", tmp_path / "run", option, value]
    assert failed(capsys, *map(str, words)) == f"error: {option} {value}; expected with --dry-run"
    with pytest.raises(UserError, match=f"{option} {value}; expected with --dry-run"):
        train({"config": "nano", option[2:].replace("-", "_"): float(value)}, "nowhere", tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_devices_of_a_recipe():
    for devices, count in ((4, 4), ("3", 3), ([0, 2], 2), ("0,1", 2)):
        assert processes_of({"devices": devices, "num_nodes": 2}) == 2 * count
    assert processes_of({"devices": "auto", "accelerator": "cpu"}) == 1


def test_shapes_come_with_the_package_for_backbones_of_recipes():
    named = {recipe.backbone for recipe in shipped_recipes()} - {None, "nano"}
    # the sizes of these are not known here
    unknown = {"google/gemma-4-12B-it", "nvidia/Nemotron-3-Nano-Omni-30B-A3B-Reasoning-BF16"}
    assert {name for name in named if shapes_of(name) is None} == unknown
    assert {path.name.replace("--", "/") for path in (CONFIGS / "shapes").iterdir()} <= named


@pytest.mark.parametrize(
    "name", [name if size < 50 else pytest.param(name, marks=pytest.mark.long) for name, size in MILLIONS.items()]
)
def test_shapes_add_up_to_the_parameters_of_the_model_and_to_what_its_recipe_needs(name, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    parser = RecipeParser()
    recipe = parser.recipe(parser.parse(["--config", name, "--run", "r", "--trainer.accelerator", "cpu"]))
    found = step_memory(
        without_hub(recipe.judge), batch=recipe.data.batch_size, seconds=8.0,
        mixed_precision=str(recipe.trainer["precision"]).endswith("-mixed"),
        gradient_checkpointing=recipe.gradient_checkpointing, batch_tokens=recipe.data.batch_tokens,
        audio_cached=recipe.cache.what != "none" and not recipe.judge.lora.trains_tower,
    )  # fmt: skip
    assert round(sum(part.parameters for part in found.parts.values()) / 1e6) == MILLIONS[name]
    assert [record.message for record in caplog.records if record.name.startswith("transformers")] == []
    (own,) = (own for own in shipped_recipes() if own.name == name)
    total = found.total - (CUDA_CONTEXT if own.gpu == "none" else 0)
    assert total / GIB == pytest.approx(own.step_gib, abs=0.05 if own.gpu == "none" else 0.5)
