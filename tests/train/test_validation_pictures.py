"""What validation shows: the right items, where they are drawn, and who gets recordings."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from empathy_judge.data_modules.audio import Clip
from empathy_judge.data_modules.schema import Dimension, Pair, PairDataset
from empathy_judge.data_modules.training_items import RatedPairs
from empathy_judge.models.heads import Prediction
from empathy_judge.train import validation_pictures
from empathy_judge.train.run import train
from empathy_judge.train.validation import Validation
from empathy_judge.train.validation_pictures import Miss, ValidationPictures, coverage, draw, worst_items
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from scipy.stats import spearmanr
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

EMPATHY, WARMTH = Dimension("empathy", 1, 5, 1), Dimension("warmth", 0, 10)


@pytest.fixture
def without_pictures() -> None:
    """Here they are drawn."""


@pytest.fixture
def validation(dataset_folder) -> Validation:
    """Of the nine validation pairs of the tiny dataset."""
    pairs = RatedPairs(PairDataset.load(dataset_folder).subset("validation"))
    return Validation(pairs, [], (EMPATHY, WARMTH))


def test_the_worst_items_by_the_length_of_their_scale(validation):
    """Two points on a scale of four are more than three on a scale of ten."""
    predicted = torch.from_numpy(validation.targets).clone()
    predicted[4, 0] += 2
    predicted[1, 1] -= 3
    predicted[1, 0] += 0.5
    predicted[6, 1] = torch.nan  # not scored
    validation.targets[7] = np.nan  # not rated
    predicted[7] = 5
    validation.add(torch.arange(9), Prediction(predicted))
    validation.agreement()
    found = worst_items(validation, (EMPATHY, WARMTH), count=3)
    pairs = validation.pairs.pairs
    assert [(miss.pair, miss.dimension) for miss in found[:2]] == [(pairs[4], EMPATHY), (pairs[1], WARMTH)]
    assert found[0].prediction - found[0].rating == pytest.approx(2)
    assert found[1].row()[-1] == -3
    assert len(worst_items(validation, (EMPATHY, WARMTH), count=20)) == 8  # without the one that nobody rated


def test_what_training_added_is_told_with_an_interval_over_groups(validation):
    draw = np.random.default_rng(0)
    validation.targets[:, 0] = np.arange(9.0)
    validation.scores = np.stack([np.arange(9.0), draw.normal(size=9)], 1)
    start = np.stack([draw.normal(size=9), validation.scores[:, 1]], 1)
    start[8, 0] = np.nan  # not scored then: left out of both
    found = validation.added_to(start, np.arange(9) // 1.5)
    before = spearmanr(start[:8, 0], np.arange(8)).statistic
    assert (found["empathy"]["probe"], found["empathy"]["added"]) == pytest.approx((before, 1 - before))
    assert 0 < found["empathy"]["low"] < 1 - before < found["empathy"]["high"]
    assert [found["warmth"][name] for name in ("added", "low", "high")] == [0, 0, 0]
    few = validation.added_to(start, np.arange(9) // 3)
    assert few["empathy"] == {**found["empathy"], "low": None, "high": None}
    validation.targets[:, 0] = np.nan
    assert set(validation.added_to(start, np.arange(9))["empathy"].values()) == {None}


def test_deviations_are_gathered_with_the_scores(validation):
    scores, deviations = torch.rand(9, 2), torch.rand(9, 2)
    for rows in (torch.arange(5, 9), torch.arange(5)):
        validation.add(rows, Prediction(scores[rows], deviations[rows]))
    validation.agreement()
    assert np.array_equal(validation.scores, scores.double().numpy())
    assert np.array_equal(validation.deviations, deviations.double().numpy())
    validation.clear()
    validation.add(torch.arange(9), Prediction(scores))
    validation.agreement()
    assert np.isnan(validation.deviations).all()


def test_coverage_by_hand():
    """68 % of a normal distribution lie within one standard deviation, 90 % within 1.645."""
    distances = np.array([0.5, 0.99, 1.01, 1.6, 1.7])
    assert coverage(distances, 0.6827) == pytest.approx(0.4)
    assert coverage(distances, 0.9) == pytest.approx(0.8)


def points(picture: np.ndarray) -> np.ndarray:
    """Rows and columns of the pixels of the dots, from 0 (top, left) to 1 of the first square."""
    square = picture[65:345, 65:345].astype(int)
    blue = (square[..., 2] - square[..., 0] > 60) & (square[..., 2] > 150)
    return np.argwhere(blue) / 280


def test_points_stand_where_they_belong():
    unknown = np.full(3, np.nan)
    groups = np.array(["a", "b", "c"])
    ones, fives = np.array([1.0, 1.05, 1.1]), np.array([5.0, 4.9, 4.95])
    overrated = points(draw(EMPATHY, fives, ones, unknown, groups, title="t"))
    underrated = points(draw(EMPATHY, ones, fives, unknown, groups, title="t"))
    assert len(overrated) > 20
    assert (overrated > 0.85).all()  # the lower right corner
    assert (underrated < 0.15).all()


def test_heads_that_know_their_error_get_a_third_panel():
    rng = np.random.default_rng(0)
    scores, groups = rng.uniform(1, 5, 40), np.arange(40) // 4
    ratings = np.clip(scores + rng.normal(size=40), 1, 5)
    two = draw(EMPATHY, scores, ratings, np.full(40, np.nan), groups, title="t")
    three = draw(EMPATHY, scores, ratings, np.full(40, 0.7), groups, title="t")
    assert (two.shape, three.shape) == ((400, 720, 3), (400, 1080, 3))
    assert (three[65:345, 785:1065] < 200).any()


def test_clips_are_cut(make_tone):
    loud = Clip(make_tone(12.0, 300, 3.0), 16_000)
    context, response = Miss(Pair("p", loud), EMPATHY, 1.0, 2.0).clips()
    assert context is None
    assert response.shape == (160_000,)
    assert np.abs(response).max() == 1
    missing = Miss(Pair("p", Path("gone.wav")), EMPATHY, 1.0, 2.0)
    assert missing.clips() == [None, None]


@pytest.mark.parametrize(
    ("log_audio", "tensorboard", "wandb"), [(None, True, False), (True, True, True), (False, False, False)]
)
def test_recordings_leave_only_if_asked_to(log_audio, tensorboard, wandb, tmp_path):
    pytest.importorskip("wandb")
    pictures = ValidationPictures(log_audio)
    assert pictures._plays(TensorBoardLogger(tmp_path)) is tensorboard
    assert pictures._plays(WandbLogger(save_dir=tmp_path, offline=True)) is wandb


def shown(run: Path) -> EventAccumulator:
    events = EventAccumulator(str(run / "logs" / "tensorboard"), size_guidance={"images": 0, "audio": 0, "tensors": 0})
    return events.Reload()


def test_tensorboard_shows_both_dimensions_and_the_worst_items(train_arguments, dataset_folder, tmp_path):
    train(train_arguments(tmp_path / "run", trainer__max_epochs=2, data__eval_batch_size=9))
    events = shown(tmp_path / "run")
    tags = events.Tags()
    assert tags["images"] == ["validation/empathy", "validation/warmth"]
    assert [event.step for event in events.Images("validation/empathy")] == [2, 5]
    assert [event.step for event in events.Scalars("val_agreement")] == [2, 5]
    assert len(tags["audio"]) == 2 * validation_pictures.WORST
    text = events.Tensors("validation/worst/text_summary")[-1].tensor_proto.string_val[0].decode()
    lines = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in text.splitlines()[2:]]
    dataset = PairDataset.load(dataset_folder).subset("validation")
    assert {line[1] for line in lines} <= {pair.pair_id for pair in dataset.pairs}
    assert len(lines) == 8
    ratings = dataset.mean_scores()
    for _, name, dimension, prediction, rating, error in lines:
        assert float(rating) == pytest.approx(ratings.loc[name, dimension], abs=0.006)
        assert float(error) == pytest.approx(float(prediction) - float(rating), abs=0.011)


RECIPE = Path(__file__).parents[2] / "configs" / "nano_wandb.yaml"
SECRET = "0123456789abcdef0123456789abcdef01234567"  # of the length that the library accepts


@pytest.mark.slow
def test_weights_and_biases_offline_needs_neither_account_nor_network(train_arguments, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    arguments = train_arguments(tmp_path / "run", trainer__max_epochs=1)
    run = train([*arguments, "--config", str(RECIPE), "--log-audio", "true"])
    assert run.checkpoint.is_file()
    (log,) = tmp_path.glob("**/offline-run-*/*.wandb")
    stored = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert stored["trainer"]["logger"]["class_path"].endswith("WandbLogger")
    media = log.parent / "files" / "media"
    pictures = sorted(path.name.split("_")[0] for path in media.glob("images/**/*.png"))
    assert pictures == ["empathy", "warmth"]
    # a table with players is an artifact, whose files wait beside the runs
    staged = [path.read_bytes() for path in (tmp_path / "artifacts" / "staging").iterdir()]
    table = next(json.loads(held) for held in staged if held.startswith(b'{"_type": "table"'))
    assert table["columns"] == ["pair", "dimension", "prediction", "rating", "error", "context", "response"]
    assert len(table["data"]) == 8
    assert {player["_type"] for row in table["data"] for player in row[5:]} == {"audio-file"}
    sounds = {held for held in staged if held.startswith(b"RIFF")}
    assert len(sounds) == len({player["sha256"] for row in table["data"] for player in row[5:]}) >= 8
    holding = [path for path in tmp_path.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert not holding
