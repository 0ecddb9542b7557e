"""`evaluate` and `compare` from Python: whatever a judge is given as, the figures are those of the command."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from empathy_judge import PairDataset, Scorer, compare, evaluate
from empathy_judge.cli import main
from empathy_judge.data_modules.errors import UserError
from empathy_judge.eval.judges.trained import TrainedJudge

HOSTILE = "<script>alert('1')</script>\"&"


def figures(report: dict) -> dict:
    """Without what a clock, a machine or the caller says."""
    return {name: own for name, own in report.items() if name not in ("effort", "command", "versions")}


def test_a_judge_is_a_folder_a_scorer_or_an_object(trained_run: Path, dataset_folder: Path, tmp_path, capsys) -> None:
    words = ["--data", str(dataset_folder), "--probes", "response_only", "--resamples", "20"]
    assert main(["evaluate", str(trained_run), *words, "--out", str(tmp_path / "report")]) == 0
    expected = figures(json.loads((tmp_path / "report" / "agreement.json").read_text()))
    dataset = PairDataset.load(dataset_folder)
    scorer = Scorer.from_pretrained(trained_run)
    found = [
        evaluate(judge, data, probes=["response_only"], resamples=20)
        for judge, data in (
            (trained_run, dataset_folder),
            (str(trained_run), dataset),
            (scorer, dataset),
            (TrainedJudge.load(trained_run), dataset),
        )
    ]
    assert [figures(results.report) for results in found] == [expected] * 4

    found[2].save(tmp_path / "saved")
    names = sorted(path.name for path in (tmp_path / "report").iterdir())
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == names
    for name in ("results.csv", "items.csv"):
        assert (tmp_path / "saved" / name).read_text() == (tmp_path / "report" / name).read_text()
    written = pd.read_csv(tmp_path / "saved" / "results.csv")
    assert len(written) == len(found[2].to_frame())

    capsys.readouterr()
    evaluate(scorer, dataset, split="train", probes=(), resamples=0)
    assert "warning: split train: this judge was trained on train" in capsys.readouterr().err


def test_judges_by_name_as_the_command_takes_them(dataset_folder: Path, tmp_path: Path, capsys) -> None:
    raters = sorted(set(PairDataset.load(dataset_folder).ratings["rater_id"]))
    names = ["constant", "random", f"human:{raters[0]}"]
    words = ["--data", str(dataset_folder), "--probes", "none", "--resamples", "20"]
    assert main(["compare", *names, *words, "--out", str(tmp_path / "out")]) == 0
    found = compare(names, dataset_folder, probes=(), resamples=20)
    assert "judges are compared with the other raters" in capsys.readouterr().err
    assert found.reports[0]["provenance"]["raters_left_out"] == [raters[0]]
    stored = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert [*map(figures, stored["reports"])] == [*map(figures, found.reports)]
    assert stored["rankings"] == found.rankings
    found.save(tmp_path / "saved")
    assert (tmp_path / "saved" / "results.csv").read_text() == (tmp_path / "out" / "results.csv").read_text()
    assert found._repr_html_().count("<tr>") == sum(len(report["dimensions"]) for report in found.reports)


def test_a_notebook_shows_people_beside_the_judge(make_judge, make_dataset) -> None:
    judge = make_judge(noise=0.4)
    judge.name = HOSTILE
    found = evaluate(judge, make_dataset(noise=0.4), probes=(), resamples=50)
    shown = found._repr_html_()
    (own,) = found.report["dimensions"].values()
    ceiling, rater = own["ceiling"]["panel_mean"]["value"], own["ceiling"]["spearman"]["value"]
    for text in (
        f"{own['spearman']['value']:.2f} [",
        f"{ceiling:.2f}",
        f"{rater:.2f} [",
        "split test (synthetic ratings)",
    ):
        assert text in shown
    assert own["verdict"]["text"] in shown.replace("&#x27;", "'")  # whole
    assert "<script>" not in shown
    assert HOSTILE in repr(found)


def test_what_is_no_judge_is_refused(dataset_folder: Path) -> None:
    for judge, message in [
        ("no/such/folder", "judge 'no/such/folder': expected a judge folder"),
        ("human:nobody", "judge 'human:nobody': expected one of human:"),
        ("acoustic", "judge acoustic: it is fitted on split train and would be measured on it"),
        (3, "judge of type int; expected a folder, a name, a Scorer"),
    ]:
        with pytest.raises(UserError, match=message):
            evaluate(judge, dataset_folder, split=None)
    with pytest.raises(UserError, match="two judges are called 'constant'"):
        compare(["constant", "constant"], dataset_folder)
