"""Training that starts from, or is, a closed-form regression on frozen features."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from contextlib import redirect_stderr
from pathlib import Path

import numpy as np
import pytest
import torch
from empathy_judge.cli import main
from empathy_judge.data_modules.schema import Pair, PairDataset
from empathy_judge.models.closed_form import FeatureBatch, fit
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.models.weight_files import read_checkpoint
from empathy_judge.scoring.artifact import load_any
from empathy_judge.train.run import train
from safetensors import safe_open
from scipy.stats import spearmanr

from ..conftest import failed
from .conftest import BEST_FILE, LAST_FILE, OF_CLIPS, PROBE, let_probes_choose_a_kernel, read_by, scores_of


@pytest.fixture(scope="module")
def probe(train_arguments, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("probe") / "run"
    with redirect_stderr(io.StringIO()) as told:
        train(train_arguments(run, **PROBE))
    (run.parent / "told").write_text(told.getvalue())
    return run


def test_a_probe_trains_no_weight_and_ends_as_a_run_like_any_other(probe, tmp_path, dataset_folder):
    checkpoint = read_checkpoint(probe / BEST_FILE)
    assert not any("lora_" in name for name in checkpoint["state_dict"])
    assert checkpoint["global_step"] == 0
    assert (probe / "calibration.json").is_file()
    assert main(["export", str(probe), "--out", str(tmp_path / "judge")]) == 0
    with safe_open(tmp_path / "judge" / "head.safetensors", framework="pt") as file:
        assert "adapter" not in file.metadata()  # it has none
    card = (tmp_path / "judge" / "README.md").read_text(encoding="utf-8")
    assert re.search(r"- method: probe, .* backbone: (linear|gaussian 0\.\d+) kernel on \d+ pairs.*; penalty", card)
    assert "losses:" not in card
    pairs = PairDataset.load(dataset_folder).subset(["validation"]).pairs
    exported, run = load_any(tmp_path / "judge"), load_any(probe)
    expected = checkpoint["validations"][0][..., 0].numpy()
    for loaded in (exported, run):
        np.testing.assert_allclose(scores_of(loaded.judge, pairs), expected, atol=1e-5)
    assert run.calibration is not None


def test_what_was_chosen_is_said_in_one_line(probe):
    (line,) = (line for line in (probe.parent / "told").read_text().splitlines() if line.startswith("probe: "))
    number = r"\d+(\.\d+)?(e[+-]\d+)?"
    assert re.fullmatch(
        rf"probe: (linear|gaussian 0\.\d+) kernel on \d+ pairs, explains -?\d\.\d\d of the variance of "
        rf"(ratings|the ranks) of groups left out; penalty empathy {number}, warmth {number}",
        line,
    )


def fitted_again(judge: EmpathyJudge, folder: Path, **options) -> np.ndarray:
    """What a regression on features that a judge without adapters computes says of the validation split."""
    dataset = PairDataset.load(folder)
    train_split, held_out = dataset.subset(["train"]), dataset.subset(["validation"])
    features = [read_by(judge, pair) for pair in train_split.pairs]
    new = torch.stack([read_by(judge, pair) for pair in held_out.pairs])
    targets = train_split.mean_scores()[[d.name for d in judge.dimensions]].to_numpy(float)
    groups = np.array([pair.group_id for pair in train_split.pairs], dtype=object)
    # in the order in which training read them, which decides the folds
    order = np.random.default_rng(0).permutation(len(features))
    known = torch.stack(features).numpy()[order]
    portion = FeatureBatch(known, targets[order], np.ones_like(targets), groups[order])
    return fit(portion, judge.head_input.blocks, **options).predict(new.double().numpy())


def assert_same_order(scores: np.ndarray, expected: np.ndarray) -> None:
    for column in range(scores.shape[1]):
        assert spearmanr(scores[:, column], expected[:, column]).statistic > 0.999


def test_its_scores_keep_the_order_of_the_regression(probe, dataset_folder):
    judge, dataset = load_any(probe).judge, PairDataset.load(dataset_folder)
    assert judge.settings.head_input.landmarks in (0, len(dataset.subset(["train"]).pairs))
    scores = scores_of(judge, dataset.subset(["validation"]).pairs)
    assert_same_order(scores, fitted_again(judge, dataset_folder, may_rank=True))


def test_training_never_publishes_less_than_its_start(train_arguments, tmp_path, capsys):
    """With a learning rate that destroys everything, the start is what is published."""
    run = tmp_path / "run"
    rates = {"optimizer__head_learning_rate": 30.0, "optimizer__learning_rate": 3.0}
    train(train_arguments(run, **OF_CLIPS, **rates, trainer__max_epochs=1))
    best, last = (read_checkpoint(run / file) for file in (BEST_FILE, LAST_FILE))
    assert best["global_step"] == 0
    assert not last["agreement"] >= best["agreement"]  # NaN where all scores became one
    (start,) = best["validations"].values()
    assert [*last["validations"]] == [0, last["global_step"]]
    np.testing.assert_array_equal(last["validations"][0], start)
    # the start is said, and what was added to it since: nothing, and the harm of the last epoch
    for name, own in best["description"]["provenance"]["start"].items():
        assert own["probe"] == best["description"]["provenance"]["validation"][name]
        assert own["added"] == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "training began at a probe" in line]
    assert len(said) == 2
    assert re.fullmatch(r"empathy: training began at a probe with Spearman -?0\.\d{3} and added \+0\.000", said[0])


def check_export_scores_the_same(run: Path, out: Path, pairs: Sequence[Pair]) -> None:
    assert main(["export", str(run), "--out", str(out)]) == 0
    exported, trained = load_any(out).judge, load_any(run).judge
    np.testing.assert_allclose(scores_of(exported, pairs), scores_of(trained, pairs), atol=1e-5)


def test_adapters_start_at_a_kernel_where_it_is_the_better_probe(
    probe, train_arguments, tmp_path, dataset_folder, monkeypatch
):
    let_probes_choose_a_kernel(monkeypatch)
    run = tmp_path / "run"
    train(train_arguments(run, **OF_CLIPS, trainer__max_epochs=1))
    last = read_checkpoint(run / LAST_FILE)
    expected = fitted_again(load_any(probe).judge, dataset_folder, widths=(0.25,), may_rank=True)
    assert_same_order(last["validations"][0][..., 0].numpy(), expected)
    weights = last["state_dict"]
    assert weights["judge.head_input.block_scale"].gt(0).all()
    assert max(own.abs().max() for name, own in weights.items() if "lora_B" in name) > 1e-4  # zero before training
    assert weights["judge.head.linear.weight"].shape[1] == len(weights["judge.head_input.landmarks"])
    check_export_scores_the_same(run, tmp_path / "judge", PairDataset.load(dataset_folder).pairs[:3])


def test_adapters_start_at_a_kernel_that_leaves_out_the_language_model(
    train_arguments, tmp_path, dataset_folder, monkeypatch
):
    """They are in there: the head reads its state beside the kernel, and begins to do so at nothing."""
    let_probes_choose_a_kernel(monkeypatch, without_language_model=True)
    train(train_arguments(tmp_path / "probe", **PROBE))
    run = tmp_path / "run"
    train(train_arguments(run, **OF_CLIPS, trainer__max_epochs=1))
    last, alone = read_checkpoint(run / LAST_FILE), read_checkpoint(tmp_path / "probe" / BEST_FILE)
    np.testing.assert_allclose(last["validations"][0][..., 0], alone["validations"][0][..., 0], atol=1e-5)
    weights = last["state_dict"]
    assert (weights["judge.head_input.block_scale"] == 0).any()
    landmarks = len(weights["judge.head_input.landmarks"])
    assert alone["state_dict"]["judge.head.linear.weight"].shape[1] == landmarks
    beside = weights["judge.head.linear.weight"][:, landmarks:]
    assert beside.shape[1] == load_any(run).judge.backbone.hidden_size
    assert beside.abs().min() > 0
    assert max(own.abs().max() for name, own in weights.items() if "lora_B" in name) > 1e-4  # zero before training
    check_export_scores_the_same(run, tmp_path / "judge", PairDataset.load(dataset_folder).pairs[:3])


def test_judges_that_compare_with_pairs_of_their_own_make_an_ensemble(train_arguments, tmp_path, monkeypatch):
    let_probes_choose_a_kernel(monkeypatch)
    runs = [tmp_path / f"run{seed}" for seed in range(2)]
    for seed, run in enumerate(runs):
        train(train_arguments(run, **PROBE, seed=seed))
    assert main(["ensemble", *map(str, runs), "--out", str(tmp_path / "out")]) == 0


@pytest.mark.parametrize(
    ("groups", "refit", "what"), [(1, "false", ""), (1, "true", ""), (2, "true", "without one fold, ")]
)
def test_without_groups_to_leave_out_there_is_no_probe_and_not_a_head_that_nothing_was_fitted_to(
    groups, refit, what, train_arguments, tmp_path, capsys, monkeypatch
):
    few = lambda pairs, _: np.arange(len(pairs)) % groups  # noqa: E731
    monkeypatch.setattr("empathy_judge.train.regression.kept_together", few)
    line = failed(capsys, "train", *train_arguments(tmp_path / "run", **PROBE, refit=refit))
    expected = "empathy has ratings of fewer than two groups; expected at least three groups, or a dataset without this"
    assert line == f"error: method probe: {what}{expected} dimension"
    if refit == "false":  # adapters can do without
        train(train_arguments(tmp_path / "lora", **OF_CLIPS, trainer__max_epochs=1))
        told = capsys.readouterr().err
        assert "the head starts at the mean rating: empathy has ratings of fewer than two groups\n" in told


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"judge__head_input__audio": "none", "judge__head_input__functionals": "false"},
            "method probe with judge.head_input.audio none; expected --judge.head_input.audio all_layers, or of a "
            "backbone without audio tower --judge.head_input.functionals true",
        ),
        ({"data__augmentation__gain_probability": 0.5}, "method probe with augmentation: a probe reads "),
        ({"method": "lora", "judge__head_input__landmarks": 3}, "there is no setting judge.head_input.landmarks"),
    ],
)
def test_a_probe_with_nothing_to_read_is_refused(overrides, message, train_arguments, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("empathy_judge.train.preparation.EmpathyJudge", None)  # before a backbone is loaded
    words = train_arguments(tmp_path / "run", **{**PROBE, "cache__what": "none", **overrides})
    assert message in failed(capsys, "train", *words)
