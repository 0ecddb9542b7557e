"""Several processes, started as `accelerate launch` starts them, score a manifest as one does."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from empathy_judge.commands.judges import score
from empathy_judge.data_modules.errors import UserError
from empathy_judge.score_files import score_manifest
from empathy_judge.scorer import Scorer

PAIRS = 41
"""Three batches: two for one process, one for the other."""


@pytest.fixture(scope="module")
def manifest(dataset_folder: Path) -> Path:
    """Pairs beside their audio, one of which cannot be read."""
    path = dataset_folder.parent / "manifest.csv"
    rows = [
        {
            "pair_id": f"row {number}",
            "context_audio": f"{dataset_folder.name}/context{number % 7}.wav",
            "response_audio": f"{dataset_folder.name}/p{number % 24:02d}.wav",
        }
        for number in range(PAIRS)
    ]
    rows[20]["response_audio"] = f"{dataset_folder.name}/dataset.yaml"
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


@pytest.mark.long
def test_two_processes_write_the_file_of_one(judge_folder: Path, manifest: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    assert score_manifest(Scorer.from_pretrained(judge_folder, device="cpu"), manifest, one) == 1
    words = ["--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no"]
    words += ["--dynamo_backend", "no", "--main_process_port", "0"]
    command = ["score", str(judge_folder), "--manifest", str(manifest), "--out", str(two), "--device", "cpu"]
    done = subprocess.run(
        [sys.executable, "-m", "accelerate.commands.launch", *words, "-m", "empathy_judge.cli", *command],
        env=dict(os.environ), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1  # as of one process: a row has no score
    assert "scoring" not in done.stdout
    first, second = (pd.read_csv(path, dtype={"pair_id": str}) for path in (one, two))
    assert len(first) == PAIRS
    assert list(first.columns) == list(second.columns)
    assert (first[["pair_id", "status"]] == second[["pair_id", "status"]]).all(axis=None)
    assert (first["status"] != "ok").sum() == 1
    numbers = first.columns.difference(["pair_id", "status"])
    assert (first[numbers] - second[numbers]).abs().max(axis=None) <= 1e-5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.csv", "two.csv"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"manifest": "m.csv"}, "several processes.*--out FILE"),
        ({"context": "a.wav", "response": "b.wav", "out": "o.csv"}, "several processes.*--manifest FILE"),
        ({"manifest": "m.csv", "out": "o.csv", "device": "cuda:0"}, "--device cuda:0.*accepted: no --device, or cpu"),
        ({"manifest": "m.csv", "out": "o.csv", "device": "auto"}, "--device auto.*accepted: no --device, or cpu"),
    ],
)
def test_processes_that_would_be_in_each_others_way_are_refused(options, text, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    every = {"context": None, "response": None, "manifest": None, "out": None, "device": None, "judge": "absent"}
    with pytest.raises(UserError, match=text):
        score(argparse.Namespace(**{**every, **options}))
