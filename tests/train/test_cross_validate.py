"""Training as several runs: folds, a refit on all pairs, and the choice between probe and adapters."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from empathy_judge.cli import main
from empathy_judge.core.errors import UserError
from empathy_judge.data_modules.schema import PairDataset, hashed_pairs
from empathy_judge.data_modules.writing import complete_dataset
from empathy_judge.models.closed_form import FOLDS, FeatureBatch, fit
from empathy_judge.models.weight_files import read_checkpoint
from empathy_judge.scoring.artifact import load_any
from empathy_judge.train import cross_validate, left_out
from empathy_judge.train.run import train
from scipy.stats import spearmanr
from sklearn.model_selection import GroupKFold

from ..conftest import failed, output_of
from .conftest import BEST_FILE, OF_CLIPS, PROBE, read_by, scores_of, small_dataset

BOTH = ["train", "validation"]
NOTHING_OF_CLIPS = {"judge__head_input__audio": "none", "judge__head_input__functionals": "false"}


@pytest.fixture(autouse=True)
def without_calibration():
    """Not here."""


def best_of(run: Path) -> dict:
    return read_checkpoint(run / BEST_FILE)


@pytest.fixture(scope="module")
def refit(train_arguments, tmp_path_factory):
    return train(train_arguments(tmp_path_factory.mktemp("refit") / "run", refit="true", **PROBE))


def test_a_refit_probe_is_trained_on_both_splits_and_says_so(refit, dataset_folder, tmp_path, capsys):
    origin = best_of(refit.folder)["description"]["provenance"]
    assert (origin["train_splits"], origin["validation_splits"], origin["refit"]) == (BOTH, BOTH, True)
    pairs = PairDataset.load(dataset_folder).subset(BOTH).pairs
    landmarks = load_any(refit.folder).judge.settings.head_input.landmarks
    assert landmarks in (0, len(pairs)) == (0, 21)
    # a report on pairs that it was trained on is marked, and they cannot calibrate it
    words = ["--data", str(dataset_folder), "--split", "validation"]
    measured = ["--json", "--resamples", "20", "--checks", "none", "--out", str(tmp_path / "report")]
    assert main(["evaluate", str(refit.folder), *words, *measured]) == 0
    assert "this judge was trained on train, validation" in capsys.readouterr().err
    assert "trained on split validation" in failed(capsys, "calibrate", str(refit.folder), *words)


def test_it_is_measured_and_calibrated_with_groups_left_out(refit, dataset_folder):
    """The same is computed here with the features of the run and fits of scikit-learn's folds."""
    judge, part = load_any(refit.folder).judge, PairDataset.load(dataset_folder).subset(BOTH)
    order = np.random.default_rng(0).permutation(len(part.pairs))
    pairs = [part.pairs[number] for number in order]
    names = [dimension.name for dimension in judge.dimensions]
    human = part.mean_scores()[names].to_numpy(float)[order]
    groups = np.array([pair.group_id for pair in pairs], dtype=object)
    features = torch.stack([read_by(judge, pair) for pair in pairs]).numpy()
    expected = np.empty_like(human)
    known = FeatureBatch(features, human, np.ones_like(human), groups)
    for others, rows in GroupKFold(FOLDS, shuffle=True, random_state=0).split(features, groups=groups):
        assert set(groups[rows]).isdisjoint(groups[others])
        own = FeatureBatch(*(values[others] for values in known))
        expected[rows] = fit(own, judge.head_input.blocks, may_omit=True, may_rank=True).predict(features[rows])
    fitted = scores_of(judge, pairs)
    calibration = json.loads(refit.calibration.read_text())
    assert calibration["splits"] == BOTH
    for column, name in enumerate(names):
        assert refit.agreement[name] == pytest.approx(spearmanr(expected[:, column], human[:, column])[0], abs=0.01)
        own = calibration["dimensions"][name]
        assert own["n"] == 21
        error = math.sqrt(np.mean((expected[:, column] - human[:, column]) ** 2))
        assert own["factor"] == pytest.approx(error, rel=0.15)  # heads bend at the ends of the scale
        assert own["factor"] > math.sqrt(np.mean((fitted[:, column] - human[:, column]) ** 2))


@pytest.fixture(scope="module")
def folds(train_arguments, tmp_path_factory):
    run = tmp_path_factory.mktemp("folds") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "200")
        return train(train_arguments(run, folds=3, **PROBE))


def test_every_pair_is_scored_by_a_judge_that_was_not_trained_on_it(folds, dataset_folder, tmp_path, capsys):
    dataset = PairDataset.load(dataset_folder)
    part = dataset.subset(BOTH)
    table = pd.read_csv(folds.folder / "left_out.csv")
    wide = table.pivot(index="pair_id", columns="dimension", values="score")
    assert set(wide.index) == {pair.pair_id for pair in part.pairs}
    groups = {pair.pair_id: pair.group_id for pair in part.pairs}
    seen: set[str] = set()
    for number in (1, 2, 3):
        run = folds.folder / "probe" / f"fold{number}"
        own = set(pd.read_csv(run / "left_out.csv")["pair_id"])
        others = wide.index.difference(list(own))
        assert {groups[name] for name in own}.isdisjoint(groups[name] for name in others)
        judge = load_any(run).judge
        assert judge.settings.head_input.landmarks in (0, 21)  # as many in each fold
        pairs = [pair for pair in part.pairs if pair.pair_id in own]
        np.testing.assert_allclose(scores_of(judge, pairs), wide.loc[[p.pair_id for p in pairs]], atol=1e-5)
        seen |= own
    assert len(seen) == 21
    human = part.mean_scores()
    for name, value in folds.agreement.items():
        assert value == pytest.approx(spearmanr(wide[name], human.loc[wide.index, name], nan_policy="omit")[0])
    words = ["evaluate", f"scores:{folds.folder / 'left_out.csv'}", "--data", str(dataset_folder), "--split", "train"]
    words += ["--json", "--resamples", "20", "--out", str(tmp_path / "report")]
    assert json.loads(output_of(capsys, *words))["dimensions"]["empathy"]["n_items"] == 12


def test_folds_end_with_the_judge_of_all_pairs_and_an_ensemble(folds):
    assert best_of(folds.folder)["description"]["provenance"]["refit"]
    assert json.loads(folds.calibration.read_text())["dimensions"]["empathy"]["n"] == 21
    kinds = [load_any(folds.folder / "probe" / f"fold{n}").judge.settings.head_input.landmarks for n in (1, 2, 3)]
    ensemble = load_any(folds.folder / "ensemble")
    assert len(ensemble.judge.members) == max(map(kinds.count, kinds)) >= 2


def test_finished_folds_are_not_trained_again(folds, train_arguments, capsys, monkeypatch):
    trained = []
    for name in ("train_probe", "refit_probe"):
        plain = getattr(cross_validate, name)

        def note(recipe, *rest, plain=plain, **options):
            trained.append(Path(recipe.run).name)
            plain(recipe, *rest, **options)

        monkeypatch.setattr(cross_validate, name, note)
    monkeypatch.setenv("COLUMNS", "200")
    (folds.folder / "probe" / "fold2" / "left_out.csv").unlink()
    before = (folds.folder / "left_out.csv").read_text()
    again = train(train_arguments(folds.folder, folds=3, resume="auto", **PROBE))
    assert trained == ["fold2", "run"]
    assert (folds.folder / "left_out.csv").read_text() == before
    assert again.agreement == pytest.approx(folds.agreement)
    said = capsys.readouterr().err
    row = next(line for line in said.splitlines() if "empathy" in line and "│" in line)
    assert f"{folds.agreement['empathy']:.3f}" in row
    assert re.search(r"│ +21 │", row)
    words = train_arguments(folds.folder, folds=3, **PROBE)
    line = failed(capsys, "train", *words)
    assert "already holds runs" in line
    assert failed(capsys, "train", *words, "--dry-run") == line


def test_a_refit_with_adapters_trains_as_many_epochs_as_were_best(train_arguments, tmp_path, dataset_folder):
    run = train(train_arguments(tmp_path / "run", refit="true", **OF_CLIPS))
    first, last = best_of(run.folder / "lora"), best_of(run.folder)
    assert first["epochs"] == first["global_step"] / 3  # 12 pairs, 4 in a batch
    assert last["global_step"] == round(first["epochs"] * 6)  # 21 pairs
    assert last["description"]["provenance"]["train_splits"] == BOTH
    validation = PairDataset.load(dataset_folder).subset("validation").pairs
    assert json.loads(run.calibration.read_text())["dimensions"]["empathy"]["n"] == len(validation) == 9
    # By the epochs that pairs of other groups chose: of the best one the pairs that chose it would say too much
    left_out = pd.read_csv(run.folder / "lora" / "left_out.csv").pivot(index="pair_id", columns="dimension")["score"]
    human = PairDataset.load(dataset_folder).subset("validation").mean_scores()
    for name, agreement in run.agreement.items():
        expected = spearmanr(left_out[name].loc[human.index], human[name]).statistic
        assert agreement == pytest.approx(expected)
        assert agreement < first["description"]["provenance"]["validation"][name]
    began = first["description"]["provenance"]["start"]
    assert set(began["empathy"]) == {"probe", "added", "low", "high"}
    assert last["description"]["provenance"]["start"] == began


def test_auto_trains_no_adapters_that_validation_could_not_keep(train_arguments, tmp_path, capsys):
    run = train(train_arguments(tmp_path / "run", method="auto", **OF_CLIPS, trainer__max_epochs=1))
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("auto: "))
    assert line.startswith("auto: probe: no adapters are trained, since")
    assert "come from 3 groups (or speakers), at least 5 needed; expected more" in line
    assert not (run.folder / "lora").exists()
    assert best_of(run.folder)["agreement"] == best_of(run.folder / "probe")["agreement"]
    assert run.calibration is not None


def test_auto_keeps_the_probe_where_no_epoch_is_better(train_arguments, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(left_out, "MIN_GROUPS", 3)
    words = {"method": "auto", **OF_CLIPS, "optimizer__head_learning_rate": 30.0, "optimizer__learning_rate": 3.0}
    run = train(train_arguments(tmp_path / "run", **words, trainer__max_epochs=1))
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("auto: "))
    assert line == "auto: probe: adapters agreed best with people before their first epoch"
    assert best_of(run.folder)["agreement"] == best_of(run.folder / "probe")["agreement"]
    assert run.calibration is not None
    assert "method: auto" in (run.folder / "config.yaml").read_text()


@pytest.mark.long
def test_auto_asks_for_an_interval_where_there_are_groups_enough(train_arguments, tmp_path, capsys):
    words = {"method": "auto", "folds": 3, **OF_CLIPS, "trainer__max_epochs": 1}
    train(train_arguments(tmp_path / "run", **words))
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("auto: "))
    chosen, lead, low, high = re.fullmatch(
        r"auto: (\w+): .* lora leads by (\S+) \(90 % interval (\S+) to (\S+); it must not begin below 0\)", line
    ).groups()
    assert float(low) <= float(lead) <= float(high)
    assert chosen == ("lora" if float(low) >= 0 else "probe")


@pytest.mark.parametrize(
    ("low", "kept", "parts"),
    [pytest.param(-0.1, "probe", [], marks=pytest.mark.long), (0.0, "lora", ["language_model"])],
)
def test_auto_keeps_adapters_that_are_ahead(low, kept, parts, train_arguments, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(left_out, "MIN_GROUPS", 3)
    monkeypatch.setattr(left_out, "lead_interval", lambda *_: (low, 0.2))
    words = {"method": "auto", "judge__lora__rank": 4, **OF_CLIPS}
    run = train(train_arguments(tmp_path / "run", **words, trainer__max_epochs=3, cache__what="audio"))
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("auto: ")]
    chosen, lora, probe, pairs, lead = re.fullmatch(
        r"auto: (\w+): mean Spearman of lora (\S+), of the probe (\S+) on (\d+) pairs that neither was trained on, "
        r"nor chose the epoch of lora by; lora leads by (\S+) \(90 % interval .*\)",
        line,
    ).groups()
    assert (chosen, pairs) == (kept, "9")
    assert float(lead) == pytest.approx(float(lora) - float(probe), abs=2e-3)
    assert float(lora) < best_of(run.folder / "lora")["agreement"]  # that of the pairs that chose the epoch
    assert (run.folder / "probe").exists()
    assert (run.folder / "lora").exists()
    assert load_any(run.folder).judge.settings.lora.parts == parts


@pytest.mark.long
def test_where_adapters_of_folds_began_is_the_mean_of_the_folds(train_arguments, tmp_path):
    run = train(train_arguments(tmp_path / "run", folds=3, **OF_CLIPS, trainer__max_epochs=1))
    starts = [best_of(run.folder / "lora" / f"fold{n}")["description"]["provenance"]["start"] for n in (1, 2, 3)]
    began = best_of(run.folder)["description"]["provenance"]["start"]
    for name in ("probe", "added"):
        assert began["empathy"][name] == pytest.approx(np.mean([own["empathy"][name] for own in starts]))
    assert (began["empathy"]["low"], began["empathy"]["high"]) == (None, None)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"folds": 1}, "folds 1 with method probe: one is left out; expected at least 2"),
        ({"folds": 2, "method": "auto"}, "expected at least 3"),
        ({"folds": 40}, "folds 40: the pairs have 7 groups"),
        ({"refit": "true", "data__preference_share": 1.0}, "there are no ratings to choose by"),
        ({"folds": 2, "trainer__devices": 2}, "2 processes with several runs"),
        (NOTHING_OF_CLIPS, "method probe with judge.head_input.audio none; expected --judge.head_input.audio "),
        ({"method": "auto", **NOTHING_OF_CLIPS}, "method auto with judge.head_input.audio none; expected"),
        ({"method": "auto", "data__augmentation__gain_probability": 1}, "method auto with augmentation: a probe"),
    ],
)
def test_mistakes_are_one_line(overrides, message, train_arguments, tmp_path, capsys):
    words = train_arguments(tmp_path / "run", **{**PROBE, **overrides})
    line = failed(capsys, "train", *words)
    assert message in line
    assert failed(capsys, "train", *words, "--dry-run") == line
    main(["train", *train_arguments(tmp_path / "run", **PROBE, folds=3), "--dry-run"])
    assert "error" not in capsys.readouterr().err  # nothing is left that is in the way


def test_several_runs_do_not_begin_in_the_folder_of_a_single_one(train_arguments, tmp_path, capsys):
    run = tmp_path / "run"
    train(train_arguments(run, **PROBE))
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    words = train_arguments(run, **PROBE, folds=3)
    line = failed(capsys, "train", *words)
    assert line == f"error: {run}: already holds runs; expected another --run, or --resume true to continue them"
    assert failed(capsys, "train", *words, "--dry-run") == line
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before


def test_folds_too_small_to_choose_by_are_refused_before_any_is_trained_on(
    train_arguments, dataset_folder, tmp_path, capsys
):
    data = small_dataset(tmp_path / "small", dataset_folder, 8)
    words = train_arguments(tmp_path / "run", folds=12, data__path=data, **PROBE)
    line = failed(capsys, "train", *words)
    assert line == (
        "error: folds 12: in fold 1 'empathy' has 2 rated pairs with 2 different means; expected fewer folds, with at "
        "least 3 pairs in each, not all rated alike"
    )
    assert failed(capsys, "train", *words, "--dry-run") == line
    assert not [*(tmp_path / "run").iterdir()]


def test_what_is_finished_is_of_the_same_recipe_and_data(train_arguments, dataset_folder, tmp_path):
    """It is not trained again: with another recipe or other ratings it would stay what it was, and nothing say so."""
    run = tmp_path / "run"
    train(train_arguments(run, folds=3, **PROBE))

    def refused(text: str, **options: object) -> None:
        before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
        with pytest.raises(UserError, match=text):
            train([*train_arguments(run, **{"folds": 3, **PROBE, **options}), "--resume", "true"])
        assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before

    refused("run: was begun with folds 3, now 4; expected the same, or another --run", folds=4)
    refused("was begun with seed 0, now 5", seed=5)
    data = shutil.copytree(dataset_folder, tmp_path / "data")
    dataset = PairDataset.load(data)
    ratings = dataset.ratings[dataset.ratings["rater_id"] != dataset.ratings["rater_id"].iloc[0]]
    complete_dataset(data, dataset.card, hashed_pairs(dataset.pairs, dataset.fingerprints), ratings, None)
    refused("fold1: was trained on other data: content_hash differs from that of .*data", data__path=data)
    # what a probe does not use may change, and what only says where and how it runs
    train([*train_arguments(run, folds=3, trainer__max_epochs=1, data__num_workers=1, **PROBE), "--resume", "true"])
