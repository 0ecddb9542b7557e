"""Learning from preferences, counterfactual pairs and single raters, as the command does it."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import soundfile
import torch
from empathy_judge.core.errors import DataError, UserError
from empathy_judge.data_modules.datamodule import PairDataModule
from empathy_judge.data_modules.schema import DatasetCard, Dimension, PairDataset
from empathy_judge.data_modules.settings import DataSettings
from empathy_judge.data_modules.splits import split_dataset
from empathy_judge.data_modules.training_items import counterfactuals, human_comparisons
from empathy_judge.data_modules.writing import write_dataset
from empathy_judge.models.weight_files import read_checkpoint
from empathy_judge.scoring.artifact import load_any, save_judge
from empathy_judge.train import module as module_file
from empathy_judge.train.collate import Batch
from empathy_judge.train.module import JudgeModule, wants_fused
from empathy_judge.train.run import train
from lightning.pytorch.plugins.precision import MixedPrecision, Precision

from .conftest import BEST_FILE as BEST
from .conftest import LAST_FILE, frame_of, scores_of
from .conftest import LAST_FILE as LAST

PREFERENCES_ALONE = {"data__preference_share": 1}


@pytest.fixture(scope="module")
def compared(make_tone, tmp_path_factory) -> Path:
    """12 scripts of two contexts, each with the response that was made for it.

    Low responses are good and high ones are bad. Two raters in each of two campaigns, the second campaign two points
    stricter; a rater compares the responses of each script.
    """
    folder = tmp_path_factory.mktemp("compared") / "data"
    folder.mkdir()
    pairs, ratings, preferences = [], [], []
    for script in range(12):
        campaign = "crowd" if script % 2 else "experts"
        for take in range(2):
            name, high = f"p{script:02d}-{take}", (script + take) % 2
            context, response = f"c-{name}.wav", f"r-{name}.wav"
            soundfile.write(folder / context, make_tone(0.4, 100 + 150 * high + script, 0.3), 16_000)
            soundfile.write(folder / response, make_tone(0.5, 140 + 500 * high + 3 * script, 0.4), 16_000)
            pairs.append({
                "pair_id": name, "group_id": f"s{script}", "context_audio": context, "response_audio": response,
                "system_id": "one", "tags": {"campaign": campaign},
            })  # fmt: skip
            score = (2.0 if high else 4.0) - (campaign == "crowd")
            ratings += [(name, f"{campaign}-{rater}", "warmth", score + rater) for rater in range(2)]
        better, worse = sorted((f"p{script:02d}-{take}" for take in range(2)), key=lambda n: (script + int(n[-1])) % 2)
        preferences.append((better, worse, "judge", "warmth", 1.0))
    card = DatasetCard("compared", (Dimension("warmth", 1, 5, 1),), "a test", "CC0-1.0", synthetic=True)
    write_dataset(
        folder,
        card,
        pd.DataFrame(pairs),
        pd.DataFrame(ratings, columns=["pair_id", "rater_id", "dimension", "score"]),
        pd.DataFrame(preferences, columns=["chosen_id", "rejected_id", "rater_id", "dimension", "strength"]),
    )
    split_dataset(folder, fractions={"train": 0.5, "validation": 0.25, "test": 0.25}, seed=0)
    return folder


def test_preferences_alone_teach_the_order(compared, train_arguments, tmp_path):
    run = tmp_path / "run"
    options = {"trainer__max_epochs": 4, "optimizer__learning_rate": 0.002, **PREFERENCES_ALONE}
    train(train_arguments(run, data__path=compared, **options))
    checkpoint = read_checkpoint(run / BEST)
    origin = checkpoint["description"]["provenance"]
    assert origin["shares"] == {"ratings": 0.0, "preferences": 1.0, "counterfactuals": 0.0}
    assert origin["losses"] == {"bradley_terry": 1.0, "centring": 0.01}
    judge = load_any(run / LAST).judge
    whole = PairDataset.load(compared)
    items = [*human_comparisons(whole.subset("train")), *human_comparisons(whole.subset("test"))]
    chosen = scores_of(judge, [item.chosen for item in items])
    rejected = scores_of(judge, [item.rejected for item in items])
    assert (chosen > rejected).all()
    assert chosen.mean() - rejected.mean() > 0.3  # points
    assert abs((chosen.mean() + rejected.mean()) / 2 - 3) < 0.7  # nothing but centring says where
    assert origin["preferences_met"]["warmth"] == 1.0


def test_a_probe_learns_the_order_from_preferences_alone(compared, train_arguments, tmp_path):
    run = tmp_path / "run"
    options = {"method": "probe", "judge__head_input__audio": "all_layers", **PREFERENCES_ALONE}
    train(train_arguments(run, data__path=compared, **options))
    judge, test = load_any(run).judge, human_comparisons(PairDataset.load(compared).subset("test"))
    lead = scores_of(judge, [item.chosen for item in test]) - scores_of(judge, [item.rejected for item in test])
    assert (lead > 0).all()


def test_shares_that_the_data_cannot_give_are_refused(dataset_folder, compared, train_arguments, tmp_path):
    for share, data, message in (
        ({"preference_share": 0.5}, dataset_folder, "share of 0.5 of what it has not: preferences"),
        ({"counterfactual_share": 0.2}, dataset_folder, "share of 0.2 of what it has not: a response of the same"),
        ({"preference_share": 0.7, "counterfactual_share": 0.7}, compared, "left for rated pairs -0.4; expected"),
    ):
        overrides = {f"data__{name}": value for name, value in share.items()}
        with pytest.raises(DataError, match=message):
            train(train_arguments(tmp_path / "run", data__path=data, **overrides))
    with pytest.raises(UserError, match=r"rater_embedding 4 with data\.target mean; expected single"):
        train(train_arguments(tmp_path / "run", data__path=compared, objective__rater_embedding=4))


def test_mixed_batches_hold_rated_and_counterfactual_pairs(compared, train_arguments, tmp_path, monkeypatch):
    batches: list[Batch] = []
    monkeypatch.setattr(JudgeModule, "on_train_batch_start", lambda self, batch, number: batches.append(batch))
    mix = {"data__counterfactual_share": 0.5, "data__counterfactual_min_score": 0.6, "trainer__max_epochs": 1}
    train(train_arguments(tmp_path / "run", data__path=compared, **mix))
    training = PairDataset.load(compared).subset("train")
    made = counterfactuals(training, 0.6)
    # of the two responses of a script only the good one, of the experts, reaches the score
    assert 0 < len(made) < len(training.pairs)
    rows = sum(len(batch.labels.targets) for batch in batches)
    count = sum(len(batch.labels.chosen) for batch in batches)
    assert sum(len(batch.indices) for batch in batches) == count == 12
    assert rows == 36
    for batch in batches:
        rated = len(batch.indices)
        assert batch.labels.targets[:rated].isfinite().all()
        assert batch.labels.targets[rated:].isnan().all()
        assert (batch.labels.weights[rated:] == 0).all()
        # a chosen pair and its rejected one: the same context, another response
        assert (batch.labels.chosen >= rated).all()
        assert torch.equal(batch.labels.rejected, batch.labels.chosen + len(batch.labels.chosen))
        assert (batch.labels.strengths == 1).all()


def test_pairs_that_nobody_rated_are_no_training_items(compared, tmp_path):
    folder = tmp_path / "few"
    shutil.copytree(compared, folder)
    whole = PairDataset.load(compared)
    training = [pair.pair_id for pair in whole.subset("train").pairs]
    kept = whole.ratings.loc[~whole.ratings["pair_id"].isin(training[:5]), :]
    write_dataset(folder, whole.card, frame_of(whole.pairs), kept, whole.preferences)
    data = PairDataModule(DataSettings(str(folder), preference_share=0.5))
    data.setup("fit")
    assert [pair.pair_id for pair in data.train.pairs] == training[5:]
    assert {item.chosen.pair_id for item in data.items.comparisons} & set(training[:5])  # still compared
    assert len(data.validation.pairs) == len(whole.subset("validation").pairs)


def test_single_raters_are_learned_and_gone_afterwards(compared, train_arguments, tmp_path):
    run = tmp_path / "run"
    raters = {"data__target": "single", "objective__rater_embedding": 4, "judge__head": "gaussian"}
    train(train_arguments(run, data__path=compared, trainer__max_epochs=2, **raters))
    weights = read_checkpoint(run / LAST)["state_dict"]
    assert {name for name in weights if not name.startswith("judge.")} == {
        "raters.embedding", "raters.scale.weight", "raters.shift.weight",
    }  # fmt: skip
    assert weights["raters.embedding"].shape == (4, 4)
    assert weights["raters.scale.weight"].abs().max() > 1e-4  # it starts at 0
    loaded = load_any(run / LAST)
    save_judge(loaded, tmp_path / "judge")
    pairs = PairDataset.load(compared).pairs
    assert (scores_of(load_any(tmp_path / "judge").judge, pairs) == scores_of(loaded.judge, pairs)).all()
    stored = json.loads((tmp_path / "judge" / "judge.json").read_text())
    assert "crowd-0" not in json.dumps(stored)
    # a resumed run needs them
    resumed = train(train_arguments(run, data__path=compared, trainer__max_epochs=3, resume="true", **raters))
    assert resumed is not None


@pytest.mark.parametrize(
    ("overrides", "steps"),
    [
        ({"trainer__max_epochs": 2, "trainer__accumulate_grad_batches": 2}, 4),
        ({"trainer__max_epochs": 2, "trainer__limit_train_batches": 0.7}, 4),
        ({"trainer__max_epochs": 3, "trainer__max_steps": 5}, 5),
    ],
    ids=["accumulated", "share", "steps"],
)
def test_learning_rates_rise_and_then_fall_to_zero(overrides, steps, train_arguments, tmp_path, monkeypatch):
    """Linear over the first half, then half a cosine: by hand for every step."""
    rates: list[float] = []
    monkeypatch.setattr(
        JudgeModule, "on_before_optimizer_step", lambda _, optimizer: rates.append(optimizer.param_groups[0]["lr"])
    )
    train(train_arguments(tmp_path / "run", optimizer__warmup=0.5, trainer__logger="false", **overrides))
    rise = round(steps / 2)
    expected = [
        (step + 1) / rise if step < rise else 0.5 * (1 + math.cos(math.pi * (step - rise) / (steps - rise)))
        for step in range(steps)
    ]
    assert rates == pytest.approx([0.005 * share for share in expected])


CLIP = 0.05


CLIPPED = {
    "trainer__precision": "bf16-mixed",
    "trainer__gradient_clip_val": CLIP,
    "trainer__max_epochs": 2,
    "trainer__logger": "false",
}


@pytest.fixture
def clipped(monkeypatch) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """All gradients of a step before and after clipping, side by side."""
    found: list[tuple[torch.Tensor, torch.Tensor]] = []
    clip = JudgeModule.configure_gradient_clipping

    def gradients(module: JudgeModule) -> torch.Tensor:
        return torch.cat([weight.grad.flatten() for weight in module.parameters() if weight.grad is not None])

    def measured(module: JudgeModule, *args: Any, **kwargs: Any) -> None:
        before = gradients(module)
        clip(module, *args, **kwargs)
        found.append((before, gradients(module)))

    monkeypatch.setattr(JudgeModule, "configure_gradient_clipping", measured)
    return found


def test_fused_steps_clip_and_end_where_unfused_ones_do(train_arguments, tmp_path, monkeypatch, clipped):
    def trained(run: Path) -> dict[str, Any]:
        train(train_arguments(run, **CLIPPED))
        return read_checkpoint(run / LAST_FILE)

    fused = trained(tmp_path / "fused")
    assert all(group["fused"] for group in fused["optimizer_states"][0]["param_groups"])
    norms = [(float(before.norm()), float(after.norm())) for before, after in clipped]
    assert len(norms) == 6
    assert sum(before > CLIP for before, _ in norms) >= 3
    for before, after in norms:
        assert after == pytest.approx(min(before, CLIP), rel=1e-4)
    monkeypatch.setattr(module_file, "wants_fused", lambda precision: False)
    unfused = trained(tmp_path / "unfused")
    assert not any(group["fused"] for group in unfused["optimizer_states"][0]["param_groups"])
    # forward passes in bfloat16 make much of the last bit of a weight
    ours, theirs = fused["state_dict"], unfused["state_dict"]
    moved = sum(float(weight.abs().sum()) for name, weight in ours.items() if "lora_B" in name)  # from zero
    apart = sum(float((weight - theirs[name]).abs().sum()) for name, weight in ours.items() if "lora_B" in name)
    assert apart < 2e-3 * moved


def test_fused_wherever_gradients_are_not_scaled():
    assert wants_fused(Precision())
    assert wants_fused(MixedPrecision("bf16-mixed", "cuda"))
    assert not wants_fused(MixedPrecision("16-mixed", "cpu"))  # has a scaler, and clips unscaled gradients


def test_clipping_by_value(train_arguments, tmp_path, clipped):
    settings = {**CLIPPED, "trainer__gradient_clip_algorithm": "value", "trainer__gradient_clip_val": 0.001}
    train(train_arguments(tmp_path / "run", **{**settings, "trainer__max_epochs": 1}))
    assert [float(after.abs().max()) for _, after in clipped] == pytest.approx([0.001] * 3)
