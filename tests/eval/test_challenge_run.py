"""The two public challenges, from a dataset and a judge to what the command prints."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from empathy_judge.cli import main
from empathy_judge.data_modules.errors import DataError
from empathy_judge.data_modules.schema import PairDataset, Turn
from empathy_judge.eval.challenge_run import aeq_bench, echomind
from empathy_judge.eval.judges.baselines.simple import ConstantJudge

from .conftest import tone_clip, tone_of

MakeDataset = Callable[..., PairDataset]


def distinct(dataset: PairDataset) -> PairDataset:
    """One response per tone in each group, so that one is the best."""
    seen, pairs = set(), []
    for pair in dataset.pairs:
        key = pair.group_id, tone_of(pair.response)
        if key not in seen:
            seen.add(key)
            pairs.append(pair)
    return dataclasses.replace(dataset, pairs=tuple(pairs))


def test_aeq_bench_of_known_judges(make_dataset: MakeDataset, make_judge: Any) -> None:
    dataset = distinct(make_dataset(raters=3))
    found = aeq_bench(make_judge(), dataset, split=None, resamples=50, seed=0)["empathy"]
    assert set(found) == {"all", "context_variant", "tone_variant"}
    assert found["all"]["score"]["value"] == 1.0
    assert found["all"]["score"]["n"] == found["context_variant"]["score"]["n"] + found["tone_variant"]["score"]["n"]
    assert 0.25 <= found["all"]["chance"] <= 0.5
    nothing = aeq_bench(ConstantJudge({"empathy": 3.0}), dataset, split=None, resamples=50, seed=0)["empathy"]
    assert nothing["all"]["score"]["value"] == 0.0  # a tie is no answer
    with pytest.raises(DataError, match="judge constant scores charm; dataset has ratings of empathy"):
        aeq_bench(ConstantJudge({"charm": 3.0}), dataset, split=None, resamples=50, seed=0)


def voices(dataset: PairDataset) -> PairDataset:
    """Two voices of each script, each with the answer that fits its tone; nobody rated them."""
    pairs = [
        dataclasses.replace(
            pair,
            setting=f"voice {number % 2}",
            system_id="system",
            context=(Turn("user", tone_clip(1.0 + 2 * (number % 2))),),
            response=tone_clip(1.0 + 2 * (number % 2)),
        )
        for number, pair in enumerate(pair for pair in dataset.pairs if pair.pair_id.endswith(("0", "1", "4", "5")))
    ]
    return dataclasses.replace(dataset, pairs=tuple(pairs), ratings=dataset.ratings[:0])


def test_echomind_of_known_judges(make_dataset: MakeDataset, make_judge: Any) -> None:
    dataset = voices(make_dataset())
    listens = echomind(make_judge(), dataset, split=None, resamples=50, seed=0)["empathy"]
    deaf = echomind(ConstantJudge({"empathy": 3.0}), dataset, split=None, resamples=50, seed=0)["empathy"]
    assert (listens["value"], deaf["value"]) == (1.0, 0.5)
    assert listens["n"] == deaf["n"] > 10


def test_the_command(dataset_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = PairDataset.load(dataset_folder)
    means = dataset.mean_scores()
    rows = [f"{pair_id},{name},{means.loc[pair_id, name]}" for pair_id in means.index for name in means]
    (tmp_path / "scores.csv").write_text("\n".join(["pair_id,dimension,score", *rows]))
    words = [f"scores:{tmp_path / 'scores.csv'}", "--data", str(dataset_folder), "--resamples", "20"]
    assert main(["challenge", "aeq-bench", *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {dimension.name for dimension in dataset.card.dimensions}
    assert all(own["all"]["score"]["value"] == 1.0 for own in found.values())
    assert main(["challenge", "aeq-bench", *words]) == 0
    assert "groups" in capsys.readouterr().out
    assert main(["challenge", "echomind", "constant", *words[1:]]) == 2
    assert "none can be crossed" in capsys.readouterr().err
