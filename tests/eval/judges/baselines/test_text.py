"""The baseline that reads: what words tell, and pairs without any."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.eval.checks import CHECKS
from empathy_judge.eval.judges import OK, check_score_table
from empathy_judge.eval.judges.baselines.regression import NO_TRANSCRIPT, TextJudge
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
