"""Learning from preferences, counterfactual pairs and single raters, as the command does it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
import soundfile
import torch
from empathy_judge.data_modules.datamodule import PairDataModule
from empathy_judge.data_modules.errors import DataError, UserError
from empathy_judge.data_modules.schema import DatasetCard, Dimension, PairDataset
from empathy_judge.data_modules.settings import DataSettings
from empathy_judge.data_modules.splits import split_dataset
from empathy_judge.data_modules.training_items import counterfactuals, human_comparisons
from empathy_judge.data_modules.writing import write_dataset
from empathy_judge.models.artifact import load_any, save_judge
from empathy_judge.models.weight_files import read_checkpoint
from empathy_judge.train.collate import Batch
from empathy_judge.train.module import JudgeModule
from empathy_judge.train.run import train

from .conftest import BEST_FILE as BEST
from .conftest import LAST_FILE as LAST
from .conftest import frame_of, scores_of

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
