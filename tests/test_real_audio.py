"""The commands of the README, unchanged, on real recordings rated by real listeners (codec quality, not empathy)."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from empathy_judge.cli import main
from empathy_judge.data_modules.schema import PairDataset

REAL = os.environ.get("EMPATHY_JUDGE_REAL_DATA")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(REAL is None, reason="EMPATHY_JUDGE_REAL_DATA is not set"),
]


CONFIG = str(Path(__file__).parents[1] / "configs" / "mushra.yaml")
SYSTEMS = ("Lyra 6", "Proposed 5.51")


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recordings as a pair dataset. Tests that split it copy it first."""
    source, data = Path(str(REAL)) / "mushra_codec", tmp_path_factory.mktemp("mushra") / "data"
    tables = [str(source / "pairs.csv"), "--ratings", str(source / "ratings.csv"), "--dimension", "fidelity=0:100:1"]
    assert main(["import", "table", *tables, "--column", "response_speaker=speaker_id", "--out", str(data)]) == 0
    assert main(["inspect", str(data)]) == 0
    return data


def trained_and_evaluated(data: Path, folder: Path, steps: list[str], options: list[str]) -> dict[str, Any]:
    """The report on a run of one epoch."""
    run, report = folder / "run", folder / "report"
    words = ["--config", CONFIG, "--data.path", str(data), "--run", str(run), "--trainer.max_epochs", "1", *steps]
    assert main(["train", *words]) == 0
    assert main(["evaluate", str(run), "--data", str(data), "--out", str(report), *options]) == 0
    found = json.loads((report / "agreement.json").read_text())
    fidelity = found["dimensions"]["fidelity"]
    assert not found["dataset"]["synthetic"]
    assert fidelity["n_items"] >= 16
    assert 0.4 < fidelity["ceiling"]["spearman"]["value"] < 0.95
    return found


def test_import_to_score(imported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = Path(shutil.copytree(imported, tmp_path / "data"))
    assert main(["split", str(data), "--by", "group_id"]) == 0
    probes = ["--resamples", "200", "--probes", "response_only", "context_swapped", "silent"]
    found = trained_and_evaluated(data, tmp_path, [], probes)
    assert {"response_only", "context_swapped", "silent"} <= set(found["checks"])
    judge, report = tmp_path / "judge", tmp_path / "report/agreement.json"
    assert main(["export", str(tmp_path / "run"), "--out", str(judge), "--report", str(report)]) == 0
    capsys.readouterr()
    clips = [
        str(Path(str(REAL)) / "mushra_codec/audio" / name) for name in ("stim_01_ref.flac", "stim_01_lyra_32.flac")
    ]
    assert main(["score", str(judge), *clips, "--json"]) == 0
    assert 0 <= json.loads(capsys.readouterr().out)["fidelity"] <= 100


@pytest.mark.long
def test_held_out_systems(imported: Path, tmp_path: Path) -> None:
    """What a split by systems changes: who is tested. Little training and no check are enough to see that."""
    data = Path(shutil.copytree(imported, tmp_path / "data"))
    held_out = [word for system in SYSTEMS for word in ("--hold-out", f"system_id={system}")]
    assert main(["split", str(data), "--by", "system_id", *held_out]) == 0
    assert {pair.system_id for pair in PairDataset.load(data).subset("test").pairs} == set(SYSTEMS)
    limits = ["--trainer.limit_train_batches", "2"]
    trained_and_evaluated(data, tmp_path, limits, ["--resamples", "50", "--probes", "none"])
