"""What a plan foretells comes true in simulated panels and in real ones."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from empathy_judge.cli import main
from empathy_judge.core.errors import UserError
from empathy_judge.eval.frame import COLUMNS, Frame, read_frame
from empathy_judge.eval.plan import assumed_pilot, make_plan, pilot_from, plan_systems
from empathy_judge.eval.report.base import read_report
from empathy_judge.eval.report.others import PlanReport
from empathy_judge.eval.statistics.agreement import spearman
from empathy_judge.eval.statistics.planning import standard_error, standard_error_of_difference
from scipy import stats

from ..conftest import output_of, real_data

GROUP, ITEM, RATER, RESIDUAL, SIZE = 0.5, 0.4, 0.2, 0.5, 4
"""Variances of the simulated ratings, and the items of a group."""


def panel(n_groups: int, k: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Ratings 1 to 5 in whole steps by k raters with severities, and of two judges; and the true scores."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n_groups), SIZE)
    share = GROUP / (GROUP + ITEM)

    def clustered(variance: float) -> np.ndarray:
        parts = rng.normal(0, math.sqrt(variance * share), n_groups)[groups]
        return parts + rng.normal(0, math.sqrt(variance * (1 - share)), len(groups))

    truth = clustered(GROUP + ITEM)
    scores = truth[:, None] + rng.normal(0, math.sqrt(RATER), k) + rng.normal(0, math.sqrt(RESIDUAL), (len(truth), k))
    given = {f"r{one}": np.clip(np.round(3 + scores[:, one]), 1, 5) for one in range(k)}
    given |= {"good": truth + clustered(0.6), "bad": truth + clustered(1.2)}
    rows = [
        (None, "d", f"i{item}", name, name in ("good", "bad"), score, f"g{groups[item]}", None, f"g{groups[item]}")
        for name, own in given.items()
        for item, score in enumerate(own)
    ]
    return pd.DataFrame(rows, columns=pd.Index(COLUMNS)), truth


@pytest.fixture(scope="module")
def replicas() -> np.ndarray:
    """Of 400 panels of 240 items and 3 raters: Spearman of truth, good and bad judge with the panel mean."""
    found = []
    for seed in range(400):
        rows, truth = panel(60, 3, 1000 + seed)
        wide = rows.pivot(index="pair_id", columns="rater_id", values="score").reindex([f"i{n}" for n in range(240)])
        human = wide[["r0", "r1", "r2"]].mean(axis=1).to_numpy()
        found.append([spearman(own, human) for own in (truth, *wide[["good", "bad"]].to_numpy().T)])
    return np.array(found)


@pytest.mark.long
def test_a_pilot_foretells_a_larger_set(replicas):
    ceiling, good, bad = replicas.mean(axis=0)
    pilots = [pilot_from(Frame(panel(25, 4, seed)[0], "pilot"), resamples=0) for seed in range(20)]
    rows = [make_plan(pilot, items=[240], raters=[3], agreement=0.7).rows[0] for pilot in pilots]
    assert np.mean([row.ceiling for row in rows]) == pytest.approx(ceiling, abs=0.015)
    assert np.mean([pilot.agreement["good"] for pilot in pilots]) == pytest.approx(good / ceiling, abs=0.03)
    effect = np.mean([pilot.design_effect for pilot in pilots])
    assert effect == pytest.approx((replicas[:, 1].std() / standard_error(good, 240)) ** 2, rel=0.25)
    assert standard_error(good, 240, effect) == pytest.approx(replicas[:, 1].std(), rel=0.15)
    between = np.mean([pilot.between for pilot in pilots])
    error = standard_error_of_difference(good, bad, between, 240, effect)
    assert error == pytest.approx((replicas[:, 1] - replicas[:, 2]).std(), rel=0.15)


def test_published_means_plan_as_their_ratings_do(tmp_path):
    """Reliability of a rating: variance of items over that of ratings, by one-way analysis of variance (ICC(1,1))."""
    rng = np.random.default_rng(0)
    scores = rng.normal(3, 1, (300, 1)) + rng.normal(0, 1.2, (300, 5))
    means = pd.DataFrame({"item": np.arange(300), "mean": scores.mean(1), "sd": scores.std(1, ddof=1), "n": 5})
    means.assign(system=np.arange(300) % 2, group=np.arange(300) // 2).to_csv(tmp_path / "means.csv", index=False)
    frame = read_frame(tmp_path / "means.csv", {})
    pilot = pilot_from(frame, resamples=50)
    noise = (scores.std(1, ddof=1) ** 2).mean()
    item = scores.mean(1).var(ddof=1) - noise / 5
    assert pilot.reliability.value == pytest.approx(item / (item + noise))
    assert pilot.reliability.low < 1 / (1 + 1.2**2) < pilot.reliability.high
    assert (pilot.n_items, pilot.ratings_per_item) == (300, 5)
    (variances,) = pilot.components.values()
    assert (variances.item + variances.group, variances.residual) == (pytest.approx(item), pytest.approx(noise))
    assert math.isnan(variances.rater)
    (plan,) = plan_systems(frame, 0.5, 0.8)
    assert plan.ratings_per_context == 5
    judge = scores.mean(1) + rng.normal(0, 1, 300)
    pd.DataFrame({"item": np.arange(300), "score": judge}).to_csv(tmp_path / "j.csv", index=False)
    both = read_frame([tmp_path / "means.csv", f"j={tmp_path / 'j.csv'}"], {}).with_judges(["j"])
    ceiling = math.sqrt(item / (item + noise / 5))
    found = pilot_from(both, resamples=20)
    assert found.agreement == {"j": pytest.approx(spearman(judge, scores.mean(1)) / ceiling)}
    assert (found.effect_from, found.n_items) == ("judges", 300)


def test_the_order_of_dimensions_is_no_matter():
    """A judge of one dimension alone counts, whichever comes first."""
    rows, _ = panel(20, 3, 5)
    both = pd.concat([rows, rows.assign(dimension="e")], ignore_index=True)
    both = both[(both["rater_id"] != "good") | (both["dimension"] == "e")]
    found = [
        pilot_from(Frame(pd.concat([both[both["dimension"] == name] for name in names]), "x"), resamples=20)
        for names in ("de", "ed")
    ]
    assert found[0].agreement.keys() == found[1].agreement.keys() == {"good", "bad"}
    assert found[0].agreement == pytest.approx(found[1].agreement)


def test_a_wanted_power_takes_as_many_items_as_the_rows_say():
    plan = make_plan(assumed_pilot({"item": 1, "residual": 1}), raters=[2], difference=0.1, price=0.5)
    n = plan.needed[0].items
    again = make_plan(assumed_pilot({"item": 1, "residual": 1}), items=[n - 1, n], raters=[2], difference=0.1)
    assert again.rows[0].power < 0.8 <= again.rows[1].power
    assert plan.sentence == (
        f"{n:,} items with 2 raters ({2 * n:,} ratings, for {n:,.2f}) tell judges apart that differ by 0.1 with "
        "80 % power."
    )
    assert plan.rows[0].ceiling == pytest.approx(math.sqrt(2 / 3))
    assert plan.rows[0].leave_one_out == pytest.approx(0.5)
    assert plan.rows[0].standard_error == pytest.approx(standard_error(0.6 * math.sqrt(2 / 3), 100))


@pytest.mark.parametrize("name", ["mushra_codec/ratings.csv", "speechocean_prosody/metadata.csv"])
def test_a_fifth_of_real_ratings_foretells_the_ceiling_of_all(name):
    rows = pd.read_csv(real_data(name))
    if "clip" in rows:
        rows = rows.rename(columns={"clip": "pair_id"}).assign(group_id=rows["speaker"].astype(str))
        raters = [f"prosodic_r{number}" for number in range(1, 6)]
        rows = rows.melt(["pair_id", "group_id"], raters, "rater_id", "score").dropna().assign(dimension="prosody")
    else:
        rows = rows.merge(pd.read_csv(real_data("mushra_codec/pairs.csv"))[["pair_id", "group_id"]], on="pair_id")
    rows = rows.assign(dataset=None, is_judge=False, system_id=None, cluster=rows["group_id"])
    frame = Frame(rows[list(COLUMNS)], name)
    (full,) = frame.panels(0, 0)
    groups, k = sorted(set(rows["group_id"])), 1 / (1 / full.table.counts).mean()
    off = []
    for seed in range(20):
        drawn = np.random.default_rng(seed).choice(groups, round(len(groups) / 5), replace=False)
        pilot = pilot_from(Frame(frame.rows[frame.rows["group_id"].isin(list(drawn))], name), resamples=0)
        off.append(make_plan(pilot, items=[100], raters=[k]).rows[0].ceiling - full.reliability.panel_mean.value)
    assert abs(np.mean(off)) < 0.01
    assert np.mean(np.abs(off) <= 0.03) >= 0.85


def test_the_command_prints_and_writes(tmp_path, capsys):
    rows = panel(12, 3, 5)[0].rename(columns={"pair_id": "item", "rater_id": "annotator", "cluster": "group"})
    rows[["item", "annotator", "dimension", "score", "group"]].to_csv(tmp_path / "pilot.csv", index=False)
    words = ["plan", str(tmp_path / "pilot.csv"), "--judges", "good", "bad", "--price", "0.2", "--resamples", "50"]
    said = output_of(capsys, *words, "--raters", "3", "--items", "50", "100", "--out", tmp_path / "out")
    assert re.search(r"more items with 3 raters \([\d,]+ ratings, for [\d,.]+\) tell judges apart", said)
    found = read_report(tmp_path / "out" / "plan.json", PlanReport)
    assert len(pd.read_csv(tmp_path / "out" / "plan.csv")) == len(found.rows) == 2
    assert found.rows[0].ceiling_low < found.rows[0].ceiling < found.rows[0].ceiling_high
    assert found.rows[1].cost == pytest.approx(60)
    assert found.pilot.design_effect_from == "judges"
    assert (tmp_path / "out" / "plan.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("plan", "expected either a pilot"),
        ("plan --variance item=1", "expected item=... above 0 and residual=..."),
        ("plan --variance item=x residual=1", "--variance 'item=x': expected NAME=NUMBER"),
        ("plan --variance item=1 item=2 residual=1", "--variance 'item=2': item is 1.0 already"),
        ("plan --variance item=1 residual=1 --dimension d", "--dimension with --variance; expected one of them"),
        ("plan {table} --group-size 3", "--group-size with a pilot; expected one of them"),
        ("plan --variance item=1 residual=1 error=1", "--variance error=1: expected group, item, rater, residual"),
        ("plan --variance item=1 residual=1 --difference 0.7", "--difference 0.7: expected less than the agreement"),
        ("plan --variance item=1 residual=1 --power 1", "--power 1: expected a number between 0 and 1"),
        ("plan --variance item=1 residual=1 --items 3", "--items 3: expected 4 or more"),
        ("plan --variance item=1 residual=1 --between 2", "--between 2: expected a correlation"),
        ("plan {table} --dimension mood", "--dimension 'mood': not in {table}; it has d"),
        ("plan {table}", "nothing can be planned from it: 0 items with at least two raters"),
        ("plan {rated}", "the pilot has 3 items; expected 4 or more, or --items"),
        ("plan {table} --judges ann", "--judges names every annotator of"),
    ],
)
def test_what_cannot_be_planned_is_said_in_a_line(words, message, tmp_path, capsys):
    table = tmp_path / "t.csv"
    table.write_text("item,annotator,dimension,score\na,ann,d,1\nb,ann,d,2\nc,ann,d,3\n")
    rated = tmp_path / "rated.csv"
    rated.write_text(f"{table.read_text()}a,bob,d,1\nb,bob,d,3\nc,bob,d,2\n")
    assert main([word.format(table=table, rated=rated) for word in words.split()]) == 2
    assert message.format(table=table) in capsys.readouterr().err


def test_the_quantiles_are_those_of_a_two_sided_test():
    plan = make_plan(assumed_pilot({"item": 1, "residual": 0}), items=[500], raters=[1], agreement=0.6, between=0.5)
    row, error = plan.rows[0], standard_error_of_difference(0.6, 0.55, 0.5, 500)
    assert row.power == pytest.approx(stats.norm.cdf(0.05 / error - 1.959964), abs=1e-6)


# Differences of two systems are 0.5 and 1.5 by turns: a spread of 0.52 over 16 contexts
ROWS = [
    f"{system}{n},{who},warmth,{2 + n % 4 / 4 + lead * (0.5 + n % 2) + off},c{n},{system}"
    for system, lead in (("v1", 0), ("v2", 1))
    for n in range(16)
    for who, off in (("ann", 0), ("bob", 0.25 * (n % 3)))
]


def pilot(folder: Path, rows: list[str], header: str = "item,annotator,dimension,score,group,system") -> Frame:
    (folder / "pilot.csv").write_text("\n".join([header, *rows]) + "\n")
    return read_frame(folder / "pilot.csv", {})


def test_contexts_follow_from_the_spread_of_differences(tmp_path):
    frame = pilot(tmp_path, ROWS)
    (row,) = plan_systems(frame, 0.5, 0.8)
    assert row.spread == pytest.approx(0.5 * (16 / 15) ** 0.5)
    assert (row.n_systems, row.ratings_per_context) == (2, 2.0)
    # d = 0.968: 10.45 pairs by `TTestPower` of statsmodels 0.15.0
    assert (row.contexts, row.ratings_per_system) == (11, 22)
    assert plan_systems(frame, 0.5, 0.8, ["clarity"]) == ()


def test_a_pilot_that_cannot_say_is_refused(tmp_path):
    with pytest.raises(UserError, match="--systems 0: expected rating points above 0"):
        plan_systems(pilot(tmp_path, ROWS), 0, 0.8)
    few = [row for row in ROWS if row.split(",")[4] in ("c0", "c1", "c2", "c3")]
    with pytest.raises(UserError, match="no two systems share 5 rated groups on warmth"):
        plan_systems(pilot(tmp_path, few), 0.5, 0.8)
    without = [row.rpartition(",")[0] for row in ROWS]
    with pytest.raises(UserError, match="names no systems; expected system_id"):
        plan_systems(pilot(tmp_path, without, "item,annotator,dimension,score,group"), 0.5, 0.8)
