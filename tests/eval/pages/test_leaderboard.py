"""The page of a leaderboard: what it plays, and that it is safe with hostile names."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import soundfile
from empathy_judge import leaderboard
from empathy_judge.core.errors import UserError
from empathy_judge.eval.pages.leaderboard import read_clips, render_board

from ..conftest import HOSTILE, Page


@pytest.fixture
def scored(tmp_path, make_tone) -> Path:
    """A folder with clips, their manifest, scores of two systems on eight contexts, and ratings of five contexts."""
    rows = [
        {"pair_id": f"{name}-{n}", "group_id": f"c{n}", "system_id": system, "context_audio": "c.wav",
         "response_audio": f"{name}{n}.wav", "warmth": 3 + lead + n / 10 * (1 if lead else -1), "warmth_label": "fair"}
        for name, system, lead in (("a", HOSTILE, 0.0), ("b", "plain", 0.8))
        for n in range(8)
    ]  # fmt: skip
    for name in ("c.wav", *(str(row["response_audio"]) for row in rows)):
        soundfile.write(tmp_path / name, make_tone(0.2, 200 + 10 * len(name), 0.1), 16_000)
    table = pd.DataFrame(rows)
    table[["pair_id", "context_audio", "response_audio"]].to_csv(tmp_path / "manifest.csv", index=False)
    table.drop(columns=["context_audio", "response_audio"]).to_csv(tmp_path / "scores.csv", index=False)
    own = table.loc[table["group_id"].isin([f"c{n}" for n in range(5)])]
    ratings = own.assign(rater_id="ann", dimension="warmth", score=own["warmth"] + np.arange(len(own)) / 10)
    ratings[["pair_id", "rater_id", "dimension", "score"]].to_csv(tmp_path / "ratings.csv", index=False)
    return tmp_path


def test_the_page_plays_what_tells_systems_apart_and_where_people_disagree(scored):
    found = leaderboard(scored / "scores.csv", ratings=scored / "ratings.csv")
    found.save(scored / "board", scored / "manifest.csv")
    text = (scored / "board" / "index.html").read_text()
    Page(text)
    # Three contexts with two responses each, and three responses with their contexts
    assert text.count("<audio ") == 3 * 3 + 3 * 2
    assert re.findall(r"<h4>c(\d)</h4>", text) == ["7", "6", "5"]
    assert re.findall(r"<h4>(\w-\d)</h4>", text) == ["b-4", "b-3", "b-2"]
    assert HOSTILE not in text
    assert "plain: judge 4.20, people 5.10 (1 rating)" in re.sub(r"\s+", " ", text)
    assert found.report.signature in text


def test_pairs_that_are_not_shown_are_not_looked_for(scored):
    found, asked = leaderboard(scored / "scores.csv", ratings=scored / "ratings.csv"), []
    assert found.ratings is not None
    find = read_clips(scored / "manifest.csv")
    render_board(found.report, found.answers.rows, found.ratings.rows, lambda name: asked.append(name) or find(name))
    assert len(asked) == 3 * 2 + 3


def test_without_clips_the_page_has_no_players_and_all_figures(scored):
    found = leaderboard(scored / "scores.csv")
    found.save(scored / "board")
    text = (scored / "board" / "index.html").read_text()
    assert "<audio" not in text
    assert "+1.50" in text  # 0.8, and 0.2 for each context of 0 to 7
    assert 'class="higher"' in text
    frame = pd.read_csv(scored / "board" / "differences.csv")
    assert frame.loc[0, "difference_value"] == pytest.approx(1.5)


def test_clips_outside_the_folder_are_not_played_and_other_tables_refused(scored):
    found = leaderboard(scored / "scores.csv")
    inner = scored / "inner"
    inner.mkdir()
    manifest = pd.read_csv(scored / "manifest.csv")
    manifest["response_audio"] = "../" + manifest["response_audio"]
    manifest.to_csv(inner / "manifest.csv", index=False)
    found.save(scored / "board", inner / "manifest.csv")
    assert "<audio" not in (scored / "board" / "index.html").read_text()
    with pytest.raises(UserError, match="no column 'response_audio'; expected the manifest"):
        found.save(scored / "board", scored / "scores.csv")
