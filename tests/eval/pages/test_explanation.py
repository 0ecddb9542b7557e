"""The page of an explanation, and its link from a report."""

from __future__ import annotations

import pandas as pd
from empathy_judge.cli import main
from empathy_judge.eval.judges import trained as trained_module
from empathy_judge.scoring import predictor as predictor_module

from ..conftest import Page


def test_a_report_links_to_what_explains_its_largest_disagreements(judge_folder, dataset_folder, tmp_path, monkeypatch):
    loaded = []
    for module in (predictor_module, trained_module):
        load = module.load_to_score
        monkeypatch.setattr(module, "load_to_score", lambda *own, load=load: loaded.append(own) or load(*own))
    words = ["evaluate", str(judge_folder), "--data", str(dataset_folder), "--split", "validation", "--checks", "none"]
    out = tmp_path / "report"
    assert main([*words, "--resamples", "5", "--device", "cpu", "--explain", "--out", str(out)]) == 0
    assert len(loaded) == 1
    items = pd.read_csv(out / "items.csv")
    linked = [own["href"] for own in Page((out / "index.html").read_text()).all("a") if "explanations" in own["href"]]
    assert set(linked) == set(items["explanation"])
    assert len(linked) == len(items) == 2 * items["pair_id"].nunique()  # few enough that all are listed
    page = Page((out / items["explanation"][0]).read_text())
    assert len(page.all("audio")) == 2
    assert len(list((out / "explanations").glob("*.html"))) == items["pair_id"].nunique()
