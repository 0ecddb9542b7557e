"""One judge for dimensions in words, or a head for each? `python benchmarks/dimension_words.py DATA --work FOLDER`.

`heads`: a head for each dimension, as `train` makes it, on the mean state of the response. `words`: one head for all;
each pair is read once for each dimension, with the dimension's question and levels after the clips, and pooled at the
last token. `words without D`: the same, fitted without the ratings of D; it meets D in the test pairs alone. All with
the nano backbone: its frozen states with the closed form (ridge or kernel, `frozen.Study`), also beside what the
recipe `small` reads of the clips; with `--adapters` the recipe `nano` as well. Each seed draws groups: half to train, a
fifth to validate (which the closed form is fitted to, too), the rest to test.

DATA is the folder of `emodb` and `speechocean_prosody`. Ratings are scaled to 0 to 1. The set `measures` has the clips
of `emodb` with measures of their signal, as ranks: nano was trained to answer these questions about other clips. Each
fit is a row of `FOLDER/dimension_words.jsonl`, and is not done again; `--report` prints the table.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import empathy_judge
import numpy as np
import pandas as pd
from empathy_judge import PairDataset
from empathy_judge.audio.decode import decode
from empathy_judge.audio.functionals import FUNCTIONALS, functionals
from empathy_judge.audio.prosody import RATE
from empathy_judge.core.disk_store import DiskStore
from empathy_judge.data_modules.importers.frames import dataset_from_frames
from empathy_judge.data_modules.writing import write_splits
from empathy_judge.eval.statistics.agreement import spearman
from empathy_judge.eval.statistics.bootstrap import Resamples
from empathy_judge.models.backbones import audio_language_model
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.models.settings import BuiltHeadInput, JudgeSettings, LoraSettings
from empathy_judge.scoring.artifact import load_any
from empathy_judge.scoring.predictor import Predictor, placed
from frozen import Method, Study, activations_of
from materials import load_set

_FIVE = "very low, low, medium, high or very high."
QUESTIONS: Mapping[str, Mapping[str, str]] = {
    "emodb": {
        "valence": "How pleasant is the emotion of the response? unpleasant, neutral, pleasant or happy.",
        "arousal": "How excited is the voice of the response? calm, medium or excited.",
    },
    "speechocean_prosody": {
        "prosodic": "How good are stress and intonation of the response? flat, unnatural, fair, good or natural.",
        "fluency": "How fluent is the response? broken, many pauses, fair, fluent or without any hesitation.",
    },
    "measures": {
        "pitch_mean": f"How high is the pitch of the response? {_FIVE}",
        "pitch_range": "How wide is the pitch range of the response? very narrow, narrow, medium, wide or very wide.",
        "onset_rate": "How fast is the response? very slow, slow, medium, fast or very fast.",
        "level": "How loud is the response? very soft, soft, medium, loud or very loud.",
    },
}
STATES = "frozen states"
CLOSED: Mapping[str, Method] = {
    STATES: (True, BuiltHeadInput(), False),
    f"{STATES} and clips": (True, BuiltHeadInput("all_layers", functionals=True), False),
}
ADAPTERS = "adapters"
POOLING: Mapping[str, Literal["response_mean", "last_token"]] = {"heads": "response_mean", "words": "last_token"}
RESAMPLES = 200
_ASKED = audio_language_model.messages


def asked_last(pair: Any, question: str = audio_language_model.QUESTION) -> list[Any]:
    """The chat about a pair, whose situation is the question."""
    own = pair.situation_or_none
    return _ASKED(replace(pair, situation=None) if own else pair, own or question)


def frames(name: str, data: Path, work: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Pairs, and ratings from 0 to 1 of each dimension in words."""
    base = load_set("emodb" if name == "measures" else name, data, work / "sets")
    pairs = pd.DataFrame(
        [(pair.pair_id, pair.group_id, pair.response_speaker, str(pair.response)) for pair in base.pairs],
        columns=["pair_id", "group_id", "response_speaker", "response_audio"],
    )
    scores = base.mean_scores()
    if name == "measures":
        values = [functionals(decode(pair.response, RATE)) for pair in base.pairs]
        scores = pd.DataFrame(values, index=pairs["pair_id"].to_list(), columns=list(FUNCTIONALS))[
            list(QUESTIONS[name])
        ]
        scores = (scores.rank() - 1) / (len(scores) - 1)
    elif name == "speechocean_prosody":
        rows = pd.read_csv(data / name / "metadata.csv")
        ids = [Path(clip).stem for clip in rows["clip"]]
        fluency = rows[[f"fluency_r{number}" for number in range(1, 6)]].mean(axis=1)
        scores = scores.assign(fluency=pd.Series(fluency.to_numpy(), index=ids)) / 10
    else:
        scores = (scores + 1) / 2
    scores.index.name, scores.columns.name = "pair_id", None
    ratings = scores.reset_index().melt("pair_id", var_name="dimension", value_name="score").dropna()
    return pairs, ratings.assign(rater_id="mean")


def datasets(name: str, data: Path, work: Path) -> dict[str, PairDataset]:
    """The set with a column of ratings for each dimension, and with a row for each dimension in words."""
    folders = {form: work / name / form for form in ("heads", "words")}
    if not all(folder.exists() for folder in folders.values()):
        pairs, ratings = frames(name, data, work)
        scales = [f"{dimension}=0:1" for dimension in QUESTIONS[name]]
        dataset_from_frames(pairs, ratings, dimensions=scales, folder=folders["heads"], synthetic=True, overwrite=True)
        each = ratings["pair_id"] + "~" + ratings["dimension"]
        rows = ratings.merge(pairs, on="pair_id")
        rows = rows.assign(pair_id=each.to_numpy(), situation=[QUESTIONS[name][asked] for asked in rows["dimension"]])
        rows = rows.drop(columns=["dimension", "score", "rater_id"])
        rated = ratings.assign(pair_id=each, dimension="rating")
        dataset_from_frames(rows, rated, dimensions=["rating=0:1"], folder=folders["words"], synthetic=True)
    return {form: PairDataset.load(folder) for form, folder in folders.items()}


def study_of(dataset: PairDataset, form: str, folder: Path) -> Study:
    """What closed forms are fitted with: the activations of the frozen backbone for each row."""
    settings = JudgeSettings(
        backbone="nano", pooling=POOLING[form], head_input=BuiltHeadInput("all_layers", functionals=True),
        lora=LoraSettings(parts=[]),
    )  # fmt: skip
    judge = EmpathyJudge(settings, dataset.card.dimensions).eval().requires_grad_(False)
    return Study(dataset, judge, activations_of(dataset, judge, folder / f"{form}.npz"))


def splits_of(groups: Sequence[str], seed: int) -> dict[str, str]:
    """Group -> its split."""
    order = np.random.default_rng(seed).permutation(sorted(set(groups))).tolist()
    ends = round(0.5 * len(order)), round(0.7 * len(order))
    return {
        name: "train" if row < ends[0] else "validation" if row < ends[1] else "test" for row, name in enumerate(order)
    }


def parts_of(dataset: PairDataset, without: str | None, seed: int) -> list[str | None]:
    """The split of each pair; None = of the dimension that is left out, and not to test."""
    split, parts = splits_of([pair.group_id for pair in dataset.pairs], seed), []
    for pair in dataset.pairs:
        left_out = without is not None and pair.pair_id.endswith(f"~{without}")
        part = split[pair.group_id]
        parts.append(None if left_out and part != "test" else part)
    return parts


def adapted(dataset: PairDataset, parts: Sequence[str | None], form: str, seed: int, folder: Path) -> np.ndarray:
    """Scores of the test pairs `(pairs, dimensions)` by adapters of the recipe `nano`, up to ten epochs."""
    write_splits(folder / form, parts)
    settings = {
        "config": "nano",
        "seed": seed,
        "judge": {"pooling": POOLING[form]},
        "cache": {"what": "audio", "folder": str(folder / "cache")},
        "trainer": {"logger": False, "enable_progress_bar": False, "max_epochs": 10},
    }
    shutil.rmtree(folder / "run", ignore_errors=True)
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        empathy_judge.train(settings, folder / form, folder / "run")
    test = [pair for pair, part in zip(dataset.pairs, parts, strict=True) if part == "test"]
    predictor = Predictor(placed(load_any(folder / "run"), "cpu"), 64, store=DiskStore(folder / "cache"))
    scores: dict[str, np.ndarray] = {}
    for pair, prediction in predictor.predict(test):
        assert not isinstance(prediction, Exception), pair.pair_id
        scores[pair.pair_id] = prediction.score.numpy()
    return np.stack([scores[pair.pair_id] for pair in test])


def run(study: Study, form: str, without: str | None, method: str, seed: int, folder: Path) -> dict[str, Any]:
    """Fit, and score the test pairs: dimension -> pair -> score."""
    start, dataset = time.process_time(), study.dataset
    parts = parts_of(dataset, without, seed)
    test = [pair for pair, part in zip(dataset.pairs, parts, strict=True) if part == "test"]
    if method == ADAPTERS:
        values = adapted(dataset, parts, form, seed, folder)
    else:
        train = [pair for pair, part in zip(dataset.pairs, parts, strict=True) if part not in (None, "test")]
        values, _ = study.predict(CLOSED[method], train, test, seed, False)
    scores: dict[str, dict[str, float]] = {}
    for pair, row in zip(test, values, strict=True):
        base, _, asked = pair.pair_id.rpartition("~") if form == "words" else (pair.pair_id, "", "")
        for name, score in zip([asked] if form == "words" else study.names, row.tolist(), strict=True):
            scores.setdefault(name, {})[base] = round(score, 5)
    return {"seconds": round(time.process_time() - start, 1), "scores": scores}


def plans(name: str, seeds: int, adapters: bool) -> Iterator[dict[str, Any]]:
    """What is to be fitted, cheap things first."""
    arms = [("heads", None), ("words", None), *(("words", dimension) for dimension in QUESTIONS[name])]
    # What is read of the clips holds the very measures
    methods = [STATES] if name == "measures" else [*CLOSED]
    for method in [*methods, ADAPTERS] if adapters else methods:
        for seed in range(seeds):
            for form, without in arms:
                yield {"method": method, "seed": seed, "form": form, "without": without}


def table(rows: pd.DataFrame, work: Path) -> str:
    """Spearman on the test splits, mean over seeds, with 95 % intervals over groups."""
    lines = [
        "| set, dimension | fitted to | seeds | a head for each | in words | words less heads, 95 % interval "
        "| in words, never seen | best other head | never seen less that |",
        "|---" * 9 + "|",
    ]
    rows = rows.assign(without=rows["without"].fillna(""))
    for key, found in rows.groupby(["set", "method"], sort=False):
        name, method = map(str, key if isinstance(key, tuple) else (key,))
        dataset = PairDataset.load(work / name / "heads")
        human, group = dataset.mean_scores(), {pair.pair_id: pair.group_id for pair in dataset.pairs}
        for dimension in QUESTIONS[name]:
            others = [other for other in QUESTIONS[name] if other != dimension]
            wanted = {("heads", "", dimension), ("words", "", dimension), ("words", dimension, dimension)}
            wanted |= {("heads", "", other) for other in others}
            runs = {
                arm: {row["seed"]: row["scores"][arm[2]] for row in found.to_dict("records")
                      if (row["form"], row["without"]) == arm[:2]}
                for arm in wanted
            }  # fmt: skip
            seeds = sorted(set.intersection(*(set(own) for own in runs.values())))
            if not seeds:
                continue
            items = [(seed, pair) for seed in seeds for pair in sorted(runs["heads", "", dimension][seed])]
            number = np.array([seed for seed, _ in items])
            people = human.loc[[pair for _, pair in items], dimension].to_numpy(float)
            scores = {arm: np.array([own[seed][pair] for seed, pair in items]) for arm, own in runs.items()}
            draws = Resamples.sample([group[pair] for _, pair in items], RESAMPLES, 0)

            def agreement(arm: Any, at: Any, number: Any = number, people: Any = people, scores: Any = scores) -> float:
                parts = [np.flatnonzero(number[at] == seed) for seed in np.unique(number)]
                return float(np.mean([spearman(scores[arm][at][part], people[at][part]) for part in parts]))

            def shown(arm: Any, less: Any = None, draws: Any = draws, agreement: Any = agreement) -> str:
                def value(at: Any) -> float:
                    return agreement(arm, at) - (0 if less is None else agreement(less, at))

                low, high = np.nanquantile(draws.apply(value), (0.025, 0.975))
                return f"{value(slice(None)):{'+.3f' if less else '.3f'}} ({low:+.3f} to {high:+.3f})"

            own = [("heads", "", dimension), ("words", "", dimension), ("words", dimension, dimension)]
            best = max((("heads", "", other) for other in others), key=lambda arm: agreement(arm, slice(None)))
            cells = [
                f"`{name}` {dimension}", method, str(len(seeds)), shown(own[0]), shown(own[1]),
                shown(own[1], own[0]), shown(own[2]), f"{shown(best)}: {best[2]}", shown(own[2], best),
            ]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", choices=QUESTIONS, default=list(QUESTIONS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--adapters", action="store_true", help="also train adapters: minutes for each fit")
    parser.add_argument("--report", action="store_true", help="print the table of the fits there are")
    options = parser.parse_args(words)
    file = options.work / "dimension_words.jsonl"
    audio_language_model.messages = asked_last
    for name in () if options.report else options.sets:
        studies = {form: study_of(dataset, form, options.work / name) for form, dataset in
                   datasets(name, options.data, options.work).items()}  # fmt: skip
        for plan in plans(name, options.seeds, options.adapters):
            key = {"set": name, **plan}
            if not any(all(row[part] == key[part] for part in key) for row in _rows(file)):
                row = {**key, **run(studies[plan["form"]], folder=options.work / name, **plan)}
                with file.open("a") as out:
                    out.write(json.dumps(row) + "\n")
                print({**key, "seconds": row["seconds"]}, flush=True)
    print(table(pd.DataFrame(_rows(file)), options.work))


def _rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


if __name__ == "__main__":
    main()
