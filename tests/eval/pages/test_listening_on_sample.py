"""Judges fitted to the sample under three conditions: the report tells them apart in one sentence each."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from html import unescape
from typing import Any

import numpy as np
import pandas as pd
import pytest
from empathy_judge.data_modules import prosody
from empathy_judge.data_modules.audio import AudioSource, decode
from empathy_judge.data_modules.sample import DIMENSION, make_sample
from empathy_judge.data_modules.schema import Pair, PairDataset
from empathy_judge.data_modules.splits import split_dataset
from empathy_judge.eval.evaluate import evaluate
from empathy_judge.eval.judges import score_table
from empathy_judge.eval.listening import listening_sentence
from empathy_judge.eval.pages.report import render_page

pytestmark = pytest.mark.long

GROUPS, RIDGE, WORDS = 28, 3.0, 64


@cache
def _sound(source: AudioSource) -> tuple[float, ...]:
    found = prosody.summarise(prosody.track(decode(source, prosody.RATE)))
    values = [found.level, 12 * np.log2(found.pitch / 100), found.pitch_range, 10 * found.harmonicity, found.seconds]
    return tuple(float(value) for value in np.nan_to_num(np.clip(values, -80, 80), nan=0.0))


def sound(source: AudioSource) -> np.ndarray:
    """Level, pitch, its range, harmonicity and duration of a clip; 0 where there is too little voice to tell."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.array(_sound(source))


def of_both(pair: Pair) -> np.ndarray:
    return np.concatenate([sound(pair.context[-1].audio) if pair.context else np.zeros(5), sound(pair.response)])


def of_response(pair: Pair) -> np.ndarray:
    return sound(pair.response)


def of_words(pair: Pair) -> np.ndarray:
    """Counts of words, by a hash."""
    counts = np.zeros(WORDS)
    text = f"{pair.situation or ''} {pair.context_text or ''} {pair.response_text or ''}"
    for word in re.findall(r"\w+", text.lower()):
        counts[sum(map(ord, word)) % WORDS] += 1
    return counts


class Fitted:
    """Ridge regression on some features and their products, fitted to mean ratings."""

    dimensions = (DIMENSION.name,)
    only_given: str | None = None

    def __init__(self, name: str, features: Callable[[Pair], np.ndarray], data: PairDataset) -> None:
        self.name, self._features = name, features
        train = data.subset("train")
        rows = np.stack([features(pair) for pair in train.pairs])
        self._mean, self._sd = rows.mean(axis=0), rows.std(axis=0) + 1e-9
        x = self._expanded(rows)
        target = train.mean_scores()[DIMENSION.name].to_numpy()
        self._base = target.mean()
        self._weights = np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ (target - self._base))

    def _expanded(self, rows: np.ndarray) -> np.ndarray:
        rows = np.clip((rows - self._mean) / self._sd, -4, 4)
        if rows.shape[1] == WORDS:
            return rows
        i, j = np.triu_indices(rows.shape[1])
        return np.concatenate([rows, rows[:, i] * rows[:, j]], axis=1)

    def score(self, pairs: Sequence[Pair]) -> pd.DataFrame:
        x = self._expanded(np.stack([self._features(pair) for pair in pairs]))
        return score_table(pairs, self.dimensions, (self._base + x @ self._weights)[:, None])


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Judge -> its evaluation on the test split of a small sample."""
    folder = tmp_path_factory.mktemp("sample") / "data"
    make_sample(folder, groups=GROUPS, seed=0)
    split_dataset(folder, fractions={"train": 0.6, "validation": 0.1, "test": 0.3}, seed=0)
    data = PairDataset.load(folder)
    judges = [Fitted(name, features, data) for name, features in CONDITIONS.items()]
    return {judge.name: evaluate(judge, data, split="test", resamples=200) for judge in judges}


CONDITIONS = {"voice of both": of_both, "voice of the response": of_response, "words": of_words}


def test_the_three_are_told_apart(reports: dict[str, Any]) -> None:
    said = {}
    for name, results in reports.items():
        own = results.report["dimensions"][DIMENSION.name]
        checks = {check: found[DIMENSION.name] for check, found in results.report["checks"].items()}
        found = listening_sentence(checks, own["spearman"])
        said[name] = found.kind
        assert found.text.count(". ") == 0
        assert found.text in unescape(render_page(results.report, results.items)), found
    assert said == {
        "voice of both": "listens",
        "voice of the response": "response_only",
        "words": "no_agreement",  # the simulated panel rates delivery only
    }
