"""`score`: a pair, a manifest, and options that rule each other out."""

from __future__ import annotations

import csv
import json

import pytest
from empathy_judge.cli import main
from empathy_judge.data_modules.ratings import LABELS

from ..conftest import failed, output_of


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
    first, second = (float(row["empathy"]) for row in rows)
    assert first == pytest.approx(second, abs=1e-5)  # the sixth digit is rounding, which each CPU does in its own way


@pytest.mark.usefixtures("worker_in_process")
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
