"""`agreement` on a table of scores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from empathy_judge.cli import main

from ..conftest import failed, output_of


@pytest.fixture
def scores(tmp_path) -> Path:
    """Two people and a judge on twelve items, in columns of other names."""
    path = tmp_path / "scores.csv"
    rows = [
        f"c{n},{who},warmth,{(n * step) % 7}" for n in range(12) for who, step in (("ann", 1), ("bob", 3), ("j", 1))
    ]
    path.write_text("\n".join(["clip,who,dimension,score", *rows]) + "\n")
    return path


def test_agreement_prints_tables_or_json(scores, capsys):
    words = ["agreement", str(scores), "--column", "item=clip", "annotator=who", "--judges", "j", "--resamples", "50"]
    plain = output_of(capsys, *words)
    assert "people: ann, bob" in plain
    assert "judges with the mean of ann, bob" in plain
    assert "pairs" not in plain
    found = json.loads(output_of(capsys, *words, "--pairs", "--kappa-weights", "ranks", "--json"))
    assert (found["people"], found["judges"], found["kappa_weights"]) == (["ann", "bob"], ["j"], "ranks")
    (one,) = found["dimensions"]
    pairs = {(pair["first"], pair["second"]): pair["quadratic_kappa"]["value"] for pair in one["pairs"]}
    assert pairs["ann", "j"] == pytest.approx(1.0)
    assert set(pairs) == {("ann", "bob"), ("ann", "j"), ("bob", "j")}
    found = json.loads(output_of(capsys, *words, "--exclude", "bob", "--json"))
    assert (found["people"], found["left_out"]) == (["ann"], ["bob"])
    assert found["dimensions"][0]["judges"]["j"]["spearman"]["value"] == pytest.approx(1.0)


def test_agreement_names_what_is_wrong(scores, capsys):
    words = ["agreement", str(scores), "--column", "item=clip", "annotator=who"]
    has = "it has 'clip', 'who', 'dimension', 'score'"
    assert failed(capsys, "agreement", str(scores)) == (
        f"error: {scores}: no column 'item', 'annotator'; {has}; expected --column item=COLUMN annotator=COLUMN"
    )
    line = f"error: {scores}: no column 'file' (mapped to item); {has}; expected --column item=COLUMN"
    assert failed(capsys, *words[:3], "item=file") == line
    where = f"not among the annotators of {scores} that count"
    assert failed(capsys, *words, "--judges", "k") == f"error: --judges 'k': {where}; expected 'ann', 'bob', 'j'"
    line = failed(capsys, *words, "--exclude", "j", "--judges", "j")
    assert line == f"error: --judges 'j': {where}; expected 'ann', 'bob'"


@pytest.fixture
def systems(tmp_path) -> Path:
    """Scores of two systems on twelve contexts: v2 is half a point behind."""
    rows = [
        f"{system}/{n},c{n},{system},{3 + n % 3 * 0.4 + n % 2 * extra - behind:.3f},fair"
        for system, behind, extra in (("v1", 0, 0), ("v2", 0.5, 0.08))
        for n in range(12)
    ]
    path = tmp_path / "systems.csv"
    path.write_text("\n".join(["pair_id,group_id,system_id,warmth,warmth_label", *rows]) + "\n")
    return path


def test_leaderboard_prints_a_board_and_writes_it(systems, tmp_path, capsys):
    out = tmp_path / "board"
    plain = output_of(capsys, "leaderboard", str(systems), "--out", str(out))
    for part in ("opinion of the judge", "cluster 2", "v2", "less v1", "wins", f"page: {out / 'index.html'}"):
        assert part in plain
    found = json.loads(output_of(capsys, "leaderboard", str(systems), "--json"))
    assert found == json.loads((out / "leaderboard.json").read_text())
    assert [row["system"] for row in found["boards"][0]["systems"]] == ["v1", "v2"]
    header, line = (out / "differences.csv").read_text().splitlines()
    values = dict(zip(header.split(","), line.split(","), strict=True))
    assert (values["first"], values["second"]) == ("v1", "v2")
    assert float(values["difference_value"]) == pytest.approx(0.46)
    assert len((out / "systems.csv").read_text().splitlines()) == 3


def test_leaderboard_is_a_gate_for_a_release(systems, capsys):
    words = ["leaderboard", str(systems), "--baseline", "v1", "--fail-if-worse"]
    assert main([*words, "0.1"]) == 1
    assert capsys.readouterr().err == "warmth: v2 is worse than v1 by 0.46, more than 0.1\n"
    assert main([*words, "0.6"]) == 0
    assert "expected rating points, 0 or more, and --baseline" in failed(capsys, *words[:2], "--fail-if-worse", "0.1")
    assert "--manifest without --out" in failed(capsys, *words[:2], "--manifest", "m.csv")


def test_plan_says_how_many_ratings_tell_systems_apart(tmp_path, capsys):
    rows = [
        f"{system}{n},{who},warmth,{2 + n % 3 / 4 + lead * n % 2},c{n},{system}"
        for system, lead in (("v1", 0), ("v2", 1))
        for n in range(8)
        for who in ("ann", "bob")
    ]
    (tmp_path / "pilot.csv").write_text("\n".join(["item,annotator,dimension,score,group,system", *rows]) + "\n")
    words = ["plan", str(tmp_path / "pilot.csv"), "--systems", "0.5", "--resamples", "50"]
    (row,) = json.loads(output_of(capsys, *words, "--json"))["systems"]
    assert (row["dimension"], row["n_systems"], row["ratings_per_context"]) == ("warmth", 2, 2.0)
    assert "to tell systems apart by 0.5 points" in output_of(capsys, *words)
    assert "--systems with --variance" in failed(
        capsys, "plan", "--variance", "item=1", "residual=1", "--systems", "0.5"
    )
