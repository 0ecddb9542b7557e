"""The commands of the README, unchanged, on real recordings rated by real listeners (codec quality, not empathy)."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest
from empathy_judge.cli import main
from empathy_judge.core.errors import DataError
from empathy_judge.data_modules.schema import PairDataset

from ..conftest import loaded, output_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "real_speech.py"
CONFIG = Path(__file__).parents[2] / "configs" / "mushra.yaml"
REAL = os.environ.get("EMPATHY_JUDGE_REAL_DATA")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(REAL is None, reason="EMPATHY_JUDGE_REAL_DATA is not set")]


@pytest.fixture(scope="module")
def imported(tmp_path_factory) -> Path:
    """The recordings as a pair dataset. Tests that split it copy it first."""
    source, data = Path(str(REAL)) / "mushra_codec", tmp_path_factory.mktemp("mushra") / "data"
    tables = [str(source / "pairs.csv"), "--ratings", str(source / "ratings.csv"), "--dimension", "fidelity=0:100:1"]
    assert main(["import", "table", *tables, "--column", "response_speaker=speaker_id", "--out", str(data)]) == 0
    assert main(["inspect", str(data)]) == 0
    return data


@pytest.mark.long
def test_import_to_score(imported, tmp_path, capsys):
    data, run, report = Path(shutil.copytree(imported, tmp_path / "data")), tmp_path / "run", tmp_path / "report"
    output_of(capsys, "split", data, "--by", "group_id")
    words = ("--config", CONFIG, "--data.path", data, "--run", run, "--trainer.max_epochs", 1)
    output_of(capsys, "train", *words)
    checks = ("response_only", "context_swapped", "silent")
    output_of(capsys, "evaluate", run, "--data", data, "--out", report, "--resamples", 200, "--checks", *checks)
    found = json.loads((report / "agreement.json").read_text())
    fidelity = found["dimensions"]["fidelity"]
    assert not found["dataset"]["synthetic"]
    assert fidelity["n_items"] >= 16
    assert 0.4 < fidelity["ceiling"]["spearman"]["value"] < 0.95
    assert {*checks} <= set(found["checks"])
    judge = tmp_path / "judge"
    output_of(capsys, "export", run, "--out", judge, "--report", report / "agreement.json")
    clips = [Path(str(REAL)) / "mushra_codec/audio" / f"stim_01_{name}.flac" for name in ("ref", "lyra_32")]
    assert 0 <= json.loads(output_of(capsys, "score", judge, *clips, "--json"))["fidelity"] <= 100


@pytest.mark.parametrize(
    ("table", "clip", "message"),
    [("none.csv", "clip", "none.csv: no such file"), ("t.csv", "clp", "t.csv: no column 'clp'; it has clip, who, v")],
)
def test_the_example_says_what_is_wrong_in_a_line(table, clip, message, tmp_path, monkeypatch):
    (tmp_path / "t.csv").write_text("clip,who,v\na.wav,s,1\n")
    words = [table, "--clip", clip, "--speaker", "who", "--rating", "v=1:5:1", "--out", "out"]
    monkeypatch.setattr(sys, "argv", ["real_speech.py", *words])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=f"^error: {message}$"):
        runpy.run_path(str(EXAMPLE), run_name="__main__")


def test_the_example_reads_a_column_for_each_rater(tmp_path):
    clips = [str(Path(str(REAL)) / "mushra_codec/audio" / f"stim_{n:02}_ref.flac") for n in (1, 3, 5, 7)]
    table = {
        "clip": clips,
        "who": list("abcd"),
        "v_r1": [1, 2, 3, 4],
        "v_r2": [2, None, 4, 5],
        "v_mean": [1.5, 2, 3.5, 4.5],
    }
    pd.DataFrame(table).to_csv(tmp_path / "t.csv", index=False)
    load = loaded(EXAMPLE).load
    ratings = load(tmp_path / "t.csv", "clip", "who", ["v=1:5:1"], "_r*", tmp_path / "out").ratings
    assert ratings.groupby("rater_id")["score"].apply(list).to_dict() == {"_r1": [1, 2, 3, 4], "_r2": [2, 4, 5]}
    with pytest.raises(DataError, match=r"t.csv: no column 'v_q\*'; it has clip, who, v_r1, v_r2, v_mean"):
        load(tmp_path / "t.csv", "clip", "who", ["v=1:5:1"], "_q*", tmp_path / "other")


@pytest.mark.long
def test_the_example_goes_from_a_table_to_a_learning_curve(tmp_path, monkeypatch, capsys):
    """Nine clips of each of ten actors; the actors of the test split are heard there alone."""
    clips = Path(str(REAL)) / "emodb"
    rows = pd.read_csv(clips / "metadata.csv").groupby("speaker").head(9)
    rows.assign(clip=[str(clips / name) for name in rows["clip"]]).to_csv(tmp_path / "table.csv", index=False)
    example = loaded(EXAMPLE)
    monkeypatch.setattr(example, "SIZES", (30,))
    monkeypatch.setattr(example, "DRAWS", 2)
    words = [str(tmp_path / "table.csv"), "--clip", "clip", "--speaker", "speaker", "--out", str(tmp_path / "out")]
    words += ["--recipe", "small"]
    ratings = ["--rating", "valence_label=-1:1:0.5", "--rating", "arousal_label=-1:1:1"]
    monkeypatch.setattr(sys, "argv", ["real_speech.py", *words, *ratings])
    example.main()
    assert "report: " in capsys.readouterr().out
    curve = pd.read_csv(tmp_path / "out" / "learning_curve.csv")
    data = PairDataset.load(tmp_path / "out" / "data")
    trained = len(data.subset(["train", "validation"]).pairs)
    assert curve.groupby("pairs").size().to_dict() == {30: 4, trained: 2}
    arousal = curve[curve["dimension"] == "arousal_label"].groupby("pairs")["spearman"].mean()
    assert arousal[trained] > 0.5
    assert (tmp_path / "out" / "learning_curve.png").stat().st_size > 10_000
    report = json.loads((tmp_path / "out" / "report" / "comparison.json").read_text())
    assert [own["judge"] for own in report["reports"]] == ["run", "probe:nano", "acoustic", "constant"]
    tested = {pair.response_speaker for pair in data.subset("test").pairs}
    assert not tested & {pair.response_speaker for pair in data.subset(["train", "validation"]).pairs}
