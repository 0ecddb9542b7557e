"""Sets of real speech with ratings, as pair datasets that the programs beside this one measure on."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from empathy_judge import PairDataset


def load_set(name: str, data: Path, work: Path) -> PairDataset:
    """A set as a pair dataset, of which `tag:official` is the split that its makers gave."""
    folder = work / name / "data"
    if folder.exists():
        return PairDataset.load(folder)
    source = data / name
    if name == "mushra_codec":
        rows = pd.read_csv(source / "pairs.csv")
        pairs = rows.assign(
            response_speaker=rows["speaker_id"],
            response_audio=[str(source / file) for file in rows["response_audio"]],
            context_audio=[str(source / file) for file in rows["context_audio"]],
        ).drop(columns="speaker_id")
        ratings = pd.read_csv(source / "ratings.csv", dtype={"rater_id": str})
        return PairDataset.from_frame(pairs, ratings, dimensions=["fidelity=0:100:1"], folder=folder)
    rows = pd.read_csv(source / "metadata.csv", dtype={"speaker": str})
    ids = [Path(clip).stem for clip in rows["clip"]]
    pairs = pd.DataFrame(
        {
            "pair_id": ids,
            "response_audio": [str(source / clip) for clip in rows["clip"]],
            "response_speaker": rows["speaker"],
            "group_id": rows["speaker"],
        }
    )
    if name == "emodb":
        scores = pd.DataFrame({dimension: rows[f"{dimension}_label"] for dimension in ("valence", "arousal")})
        ratings = scores.assign(pair_id=ids).melt("pair_id", var_name="dimension", value_name="score")
        scales = ["valence=-1:1:0.5", "arousal=-1:1:1"]
        return PairDataset.from_frame(
            pairs, ratings.assign(rater_id="label"), dimensions=scales, folder=folder, synthetic=True
        )
    pairs["tag:official"] = rows["split"]
    columns = {f"prosodic_r{number}": f"r{number}" for number in range(1, 6)}
    scores = pd.DataFrame({new: rows[old] for old, new in columns.items()}).assign(pair_id=ids)
    ratings = scores.melt("pair_id", var_name="rater_id", value_name="score").dropna().assign(dimension="prosodic")
    return PairDataset.from_frame(pairs, ratings, dimensions=["prosodic=0:10:0.5"], folder=folder)
