"""What inspect prints."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
from empathy_judge.data_modules.overview import inspect_dataset
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.eval import rendering
from empathy_judge.eval.inspection import inspection_facts
from empathy_judge.eval.other_views import inspection_tables

from ..conftest import encoded
from .conftest import pair_rows, printed_at, rating_rows


def test_tables_for_the_terminal(inspected, tmp_path):
    """Names come from outside and are no markup; long lists are cut."""
    silence = {"response_audio": encoded(np.zeros(16_000, np.float32))}
    rows = [{**row, "group_id": f"[red]{row['group_id']}"} for row in pair_rows()]
    ratings = rating_rows(raters=29).query("pair_id != 'pair-29'")
    odd = ratings.query("rater_id == 'rater-0'").assign(rater_id="[b]odd", score=3.0)
    compared = [("pair-00", "pair-01", "a", "empathy", 1.0), ("pair-00", "pair-01", "b", "empathy", 0.0)]
    inspected(
        [{**row, **(silence if n < 12 else {})} for n, row in enumerate(rows)],
        pd.concat([ratings, odd]),
        pd.DataFrame(compared, columns=["chosen_id", "rejected_id", "rater_id", "dimension", "strength"]),
        splits=["train"] * 20 + ["test"] * 10,
    )
    dataset = PairDataset.load(tmp_path / "data")
    found, facts = inspect_dataset(dataset), inspection_facts(dataset)
    text = printed_at(150, inspection_tables(found, facts))
    lines = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    cells = {own[0]: own[1:] for own in lines}
    panel, rater = facts.reliability["empathy"], facts.ratings["empathy"].raters[0]
    assert "tones (human ratings)" in text
    assert cells["pairs"] == ["30", "20", "10"]
    assert cells["leave-one-out human agreement (Spearman)"] == [rendering.ranged(panel.spearman)]
    assert cells["noise ceiling of the panel mean"] == [rendering.ranged(panel.panel_mean)]
    assert cells["raters per pair"] == ["30 to 30, median 30"]
    seconds = found.seconds["response"]
    assert cells["response"][1:3] == [f"{seconds.minimum:.2f}", f"{seconds.median:.2f}"]
    assert (cells["ties"], cells["unanimous couples"]) == (["1"], ["0"])
    mean, spread = (rendering.number(own) for own in (rater.mean, rater.spread))
    severity, agreement = rendering.signed(rater.severity.value), rendering.ranged(rater.agreement)
    assert cells["[b]odd"] == ["29", mean, severity, spread, agreement, rendering.percent(rater.scale_share)]
    assert cells["constant"] == ["[b]odd", rater.flags[0].evidence]
    assert "rater-9" not in text
    assert "and 5 more (--json lists all)" in " ".join(text.split())
    assert ["silent", "pair-00, response"] in [own[:2] for own in lines]
    assert cells["silent"][0] == "and 2 more"
    assert ["group_id in several splits", "[red]group-0", "test, train"] in lines
    assert cells["without rating"][0] == "pair-29"
