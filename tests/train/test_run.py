"""Runs on embedded audio, on an encoder, with histograms of ratings, with half of a backbone, and from Python."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import empathy_judge
import numpy as np
import pandas as pd
import pytest
import soundfile
import torch
from empathy_judge import Scorer
from empathy_judge.cli import main
from empathy_judge.core.errors import AudioError, UserError
from empathy_judge.data_modules import storage, writing
from empathy_judge.data_modules.schema import Dimension, PairDataset, hash_order
from empathy_judge.data_modules.splits import split_dataset
from empathy_judge.data_modules.writing import complete_dataset, to_row, write_dataset, write_splits
from empathy_judge.eval.statistics.agreement import spearman
from empathy_judge.models.backbones import load_backbone
from empathy_judge.models.backbones.base import Checkpoint
from empathy_judge.models.weight_files import read_checkpoint
from empathy_judge.scoring.artifact import load_any, save_judge
from empathy_judge.train import run as run_module
from empathy_judge.train.run import train
from safetensors.torch import load_file
from torch._utils import ExceptionWrapper
from transformers import HubertModel, Wav2Vec2FeatureExtractor

from ..models.backbones.tools import wave_encoder
from .conftest import LAST_FILE, frame_of, scores_of


@pytest.fixture
def embedded_folder(dataset_folder, tmp_path, monkeypatch) -> Path:
    """The dataset of the other tests, embedded in 3 shards with row groups of 2."""
    monkeypatch.setattr(writing, "ROW_GROUP_ROWS", 2)
    files, folder = PairDataset.load(dataset_folder), tmp_path / "embedded"
    rows = []
    for number, pair in enumerate(files.pairs):
        audio = {"response_audio": Path(pair.response).read_bytes()}
        audio["context_audio"] = [{"role": turn.role, "audio": turn.audio.read_bytes()} for turn in pair.context]
        names = ("pair_id", "group_id", "situation", "system_id")
        rows.append(to_row({name: getattr(pair, name) for name in names} | audio, folder, folder, number, {}))
    (folder / "pairs").mkdir(parents=True)
    for number in range(3):
        writing.write_pairs(rows[8 * number : 8 * number + 8], folder / storage.shard_name(number))
    rows.sort(key=lambda row: hash_order(row["pair_id"]))
    card = complete_dataset(folder, files.card, writing.hashed_rows(rows), files.ratings, None)
    assert card.content_hash == files.card.content_hash
    write_splits(folder, [pair.split for pair in files.pairs])
    (folder / "split.yaml").write_bytes((dataset_folder / "split.yaml").read_bytes())
    return folder


def test_scores_do_not_depend_on_how_audio_is_stored(embedded_folder, dataset_folder, judge_folder):
    judge = load_any(judge_folder).judge
    one, other = (PairDataset.load(folder).pairs for folder in (dataset_folder, embedded_folder))
    assert [pair.pair_id for pair in one] == [pair.pair_id for pair in other]
    assert np.abs(scores_of(judge, one, 5) - scores_of(judge, other, 5)).max() <= 1e-5


@pytest.mark.long
def test_a_resumed_run_reads_what_the_uninterrupted_one_does(embedded_folder, train_arguments, tmp_path, batches_read):
    """By blocks, and with two workers, which read ahead."""
    arguments = {"trainer__logger": "false", "data__path": embedded_folder, "data__num_workers": 2}
    train(train_arguments(tmp_path / "whole", trainer__max_epochs=2, **arguments))
    whole = batches_read.copy()
    train(train_arguments(tmp_path / "run", trainer__max_epochs=1, **arguments))
    batches_read.clear()
    first_epoch = read_checkpoint(tmp_path / "run" / LAST_FILE)["validations"][3]
    train([*train_arguments(tmp_path / "run", trainer__max_epochs=2, **arguments), "--resume", "true"])
    first, second = ([items for epoch, _, items in whole if epoch == n] for n in (0, 1))
    assert [sorted(item for items in own for item in items) for own in (first, second)] == [[*range(12)]] * 2
    assert first != second
    assert batches_read == whole[3:]
    # what each validation gave is still known: by it pairs choose an epoch for others
    validations = read_checkpoint(tmp_path / "run" / LAST_FILE)["validations"]
    assert [*validations] == [3, 6]
    np.testing.assert_array_equal(validations[3], first_epoch)


@pytest.fixture(scope="module")
def hubert_folder(tmp_path_factory) -> Path:
    """Random weights; loudness is to be heard, so that samples are not normalised."""
    folder = tmp_path_factory.mktemp("hubert")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        wave_encoder(folder, HubertModel, feat_extract_norm="layer", conv_bias=True)
        model = HubertModel.from_pretrained(folder)
        with torch.no_grad():
            for name, weight in model.feature_extractor.named_parameters():
                if name.endswith("conv.bias"):
                    weight.normal_(std=0.3)  # what a layer norm makes of a frame then depends on its loudness
    model.save_pretrained(folder)
    Wav2Vec2FeatureExtractor(do_normalize=False).save_pretrained(folder)
    return folder


@pytest.fixture
def run_on(train_arguments, hubert_folder, tmp_path):
    """Train the fusion alone: name of the run, whether clips are encoded once, epochs."""

    def run(name: str, *, cached: bool, epochs: int):
        words = train_arguments(
            tmp_path / name, judge__backbone=str(hubert_folder), judge__lora__parts="[]",
            cache__what="audio" if cached else "none", optimizer__head_learning_rate=0.003,
            trainer__gradient_clip_val=1.0, trainer__max_epochs=epochs,
        )  # fmt: skip
        train(words)
        return load_any(tmp_path / name / "checkpoints" / "last.ckpt")

    return run


def test_a_fusion_learns_on_a_frozen_encoder(run_on, hubert_folder, dataset_folder, tmp_path):
    loaded = run_on("run", cached=True, epochs=12)
    fresh = load_backbone(Checkpoint(str(hubert_folder))).network.encoder.state_dict()
    assert all(torch.equal(weight, fresh[name]) for name, weight in loaded.judge.network.encoder.state_dict().items())
    assert loaded.judge.network.fusion.layer_weights.abs().max() > 1e-3  # zero at first
    part = PairDataset.load(dataset_folder).subset("train")
    found = scores_of(loaded.judge, part.pairs)
    for column, name in enumerate(("empathy", "warmth")):
        assert spearman(found[:, column], part.mean_scores()[name].to_numpy()) > 0.8

    save_judge(loaded, tmp_path / "judge")
    assert not (tmp_path / "judge" / "adapter").exists()
    assert np.abs(scores_of(load_any(tmp_path / "judge").judge, part.pairs) - found).max() <= 1e-5


def test_clips_that_were_encoded_once_train_the_same_fusion(run_on):
    once, anew = (
        dict(run_on(str(cached), cached=cached, epochs=1).judge.network.fusion.named_parameters())
        for cached in (True, False)
    )
    for name, weight in once.items():
        assert (weight - anew[name]).abs().max() <= 1e-4, name


@pytest.fixture
def stepped(dataset_folder, tmp_path) -> Path:
    """The tones rated on two scales with steps, of five and of three scores."""
    folder = tmp_path / "stepped"
    shutil.copytree(dataset_folder, folder)
    (folder / "split.yaml").unlink()
    dataset = PairDataset.load(dataset_folder)
    ratings = dataset.ratings[dataset.ratings["dimension"] == "empathy"]
    calm = ratings.assign(dimension="calm", score=(ratings["score"] > 2) * 1.0 + (ratings["score"] > 3) * 1.0)
    card = dataclasses.replace(dataset.card, dimensions=(Dimension("empathy", 1, 5, 1), Dimension("calm", 0, 2, 1)))
    pairs = frame_of(dataset.pairs).drop(columns="split")
    write_dataset(folder, card, pairs, pd.concat([ratings, calm]))
    split_dataset(folder, fractions={"train": 0.5, "validation": 0.375, "test": 0.125}, seed=0)
    return folder


@pytest.mark.long
def test_histograms_are_learned_and_the_exported_judge_scores_alike(stepped, train_arguments, tmp_path):
    histogram = {"judge__head": "histogram", "data__path": stepped}
    run = tmp_path / "run"
    train(train_arguments(run, **histogram, trainer__max_epochs=20, trainer__gradient_clip_val=1.0))
    part = PairDataset.load(stepped).subset("train")
    loaded = load_any(run / "checkpoints" / "last.ckpt")
    found = scores_of(loaded.judge, part.pairs)
    for column, name in enumerate(("empathy", "calm")):
        assert spearman(found[:, column], part.mean_scores()[name].to_numpy()) > 0.9
    save_judge(loaded, tmp_path / "judge")
    assert (scores_of(load_any(tmp_path / "judge").judge, part.pairs) == found).all()
    description = json.loads((tmp_path / "judge/judge.json").read_text())
    assert description["head"]["type"] == description["settings"]["head"] == "histogram"
    assert description["provenance"]["target"] == "mean"


@pytest.fixture(scope="module")
def half(train_arguments, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("half") / "run"
    train(train_arguments(folder, judge__depth=0.5, judge__pooling="attention", trainer__max_epochs=1))
    return folder


@pytest.mark.parametrize(
    ("form", "apart"),
    [
        pytest.param("small", 1e-5, marks=pytest.mark.long),
        ("merged", 1e-5),
        pytest.param("merged --accept-loss --quantization int8", 0.05, marks=pytest.mark.long),
        ("merged --accept-loss --quantization int4", 0.5),
    ],
)
def test_a_run_at_half_depth_is_exported_and_scores_the_same_in_any_batch(
    form, apart, half, backbone_folder, dataset_folder, tmp_path
):
    if "int" in form:
        pytest.importorskip("torchao" if "int8" in form else "bitsandbytes")
    trained = load_any(half).judge
    assert trained.settings.depth == len(trained.backbone.layers) == 2
    pairs = PairDataset.load(dataset_folder).subset(["validation"]).pairs
    expected = scores_of(trained, pairs)
    out = tmp_path / "judge"
    assert main(["export", str(half), "--out", str(out), "--form", *form.split()]) == 0
    assert json.loads((out / "judge.json").read_text())["settings"]["depth"] == 2
    assert "depth: the first 2 layers of the language model" in (out / "README.md").read_text()
    judge = load_any(out).judge
    assert len(judge.backbone.layers) == 2
    found = scores_of(judge, pairs)
    assert abs(found - expected).max() < apart
    assert abs(scores_of(judge, pairs, 1) - found).max() < 1e-5
    if form != "small":
        stored = load_file(out / "backbone" / "model.safetensors")
        assert {name.split(".")[3] for name in stored if ".language_model.layers." in name} == {"0", "1"}
        whole = load_file(backbone_folder / "model.safetensors")
        above = sum(whole[name].nbytes for name in whole if "language_model" in name and ".layers.2." in name)
        size = sum(own.nbytes for own in stored.values())
        assert sum(own.nbytes for own in whole.values()) - size >= 2 * above > 0


# ---------------------------------------------------------------- from Python


@pytest.fixture
def recipe(backbone_folder) -> dict[str, Any]:
    return {
        "config": "nano",
        "judge": {"backbone": str(backbone_folder), "lora": {"rank": 4}},
        "data": {"batch_size": 4, "eval_batch_size": 4},
        "trainer": {"max_epochs": 1, "logger": False},
    }


def test_a_run_knows_what_it_reached_and_scores_and_exports(recipe, dataset_folder, tmp_path):
    dataset = PairDataset.load(dataset_folder)
    run = empathy_judge.train(recipe, dataset, tmp_path / "run")
    assert run.folder == tmp_path / "run"
    checkpoint = read_checkpoint(run.checkpoint)
    assert run.checkpoint == run.folder / "checkpoints" / "best.ckpt"
    known = [value for value in run.agreement.values() if value is not None]
    assert checkpoint["agreement"] == pytest.approx(sum(known) / len(known), abs=1e-12)
    assert run.calibration == (path if (path := run.folder / "calibration.json").is_file() else None)
    # the same by words
    words = ["--config", str(run.folder / "config.yaml"), "--run", str(tmp_path / "again")]
    assert empathy_judge.train(words).agreement == run.agreement

    pair = dataset.pairs[0]
    scorer = run.scorer(device="cpu")  # a run folder is a judge, too
    assert (scorer.description["provenance"]["dataset"], list(run.agreement)) == ("tones", ["empathy", "warmth"])
    scores = scorer.score(pair.context[0].audio, pair.response)
    folder = run.export(tmp_path / "judge")
    assert json.loads((folder / "judge.json").read_text())["provenance"]["validation"] == run.agreement
    assert Scorer.from_pretrained(folder, device="cpu").score(pair.context[0].audio, pair.response) == scores


def test_a_dataset_that_is_not_its_folder_is_refused(recipe, dataset_folder, tmp_path):
    whole = PairDataset.load(dataset_folder)
    fewer = dataclasses.replace(whole, ratings=whole.ratings.iloc[1:].reset_index(drop=True))
    for changed in (whole.subset(["train", "validation"]), fewer):
        with pytest.raises(UserError, match=r"the PairDataset is not what .* holds"):
            empathy_judge.train(recipe, changed, tmp_path / "run")


def test_a_long_clip_is_refused_with_the_setting_that_cuts_it(recipe, dataset_folder, tmp_path):
    folder = tmp_path / "long"
    shutil.copytree(dataset_folder, folder)
    (folder / "split.yaml").unlink()
    dataset = PairDataset.load(dataset_folder)
    soundfile.write(folder / "p00.wav", np.full(11 * 16_000, 0.1), 16_000)  # the backbone hears 10 s
    write_dataset(folder, dataset.card, frame_of(dataset.pairs).drop(columns="split"), dataset.ratings)
    write_splits(folder, ["train", *(pair.split for pair in dataset.pairs[1:])])
    with pytest.raises(AudioError, match=r"11\.0 s; expected at most 10 s, or --judge\.long_clips window$") as caught:
        empathy_judge.train(recipe, folder, tmp_path / "run")
    assert caught.value.kind == "too long"


def test_an_error_of_a_data_worker_is_one_line(recipe, dataset_folder, tmp_path, monkeypatch):
    """torch 2.11.0 raises the type of a worker's error again, with its traceback as the text."""
    text = "a.wav: cannot be read (Permission denied)"

    def refused(*_):
        try:
            raise AudioError(text, "cannot be read")
        except AudioError:
            ExceptionWrapper(where="in DataLoader worker process 0").reraise()

    monkeypatch.setattr(run_module, "train_lora", refused)
    with pytest.raises(AudioError) as caught:
        empathy_judge.train(recipe, dataset_folder, tmp_path / "run")
    assert str(caught.value) == text


def test_a_dry_run_has_no_run(recipe, tmp_path, capsys):
    assert (
        empathy_judge.train(
            {**recipe, "dry_run": True, "clip_seconds": 8.0}, tmp_path / "no such data", tmp_path / "run"
        )
        is None
    )
    assert "A step on 4 pairs" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()
