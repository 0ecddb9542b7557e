"""The commands of the README, unchanged, on real recordings rated by real listeners (codec quality, not empathy)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from empathy_judge.cli import main

REAL = os.environ.get("EMPATHY_JUDGE_REAL_DATA")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(REAL is None, reason="EMPATHY_JUDGE_REAL_DATA is not set"),
]


@pytest.mark.parametrize(
    "split", [["--by", "group_id"], ["--by", "system_id", "--hold-out", "system_id=Lyra 6", "--hold-out",
                             "system_id=Proposed 5.51"]], ids=["sentence", "system"]
)  # fmt: skip
def test_import_to_score(split: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = Path(str(REAL)) / "mushra_codec"
    data, run, judge, report = (tmp_path / name for name in ("data", "run", "judge", "report"))
    tables = [str(source / "pairs.csv"), "--ratings", str(source / "ratings.csv"), "--dimension", "fidelity=0:100:1"]
    assert main(["import", "table", *tables, "--column", "response_speaker=speaker_id", "--out", str(data)]) == 0
    assert main(["inspect", str(data)]) == 0
    assert main(["split", str(data), *split]) == 0
    config = str(Path(__file__).parents[1] / "configs" / "mushra.yaml")
    assert (
        main(["train", "--config", config, "--data.path", str(data), "--run", str(run), "--trainer.max_epochs", "1"])
        == 0
    )
    options = ["--resamples", "200", "--probes", "response_only", "context_swapped", "silent"]
    assert main(["evaluate", str(run), "--data", str(data), "--out", str(report), *options]) == 0
    assert main(["export", str(run), "--out", str(judge), "--report", str(report / "agreement.json")]) == 0
    found = json.loads((report / "agreement.json").read_text())
    fidelity = found["dimensions"]["fidelity"]
    assert not found["dataset"]["synthetic"]
    assert fidelity["n_items"] >= 16
    assert 0.4 < fidelity["ceiling"]["spearman"]["value"] < 0.95
    assert {"response_only", "context_swapped", "silent"} <= set(found["checks"])
    capsys.readouterr()
    clips = [str(source / "audio" / name) for name in ("stim_01_ref.flac", "stim_01_lyra_32.flac")]
    assert main(["score", str(judge), *clips, "--json"]) == 0
    assert 0 <= json.loads(capsys.readouterr().out)["fidelity"] <= 100
