"""The page that ranks judges: boxed clusters, every pair, and the words above them."""

from __future__ import annotations

import json
import re
from typing import Any

import pandas as pd
import pytest
from empathy_judge.eval import rendering
from empathy_judge.eval.compare import Comparison, compare
from empathy_judge.eval.judges.baselines.simple import ConstantJudge
from empathy_judge.eval.pages.report import render_comparison
from empathy_judge.eval.results import COLUMNS, Report
from empathy_judge.eval.views import comparison_views

from ..conftest import Page, printed_at

HOSTILE = "<script>alert('1')</script>\"&"


@pytest.fixture
def comparison(make_dataset, make_judge) -> Comparison:
    judges: list[Any] = [make_judge(noise) for noise in (3.0, 0.1, 0.1)]
    for judge, name in zip(judges, (HOSTILE, "first", "second"), strict=True):
        judge.name = name
    return compare(
        [*judges, ConstantJudge({"empathy": 3.0})], make_dataset(noise=0.4), split=None, probes=(), resamples=200
    )


def test_the_files_hold_the_numbers_the_table_and_the_page(comparison, tmp_path):
    comparison.save(tmp_path / "out")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["comparison.json", "comparison.md", "index.html", "results.csv"]
    stored = json.loads((tmp_path / "out" / "comparison.json").read_text(encoding="utf-8"))
    assert stored == {"reports": comparison.reports, "rankings": comparison.rankings}
    results = pd.read_csv(tmp_path / "out" / "results.csv")
    assert list(results) == list(comparison.to_frame()) == list(COLUMNS)
    assert len(results) == len(comparison.to_frame())
    own = results.set_index(["judge", "statistic"]).loc[("first against second", "difference")]
    pairs = {(one["first"], one["second"]): one for one in comparison.rankings["empathy"]["comparisons"]}
    assert own["value"].item() == pytest.approx(pairs["first", "second"]["difference"]["value"])


def test_the_page_boxes_clusters_and_compares_every_two(comparison):
    page = Page(render_comparison(comparison.reports, comparison.rankings))
    ranking = comparison.rankings["empathy"]
    assert [judge["cluster"] for judge in ranking["judges"]] == [1, 1, 2, None]
    assert page.tags.count("svg") == 1
    page.assert_alone()
    assert page.text.count("Cluster ") == 2
    assert page.text.index("Cluster 1") < page.text.index("Cluster 2") < page.text.index("Without a rank")
    table = page.text[page.text.index("Judge against judge") : page.text.index("Differences of Spearman")]
    assert len(re.findall(r"\b(yes|no)\b", table)) == 3  # the constant judge is in none
    told_apart = [own for own in ranking["comparisons"] if own["p_adjusted"] is not None and own["p_adjusted"] < 0.05]
    assert table.count("yes") == len(told_apart) == 2
    assert "clearly worse. 1 judge has no rank." in page.text
    assert page.text.count(HOSTILE) >= 4
    # The difference is shown from the better judge
    assert "\N{MINUS SIGN}" not in table.split(HOSTILE)[1]  # after a clear difference: value and interval above 0


def test_a_ceiling_of_some_items_only_says_whose_they_are(comparison, make_dataset, make_judge):
    """Judges that scored the same items share a ceiling; elsewhere it is that of the first judge's items."""
    shown = printed_at(120, comparison_views(comparison.reports, comparison.rankings))
    assert re.search(r"^\s*noise ceiling +0\.\d", shown, re.MULTILINE)
    dataset, partial, whole = make_dataset(noise=0.4), make_judge(0.1), make_judge(0.1)
    partial.name, score = "partial", partial.score
    partial.score = lambda pairs: score(pairs[: len(pairs) // 2])
    found = compare([whole, partial], dataset, split=None, probes=(), resamples=50)
    first, second = (report["dimensions"]["empathy"]["ceiling"]["panel_mean"]["value"] for report in found.reports)
    assert first != second
    shown = printed_at(120, comparison_views(found.reports, found.rankings))
    assert re.search(rf"^\s*noise ceiling, items of {whole.name} +{first:.2f} ", shown, re.MULTILINE)


def words(given: Any) -> str:
    return " ".join(rendering.sentences("ranking", ranking=given))


def ranking(*judges: tuple[str, int | None, float | None], needed: int | None = 180) -> Report:
    own: Any = {
        "groups_needed": needed, "n_groups": 40, "first": judges[0][0], "second": judges[-1][0], "p_adjusted": 0.3,
    }  # fmt: skip
    comparisons: list[dict[str, Any]] = [own] if len(judges) > 1 else []
    found: Any = [
        {"judge": name, "cluster": cluster, "spearman": spearman, "reason": None if cluster else "constant"}
        for name, cluster, spearman in judges
    ]
    return {"judges": found, "comparisons": comparisons}


def test_judges_of_one_cluster_in_words():
    text = words(ranking(("a", 1, 0.7), ("b", 1, 0.68)))
    assert text.startswith("a and b form one cluster: a is highest (Spearman 0.70), but not clearly better than b.")
    assert "180" in text
    assert "40" in text
    # A cluster may hold a judge that is told apart from the best
    given = ranking(("a", 1, 0.7), ("b", 1, 0.68), ("c", 1, 0.6), ("d", 2, 0.2))
    shared: Any = {"groups_needed": None, "n_groups": 40}
    pairs = {("a", "b"): 0.3, ("a", "c"): 0.01, ("b", "c"): 0.2, ("a", "d"): 0.01}
    given["comparisons"] = [{"first": a, "second": b, "p_adjusted": p, **shared} for (a, b), p in pairs.items()]
    assert words(given) == (
        "a, b and c form one cluster: a is highest (Spearman 0.70), but not clearly better than b. All others are "
        "clearly worse."
    )


def test_p_values_are_never_zero():
    assert [rendering.p_value(p) for p in (None, 0.0002, 0.0123)] == ["—", "<0.001", "0.012"]
