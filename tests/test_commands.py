"""What inspect, agreement, score and export print and write."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from empathy_judge.cli import main
from empathy_judge.data_modules.ratings import LABELS

from .conftest import failed, output_of


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


# ---------------------------------------------------------------- agreement


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
        f"error: {scores}: no column 'item'; {has}; expected a mapping item=COLUMN (--column)"
    )
    assert failed(capsys, *words[:3], "item=file") == f"error: {scores}: no column 'file' (mapped to item); {has}"
    where = f"not among the annotators of {scores} that count"
    assert failed(capsys, *words, "--judges", "k") == f"error: --judges 'k': {where}; expected 'ann', 'bob', 'j'"
    line = failed(capsys, *words, "--exclude", "j", "--judges", "j")
    assert line == f"error: --judges 'j': {where}; expected 'ann', 'bob'"
    whole = scores.read_text()
    scores.write_text(whole + "c0,ann,warmth,1\n")
    assert failed(capsys, *words) == (
        f"error: {scores}, row 37 (line 38), column 'clip': ann scores item 'c0' on warmth again, as in row 1; "
        "expected one score per item, dimension and annotator"
    )
    scores.write_text(whole + "c12,ann,warmth,warm\n")
    assert failed(capsys, *words) == (
        f"error: {scores}, row 37 (line 38), column 'score': value 'warm'; "
        "expected a finite number, at most 1e+50, or nothing where it is missing"
    )


# ---------------------------------------------------------------- score


def test_score_prints_each_dimension_with_its_scale(judge_folder, clips, capsys):
    scores = json.loads(output_of(capsys, "score", judge_folder, clips / "c.wav", clips / "r0.wav", "--json"))
    assert list(scores) == ["empathy", "warmth", "empathy_label", "warmth_label", "warnings", "windows", "seconds"]
    assert scores["empathy_label"] in LABELS
    assert output_of(capsys, "score", judge_folder, clips / "c.wav", clips / "r0.wav").splitlines() == [
        f"empathy {scores['empathy']:.3f} (1 to 5)",
        f"warmth {scores['warmth']:.3f} (0 to 10)",
    ]
    alone = json.loads(output_of(capsys, "score", judge_folder, "-", clips / "r0.wav", "--json"))
    assert alone != scores  # without the context


def test_score_needs_clips_or_a_manifest(judge_folder, clips, capsys):
    for words in ([], ["-", str(clips / "r0.wav"), "--manifest", "m.csv"]):
        line = failed(capsys, "score", str(judge_folder), *words)
        assert "expected JUDGE CONTEXT RESPONSE (- for no context), or JUDGE --manifest FILE" in line
    for command in ("score", "rank", "explain"):
        line = failed(capsys, command, str(judge_folder), "", str(clips / "r0.wav"))
        assert line == "error: context: an empty path; expected a file, or - for no context"


def test_score_of_a_manifest_with_a_bad_clip_is_a_failed_check(judge_folder, clips, capsys):
    (clips / "text.wav").write_text("not audio")
    (clips / "m.csv").write_text("pair_id,context_audio,response_audio\na,c.wav,r0.wav\nb,c.wav,text.wav\n")
    words = ["score", str(judge_folder), "--manifest", str(clips / "m.csv")]
    assert main(words) == 1
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert list(rows[0]) == [
        "pair_id", "empathy", "warmth", "empathy_label", "warmth_label", "warnings", "windows", "seconds", "status",
    ]  # fmt: skip
    assert [row["status"] == "ok" for row in rows] == [True, False]
    (clips / "text.wav").write_bytes((clips / "r0.wav").read_bytes())
    rows = list(csv.DictReader(output_of(capsys, *words).splitlines()))
    assert rows[0]["empathy"] == rows[1]["empathy"]


def test_clips_of_a_manifest_may_lie_in_a_folder_that_is_named(judge_folder, clips, tmp_path, capsys):
    (tmp_path / "m").mkdir()
    manifest, out = tmp_path / "m" / "m.csv", tmp_path / "m" / "scores.csv"
    manifest.write_text("pair_id,context_audio,response_audio\na,c.wav,r0.wav\n")
    words = ["score", str(judge_folder), "--manifest", str(manifest)]
    assert main([*words, "--json"]) == 1
    assert "no such file" in json.loads(capsys.readouterr().out)["status"]
    root = ["--audio-root", str(clips)]
    (line,) = output_of(capsys, *words, "--json", *root).splitlines()
    printed = json.loads(line)
    assert (printed["pair_id"], printed["status"]) == ("a", "ok")
    assert main([*words, "--out", str(out), "--device", "cpu", *root]) == 0
    (written,) = csv.DictReader(out.read_text().splitlines())
    assert float(written["empathy"]) == pytest.approx(printed["empathy"], abs=1e-5)
    summary = json.loads(out.with_name("scores.csv.summary.json").read_text())
    assert summary["identity"]["audio root"] == str(clips.resolve())
    capsys.readouterr()
    assert "--audio-root nowhere; expected a folder" in failed(capsys, *words, "--audio-root", "nowhere")
    line = failed(capsys, "score", str(judge_folder), "-", str(clips / "r0.wav"), *root)
    assert "expected a folder, with --manifest FILE" in line


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--workers 2", "score: --workers without --out"),
        ("--restart", "score: --restart without --out"),
        ("--overwrite", "score: --overwrite without --out"),
        ("--engine ray", "score: in several processes; expected JUDGE --manifest FILE --out FILE"),
        ("WORLD_SIZE=2", "score: in several processes; expected JUDGE --manifest FILE --out FILE"),
    ],
)
def test_what_makes_sense_for_a_file_alone_is_refused_without_one(words, text, capsys, monkeypatch):
    if words == "WORLD_SIZE=2":
        monkeypatch.setenv(*words.split("="))
        words = ""
    assert text in failed(capsys, "score", "absent", "--manifest", "m.csv", *words.split())


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--out", "pair.csv"], "score: --out without --manifest; expected JUDGE --manifest FILE --out"),
        (["--restart"], "score: --restart without --manifest"),
        (["--engine", "ray"], "score: --engine ray without --manifest"),
    ],
)
def test_what_makes_sense_for_a_manifest_alone_is_refused_for_a_pair(words, text, capsys):
    assert text in failed(capsys, "score", "absent", "-", "response.wav", *words)


def test_a_manifest_has_its_situations_in_a_column(capsys):
    words = ["score", "absent", "--manifest", "m.csv", "--situation", "an angry caller"]
    assert "score: --situation with --manifest; expected a column situation" in failed(capsys, *words)


# ---------------------------------------------------------------- export


def test_export_makes_a_judge_that_scores_like_the_run(trained_run, clips, capsys):
    judge = clips / "judge"
    assert output_of(capsys, "export", trained_run, "--out", judge) == f"judge: {judge}\n"
    printed = []
    for source in (trained_run, trained_run / "checkpoints" / "best.ckpt", judge):
        printed.append(json.loads(output_of(capsys, "score", source, clips / "c.wav", clips / "r0.wav", "--json")))
    assert printed[0] == printed[1] == printed[2]
    assert "Not measured yet" in (judge / "README.md").read_text()
    assert f"{judge}: exists" in failed(capsys, "export", str(trained_run), "--out", str(judge))


def test_export_puts_the_measured_agreement_on_the_card(trained_run, dataset_folder, tmp_path):
    """And what `evaluate` measures on the validation split is what training measured there."""
    report = tmp_path / "report"
    words = ["--data", str(dataset_folder), "--split", "validation", "--out", str(report), "--resamples", "20"]
    assert main(["evaluate", str(trained_run), *words]) == 0
    found = json.loads((report / "agreement.json").read_text())["dimensions"]
    judge = tmp_path / "judge"
    assert main(["export", str(trained_run), "--out", str(judge), "--report", str(report / "agreement.json")]) == 0
    validation = json.loads((judge / "judge.json").read_text())["provenance"]["validation"]
    card = (judge / "README.md").read_text()
    for name in ("empathy", "warmth"):
        assert found[name]["n_items"] == 9
        assert found[name]["spearman"]["value"] == pytest.approx(validation[name], abs=1e-9)
        assert f"| {name} | 9 | {validation[name]:.2f} " in card  # too few groups for an interval
    assert "Not measured yet" not in card


def test_export_refuses_what_is_no_run_and_leaves_nothing(trained_run, clips, capsys):
    before = sorted(clips.iterdir())
    assert "expected a judge folder (with judge.json), a run" in failed(
        capsys, "export", str(clips), "--out", str(clips / "judge")
    )
    (clips / "cut.ckpt").write_bytes((trained_run / "checkpoints" / "best.ckpt").read_bytes()[:1_000])
    line = failed(capsys, "export", str(clips / "cut.ckpt"), "--out", str(clips / "judge"))
    assert "cut.ckpt: half-written or damaged checkpoint" in line
    (clips / "report.json").write_text("{")
    words = ["export", str(trained_run), "--out", str(clips / "judge"), "--report", str(clips / "report.json")]
    assert "report.json: not JSON: " in failed(capsys, *words)
    assert sorted(clips.iterdir()) == sorted([*before, clips / "cut.ckpt", clips / "report.json"])
