"""`train --json`, the threads of `demo`, and `export`: every form, in a process that has never seen it; its errors."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from empathy_judge.cli import main
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.scoring.artifact import load_any
from empathy_judge.scoring.export.check import CheckSet, score_all
from scipy.stats import spearmanr

from ..conftest import failed, output_of
from ..models.conftest import saved


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
    out = output_of(capsys, "train", "--trainer.help")
    assert "--trainer.max_epochs" in out
    assert "--trainer.callbacks" not in out  # set by the program


@pytest.mark.parametrize(("given", "kept"), [({}, "2000"), ({"GOMP_SPINCOUNT": "7"}, "7")])
def test_threads_of_the_demo_do_not_spin_for_long_while_they_wait(given, kept, tmp_path):
    program = (
        "import os, sys, types\n"
        "from empathy_judge.cli import main\n"
        "said = lambda *_, **__: print(os.environ['GOMP_SPINCOUNT'], 'torch' in sys.modules)\n"
        "sys.modules['empathy_judge.demo'] = types.SimpleNamespace(run_demo=said)\n"
        f"sys.exit(main(['demo', '--out', {str(tmp_path / 'demo')!r}]))\n"
    )
    others = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"} | given
    done = subprocess.run([sys.executable, "-c", program], env=others, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == (f"{kept} False\n", "")


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


FORMS = {
    "merged": ["--form", "merged"],
    "int8": ["--form", "merged", "--quantization", "int8"],
    "int4": ["--form", "merged", "--quantization", "int4"],
}


SCORE = """
import json, socket, sys
def refuse(*_, **__):
    raise OSError("no network")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.scoring.scorer import Scorer
dataset, *folders = sys.argv[1:]
pairs = PairDataset.load(dataset).pairs
found = {}
for folder in folders:
    scored = Scorer.from_pretrained(folder, device="cpu").assess_pairs(pairs)
    found[folder] = [list(one.points.values()) for one in scored]
print(json.dumps(found))
"""


@pytest.mark.long
def test_every_form_scores_as_the_judge_does(make_judge, dataset_folder, tmp_path, capsys):
    tones = PairDataset.load(dataset_folder)
    small = saved(make_judge(backbone="nano"), tmp_path / "small")
    before = score_all(load_any(small), CheckSet("tones", tones.pairs), "cpu")
    folders = {}
    for name, options in FORMS.items():
        out = tmp_path / name
        data = ["--check-data", str(dataset_folder), "--check-split", "all", "--accept-loss"]
        assert "(24 pairs: tones, all)" in output_of(
            capsys, "export", small, "--out", out, *options, *data, "--device", "cpu"
        )
        folders[name] = tmp_path / "moved" / f"{name} too"
        folders[name].parent.mkdir(exist_ok=True)
        shutil.move(out, folders[name])
    shutil.rmtree(small)
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "empty"), "CUDA_VISIBLE_DEVICES": ""}
    words = [sys.executable, "-c", SCORE, str(dataset_folder), *map(str, folders.values())]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert ended.returncode == 0, ended.stderr
    found = {Path(folder).name: np.array(scores) for folder, scores in json.loads(ended.stdout).items()}
    means = tones.mean_scores()[["empathy", "warmth"]].to_numpy()
    for name, bound in (("merged", 1e-5), ("int8", 0.05), ("int4", 0.25)):
        after = found[f"{name} too"]
        assert (np.abs(after - before) / [4, 10]).max() < bound
        for column in range(2):
            moved = [spearmanr(scores[:, column], means[:, column]).statistic for scores in (before, after)]
            assert abs(moved[1] - moved[0]) < (0.001 if bound == 1e-5 else 0.1)  # of 24 pairs
    sizes = {
        name: sum(path.stat().st_size for path in folder.rglob("*.safetensors")) for name, folder in folders.items()
    }
    # rows of 416 values are no whole blocks of 64: a fifth of the language model's matrices is not in 4 bits
    assert sizes["int8"] < sizes["int4"] < 0.7 * sizes["merged"]


def test_options_that_would_do_nothing_are_refused(judge_folder, tmp_path, capsys):
    whole = ["--quantization int8", "--check-data data", "--check-split train", "--accept-loss", "--device cpu"]
    for options in map(str.split, whole):
        assert main(["export", str(judge_folder), "--out", str(tmp_path / "out"), *options]) == 2
        assert f"{options[0]} with --form small" in capsys.readouterr().err
    words = ["--form", "merged", "--check-split", "train"]
    assert main(["export", str(judge_folder), "--out", str(tmp_path / "out"), *words]) == 2
    assert "--check-split; expected with --check-data DIR" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_loss_beyond_the_bounds_ends_with_1(judge_folder, tmp_path, capsys, monkeypatch):
    from empathy_judge.scoring.export import check

    monkeypatch.setitem(check._BOUNDS, "float32", check.Bounds(0.0, 0.0, 0.0))
    synthetic_pairs = check.synthetic_pairs
    monkeypatch.setattr(check, "synthetic_pairs", lambda rate, longest: synthetic_pairs(rate, 2.0)[:6])
    words = ["export", str(judge_folder), "--form", "merged", "--device", "cpu", "--out", str(tmp_path / "out")]
    assert main(words) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith("empathy: scores changed by ")
    assert "not written: " in printed.err
    assert "--accept-loss writes it all the same" in printed.err
    assert list(tmp_path.iterdir()) == []
    assert main([*words, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["judge"] is None
    assert found["check"]["beyond"][0].startswith("empathy: largest difference")
    assert main([*words, "--accept-loss"]) == 0
    printed = capsys.readouterr()
    assert printed.out.endswith(f"judge: {tmp_path / 'out'}\n")
    assert "written despite: empathy: largest difference" in printed.err


def test_what_was_written_can_be_had_as_json(judge_folder, tmp_path, capsys):
    assert json.loads(output_of(capsys, "export", judge_folder, "--out", tmp_path / "small", "--json")) == {
        "judge": str(tmp_path / "small"),
        "check": None,
        "hub": None,
    }
    members = [str(judge_folder), str(tmp_path / "small")]
    assert json.loads(output_of(capsys, "ensemble", *members, "--out", tmp_path / "both", "--json")) == {
        "judge": str(tmp_path / "both")
    }


REPORT = {
    "schema_version": 3, "signature": "judge:other", "judge": "other", "split": None, "split_hash": "", "command": "",
    "dataset": {"name": "d", "source": "", "licence": "", "synthetic": True, "content_hash": ""}, "seed": 0,
    "cluster": "group_id", "interval": "percentile", "resamples": 0, "versions": {}, "provenance": {},
    "left_out": {"not_judged": [], "not_rated": []}, "in_windows": None, "prompting": None, "dimensions": {},
    "runtime": {"seconds_per_pair": 1.0, "measured": "wall_clock"}, "checks": {}, "voice_and_words": {}, "slices": {},
}  # fmt: skip


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({}, "--report: it is of another judge (other)"),
        ({"schema_version": 2}, "agreement.json: schema_version 2; expected 3: measure again"),
    ],
    ids=["judge", "version"],
)
def test_a_report_of_another_judge_or_version_is_not_put_on_the_card(other, message, judge_folder, tmp_path, capsys):
    (tmp_path / "agreement.json").write_text(json.dumps({**REPORT, **other}))
    words = ["export", str(judge_folder), "--out", str(tmp_path / "out"), "--report", str(tmp_path / "agreement.json")]
    assert main(words) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
