"""`evaluate` and `compare` from Python: whatever a judge is given as, the figures are those of the command."""

from __future__ import annotations

import dataclasses
import hashlib
import json

import empathy_judge
import pandas as pd
import pytest
from empathy_judge import PairDataset, Scorer, compare, evaluate
from empathy_judge.audio.decode import Clip
from empathy_judge.cli import main
from empathy_judge.core.errors import UserError
from empathy_judge.eval.judges.trained import TrainedJudge
from empathy_judge.eval.report.base import read_report
from empathy_judge.eval.report.dataset import ComparisonReport, Report

from .conftest import HOSTILE


def figures(report: Report) -> Report:
    """Without what a clock, a machine or the caller says."""
    return report.model_copy(update={"runtime": None, "command": "", "versions": {}})


def test_a_judge_is_a_folder_a_scorer_or_an_object(trained_run, dataset_folder, tmp_path, capsys):
    words = ["--data", str(dataset_folder), "--checks", "response_only", "--resamples", "20"]
    assert main(["evaluate", str(trained_run), *words, "--out", str(tmp_path / "report")]) == 0
    expected = figures(read_report(tmp_path / "report" / "agreement.json", Report))
    dataset = PairDataset.load(dataset_folder)
    scorer = Scorer.from_pretrained(trained_run)
    found = [
        evaluate(judge, data, checks=["response_only"], resamples=20)
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
    evaluate(scorer, dataset, split="train", checks=(), resamples=0)
    assert "warning: split train: this judge was trained on train" in capsys.readouterr().err


def test_judges_by_name_as_the_command_takes_them(dataset_folder, tmp_path, capsys):
    raters = sorted(set(PairDataset.load(dataset_folder).ratings["rater_id"]))
    names = ["constant", "random", f"human:{raters[0]}"]
    words = ["--data", str(dataset_folder), "--checks", "none", "--resamples", "20"]
    assert main(["compare", *names, *words, "--out", str(tmp_path / "out")]) == 0
    found = compare(names, dataset_folder, checks=(), resamples=20)
    assert "judges are compared with the other raters" in capsys.readouterr().err
    assert found.reports[0].provenance["raters_left_out"] == [raters[0]]
    stored = read_report(tmp_path / "out" / "comparison.json", ComparisonReport)
    assert [*map(figures, stored.reports)] == [*map(figures, found.reports)]
    assert stored.rankings == found.rankings
    found.save(tmp_path / "saved")
    assert (tmp_path / "saved" / "results.csv").read_text() == (tmp_path / "out" / "results.csv").read_text()
    assert found._repr_html_().count("<tr>") == sum(len(report.dimensions) for report in found.reports)


def test_a_notebook_shows_people_beside_the_judge(make_tone_judge, make_dataset):
    judge = make_tone_judge(noise=0.4)
    judge.name = HOSTILE
    found = evaluate(judge, make_dataset(noise=0.4), checks=(), resamples=50)
    shown = found._repr_html_()
    (own,) = found.report.dimensions.values()
    ceiling, rater = own.ceiling.panel_mean.value, own.ceiling.spearman.value
    for text in (f"{own.spearman.value:.2f} [", f"{ceiling:.2f}", f"{rater:.2f} [", "split test (synthetic ratings)"):
        assert text in shown
    assert own.verdict.text in shown.replace("&#x27;", "'")  # whole
    assert "<script>" not in shown
    assert HOSTILE in repr(found)


def test_pairs_heard_in_windows_are_counted(trained_run, dataset_folder, make_tone):
    dataset = PairDataset.load(dataset_folder)
    long = dataclasses.replace(dataset.subset("test").pairs[0], response=Clip(make_tone(25, 150, 0.3), 16_000))
    pairs = tuple(long if pair.pair_id == long.pair_id else pair for pair in dataset.pairs)
    found = evaluate(trained_run, dataclasses.replace(dataset, pairs=pairs), checks=(), resamples=0)
    assert found.report.in_windows == 1
    assert set(found.items.set_index("pair_id").loc[[long.pair_id], "windows"]) == {3}
    with_one_refused = evaluate(
        trained_run, dataclasses.replace(dataset, pairs=pairs), checks=(), resamples=0, windows=False
    )
    (own, *_) = with_one_refused.report.dimensions.values()
    assert own.n_items == found.report.dimensions[next(iter(found.report.dimensions))].n_items - 1
    assert with_one_refused.report.in_windows == 0


def test_what_is_no_judge_is_refused(dataset_folder):
    with pytest.raises(UserError, match="judge of type int; expected a folder, a name, a Scorer"):
        evaluate(3, dataset_folder, split=None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="cluster 'setting': expected one of group_id, context_speaker"):
        evaluate("constant", dataset_folder, split="test", cluster="setting")
    with pytest.raises(UserError, match="two judges are called 'constant'"):
        compare(["constant", "constant"], dataset_folder)


def test_a_signature_says_what_figures_depend_on(dataset_folder, tmp_path, capsys):
    """One line in the JSON, the table, the Markdown, the page and on the terminal; another for another question."""
    words = ["evaluate", "constant", "--data", str(dataset_folder), "--split", "validation", "--checks", "none"]
    assert main([*words, "--resamples", "20", "--seed", "3", "--out", str(tmp_path / "report")]) == 0
    dataset = PairDataset.load(dataset_folder)
    signature = json.loads((tmp_path / "report" / "agreement.json").read_text())["signature"]
    judge, data, split, *rest = signature.split("|")
    assert judge.startswith("judge:constant@")
    assert split.startswith("split:validation@")
    assert data == f"data:{dataset.card.name}@{hashlib.sha256(dataset.card.content_hash.encode()).hexdigest()[:8]}"
    drawn = "boot:cluster=group_id,n=20,seed=3,interval=percentile"
    assert rest == ["ceiling:panel_mean", drawn, f"version:{empathy_judge.__version__}"]
    assert signature in capsys.readouterr().out.splitlines()  # whole, so that it can be copied
    assert set(pd.read_csv(tmp_path / "report" / "results.csv")["signature"]) == {signature}
    for name in ("agreement.md", "index.html"):
        assert signature in (tmp_path / "report" / name).read_text()

    def measured(**changed) -> str:
        chosen = {"split": "validation", "checks": (), "resamples": 20, "seed": 3, **changed}
        return evaluate("constant", dataset_folder, **chosen).report.signature

    assert measured() == signature
    others = [measured(seed=4), measured(resamples=10), measured(split="test"), measured(cluster="system_id")]
    assert len({signature, *others}) == 5


def test_scores_of_a_report_that_was_measured_otherwise_are_named(dataset_folder, tmp_path, capsys):
    def report_of(split: str) -> str:
        evaluate("constant", dataset_folder, split=split, checks=(), resamples=20).save(tmp_path / split)
        return f"scores:{tmp_path / split / 'items.csv'}"

    here, elsewhere = report_of("test"), report_of("validation")
    data = ["--data", str(dataset_folder), "--checks", "none", "--resamples", "20"]
    capsys.readouterr()
    assert main(["compare", here, "random", *data]) == 0
    assert capsys.readouterr().err == ""
    assert main(["compare", here, "random", *data, "--seed", "5"]) == 0
    drawn = "boot:cluster=group_id,n=20,seed={},interval=percentile"
    assert capsys.readouterr().err == (
        f"warning: scores:test/items.csv: its report was measured on {drawn.format(0)}; here: {drawn.format(5)}\n"
    )
    (line,) = compare([here, elsewhere], dataset_folder, checks=(), resamples=20).warnings
    assert line.startswith("scores:validation/items.csv: its report was measured on split:validation@")
    assert "; here: split:test@" in line

    stored = tmp_path / "test" / "agreement.json"
    for damaged in ("[", "[]", '{"signature": 3}', "{}"):  # a hint only: the scores stand by themselves
        stored.write_text(damaged)
        assert compare([here], dataset_folder, checks=(), resamples=0, seed=5).warnings == []
    stored.write_text('{"signature": "of another program"}')
    (line,) = compare([here], dataset_folder, checks=(), resamples=0).warnings
    assert "its report was measured on data: unknown, split: unknown, boot: unknown; here: data:" in line
