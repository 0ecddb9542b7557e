"""Does `explain` find the third of a response that was spoken in the wrong tone, and stay silent where none was?

    python benchmarks/explain.py demo/judge --cases 100

Responses are spoken by espeak-ng in the tone that fits their context best. In one third at a random place the tone is
one that fits 2 points worse (`wrong`), or the words are another sentence's in the same tone (`words`). Voices, tones
and sentences are those of the sample, drawn anew.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from empathy_judge.data_modules import sample
from empathy_judge.data_modules.audio import Clip, resample
from empathy_judge.data_modules.espeak import Voice, speak
from empathy_judge.eval.explain import Explanation, Method, explain
from empathy_judge.scorer import Scorer
from scipy.stats import binomtest

RATE = sample.RATE
HEARD = 0.3  # points: a third that costs less was hardly heard by the judge


def spoken(text: str, voice: Voice, tone: Any) -> np.ndarray:
    """A sentence at `RATE`."""
    return resample(*speak(text, voice, tone), RATE)


def make_case(number: int, kind: str) -> tuple[Clip, Clip, Clip, tuple[float, float]]:
    """Context, response without and with another third, and the seconds of that third."""
    rng = np.random.default_rng([99, number])
    asker, answerer = sample._voice(rng), sample._voice(rng)
    tone = str(rng.choice(list(sample.CONTEXT_TONES)))
    fit = sample.FIT.loc[tone]
    wrong = str(rng.choice(list(fit.index[fit <= fit.max() - 2])))
    said, (text, other) = rng.choice(sample.short_statements()), rng.choice(sample.short_replies(), 2, replace=False)
    context = spoken(str(said), asker, sample._vary(sample.CONTEXT_TONES[tone], rng))
    right = sample._vary(sample.RESPONSE_TONES[str(fit.idxmax())], rng)
    whole = spoken(str(text), answerer, right)
    if kind == "wrong":
        donor = spoken(str(text), answerer, sample._vary(sample.RESPONSE_TONES[wrong], rng))
    else:
        donor = spoken(str(other), answerer, right)
    share = rng.uniform(0, 2 / 3)
    (first, last), (begin, end) = ((int(share * n), int((share + 1 / 3) * n)) for n in (len(whole), len(donor)))
    cut = np.concatenate([whole[:first], donor[begin:end], whole[last:]])
    known = first / RATE, (first + end - begin) / RATE
    return Clip(context, RATE), Clip(whole, RATE), Clip(cut, RATE), known


def overlaps(start: float, end: float, known: tuple[float, float]) -> bool:
    """Whether more than half of the shorter one lies in the other."""
    return min(end, known[1]) - max(start, known[0]) > 0.5 * min(end - start, known[1] - known[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("judge")
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--rows", type=Path, help="file that keeps every case: a killed command goes on")
    options = parser.parse_args()
    torch.set_num_threads(1)
    scorer = Scorer.from_pretrained(options.judge, device="cpu")
    name, methods, found = scorer.dimensions[0].name, get_args(Method), []
    rows: Path | None = options.rows
    if rows is not None and rows.exists():
        found = [json.loads(row) for row in rows.read_text().splitlines()]
    done = {(row["number"], row["kind"]) for row in found}
    for kind, number in itertools.product(("wrong", "words"), range(options.first, options.first + options.cases)):
        if (number, kind) in done:
            continue
        context, whole, cut, known = make_case(number, kind)
        row: dict[str, Any] = {
            "number": number,
            "kind": kind,
            "cost": scorer.score(context, whole)[name] - scorer.score(context, cut)[name],
        }
        for method in methods:
            began = time.process_time()
            made: Explanation = explain(scorer, context, cut, method=method)
            curve = made.curves[-1]
            hits = [overlaps(*each, known) for each in zip(curve.starts, curve.ends, strict=True)]
            row |= {
                f"{method} seconds": time.process_time() - began,
                f"{method} hit": hits[int(np.argmin(curve.contributions))],
                f"{method} worst": len(curve.worst) > 0,
                f"{method} best": len(curve.best) > 0,
                f"{method} named": overlaps(curve.worst[0].start, curve.worst[0].end, known) if curve.worst else None,
                "chance": float(np.mean(hits)),
            }
            if method == "gradient":
                row["missed"] = made.missed[name]
        found.append(row)
        if rows is not None:
            with rows.open("a") as file:
                file.write(json.dumps(row, default=float) + "\n")

    def line(title: str, values: list[bool]) -> None:
        if values:
            low, high = binomtest(sum(values), len(values)).proportion_ci(method="wilson")
            print(f"| {title} | {len(values)} | {np.mean(values):.2f} | {low:.2f} to {high:.2f} |")

    wrong, words = ([row for row in found if row["kind"] == kind] for kind in ("wrong", "words"))
    print(f"chance: {np.mean([row['chance'] for row in wrong]):.2f}; the wrong third costs "
          f"{np.mean([row['cost'] for row in wrong]):.2f} points in the mean\n")  # fmt: skip
    print("| | n | share | 95 % interval |\n|---|---|---|---|")
    for method in methods:
        line(f"{method}: lowest window in the wrong third", [row[f"{method} hit"] for row in wrong])
        heard = [row for row in wrong if row["cost"] >= HEARD]
        line(f"{method}: the same where it costs {HEARD} points or more", [row[f"{method} hit"] for row in heard])
        line(f"{method}: a worst stretch is named", [row[f"{method} worst"] for row in wrong])
        line(f"{method}: the same where it costs {HEARD} points or more", [row[f"{method} worst"] for row in heard])
        named = [row[f"{method} named"] for row in wrong if row[f"{method} named"] is not None]
        line(f"{method}: of those named, in the wrong third", named)
        line(f"{method}: other words: a worst stretch is named", [row[f"{method} worst"] for row in words])
        line(f"{method}: other words: a best stretch is named", [row[f"{method} best"] for row in words])
    missed = np.array([row["missed"] for row in found])
    print(f"\ncompleteness: missed by {np.median(missed):.2%} (median), {missed.max():.2%} (most); within 5 %: "
          f"{np.mean(missed <= 0.05):.1%} of {len(missed)}")  # fmt: skip
    context, _, cut, _ = make_case(0, "wrong")
    long = Clip(np.tile(cut.samples, 9)[: 4 * RATE], RATE)
    for method in methods:
        each = [row[f"{method} seconds"] for row in found]
        began = time.process_time()
        explain(scorer, long, long, method=method, window=0.25)
        print(f"CPU seconds, {method}: {np.median(each):.2f} a pair (median), {np.max(each):.2f} (most); "
              f"{time.process_time() - began:.1f} for two clips of 4 s and windows of 0.25 s")  # fmt: skip


if __name__ == "__main__":
    main()
