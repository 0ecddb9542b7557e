"""The baseline that reads: what words tell, and pairs without any."""

from __future__ import annotations

import dataclasses
import json
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.eval.checks import CHECKS
from empathy_judge.eval.judges import OK, check_score_table
from empathy_judge.eval.judges.baselines.regression import (
    FOLDS,
    NO_TRANSCRIPT,
    RegressionJudge,
    Standardised,
    TextJudge,
)
from scipy.stats import spearmanr

KIND = ("I am so sorry.", "That sounds hard.", "I am here for you.", "Take your time.")
COLD = ("Noted.", "Next item, please.", "Whatever you say.", "Not my problem.")
SAD = ("My dog died.", "I lost my job.", "She left me.", "I failed again.")


@pytest.fixture(scope="module")
def worded(delivered) -> PairDataset:
    """Kind words are rated 4 where the context is sad and 3 otherwise, cold words 2; groups share a context."""
    rng = np.random.default_rng(0)
    pairs, ratings = [], []
    for number, pair in enumerate(delivered.pairs):
        group, kind = number // 3, bool(rng.integers(2))
        sad = group % 2 == 0
        text = (KIND if kind else COLD)[rng.integers(4)]
        context = SAD[rng.integers(4)] if sad else "The bus came."
        pairs.append(dataclasses.replace(pair, response_text=text, context_text=context))
        ratings.append((pair.pair_id, "r", "empathy", (4.0 if sad else 3.0) if kind else 2.0))
    table = pd.DataFrame(ratings, columns=["pair_id", "rater_id", "dimension", "score"])
    return dataclasses.replace(delivered, pairs=tuple(pairs), ratings=table)


@pytest.fixture(scope="module")
def judge(worded) -> TextJudge:
    return TextJudge(worded.subset("train"))


def test_it_learns_what_words_say_of_unseen_groups(judge, worded):
    test = worded.subset("test")
    table = judge.score(test.pairs)
    check_score_table(table, judge, test.pairs)
    assert judge.dimensions == ("empathy",)
    assert spearmanr(table["score"], test.mean_scores()["empathy"])[0] > 0.9
    json.dumps(judge.record, allow_nan=False)
    assert judge.record["fitted"]["empathy"]["cross_validated_rmse"]["ridge"] < 0.4


def test_it_reads_context_and_situation_and_hears_nothing(judge, worded):
    pair = dataclasses.replace(worded.pairs[0], response_text=KIND[0])

    def score(**changes: object) -> float:
        return judge.score([dataclasses.replace(pair, **changes)])["score"].item()

    sad, neutral = score(context_text=SAD[0]), score(context_text="The bus came.")
    assert sad > neutral + 0.1
    assert score(context_text=None, situation=SAD[0]) == sad
    assert score(context_text=SAD[0], response=worded.pairs[40].response, context=()) == sad


def test_a_pair_without_a_transcript_has_a_status(judge, worded):
    test = worded.subset("test").pairs
    silent = [dataclasses.replace(test[0], response_text=text) for text in (None, " ")]
    table = judge.score([silent[0], test[1]])
    assert table["status"].tolist() == [NO_TRANSCRIPT, OK]
    assert table["score"].isna().tolist() == [True, False]
    assert judge.score(silent[1:])["status"].tolist() == [NO_TRANSCRIPT]
    unintelligible = CHECKS["low_pass"].apply(test[:3], 0)  # whose transcripts nobody could write
    assert judge.score(unintelligible)["status"].tolist() == [NO_TRANSCRIPT] * 3


def test_punctuation_and_other_scripts_are_text(worded):
    pairs = [
        dataclasses.replace(pair, response_text="?!" if n % 2 else "我在这里", context_text=None)
        for n, pair in enumerate(worded.pairs)
    ]
    ratings = worded.ratings.assign(score=[2.0 + n % 2 for n in range(len(pairs))])
    dataset = dataclasses.replace(worded, pairs=tuple(pairs), ratings=ratings)
    found = TextJudge(dataset.subset("train")).score(dataset.subset("test").pairs)["score"]
    np.testing.assert_allclose(found, dataset.subset("test").mean_scores()["empathy"], atol=0.1)


def fitted(dataset: PairDataset, features: np.ndarray) -> Any:
    """What a judge on these features says of its regressions."""
    learn = partial(Standardised.learn, seed=0)
    return RegressionJudge("x", dataset, lambda pairs: (features, [OK] * len(pairs)), [learn]).record["fitted"]


def test_a_kernel_wins_where_the_fit_of_the_two_decides(delivered):
    """A rule that no weighted sum can follow: the response must be as the context is."""
    rng = np.random.default_rng(0)
    features = rng.choice([-1.0, 1.0], size=(600, 2)) + rng.normal(0, 0.1, (600, 2))
    wanted = np.where(np.sign(features[:, 0]) == np.sign(features[:, 1]), 4.0, 2.0)
    pairs = tuple(dataclasses.replace(delivered.pairs[0], pair_id=f"x{n}", group_id=f"g{n // 4}") for n in range(600))
    ratings = pd.DataFrame({"pair_id": [pair.pair_id for pair in pairs], "score": wanted})
    ratings = ratings.assign(rater_id="r", dimension="empathy")
    dataset = dataclasses.replace(delivered, pairs=pairs, ratings=ratings)
    found = fitted(dataset, features)
    assert list(found) == ["empathy"]  # nobody rated warmth
    assert found["empathy"]["kernel"] == "gaussian"
    assert found["empathy"]["cross_validated_rmse"]["gaussian 0.6"] < 0.2
    assert found["empathy"]["cross_validated_rmse"]["linear"] == pytest.approx(1.0, abs=0.05)


def test_the_record_says_whether_ranks_were_fitted():
    """Of ratings of two kinds never; of a few high ones above many low ones they predict better."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(300, 12))
    groups = np.arange(300) // 4
    told = features @ rng.normal(size=12) / 3 + rng.normal(0, 0.3, 300)
    for target, ranks in ((np.clip(np.exp(2 * told), 1, 60), True), (np.where(told > 0, 4.0, 1.0), False)):
        assert Standardised.learn(features, target, groups, seed=0)[1]["ranks"] == ranks


def test_folds_keep_groups_whole(delivered):
    """Features that name the group are worth nothing for other groups, and cross-validation must see that."""
    train = delivered.subset("train")
    groups = np.array([pair.group_id for pair in train.pairs])
    features = (groups[:, None] == np.unique(groups)).astype(float)
    rng = np.random.default_rng(0)
    ratings = train.ratings.copy()
    level = dict(zip(np.unique(groups), rng.uniform(1, 5, len(np.unique(groups))), strict=True))
    ratings["score"] = [level[groups[[pair.pair_id for pair in train.pairs].index(p)]] for p in ratings["pair_id"]]
    found = fitted(dataclasses.replace(train, ratings=ratings), features)
    assert FOLDS == 5
    assert found["empathy"]["cross_validated_rmse"]["linear"] > 0.9 * np.std(list(level.values()))
