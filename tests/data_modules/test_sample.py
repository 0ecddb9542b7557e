"""The sample: its rule makes both clips count, its words say nothing, and it can be made again."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from empathy_judge.data_modules import sample as sentences
from empathy_judge.data_modules.sample import CONTEXT_TONES, FIT, RESPONSE_TONES, SYSTEMS, make_sample, rate
from empathy_judge.data_modules.schema import PairDataset
from scipy.stats import spearmanr

from ..eval.statistics.conftest import reliability

EMOTIONAL = re.compile(
    r"\b(happy|sad|angry|afraid|sorry|love|hate|hurt|great|awful|terrible|wonderful|worried|glad|cry|laugh|fear|joy"
    r"|upset|alone|lost|died|won|thank|please|bad|good)\b",
    re.IGNORECASE,
)


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> tuple[PairDataset, pd.DataFrame]:
    """Twelve scripts and the key that nobody else sees."""
    folder = tmp_path_factory.mktemp("sample") / "data"
    key = make_sample(folder, groups=12, seed=3)
    return PairDataset.load(folder), key


def _full_key(pairs: int = 4_500) -> pd.DataFrame:
    """Tones of as many pairs as the demo has, without any audio: contexts and responses as `make_sample` draws them."""
    rng = np.random.default_rng(5)
    context = rng.choice(list(CONTEXT_TONES), pairs)
    system = rng.choice(list(SYSTEMS.values()), pairs)
    response = np.where(rng.random(pairs) < 0.5, system, rng.choice(list(RESPONSE_TONES), pairs))
    fit = [FIT.loc[c, r] for c, r in zip(context, response, strict=True)]
    return pd.DataFrame(
        {"pair_id": [f"{i}" for i in range(pairs)], "context_tone": context, "response_tone": response, "fit": fit}
    )


def _oracle(key: pd.DataFrame, ratings: pd.DataFrame, tone: str) -> float:
    mean = ratings.groupby("pair_id")["score"].mean().reindex(key["pair_id"]).to_numpy()
    guess = pd.Series(mean).groupby(key[tone].to_numpy()).transform("mean")
    return float(spearmanr(guess, mean).statistic)


def test_knowing_one_tone_alone_is_not_enough():
    key = _full_key()
    ratings = rate(key, seed=0)
    assert _oracle(key, ratings, "response_tone") <= 0.45
    assert _oracle(key, ratings, "context_tone") < 0.25
    mean = ratings.groupby("pair_id")["score"].mean().reindex(key["pair_id"])
    assert spearmanr(key["fit"], mean).statistic > 0.95  # both together tell nearly everything


def test_oracles_on_pairs_as_they_are_made(small):
    dataset, key = small
    assert list(key["pair_id"]) == [pair.pair_id for pair in dataset.pairs]
    assert spearmanr(key["fit"], dataset.mean_scores()["vocal_empathy"]).statistic > 0.93
    assert _oracle(key, dataset.ratings, "response_tone") <= 0.55  # 180 pairs: wider than the bar on 4,500


def test_panel_is_plausible():
    key = _full_key(1_500)
    ratings = rate(key, seed=0)
    assert ratings["rater_id"].nunique() == 8
    assert ratings["score"].between(1, 5).all()
    assert (ratings["score"] % 1 == 0).all()
    assert len(ratings) / (8 * len(key)) == pytest.approx(0.75 + 0.25 / 8, abs=0.02)
    found = reliability(ratings, "vocal_empathy", {i: i for i in key["pair_id"]}, resamples=0)
    assert 0.84 < found["spearman"]["value"] < 0.93
    assert 0.96 < found["panel_mean"]["value"] < 0.99


def test_is_marked_synthetic_and_has_both_settings(small):
    dataset, _ = small
    assert dataset.card.synthetic
    assert "simulated" in dataset.card.description
    assert {pair.setting for pair in dataset.pairs} == {"context_variant", "tone_variant"}
    assert len(dataset.pairs) == 12 * 15
    assert len({pair.group_id for pair in dataset.pairs}) == 12
    one = [pair for pair in dataset.pairs if pair.group_id == "script-0000"]
    assert len({pair.response for pair in one}) == 3  # context variant: few responses, many contexts
    assert len({pair.context[0].audio for pair in one}) == 5


def test_no_tone_survives_in_what_a_judge_could_see(small):
    dataset, _ = small
    names = "|".join([*CONTEXT_TONES, *RESPONSE_TONES])
    for pair in dataset.pairs:
        seen = f"{pair.pair_id} {Path(str(pair.response)).name} {Path(str(pair.context[0].audio)).name}"
        seen += f"{pair.context_speaker} {pair.response_speaker} {pair.situation}"
        assert not re.search(names, seen)


def test_words_are_neutral():
    spoken = [*sentences.statements(), *sentences.replies(), *sentences.short_statements(), *sentences.short_replies()]
    assert len(spoken) > 1_000
    assert [text for text in spoken if EMOTIONAL.search(text)] == []


def test_sample_sentences_are_not_those_of_pretraining():
    assert not set(sentences.short_statements()) & set(sentences.statements())
    assert not set(sentences.short_replies()) & set(sentences.replies())


@pytest.mark.slow
def test_same_seed_same_bytes_whatever_the_workers(small, tmp_path):
    dataset, _ = small
    make_sample(tmp_path / "again", groups=12, seed=3, workers=1)
    assert PairDataset.load(tmp_path / "again").card.content_hash == dataset.card.content_hash


@pytest.mark.long
def test_a_script_whose_processes_cannot_begin_ends_in_one_line(tmp_path):
    """Each process imports the script, which calls `make_sample` again."""
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path\nfrom empathy_judge.data_modules.sample import make_sample\n"
        "make_sample(Path(__file__).with_name('data'), groups=1)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert re.search(r"UserError: .*a process that computes ended early; .* __name__ ==", done.stderr)
    assert not (tmp_path / "data").exists()
