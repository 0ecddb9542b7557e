"""The command: quick help, exit codes, one-line errors. What the commands compute is tested beside their parts."""

from __future__ import annotations

import csv
import errno
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import soundfile
from empathy_judge.cli import COMMANDS, main
from empathy_judge.data_modules.ratings import LABELS
from safetensors import SafetensorError
from torch.distributed import DistNetworkError

RATE = 16_000


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """The program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "empathy_judge.cli", *words], capture_output=True, text=True, timeout=120
    )


@pytest.fixture
def clips(tmp_path: Path, make_tone) -> Path:
    """A folder with a context and a response."""
    for name, hertz in (("c", 150), ("r", 300)):
        soundfile.write(tmp_path / f"{name}.wav", make_tone(0.6, hertz, 0.3), RATE)
    return tmp_path


def failed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that a command prints when it is used wrongly."""
    assert main(words) == 2
    captured = capsys.readouterr()
    (line,) = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in captured.err
    return line


# ---------------------------------------------------------------- help


@pytest.mark.parametrize(
    "words", [["--help"], ["train", "--help"], ["recipes", "--help"], ["import", "table", "--help"]]
)
def test_help_does_not_load_torch(words):
    program = (
        "import sys\n"
        "from empathy_judge.cli import main\n"
        "try:\n"
        f"    main({words!r})\n"
        "except SystemExit as stop:\n"
        "    assert stop.code == 0\n"
        "heavy = {'torch', 'transformers', 'pandas', 'fsspec', 'numpy', 'scipy', 'lightning', 'matplotlib', 'rich'}\n"
        f"print('LOADED', sorted(heavy.difference({['numpy'] if 'import' in words else []}) & sys.modules.keys()))\n"
    )
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    took = time.monotonic() - start
    assert done.stdout.splitlines()[-1] == "LOADED []"
    assert took < 5  # 0.1 s on a quiet machine; without torch nothing can take seconds
    names = "demo import inspect split train evaluate compare agreement score calibrate export"
    for name in names.split() if words == ["--help"] else ():
        assert re.search(rf"\n    {name}\s", done.stdout)


def test_a_place_that_is_taken_is_refused_before_torch_is_loaded(tmp_path):
    (tmp_path / "file").touch()
    out = ["--out", str(tmp_path / "file")]
    calls = [
        ["evaluate", "judge", "--data", "data", *out],
        ["compare", "constant", "random", "--data", "data", *out],
        ["export", "run", *out],
        ["ensemble", "run", "run", *out],
    ]
    program = (
        "import sys\n"
        "from empathy_judge.cli import main\n"
        f"print([main(words) for words in {calls!r}], {{'torch', 'transformers'}} & sys.modules.keys())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    line = f"error: {tmp_path / 'file'}: is a file; expected a folder, or a place that is not taken"
    assert (done.stdout, done.stderr.splitlines()) == ("[2, 2, 2, 2] set()\n", [line] * 4)


def test_a_name_that_cannot_be_had_is_told_before_torch_is_loaded(judge_folder, trained_run, tmp_path):
    """Importing takes seconds, looking a name up a tenth of one."""
    lost = json.loads((judge_folder / "judge.json").read_text())
    lost["settings"] |= {"backbone": "no/such-backbone", "revision": "main"}
    (tmp_path / "judge").mkdir()
    (tmp_path / "judge" / "judge.json").write_text(json.dumps(lost))
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").write_text("judge: {backbone: no/such-backbone}")
    judge, run, data = str(tmp_path / "judge"), str(tmp_path / "run"), ["--data", "data"]
    elsewhere = ["--backbone", "/no/folder"]
    no_judge = "no/judge: no such folder, HF_HUB_OFFLINE is set, and no copy is in the cache"
    no_backbone = (
        "backbone 'no/such-backbone': expected 'nano', a hub id or a folder with config.json: no such folder, "
    )
    no_folder = "backbone '/no/folder': expected 'nano', a hub id or a folder with config.json: no such folder"
    (tmp_path / "sweep.yaml").write_text("""
        train: [nano]
        overrides: {data.path: d}
        search: {judge.backbone: {choices: [nano, no/such-backbone]}}
        trials: 2
    """)
    (tmp_path / "wrong.yaml").write_text("train: [nanno]\nsearch: {seed_: {low: 1, high: 2}}\ntrials: 2")
    sweep = ["sweep", "--out", str(tmp_path / "out"), "--config"]
    nothing = f"{tmp_path}: expected a judge folder (with judge.json), a run folder or a checkpoint"
    calls = [
        (["train", "--config", "nano", "--judge.backbone", "no/such-backbone", "--data.path", "d"], no_backbone),
        (["train", "--config", "nano", "--data.bacth_size", "2"], "there is no setting data.bacth_size (did you mean"),
        ([*sweep, str(tmp_path / "sweep.yaml")], no_backbone),
        (
            [*sweep, str(tmp_path / "wrong.yaml")],
            f"{tmp_path}/wrong.yaml: train: --config nanno: no such file or recipe",
        ),
        (["score", "no/judge", "-", "r.wav"], no_judge),
        (["score", judge, "--manifest", "pairs.csv", "--out", "scores.csv"], no_backbone),
        (["score", run, "--manifest", "pairs.csv"], no_backbone),
        (["rank", "no/judge", "-", "r.wav"], no_judge),
        (["rank", str(trained_run), "-", "r.wav", *elsewhere], no_folder),
        (["serve", judge], no_backbone),
        (["serve", str(tmp_path)], nothing),
        (["calibrate", judge, *data], no_backbone),
        (["export", run, "--out", str(tmp_path / "out")], no_backbone),
        (["export", "no/judge", "--out", str(tmp_path / "out")], "no/judge: expected a judge folder"),
        (["ensemble", str(judge_folder), judge, "--out", str(tmp_path / "out")], no_backbone),
        (["evaluate", judge, *data, "--out", str(tmp_path / "out")], no_backbone),
        (["evaluate", "no/judge", *data, "--out", str(tmp_path / "out")], "judge 'no/judge': expected a judge folder"),
        (["compare", "constant", "local:no/such-backbone,samples=2", *data, "--dry-run"], no_backbone),
        (["compare", "constant", "probe:no/such-backbone", *data], no_backbone),
        (["challenge", "echomind", str(judge_folder), *data, *elsewhere], no_folder),
        (["stress", str(judge_folder), *data, *elsewhere], no_folder),
    ]
    program = (
        "import sys\n"
        "from empathy_judge.cli import main\n"
        f"print([main(words) for words in {[words for words, _ in calls]!r}])\n"
        "print({'torch', 'transformers', 'lightning'} & sys.modules.keys())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [str([2] * len(calls)), "set()"]
    for line, (words, message) in zip(done.stderr.splitlines(), calls, strict=True):
        assert line.startswith(f"error: {message}"), words


@pytest.mark.parametrize(
    "name",
    ["demo", "import", "inspect", "split", "recipes", "sweep", "upgrade", "evaluate", "compare", "agreement", "score",
     "calibrate", "export", "ensemble", "serve"],
)  # fmt: skip
def test_every_command_has_help_with_an_example(name, capsys):
    with pytest.raises(SystemExit) as found:
        main([name, "--help"])
    assert found.value.code == 0
    assert f"example: empathy-judge {name}" in capsys.readouterr().out


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "serve"])
def test_every_command_that_prints_results_has_json(name, capsys):
    with pytest.raises(SystemExit):
        main([name, "--help"])
    assert "--json" in capsys.readouterr().out


def test_train_says_where_the_run_is_as_json(capsys, train_arguments, tmp_path):
    run = tmp_path / "run"
    assert main(["train", "--json", *train_arguments(run, trainer__max_epochs=1)]) == 0
    checkpoint = run / "checkpoints" / "best.ckpt"
    found = json.loads(capsys.readouterr().out)
    assert {name: found[name] for name in ("run", "best_checkpoint")} == {
        "run": str(run),
        "best_checkpoint": str(checkpoint),
    }
    assert set(found["validation"]) == {"empathy", "warmth"}
    assert "json" not in (run / "config.yaml").read_text()


def test_the_arguments_of_the_trainer_have_a_help_of_their_own(capsys):
    assert main(["train", "--trainer.help"]) == 0
    out = capsys.readouterr().out
    assert "--trainer.max_epochs" in out
    assert "--trainer.callbacks" not in out  # set by the program


def test_train_has_help_with_an_example(capsys):
    with pytest.raises(SystemExit) as found:
        main(["train", "--help"])
    assert found.value.code == 0
    out = capsys.readouterr().out
    assert "example: empathy-judge train --config nano" in " ".join(out.split())
    assert "--judge.lora.rank" in out
    assert "Trainable" not in out


# ---------------------------------------------------------------- bad usage


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: COMMAND; see empathy-judge --help"),
        (["frobnicate"], "frobnicate: no such command; see empathy-judge --help"),
        (["evalute", "j"], "evalute: no such command (did you mean evaluate?); see empathy-judge --help"),
        (["split"], "the following arguments are required: data; see empathy-judge split --help"),
        (["evaluate", "j", "--dta", "d"], "--dta: no such option (did you mean --data?)"),
        (["split", "d", "--seed", "two"], "argument --seed: 'two': expected a whole number from 0"),
        (["serve", "j", "--port", "99999"], "argument --port: '99999': expected a port, 0 to 65535"),
        (["score", "j", "--workers", "0"], "argument --workers: '0': expected a number of processes, 1 to 1024"),
        (["score", "j", "--workers", "1000000000"], "argument --workers: '1000000000': expected a number of processes"),
        (["import", "tabel", "x"], "argument source: invalid choice: 'tabel'"),
        (["import", "table", "x", "--dimensoin", "a=1:5:1"], "--dimensoin: no such option (did you mean --dimension?)"),
        (["import", "table", "pairs.csv"], "the following arguments are required: --out"),
    ],
)
def test_bad_words_are_one_line_that_helps(words, message, capsys):
    assert failed(capsys, *words).startswith(f"error: {message}")


def test_errors_of_a_process_are_one_line_and_code_2(tmp_path):
    folder = tmp_path / "no-data"
    done = command("inspect", str(folder))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        f"error: {folder}: not a pair dataset, it has no dataset.yaml; make one with `empathy-judge import`"
    ]


def test_what_is_no_judge_is_named(tmp_path, capsys):
    line = failed(capsys, "score", str(tmp_path / "no-judge"), "c.wav", "r.wav")
    assert f"{tmp_path / 'no-judge'}: expected a judge folder (with judge.json), a run folder or a checkpoint" in line


def test_train_with_an_unknown_key_is_bad_usage(capsys, train_arguments, tmp_path):
    assert main(["train", *train_arguments(tmp_path / "run"), "--judge.lora.rnak", "3"]) == 2
    expected = (
        "error: there is no setting judge.lora.rnak (did you mean judge.lora.rank?); see empathy-judge train --help\n"
    )
    assert capsys.readouterr().err == expected
    assert not (tmp_path / "run").exists()


def test_train_errors_are_one_line(capsys, train_arguments, tmp_path, trained_run):
    line = failed(capsys, "train", *train_arguments(tmp_path / "run", data__path=tmp_path / "nowhere"))
    assert f"{tmp_path / 'nowhere'}: not a pair dataset" in line
    line = failed(capsys, "train", *train_arguments(tmp_path / "run", judge__backbone="no/such-backbone"))
    assert "backbone 'no/such-backbone': expected 'nano', a hub id or a folder" in line
    assert "already holds a run" in failed(capsys, "train", *train_arguments(trained_run))
    assert "nothing to resume from" in failed(capsys, "train", *train_arguments(tmp_path / "new"), "--resume", "true")


# ---------------------------------------------------------------- what the machine refuses


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "a/b"), 2, "a/b: No space left on device; free some room"),
        (PermissionError(errno.EACCES, "Permission denied", "a"), 2, "a: Permission denied; expected the right to"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator"), 2, "Cannot allocate memory"),
        (SafetensorError("I/O error: No space left on device (os error 28)"), 2, "No space left on device; free some"),
        (MemoryError(), 2, "Cannot allocate memory; expected more memory, or a smaller --batch-size"),
        (RecursionError("maximum recursion depth exceeded"), 2, "what was read is nested too deeply"),
        ("\ud800".encode, 2, "text cannot be read or written ('utf-8' codec can't encode"),
        (OSError("a model\nthat is not there"), 2, "a model that is not there; see what the system says"),
        (KeyError("x"), 70, "KeyError: 'x': a mistake of this program; EMPATHY_JUDGE_DEBUG=1 shows where"),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), 1, "another process of this run ended"),
        (DistNetworkError("timed out"), 1, "another process of this run ended or does not answer (timed out); its"),
        (KeyboardInterrupt(), 130, None),
        (BrokenPipeError(), 141, None),
    ],
)  # fmt: skip
def test_what_no_part_expected_is_one_line_too(error, code, line, capfd, monkeypatch):
    def run(options):
        """Fail."""
        raise error if isinstance(error, BaseException) else error()

    monkeypatch.setitem(COMMANDS, "doctor", run)
    monkeypatch.setattr("empathy_judge.cli._close_output", lambda: None)
    assert main(["doctor"]) == code
    said = capfd.readouterr().err
    assert said.startswith(f"error: {line}") if line else said == ("interrupted\n" if code == 130 else "")
    assert said.count("\n") == (code != 141)
    monkeypatch.setenv("EMPATHY_JUDGE_DEBUG", "1")
    assert main(["doctor"]) == code
    assert ("Traceback" in capfd.readouterr().err) == (line is not None)


@pytest.mark.parametrize(
    ("output", "encoding", "code", "said"),
    [
        (">/dev/full", "utf-8", 2, "error: standard output: No space left on device; free some room and start"),
        ("| true", "utf-8", 141, ""),
        (">&-", "utf-8", 0, ""),
        (">FILE", "ascii", 0, ""),
        (">FILE", "latin-1", 0, ""),
    ],
)
def test_scores_are_written_whatever_becomes_of_standard_output(output, encoding, code, said, tmp_path):
    table = tmp_path / "scores.csv"
    rows = [f"c{n},{who},wärme🙂,{(n * step) % 7}" for n in range(12) for who, step in (("ann", 1), ("ü", 3))]
    table.write_text("\n".join(["item,annotator,dimension,score", *rows]), encoding="utf-8")
    words = f"set -o pipefail; {sys.executable} -m empathy_judge.cli agreement {table} --resamples 20"
    words = f"{words} {output.replace('FILE', str(tmp_path / 'out'))}"
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(["bash", "-c", words], env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr[: len(said)], done.stderr.count("\n")) == (code, said, bool(said))
    if "FILE" in output:
        printed = (tmp_path / "out").read_bytes().decode(encoding)
        assert ("wärme\\U0001f642" if encoding == "latin-1" else "w\\xe4rme\\U0001f642") in printed


# ---------------------------------------------------------------- inspect


def test_inspect_writes_a_page_only_where_asked(dataset_folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["inspect", str(dataset_folder)]) == 0
    plain = capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    assert main(["inspect", str(dataset_folder), "--page", "looks/first"]) == 0
    assert capsys.readouterr().out == f"{plain}page: {Path('looks/first/index.html')}\n"
    page = (tmp_path / "looks" / "first" / "index.html").read_text(encoding="utf-8")
    assert "What is in tones?" in page
    sources = {part.split('"')[0] for part in page.split(' src="')[1:]}
    assert {f"audio/{clip.name}" for clip in (tmp_path / "looks/first/audio").iterdir()} == sources
    assert len(sources) > 8


def test_inspect_prints_json_and_nothing_else(dataset_folder, tmp_path, capsys):
    assert main(["inspect", str(dataset_folder), "--json", "--page", str(tmp_path / "page")]) == 0
    printed = json.loads(capsys.readouterr().out)
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
def scores(tmp_path: Path) -> Path:
    """Two people and a judge on twelve items, in columns of other names."""
    path = tmp_path / "scores.csv"
    rows = [
        f"c{n},{who},warmth,{(n * step) % 7}" for n in range(12) for who, step in (("ann", 1), ("bob", 3), ("j", 1))
    ]
    path.write_text("\n".join(["clip,who,dimension,score", *rows]) + "\n")
    return path


def test_agreement_prints_tables_or_json(scores, capsys):
    words = ["agreement", str(scores), "--column", "item=clip", "annotator=who", "--judges", "j", "--resamples", "50"]
    assert main(words) == 0
    plain = capsys.readouterr().out
    assert "people: ann, bob" in plain
    assert "judges with the mean of ann, bob" in plain
    assert "pairs" not in plain
    assert main([*words, "--pairs", "--kappa-weights", "ranks", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["people"], found["judges"], found["kappa_weights"]) == (["ann", "bob"], ["j"], "ranks")
    (one,) = found["dimensions"]
    pairs = {(pair["first"], pair["second"]): pair["quadratic_kappa"]["value"] for pair in one["pairs"]}
    assert pairs["ann", "j"] == pytest.approx(1.0)
    assert set(pairs) == {("ann", "bob"), ("ann", "j"), ("bob", "j")}
    assert main([*words, "--exclude", "bob", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["people"], found["left_out"]) == (["ann"], ["bob"])
    assert found["dimensions"][0]["judges"]["j"]["spearman"]["value"] == pytest.approx(1.0)


def test_agreement_names_what_is_wrong(scores, capsys):
    words = ["agreement", str(scores), "--column", "item=clip", "annotator=who"]
    has = "it has 'clip', 'who', 'dimension', 'score'"
    assert failed(capsys, "agreement", str(scores)) == (
        f"error: {scores}: no column 'item'; {has}; expected a mapping item=COLUMN"
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
        "expected a finite number, or nothing where the score is missing"
    )


# ---------------------------------------------------------------- score


def test_score_prints_each_dimension_with_its_scale(judge_folder, clips, capsys):
    assert main(["score", str(judge_folder), str(clips / "c.wav"), str(clips / "r.wav"), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert list(scores) == ["empathy", "warmth", "empathy_label", "warmth_label", "warnings", "windows", "seconds"]
    assert scores["empathy_label"] in LABELS
    assert main(["score", str(judge_folder), str(clips / "c.wav"), str(clips / "r.wav")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"empathy {scores['empathy']:.3f} (1 to 5)",
        f"warmth {scores['warmth']:.3f} (0 to 10)",
    ]
    assert main(["score", str(judge_folder), "-", str(clips / "r.wav"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) != scores  # without the context


def test_score_needs_clips_or_a_manifest(judge_folder, clips, capsys):
    assert "expected JUDGE CONTEXT RESPONSE (- for no context), or JUDGE --manifest FILE" in failed(
        capsys, "score", str(judge_folder)
    )
    words = ["score", str(judge_folder), "-", str(clips / "r.wav"), "--manifest", "m.csv"]
    assert "expected JUDGE CONTEXT RESPONSE (- for no context), or JUDGE --manifest FILE" in failed(capsys, *words)


def test_score_names_a_clip_that_cannot_be_read(judge_folder, clips, capsys):
    (clips / "text.wav").write_text("not audio")
    line = failed(capsys, "score", str(judge_folder), str(clips / "c.wav"), str(clips / "text.wav"))
    assert line == f"error: {clips / 'text.wav'}: not a sound file; expected wav, flac, ogg, mp3, aiff, au"


def test_score_of_a_manifest_with_a_bad_clip_is_a_failed_check(judge_folder, clips, capsys):
    (clips / "text.wav").write_text("not audio")
    (clips / "m.csv").write_text("pair_id,context_audio,response_audio\na,c.wav,r.wav\nb,c.wav,text.wav\n")
    words = ["score", str(judge_folder), "--manifest", str(clips / "m.csv")]
    assert main(words) == 1
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert list(rows[0]) == [
        "pair_id",
        "empathy",
        "warmth",
        "empathy_label",
        "warmth_label",
        "warnings",
        "windows",
        "seconds",
        "status",
    ]
    assert [row["status"] == "ok" for row in rows] == [True, False]
    (clips / "text.wav").write_bytes((clips / "r.wav").read_bytes())
    assert main(words) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert rows[0]["empathy"] == rows[1]["empathy"]


def test_clips_of_a_manifest_may_lie_in_a_folder_that_is_named(judge_folder, clips, tmp_path, capsys):
    (tmp_path / "m").mkdir()
    manifest, out = tmp_path / "m" / "m.csv", tmp_path / "m" / "scores.csv"
    manifest.write_text("pair_id,context_audio,response_audio\na,c.wav,r.wav\n")
    words = ["score", str(judge_folder), "--manifest", str(manifest)]
    assert main([*words, "--json"]) == 1
    assert "no such file" in json.loads(capsys.readouterr().out)["status"]
    root = ["--audio-root", str(clips)]
    assert main([*words, "--json", *root]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    printed = json.loads(line)
    assert (printed["pair_id"], printed["status"]) == ("a", "ok")
    assert main([*words, "--out", str(out), "--device", "cpu", *root]) == 0
    (written,) = csv.DictReader(out.read_text().splitlines())
    assert float(written["empathy"]) == pytest.approx(printed["empathy"], abs=1e-5)
    summary = json.loads(out.with_name("scores.csv.summary.json").read_text())
    assert summary["identity"]["audio root"] == str(clips.resolve())
    capsys.readouterr()
    assert "--audio-root nowhere; expected a folder" in failed(capsys, *words, "--audio-root", "nowhere")
    line = failed(capsys, "score", str(judge_folder), "-", str(clips / "r.wav"), *root)
    assert "expected a folder, with --manifest FILE" in line


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--workers", "2"], "score: --workers without --out"),
        (["--restart"], "score: --restart without --out"),
        (["--overwrite"], "score: --overwrite without --out"),
        (["--engine", "ray"], "score: in several processes; expected JUDGE --manifest FILE --out FILE"),
    ],
)
def test_what_makes_sense_for_a_file_alone_is_refused_without_one(words, text, clips, capsys):
    assert text in failed(capsys, "score", "absent", "--manifest", str(clips / "m.csv"), *words)


def test_several_processes_score_into_a_file_alone(clips, capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "in several processes" in failed(capsys, "score", "absent", "--manifest", str(clips / "m.csv"))


def test_score_of_a_missing_manifest_is_one_line(judge_folder, clips, capsys):
    line = failed(capsys, "score", str(judge_folder), "--manifest", str(clips / "absent.csv"))
    assert str(clips / "absent.csv") in line


# ---------------------------------------------------------------- export


def test_export_makes_a_judge_that_scores_like_the_run(trained_run, clips, capsys):
    judge = clips / "judge"
    assert main(["export", str(trained_run), "--out", str(judge)]) == 0
    assert capsys.readouterr().out == f"judge: {judge}\n"
    printed = []
    for source in (trained_run, trained_run / "checkpoints" / "best.ckpt", judge):
        assert main(["score", str(source), str(clips / "c.wav"), str(clips / "r.wav"), "--json"]) == 0
        printed.append(json.loads(capsys.readouterr().out))
    assert printed[0] == printed[1] == printed[2]
    assert "Not measured yet" in (judge / "README.md").read_text()
    assert f"{judge}: exists" in failed(capsys, "export", str(trained_run), "--out", str(judge))


def test_export_puts_the_measured_agreement_on_the_card(trained_run, dataset_folder, tmp_path, capsys):
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
    assert "report.json: not an agreement report" in failed(capsys, *words)
    assert sorted(clips.iterdir()) == sorted([*before, clips / "cut.ckpt", clips / "report.json"])
