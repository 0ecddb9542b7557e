"""What `commands.py` works on, made by the fixtures of the tests: run by it, not by the tests."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def test_inputs_are_made(dataset_folder, judge_folder, trained_run, backbone_folder):
    folder = Path(os.environ["KILLS_INPUTS"])
    for source, name in ((dataset_folder, "data"), (judge_folder, "judge"), (trained_run, "run")):
        shutil.copytree(source, folder / name)
    shutil.copytree(backbone_folder, folder / "backbone")
    for path in folder.rglob("*"):
        os.chmod(path, 0o755 if path.is_dir() else 0o644)  # for users who are not root
        if path.name in ("judge.json", "config.yaml"):
            text = path.read_text().replace(str(backbone_folder), str(folder / "backbone"))
            path.write_text(text.replace(str(dataset_folder), str(folder / "data")))
    rows = [f"p{n},data/context{n % 8}.wav,data/p{n:02d}.wav,ann,{n % 5 + 1}" for n in range(24)]
    for name, count in (("pairs", 24), ("pairs1", 12), ("pairs2", 24)):
        lines = ["pair_id,context_audio,response_audio,rater_id,warmth", *rows[:count]]
        (folder / f"{name}.csv").write_text("\n".join(lines))
    scores = [f"c{n},{who},warmth,{(n * step) % 7}" for n in range(200) for who, step in (("ann", 1), ("bob", 3))]
    (folder / "scores.csv").write_text("\n".join(["item,annotator,dimension,score", *scores]))
