"""Golden values: what the commands, the networks and the losses compute, at full precision.

A change of structure must not move them. `python tests/golden/make.py [NAME ...]` writes them anew; do that only in a
commit that means to change a number, and say there which and why. `test_golden.py` compares.

Numbers of a network depend in the last bits on the processor, so they are compared to 1e-5. Ends of bootstrap intervals
may be drawn in another way and are compared to the Monte Carlo error.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

HERE = Path(__file__).parent
JUDGE = HERE / "judge"
"""Adapter and head of `make demo`, on the nano backbone of `checkpoints/`."""
REAL = os.environ.get("EMPATHY_JUDGE_REAL_DATA")
SEED, SCRIPTS, PAIRS = 7, 4, 40
BATCH_SIZES = (1, 7, 16)


def _run(*words: object, expected: int = 0) -> str:
    """Standard output of a command that must end with this exit code."""
    from empathy_judge.cli import main

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main([str(word) for word in words])
    if code != expected:
        raise RuntimeError(f"empathy-judge {' '.join(map(str, words))}: exit code {code}")
    return out.getvalue()


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@cache
def _spoken() -> tempfile.TemporaryDirectory[str]:
    from empathy_judge.data_modules.sample import make_sample

    folder = tempfile.TemporaryDirectory(prefix="golden-sample-")
    make_sample(Path(folder.name) / "sample", groups=SCRIPTS, seed=SEED, workers=1)
    return folder


def _sample(folder: Path) -> Path:
    """Sixty pairs of the synthetic sample, not split; spoken once."""
    return Path(shutil.copytree(Path(_spoken().name) / "sample", folder / "sample"))


def _pairs(folder: Path) -> list[Any]:
    from empathy_judge.data_modules.schema import PairDataset

    return list(PairDataset.load(_sample(folder)).pairs[:PAIRS])


def scores(folder: Path) -> Any:
    """Score, standard error, interval and warnings of forty pairs, in batches of three sizes."""
    from empathy_judge import Scorer

    found: dict[str, Any] = {}
    pairs = _pairs(folder)
    for size in BATCH_SIZES:
        scorer = Scorer.from_pretrained(JUDGE, device="cpu", batch_size=size)
        found[str(size)] = {
            pair.pair_id: {
                "scores": {
                    name: [one.score, one.standard_error, one.low, one.high, one.abstained, one.label]
                    for name, one in own.scores.items()
                },
                "warnings": [warning.code for warning in own.warnings],
            }
            for pair, own in zip(pairs, scorer.assess_pairs(pairs), strict=True)
        }
    return found


def rank(folder: Path) -> Any:
    """Five responses to one context, in order."""
    pairs = _pairs(folder)
    responses = list(dict.fromkeys(str(pair.response) for pair in pairs))[:5]
    found = _run("rank", JUDGE, pairs[0].context[0].audio, *responses, "--json", "--device", "cpu")
    return json.loads(found.replace(f"{folder}/", ""))


def manifest(folder: Path) -> Any:
    """What `score --manifest` writes for forty pairs, of which one has no file and one no audio."""
    home = folder / "sample"
    rows = [
        {
            "pair_id": pair.pair_id,
            "context_audio": [
                {"role": turn.role, "audio": str(Path(turn.audio).relative_to(home))} for turn in pair.context
            ],
            "response_audio": str(Path(pair.response).relative_to(home)),
            "situation": pair.situation,
        }
        for pair in _pairs(folder)
    ]
    (home / "text.wav").write_text("no audio")
    rows[3]["response_audio"], rows[7]["response_audio"] = "absent.wav", "text.wav"
    (home / "m.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    words = ("score", JUDGE, "--manifest", home / "m.jsonl", "--device", "cpu", "--json")
    summary = json.loads(_run(*words, "--out", folder / "scores.jsonl", expected=1))
    scored = [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]
    for row in scored:
        row["status"] = row["status"].replace(f"{folder}/", "").partition(";")[0]
    return {"scores": scored, **{name: summary[name] for name in ("rows", "scored", "failed", "done_before")}}


def answers(folder: Path) -> Any:
    """What the service says to three requests and to one that is wrong."""
    from empathy_judge import Scorer
    from empathy_judge.tests.serving.services import in_process

    pairs = _pairs(folder)[:3]
    found: dict[str, Any] = {}
    with in_process(Scorer.from_pretrained(JUDGE, device="cpu")) as service:
        for pair in pairs:
            context, response = (Path(str(clip)).read_bytes() for clip in (pair.context[0].audio, pair.response))
            for path in ("/v1/score", "/v1/rank"):
                clips = [response, context] if path == "/v1/rank" else [response]
                answer = service.score(*clips, path=path, context=[context])
                found[f"{pair.pair_id} {path}"] = [answer.status_code, _without(answer.json(), _VOLATILE)]
        wrong = service.score(b"not audio")
        found["not audio"] = [wrong.status_code, _without(wrong.json(), _VOLATILE)]
    return found


_VOLATILE = {"runtime", "versions", "command", "created", "request_id", "seconds_taken", "version", "date"}
"""Keys whose values differ from run to run or from machine to machine."""


def _without(tree: Any, keys: set[str]) -> Any:
    if isinstance(tree, dict):
        return {key: _without(value, keys) for key, value in tree.items() if key not in keys}
    return [_without(value, keys) for value in tree] if isinstance(tree, list) else tree


def demo_report(folder: Path) -> Any:
    """`evaluate` on sixty pairs with the usual listening checks: the report, and each score under each check."""
    import pandas as pd

    data, out = _sample(folder), folder / "report"
    words = ("--split", "all", "--resamples", 200, "--device", "cpu", "--out", out, "--json")
    report = json.loads(_run("evaluate", JUDGE, "--data", data, *words))
    items = pd.read_csv(out / "items.csv")
    columns = [name for name in items.columns if name == "pair_id" or name.endswith("score")]
    return {"report": _without(report, _VOLATILE), "items": json.loads(items[columns].to_json(orient="records"))}


def checks(folder: Path) -> Any:
    """Length, level and roughness of each clip of three pairs as every listening check leaves it."""
    import numpy as np
    from empathy_judge.audio.decode import decode
    from empathy_judge.eval.checks import CHECKS

    pairs = _pairs(folder)[:24]
    found: dict[str, Any] = {}
    for name, check in CHECKS.items():
        if check.refuses(pairs) is not None:
            continue
        found[name] = {}
        for pair in check.apply(pairs, SEED)[:24:8]:
            clips = [decode(source, 16_000) for source in pair.clips]
            found[name][pair.pair_id] = [
                [len(clip), float(np.sqrt(np.mean(np.square(clip)))), float(np.abs(np.diff(clip)).mean())]
                for clip in clips
            ]
    return found


def kumar(folder: Path) -> Any:
    """`agreement` on the ratings of Kumar et al. (2026)."""
    del folder
    words = ("--column", "item=conversation_id", "--judges", "gpt_4o", "claude_3.7_sonnet", "gemini_2.5_pro")
    table = Path(str(REAL)) / "empathic_communication" / "ratings_long.csv"
    found = _run("agreement", table, *words, "--exclude", "experts_median", "crowd", "--resamples", 0, "--json")
    return _without(json.loads(found), _VOLATILE | {"table"})  # where the table lies


def mushra(folder: Path) -> Any:
    """`import`, `inspect`, `split` and the report on a fitted baseline for `mushra_codec`."""
    source, data = Path(str(REAL)) / "mushra_codec", folder / "mushra"
    tables = (source / "pairs.csv", "--ratings", source / "ratings.csv", "--dimension", "fidelity=0:100:1")
    _run("import", "table", *tables, "--column", "response_speaker=speaker_id", "--out", data)
    _run("split", data, "--by", "group_id")
    words = ("--data", data, "--checks", "none", "--resamples", 50, "--out", folder / "report", "--json")
    return _without(json.loads(_run("evaluate", "acoustic", *words)), _VOLATILE)


def _speech_table(name: str, folder: Path) -> Path:
    """A data set of `shared/data` with one clip a row as pairs without context; ratings are its first label."""
    import pandas as pd

    rating = {"emodb": "valence_label", "speechocean_prosody": "prosodic_mean"}[name]
    source = Path(str(REAL)) / name
    rows = pd.read_csv(source / "metadata.csv", dtype={"speaker": str})
    pairs = pd.DataFrame(
        {
            "pair_id": [f"{name}{number:04}" for number in range(len(rows))],
            "response_audio": rows["clip"],
            "response_speaker": rows["speaker"],
        }
    )
    ratings = pairs[["pair_id"]].assign(rater_id="label", dimension="rating", score=rows[rating].astype(float))
    shutil.copytree(source / "flac", folder / "tables" / "flac")
    pairs.to_csv(folder / "tables" / "pairs.csv", index=False)
    ratings.dropna().to_csv(folder / "tables" / "ratings.csv", index=False)
    low, high = ratings["score"].min(), ratings["score"].max()
    tables = (folder / "tables" / "pairs.csv", "--ratings", folder / "tables" / "ratings.csv")
    _run("import", "table", *tables, "--dimension", f"rating={low:g}:{high:g}", "--out", folder / "data")
    return folder / "data"


def _splits_of(data: Path, *words: str) -> Any:
    from empathy_judge.data_modules.schema import PairDataset

    _run("split", data, *words, "--overwrite")
    dataset = PairDataset.load(data)
    lines = [f"{pair.pair_id} {pair.split}" for pair in dataset.pairs]
    counts = Counter(str(pair.split) for pair in dataset.pairs)
    return {"counts": counts, "sha256": hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()}


def splits(folder: Path) -> Any:
    """Who is in which split, of the sample and of two sets of real speech, by the ways that `split` has."""
    sample = _sample(folder)
    found = {
        "sample": _splits_of(sample),
        "sample by speaker": _splits_of(sample, "--by", "response_speaker", "--fractions", "0.5", "0.25", "0.25"),
        "sample in folds": _splits_of(sample, "--folds", "4"),
    }
    if REAL is not None:
        for name in ("emodb", "speechocean_prosody"):
            data = _speech_table(name, folder / name)
            found[name] = _splits_of(data, "--by", "response_speaker")
            found[f"{name} in folds"] = _splits_of(data, "--by", "response_speaker", "--folds", "5")
    return found


def importers(folder: Path) -> Any:
    """Content hash, pairs and ratings of what each importer makes of a small source."""
    from empathy_judge.data_modules.schema import PairDataset
    from empathy_judge.tools.fuzz.sources import SOURCES

    found: dict[str, Any] = {}
    for name, source in SOURCES.items():
        home = folder / name.replace(" ", "-")
        home.mkdir()
        path, words = source.write(home / "source")
        _run("import", source.importer, path, *words, "--out", home / "data")
        dataset = PairDataset.load(home / "data")
        found[name] = {
            "content_hash": dataset.card.content_hash,
            "dimensions": [str(dimension) for dimension in dataset.card.dimensions],
            "pairs": len(dataset.pairs),
            "ratings": len(dataset.ratings),
        }
    return found


def losses(folder: Path) -> Any:
    """Value of every loss with every head that it can train, and its gradient in that head's weights."""
    del folder
    import torch
    from empathy_judge.models.heads import build_head
    from empathy_judge.models.settings import HeadName
    from empathy_judge.tests.train import test_objective as cases
    from empathy_judge.train.objective import Objective
    from empathy_judge.train.settings import DEFAULT_SETTINGS, NATURAL, LossWeights

    found: dict[str, Any] = {}
    none = replace(NATURAL, bradley_terry=0.0)
    with _seeded(0):
        features, targets, counts = cases.rated(24, 0)
    targets = targets.clone()
    targets[3, 0] = torch.nan
    people = replace(
        cases.said(targets, counts),
        chosen=torch.tensor([0, 2, 5]),
        rejected=torch.tensor([1, 3, 4]),
        strengths=torch.tensor([[1.0, torch.nan], [0.0, 2.0], [1.0, 1.0]]),
    )
    for head in get_args(HeadName):
        with _seeded(1):
            model = build_head(head, features.shape[1], cases.SCALES)
            for weight in model.parameters():
                torch.nn.init.normal_(weight, std=0.3)
        for name in (field.name for field in fields(LossWeights)):
            if name not in (*cases.SCORE_LOSSES, *cases.OWN_LOSSES[head], "bradley_terry"):
                continue
            weights = replace(none, **{name: 1.0})
            model.zero_grad()
            terms = Objective(weights, DEFAULT_SETTINGS, head, cases.SCALES).terms(model(features), people)
            terms[name].backward()
            gradients = {
                own: [] if weight.grad is None else weight.grad.flatten()[:8].tolist()
                for own, weight in model.named_parameters()
            }
            found[f"{head} {name}"] = {"value": terms[name].item(), "gradients": gradients}
    return found


def hidden_states(folder: Path) -> Any:
    """What pooling makes of the hidden states of every family's miniature, for four kinds of pairs, and the scores."""
    import torch
    from empathy_judge.models.settings import HeadInputSettings
    from empathy_judge.scoring.predictor import Predictor
    from empathy_judge.tests.models.backbones import conftest as common

    pairs = common.pairs.__wrapped__(common.noise.__wrapped__())
    found: dict[str, Any] = {}
    for name in common.FAMILIES:
        home = folder / name
        home.mkdir(parents=True)
        with _seeded(0):
            common.described(name).build(home)
        family = common.Family(name, home, {}, 0.0, None, print, None, name in common.ENCODERS)
        judge = common.judge_of(family, head_input=HeadInputSettings(audio="none"))
        with torch.no_grad():
            pooled = judge.pooled(judge.build_inputs(pairs))
            predicted = [
                [] if isinstance(own, Exception) else own.score.tolist()
                for _, own in Predictor(judge, 4).predict(pairs)
            ]
        found[name] = {"pooled": pooled.tolist(), "scores": predicted}
    return found


_MADE = (
    scores, rank, manifest, answers, demo_report, checks, kumar, mushra, splits, importers, losses, hidden_states,
)  # fmt: skip
GOLDEN: dict[str, Callable[[Path], Any]] = {made.__name__: made for made in _MADE}
NEEDS_REAL_DATA = ("kumar", "mushra", "splits")


def file_of(name: str) -> Path:
    """Where the values of a name lie."""
    return HERE / "values" / f"{name}.json"


def make(name: str) -> Any:
    """Today's values, as JSON has them."""
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        return json.loads(json.dumps(GOLDEN[name](Path(folder)), default=str))


def main(names: Sequence[str]) -> None:
    """Write the values of these names; of all without any."""
    for name in names or GOLDEN:
        file_of(name).parent.mkdir(exist_ok=True)
        file_of(name).write_text(json.dumps(make(name), indent=None, separators=(",", ":")) + "\n")
        print(f"{name}: {file_of(name).stat().st_size / 1024:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
