"""`train --json`, the threads of `demo`, and `export`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from empathy_judge.cli import main

from ..conftest import failed, output_of


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
