"""The commands that measure judges: what they print and write, and their exit codes."""

from __future__ import annotations

import pandas as pd
import pytest
from empathy_judge.cli import main
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.eval.report.base import read_report
from empathy_judge.eval.report.others import ChallengeReport, StressReport
from empathy_judge.eval.results import COLUMNS

from ..conftest import failed, output_of


def test_challenge_prints_what_it_measures_and_fails_where_a_score_is_missing(dataset_folder, tmp_path, capsys):
    dataset = PairDataset.load(dataset_folder)
    means = dataset.mean_scores()
    rows = [f"{pair_id},{name},{means.loc[pair_id, name]}" for pair_id in means.index for name in means]
    (tmp_path / "scores.csv").write_text("\n".join(["pair_id,dimension,score", *rows]))
    words = [f"scores:{tmp_path / 'scores.csv'}", "--data", str(dataset_folder), "--resamples", "20"]
    answer = ChallengeReport.model_validate_json(output_of(capsys, "challenge", "aeq-bench", *words, "--json"))
    found = answer.dimensions
    assert set(found) == {dimension.name for dimension in dataset.card.dimensions}
    assert all(own["all"].score.value == 1.0 for own in found.values())
    said = output_of(capsys, "challenge", "aeq-bench", *words)
    assert "groups" in said
    assert "".join(said.split()).endswith(answer.signature)
    (tmp_path / "scores.csv").write_text("\n".join(["pair_id,dimension,score", *rows[len(dataset.card.dimensions) :]]))
    assert main(["challenge", "aeq-bench", *words]) == 1
    assert "1 pair without a score: 1 x no score in scores.csv" in capsys.readouterr().out
    assert f"|data:{dataset.card.name}@" in answer.signature
    assert answer.signature.partition("|split:")[2].startswith("all|ceiling:none|boot:cluster=group_id,n=20,seed=0,")
    assert main(["challenge", "echomind", "constant", *words[1:]]) == 2
    assert "none can be crossed" in capsys.readouterr().err


def test_stress_writes_a_table_and_fails_where_a_score_rises(judge_folder, dataset_folder, tmp_path, capsys):
    words = ["stress", str(judge_folder), "--data", str(dataset_folder), "--device", "cpu", "--resamples", "50"]
    code = main([*words, "--checks", "twice", "adversarial", "--out", str(tmp_path / "out"), "--json"])
    found = StressReport.model_validate_json(capsys.readouterr().out)
    assert code == (1 if found.raised else 0)
    assert read_report(tmp_path / "out" / "stress.json", StressReport) == found
    table = pd.read_csv(tmp_path / "out" / "results.csv")
    assert list(table.columns) == list(COLUMNS)
    assert set(table["check"]) == {"twice", "adversarial"}
    assert len(table) == 2 * 2 * 2
    assert main([*words, "--checks", "louder", "--split", "all"]) in (0, 1)
    shown = capsys.readouterr().out
    assert "6 dB louder" in shown
    assert found.signature.split("|")[0] in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "x"], "--out with --table; expected with --data"),
        (["--checks", "silent"], "--checks with --table; expected with --data"),
        (["--cluster", "context_speaker"], "--cluster context_speaker with --table; expected group_id, system_id"),
        (["--column", "item=clip"], "no column 'clip'"),
    ],
)
def test_compare_names_what_does_not_go_with_a_table(words, message, tmp_path, capsys):
    (tmp_path / "scores.csv").write_text("item,annotator,dimension,score\na,ann,warmth,1\n")
    assert main(["compare", "ann", "--table", str(tmp_path / "scores.csv"), *words]) == 2
    assert message in capsys.readouterr().err


def test_evaluate_explains_judges_in_folders_alone(dataset_folder, tmp_path, capsys):
    words = ["constant", "--data", str(dataset_folder), "--explain", "--out", str(tmp_path / "report")]
    assert "expected the folder of a judge or of a run" in failed(capsys, "evaluate", *words)
    assert not (tmp_path / "report").exists()
