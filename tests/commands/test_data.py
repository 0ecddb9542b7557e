"""`inspect`: its page and its JSON."""

from __future__ import annotations

import json
from pathlib import Path

from ..conftest import failed, output_of


def test_inspect_writes_a_page_only_where_asked(dataset_folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plain = output_of(capsys, "inspect", dataset_folder)
    assert list(tmp_path.iterdir()) == []
    assert (
        output_of(capsys, "inspect", dataset_folder, "--page", "looks/first")
        == f"{plain}page: {Path('looks/first/index.html')}\n"
    )
    page = (tmp_path / "looks" / "first" / "index.html").read_text(encoding="utf-8")
    assert "What is in tones?" in page
    sources = {part.split('"')[0] for part in page.split(' src="')[1:]}
    assert {f"audio/{clip.name}" for clip in (tmp_path / "looks/first/audio").iterdir()} == sources
    assert len(sources) > 8


def test_inspect_prints_json_and_nothing_else(dataset_folder, tmp_path, capsys):
    printed = json.loads(output_of(capsys, "inspect", dataset_folder, "--json", "--page", tmp_path / "page"))
    assert (tmp_path / "page" / "index.html").is_file()
    assert printed["counts"]["all"]["ratings"] == 120
    own = printed["ratings"]["empathy"]
    assert sum(own["scores"]["counts"]) == 60
    assert own["pairs_by_raters"] == {"2": 12, "3": 12}
    assert [rater["rater_id"] for rater in own["raters"]] == ["r0", "r1", "r2"]
    spreads = [item["spread"] for item in own["disputed"]]
    assert len(spreads) == 20
    assert spreads == sorted(spreads, reverse=True)
    assert printed["reliability"]["empathy"]["n_ratings"] == 60
    assert printed["skipped"] == []
    assert sum(printed["durations"]["response"]["counts"]) == 24


def test_inspect_refuses_a_page_in_the_dataset_before_any_work(dataset_folder, capsys):
    before = sorted(dataset_folder.rglob("*"))
    line = failed(capsys, "inspect", str(dataset_folder), "--page", str(dataset_folder))
    assert line == (f"error: --page {dataset_folder}: holds a pair dataset (dataset.yaml); name a folder of its own")
    assert sorted(dataset_folder.rglob("*")) == before
