"""How well `empathy-judge plan` foretells a full set from a fifth of it: `python benchmarks/plan.py --data FOLDER`.

FOLDER holds `mushra_codec`, `speechocean_prosody` and `empathic_communication`. A random fifth of the groups
(sentences, speakers, conversations) is the pilot, again and again; the noise ceiling, and the standard errors that a
bootstrap of 10,000 draws over the groups finds on the full set, are what it should have said. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import soundfile
from empathy_judge.data_modules.errors import UserError
from empathy_judge.eval.frame import COLUMNS, Frame
from empathy_judge.eval.plan import make_plan, pilot_from
from empathy_judge.eval.statistics.planning import standard_error
from scipy import signal

CEILING, ERROR = 0.03, 0.15
_LLMS = ("gpt_4o", "claude_3.7_sonnet", "gemini_2.5_pro")


def frames(data: Path) -> Iterator[tuple[str, Frame, bool]]:
    """Name, ratings with scores of judges, and whether single dimensions are looked at, too."""
    pairs = pd.read_csv(data / "mushra_codec/pairs.csv")
    ratings = pd.read_csv(data / "mushra_codec/ratings.csv").merge(pairs[["pair_id", "group_id", "system_id"]])
    distance = [
        _spectral_distance(data / "mushra_codec", *clips)
        for clips in pairs[["context_audio", "response_audio"]].to_numpy()
    ]
    judge = pairs.assign(rater_id="judge", dimension="fidelity", score=[-value for value in distance], is_judge=True)
    yield "mushra_codec", _frame(pd.concat([ratings.assign(is_judge=False), judge]), "mushra_codec"), False
    clips = pd.read_csv(data / "speechocean_prosody/metadata.csv")
    wide = clips.rename(columns={"clip": "pair_id", "speaker": "group_id"}).assign(judge=-clips["duration_s"])
    raters = [f"prosodic_r{number}" for number in range(1, 6)]
    long = wide.melt(["pair_id", "group_id"], [*raters, "judge"], "rater_id", "score").dropna()
    long = long.assign(dimension="prosody", is_judge=long["rater_id"] == "judge", system_id=None)
    yield "speechocean_prosody", _frame(long, "speechocean_prosody"), False
    table = pd.read_csv(data / "empathic_communication/ratings_long.csv", dtype={"conversation_id": str})
    table = table.query("annotator not in ['experts_median', 'crowd']")
    table = table.assign(
        pair_id=table["dataset"] + "-" + table["row"].astype(str), is_judge=table["annotator"].map(_LLMS.__contains__)
    )
    table = table.assign(group_id=table["pair_id"], rater_id=table["annotator"], system_id=None)
    yield "empathic_communication", _frame(table, "empathic_communication"), True


def _frame(rows: pd.DataFrame, name: str) -> Frame:
    rows = rows if "dataset" in rows else rows.assign(dataset=None)
    rows = rows.assign(group_id=rows["group_id"].astype(str), cluster=rows["group_id"].astype(str))
    return Frame(rows.reindex(columns=list(COLUMNS)).reset_index(drop=True), name)


def _spectral_distance(folder: Path, context: str, response: str) -> float:
    clips = [soundfile.read(folder / name)[0] for name in (context, response)]
    length = min(map(len, clips))
    first, second = (np.log(np.abs(signal.stft(clip[:length], nperseg=512)[2]) + 1e-4) for clip in clips)
    return math.sqrt(float(np.square(first - second).mean()))


def full_set(frame: Frame) -> pd.DataFrame:
    """Per dimension and judge: items, ratings per item, ceiling, leave-one-out agreement, Spearman, standard error."""
    rows = []
    for dataset, dimension, _ in frame.dimensions():
        panel = frame.panel(dataset, dimension, 10_000, 0)
        groups = panel.draws.n_groups
        for judge in panel.scores:
            found = panel.judged(judge).spearman
            error = float(np.nanstd(found.draws)) * math.sqrt(groups / (groups - 1))
            ceilings = panel.reliability.panel_mean.value, panel.reliability.leave_one_rater_out.value
            k = 1 / (1 / panel.table.counts).mean()
            rows.append((dataset, dimension, judge, len(panel.items), k, *ceilings, found.value, error))
    return pd.DataFrame(
        rows, columns=["dataset", "dimension", "judge", "items", "k", "ceiling", "alone", "spearman", "error"]
    )


def foretold(frame: Frame, full: pd.DataFrame, seed: int) -> dict[str, float] | None:
    """What a pilot of a random fifth says beside what came, for an average dimension; None = it refused."""
    rng, drawn = np.random.default_rng(seed), set()
    for _, part in frame.rows.groupby("dataset", dropna=False):
        groups = sorted(set(part["group_id"]))
        drawn |= set(rng.choice(groups, max(2, round(len(groups) / 5)), replace=False))
    try:
        pilot = pilot_from(replace(frame, rows=frame.rows.loc[frame.rows["group_id"].isin(list(drawn))]), resamples=0)
    except UserError:  # nothing can be planned from it
        return None
    n, k, human, alone, error = (float(np.mean(full[name])) for name in ("items", "k", "ceiling", "alone", "error"))
    row = make_plan(pilot, items=[round(n)], raters=[k], agreement=0.6)["rows"][0]
    known = [standard_error(r, n, pilot.design_effect) for r in full["spearman"]]
    own = [standard_error(r * row["ceiling"], n, pilot.design_effect) for r in pilot.agreement.values()]
    return {
        "ceiling": row["ceiling"] - human,
        "leave-one-out": row["leave_one_out"] - alone,
        "standard error": float(np.mean(known)) / error - 1,
        "standard error, judge from the pilot": float(np.mean(own)) / error - 1 if own else math.nan,
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=40)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| set | what | full set | off by, mean | spread | within | draws |\n|---|---|---|---|---|---|---|")
    for name, frame, single in frames(options.data):
        full = full_set(frame)
        parts = [("", frame, full)]
        if single:
            keys = ["dataset", "dimension"]
            own = [
                (key, frame.rows.loc[(frame.rows[keys] == key).all(axis=1)])
                for key in full[keys].drop_duplicates().itertuples(index=False)
            ]
            parts += [
                ("one dimension", replace(frame, rows=rows), full.loc[(full[keys] == key).all(axis=1)])
                for key, rows in own
            ]
        for kind in dict.fromkeys(part for part, _, _ in parts):
            chosen = [(own, known) for part, own, known in parts if part == kind]
            found = [foretold(own, known, seed) for own, known in chosen for seed in range(options.draws)]
            table = pd.DataFrame([one for one in found if one is not None])
            known = pd.concat([known for _, known in chosen])
            for what, off in table.items():
                bound = ERROR if "error" in str(what) else CEILING
                truth = {"ceiling": "ceiling", "leave-one-out": "alone"}.get(str(what), "error")
                held = (off.abs() <= bound).sum() / len(found)
                print(
                    f"| {name}{f', {kind}' if kind else ''} | {what} | {known[truth].mean():.3f} | {off.mean():+.3f} | "
                    f"{off.std():.3f} | {bound:g} in {held:.0%} | {len(found)} |"
                )


if __name__ == "__main__":
    main()
