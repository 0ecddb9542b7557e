"""Training a judge on an encoder: the tower stays, the fusion learns, and the clips are encoded once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.eval.statistics.agreement import spearman
from empathy_judge.models.artifact import load_any, load_run, save_judge
from empathy_judge.models.backbones import load_backbone
from empathy_judge.models.backbones.base import Checkpoint
from empathy_judge.train.run import train
from transformers import HubertConfig, HubertModel, Wav2Vec2FeatureExtractor

from .conftest import scores_of


@pytest.fixture(scope="module")
def hubert_folder(tmp_path_factory) -> Path:
    """Random weights; loudness is to be heard, so that samples are not normalised."""
    folder = tmp_path_factory.mktemp("hubert")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = HubertModel(
            HubertConfig(
                hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48, conv_dim=(16,) * 7,
                num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2, feat_extract_norm="layer",
                conv_bias=True,
            )
        )  # fmt: skip
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
        return load_run(tmp_path / name / "checkpoints" / "last.ckpt")

    return run


def test_a_fusion_learns_on_a_frozen_encoder(run_on, hubert_folder, dataset_folder, tmp_path):
    loaded = run_on("run", cached=True, epochs=12)
    fresh = load_backbone(Checkpoint(str(hubert_folder))).network.encoder.state_dict()
    assert all(torch.equal(weight, fresh[name]) for name, weight in loaded.judge.network.encoder.state_dict().items())
    assert loaded.judge.network.joiner.layer_weights.abs().max() > 1e-3  # zero at first
    part = PairDataset.load(dataset_folder).subset("train")
    found = scores_of(loaded.judge, part.pairs)
    for column, name in enumerate(("empathy", "warmth")):
        assert spearman(found[:, column], part.mean_scores()[name].to_numpy()) > 0.8

    save_judge(loaded, tmp_path / "judge", "card")
    assert not (tmp_path / "judge" / "adapter").exists()
    assert np.abs(scores_of(load_any(tmp_path / "judge").judge, part.pairs) - found).max() <= 1e-5


def test_clips_that_were_encoded_once_train_the_same_fusion(run_on):
    once, anew = (
        dict(run_on(str(cached), cached=cached, epochs=1).judge.network.joiner.named_parameters())
        for cached in (True, False)
    )
    for name, weight in once.items():
        assert (weight - anew[name]).abs().max() <= 1e-4, name
