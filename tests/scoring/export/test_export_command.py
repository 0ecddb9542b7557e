"""`empathy-judge export`: every form, moved, in a process that has never seen it, without network; and its errors."""

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
from empathy_judge.scoring.artifact import load_any
from empathy_judge.scoring.export.check import CheckSet, score_all
from scipy.stats import spearmanr

from ...conftest import output_of
from ...models.conftest import saved

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
def test_every_form_scores_as_the_judge_does(make_judge, tones, dataset_folder, tmp_path, capsys):
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
        ({"seed": "none"}, "agreement.json: not a report as it was written: seed 'none'"),
        ({"colour": "red"}, "agreement.json: not a report as it was written: colour"),
    ],
    ids=["judge", "version", "value", "field"],
)
def test_a_report_of_another_judge_or_version_or_an_edited_one_is_not_put_on_the_card(
    other, message, judge_folder, tmp_path, capsys
):
    (tmp_path / "agreement.json").write_text(json.dumps({**REPORT, **other}))
    words = ["export", str(judge_folder), "--out", str(tmp_path / "out"), "--report", str(tmp_path / "agreement.json")]
    assert main(words) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
