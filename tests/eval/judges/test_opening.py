"""Baselines by name, through the command."""

from __future__ import annotations

import json
import re
import sys

import pytest
from empathy_judge.cli import main
from empathy_judge.commands import DONE
from empathy_judge.data_modules.schema import PairDataset
from scipy.stats import spearmanr

from ...conftest import failed

FAST = ["--split", "validation", "--checks", "none", "--resamples", "20", "--json"]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict, str]:
    assert main(words) == DONE
    captured = capsys.readouterr()
    return json.loads(captured.out), captured.err


def test_all_of_a_command_meet_the_raters_that_are_no_judges(dataset_folder, tmp_path, capsys):
    judges = ["acoustic", "random", "constant", "human:r1"]
    out = ["--out", str(tmp_path)]
    found, said = run(capsys, "compare", *judges, "--data", str(dataset_folder), *FAST, *out)
    assert re.search(r"raters left out.{,60}r1", (tmp_path / "index.html").read_text(), re.DOTALL)
    assert said.splitlines() == ["judges are compared with the other raters: without human:r1"]
    dataset = PairDataset.load(dataset_folder)
    ratings = dataset.ratings[dataset.ratings["dimension"] == "empathy"]
    wide = ratings.pivot(index="pair_id", columns="rater_id", values="score")
    ids = [pair.pair_id for pair in dataset.subset("validation").pairs]
    rest = wide[["r0", "r2"]].mean(axis=1)
    for report in found["reports"]:
        own = report["dimensions"]["empathy"]
        assert report["provenance"]["raters_left_out"] == ["r1"]
        assert own["n_raters"] == 2
        assert own["human"]["mean"] == pytest.approx(rest.loc[ids].mean())
    by_name = {report["judge"]: report for report in found["reports"]}
    assert list(by_name) == judges
    human = by_name["human:r1"]["dimensions"]["empathy"]
    expected = spearmanr(wide.loc[ids, "r1"], rest.loc[ids])[0]
    assert human["spearman"]["value"] == pytest.approx(expected, abs=1e-12)
    with_the_mean_of_all = spearmanr(wide.loc[ids, "r1"], wide.loc[ids].mean(axis=1))[0]
    assert abs(expected - with_the_mean_of_all) > 0.02
    train = [pair.pair_id for pair in dataset.subset("train").pairs]
    # what is learned is learned from the others, too
    assert by_name["constant"]["provenance"]["scores"]["empathy"] == pytest.approx(rest.loc[train].mean())
    assert by_name["acoustic"]["provenance"]["fitted"]["empathy"]["pairs"] == 12


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare", "human:nobody", "constant"], "judge 'human:nobody': expected one of 'human:r0', 'human:r1', "),
        (["compare", "human:r0", "human:r1", "human:r2"], "those of 'r0', 'r1', 'r2'; leave at least one rater"),
        (["evaluate", "text"], "judge text reads transcripts, and none of the 12 pairs"),
        (["evaluate", "acoustic", "--split", "all"], "it is fitted on split train and would be measured on it"),
        (["evaluate", "probe:nano", "--split", "all"], "it is fitted on split train and would be measured on it"),
        (["evaluate", "probe:"], "expected probe:JUDGE, a judge or run folder, or probe:BACKBONE"),
        (["evaluate", "probe:no/such/folder"], "no/such/folder"),
        (["evaluate", "accoustic"], "human:RATER, acoustic, acoustic:egemaps, text, random, constant"),
    ],
)
def test_mistakes_are_one_line(words, message, dataset_folder, capsys):
    assert message in failed(capsys, *words, "--data", str(dataset_folder))


def test_a_package_that_is_not_there_is_one_line(dataset_folder, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "opensmile", None)
    line = failed(capsys, "evaluate", "acoustic:egemaps", "--data", str(dataset_folder), *FAST)
    assert line == "error: acoustic:egemaps: opensmile is not installed; run pip install 'empathy-judge[acoustic]'"


@pytest.mark.parametrize("judges", [["evaluate", "constant"], ["compare", "constant", "random"]])
def test_a_dry_run_without_a_prompted_judge_says_that_nothing_would_be_sent(judges, dataset_folder, capsys):
    assert main([*judges, "--data", str(dataset_folder), "--split", "validation", "--dry-run"]) == DONE
    assert capsys.readouterr() == ("", "no judge here asks a service: nothing would be sent\n")
