"""Cross-validation through the commands, and augmentation through training: what is heard, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from empathy_judge.cli import main
from empathy_judge.commands import DONE
from empathy_judge.core.errors import UserError
from empathy_judge.data_modules.schema import PairDataset, hashed_pairs
from empathy_judge.data_modules.writing import complete_dataset
from empathy_judge.train.collate import Batch
from empathy_judge.train.module import JudgeModule
from empathy_judge.train.run import train

from ..conftest import failed
from .conftest import PROBE, small_dataset

BOTH = "training_step", "validation_step"
LOUD = {
    "cache__what": "none", "data__augmentation.noise_probability": 0.7, "data__augmentation.noise_snr": "[0, 10]",
    "data__augmentation.gain_probability": 0.5, "trainer__logger": "false",
}  # fmt: skip


@pytest.fixture
def folds(dataset_folder, tmp_path) -> Path:
    data = Path(shutil.copytree(dataset_folder, tmp_path / "data"))
    assert main(["split", str(data), "--folds", "4", "--overwrite", "--json"]) == DONE
    return data


def test_one_turn_of_cross_validation(folds, train_arguments, tmp_path, every_batch, capsys):
    read: dict[bool, set[str]] = {True: set(), False: set()}

    def note(module: JudgeModule, batch: Batch, number: int) -> None:
        pairs = (module.data.train if module.training else module.data.validation).pairs
        read[module.training].update(pairs[index].pair_id for index in batch.indices.tolist())

    every_batch(note, *BOTH)
    run = tmp_path / "run"
    train(train_arguments(
        run, data__path=folds, data__train_split="[fold1, fold2]", data__validation_split="fold3",
        trainer__max_epochs=1,
    ))  # fmt: skip
    dataset = PairDataset.load(folds)
    assert read[True] == {pair.pair_id for pair in dataset.pairs if pair.split in ("fold1", "fold2")}
    assert read[False] == {pair.pair_id for pair in dataset.pairs if pair.split == "fold3"}
    assert (len(read[True]), len(read[False])) == (12, 6)

    assert main(["export", str(run), "--out", str(tmp_path / "judge")]) == DONE
    origin = json.loads((tmp_path / "judge/judge.json").read_text())["provenance"]
    assert (origin["split_hash"], origin["content_hash"]) == (dataset.split_hash(), dataset.card.content_hash)
    assert (origin["train_splits"], origin["validation_splits"]) == (["fold1", "fold2"], ["fold3"])

    capsys.readouterr()
    words = ["--data", str(folds), "--checks", "none", "--resamples", "20", "--out", str(tmp_path / "report")]
    assert main(["evaluate", str(tmp_path / "judge"), *words, "--split", "fold4"]) == DONE
    assert "warning" not in capsys.readouterr().err
    report = json.loads((tmp_path / "report/agreement.json").read_text())
    assert (report["split"], report["split_hash"]) == ("fold4", dataset.split_hash())
    assert report["dimensions"]["empathy"]["n_items"] == 6
    assert main(["evaluate", str(run), *words, "--split", "fold2"]) == DONE
    assert "warning: split fold2: this judge was trained on fold1, fold2" in capsys.readouterr().err

    with pytest.raises(UserError, match="trained on other data: train_splits differs"):
        train([*train_arguments(
            run, data__path=folds, data__train_split="[fold1, fold4]", data__validation_split="fold3",
            trainer__max_epochs=2,
        ), "--resume", "true"])  # fmt: skip


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ({}, "no pair is in split 'train'; it has fold1, fold2, fold3, fold4"),
        ({"data__train_split": "[fold1, fold5]"}, "no pair is in split 'fold5'; it has fold1"),
        ({"data__train_split": "[]"}, "no pair is in split ''"),
        ({"data__train_split": "[fold1, fold2]", "data__validation_split": "fold2"}, "both hold 'fold2'"),
    ],
)
def test_folds_that_cannot_be_trained_on(folds, train_arguments, tmp_path, splits, message):
    with pytest.raises(UserError, match=message):
        train(train_arguments(tmp_path / "run", data__path=folds, **splits))


def test_a_leak_stops_training_before_it_starts(folds, train_arguments, tmp_path, capsys):
    import pyarrow.parquet as pq

    table = pq.read_table(folds / "pairs.parquet").to_pandas()
    (folds / "split.yaml").unlink()
    table.loc[table["pair_id"] == "p00", "split"] = "elsewhere"
    table.to_parquet(folds / "pairs.parquet", schema=pq.read_schema(folds / "pairs.parquet"))
    words = train_arguments(
        tmp_path / "run", data__path=folds, data__train_split="fold1", data__validation_split="fold2"
    )
    assert "column 'split': group_id 'g0' is in elsewhere and fold" in failed(capsys, "train", *words)
    assert not list((tmp_path / "run").rglob("*.ckpt"))


def test_training_hears_augmented_clips_and_validation_does_not(train_arguments, tmp_path, every_batch):
    """Over two epochs and a resumption: the features of each step are those of the uninterrupted run."""
    heard: dict[bool, list[torch.Tensor]] = {True: [], False: []}
    every_batch(lambda module, batch, _: heard[module.training].append(batch.inputs.clips.features.clone()), *BOTH)

    def features(run: str, epochs: int, *words: str, **changes: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        heard[True].clear(), heard[False].clear()
        train([*train_arguments(tmp_path / run, trainer__max_epochs=epochs, **LOUD | changes), *words])
        return heard[True].copy(), heard[False].copy()

    def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
        return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))

    whole, validation = features("whole", 2)
    first, _ = features("cut", 1)
    second, _ = features("cut", 2, "--resume", "true")
    assert same(whole, first + second)
    off = {"data__augmentation.noise_probability": 0, "data__augmentation.gain_probability": 0}
    plain, plain_validation = features("plain", 1, **off)
    assert same(validation[: len(plain_validation)], plain_validation)
    assert len(plain) == 3
    assert [one.shape for one in plain] == [one.shape for one in whole[:3]]
    assert not any(torch.equal(one, other) for one, other in zip(plain, whole[:3], strict=True))


@pytest.mark.parametrize(
    ("pairs", "unrated", "counts"), [(2, {}, "'empathy' has 2"), (4, {"warmth": "validation"}, "'warmth' has 0")]
)
def test_without_ratings_to_choose_by_nothing_is_trained(
    pairs, unrated, counts, train_arguments, dataset_folder, tmp_path, capsys
):
    data, run = small_dataset(tmp_path / "data", dataset_folder, pairs, **unrated), tmp_path / "run"
    with pytest.raises(UserError, match=rf"split 'validation': {counts} rated pairs with {counts[-1]} different"):
        train(train_arguments(run, data__path=data, trainer__max_epochs=1))
    assert not (run / "logs").exists()


def test_a_dimension_that_nobody_rated_cannot_be_trained(train_arguments, dataset_folder, tmp_path):
    data = small_dataset(tmp_path / "data", dataset_folder, 4, warmth="train")
    with pytest.raises(UserError, match=r"nobody rated 'warmth' in split 'train'"):
        train(train_arguments(tmp_path / "run", data__path=data, trainer__max_epochs=1))


def test_a_dimension_whose_ratings_are_all_equal_cannot_be_trained(train_arguments, dataset_folder, tmp_path):
    data = shutil.copytree(dataset_folder, tmp_path / "data")
    dataset = PairDataset.load(data)
    of_training = dataset.subset("train").ratings["pair_id"]
    equal = dataset.ratings["pair_id"].isin(of_training) & (dataset.ratings["dimension"] == "warmth")
    ratings = dataset.ratings.assign(score=dataset.ratings["score"].mask(equal, 4.5))
    complete_dataset(data, dataset.card, hashed_pairs(dataset.pairs, dataset.fingerprints), ratings, None)
    message = r"the mean ratings of 'warmth' in split 'train' are all 4\.5; expected some that differ"
    with pytest.raises(UserError, match=message):
        train(train_arguments(tmp_path / "run", data__path=data, trainer__max_epochs=1))
    # Of folds, and of a probe of all pairs, those of validation are trained on, too
    for words in ({"folds": 2}, {"refit": "true"}):
        train([*train_arguments(tmp_path / "run", data__path=data, **PROBE, **words), "--dry-run"])
