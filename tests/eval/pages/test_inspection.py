"""The inspection page: its numbers, its disputed items, its players, and hostile or missing data."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
from empathy_judge.audio.decode import decode
from empathy_judge.data_modules.ratings import Dimension
from empathy_judge.data_modules.schema import DatasetCard, PairDataset
from empathy_judge.data_modules.writing import write_dataset
from empathy_judge.eval.inspection import inspection_facts

from ...conftest import encoded, tone
from ..conftest import EMPATHY, HOSTILE, PAIRS, pair_rows, rating_rows, write_page
from .browser import check_page, needs_chromium

RATE = 16_000


NO_RATINGS = rating_rows().iloc[:0]


# ---------------------------------------------------------------- facts


# ---------------------------------------------------------------- charts


# ---------------------------------------------------------------- the page


def test_the_numbers_on_the_page_are_those_computed(inspected, tmp_path):
    page = inspected(splits=["train"] * 20 + ["test"] * 10)
    dataset = PairDataset.load(tmp_path / "data")
    facts = inspection_facts(dataset)
    panel = facts.reliability["empathy"]
    for key in ("spearman", "panel_mean", "panel_reliability", "krippendorff_alpha"):
        value, low, high = (
            f"{getattr(getattr(panel, key), part):.2f}".replace("-", "\N{MINUS SIGN}")
            for part in ("value", "low", "high")
        )
        assert re.search(rf"{value} [^.]*? {low} to {high}", page.text), key
    assert "4 raters gave 120 ratings to 30 pairs, 4 each." in page.text
    assert f"a Spearman correlation of {panel.spearman.value:.2f} (95 % interval" in page.text
    assert f"can expect no more than {panel.panel_mean.value:.2f}" in page.text
    assert "Every pair has 4 raters." in page.text
    assert "train 20 6 2 0 0 4 80 20" in page.text
    assert dataset.card.content_hash in page.text
    assert dataset.split_hash() in page.text
    for rater in facts.ratings["empathy"].raters:
        severity = f"{rater.severity.value:.2f}".replace("-", "\N{MINUS SIGN}")
        assert f"{rater.rater_id} 30 {rater.mean:.2f} {severity}" in page.text
    shares = dataset.ratings["score"].value_counts(normalize=True)
    alt = next(
        svg["aria-label"] for svg in page.all("svg") if svg.get("aria-label", "").startswith("Ratings of empathy. ")
    )
    assert alt == "Ratings of empathy. " + "; ".join(f"{step}: {100 * shares[step]:.0f} %" for step in (1, 2, 3, 4, 5))
    assert "Groups leak 6 group-0 test, train" in page.text


def test_a_fast_rater_is_named_where_times_are_known(inspected):
    ratings = rating_rows()
    seconds = np.where(ratings["rater_id"] == "rater-2", 1.5, 9.0)
    page = inspected(ratings=ratings.assign(seconds=seconds))
    evidence = "took less than a third of the others' time on 30 of 30 items; median 1.5 s, of the others 9.0 s"
    assert f"fast {evidence}" in page.text
    assert "rater-2 (fast on empathy); the evidence is below." in page.text
    assert "agreement with the others median time (s) to ask about" in page.text
    # Without times the page claims nothing about rapid responding
    text = inspected(ratings=ratings).text
    assert "None looks constant, random or like a copy of another." in text
    assert "median time" not in text
    text = inspected(ratings=ratings.assign(seconds=9.0)).text
    assert "None looks constant, random, far faster than the others or like a copy of another." in text


def test_hostile_texts_are_text(inspected, tmp_path):
    rows = [
        {
            **row,
            "pair_id": HOSTILE + row["pair_id"],
            "group_id": HOSTILE + row["group_id"],
            "context_audio": [{"role": HOSTILE, "audio": row["context_audio"]}] * 2,
            **dict.fromkeys(("system_id", "response_speaker", "setting", "language"), HOSTILE),
            **dict.fromkeys(("situation", "context_text", "response_text"), HOSTILE + "\n\x00" + HOSTILE),
        }
        for row in pair_rows()
    ]
    ratings = rating_rows()
    ratings["pair_id"] = HOSTILE + ratings["pair_id"]
    ratings["rater_id"] = HOSTILE + ratings["rater_id"]
    page = inspected(
        rows, ratings, splits=[f"{HOSTILE}{n % 2}" for n in range(PAIRS)],
        name=HOSTILE, source=HOSTILE, licence=HOSTILE, description=HOSTILE,
    )  # fmt: skip
    page.assert_alone()
    assert page.text.count(HOSTILE) > 20 * 10
    (tmp_path / "data" / "skipped.csv").write_text(f'where,{HOSTILE.replace(chr(34), "")}\n"a","<b>bold</b>"\n')
    again = write_page(tmp_path / "data", tmp_path / "page")
    assert "<b>bold</b>" in again.text
    assert "The import left out 1 pair " in again.text


def test_pages_without_ratings_or_context(inspected):
    preferences = pd.DataFrame(
        {
            "chosen_id": ["pair-00"], "rejected_id": ["pair-01"], "rater_id": ["a"], "dimension": ["empathy"],
            "strength": [1.0],
        }
    )  # fmt: skip
    page = inspected(pair_rows(context=False), NO_RATINGS, preferences)
    for expected in (
        "30 pairs, 1 comparison, 0.2 minutes of audio",
        "Nobody rated empathy.",
        "1 rater made 1 comparison of 1 couple of responses; 0 ties.",
        "There is no context audio.",
        "Nobody rated the pairs.",
        "The pairs are not split yet",
    ):
        assert expected in page.text
    assert page.all("audio") == []
    assert len(page.all("svg")) == 1  # durations of responses


def test_published_means_have_a_ceiling_and_no_rater(inspected):
    by_pair = rating_rows().groupby(["pair_id", "dimension"], sort=False)["score"]
    means = by_pair.agg(score="mean", sd="std", n="count").reset_index().assign(rater_id="panel")
    page = inspected(ratings=means, dimensions=(Dimension("empathy", 1, 5),))
    assert "30 pairs have a published mean, each of 4 ratings. Because they disagree among themselves" in page.text
    assert "Rater by rater" not in page.text


def test_disputed_comparisons_in_their_order_with_both_responses(inspected, tmp_path):
    ids = [f"pair-{number:02d}" for number in range(PAIRS)]
    cases = {(0, 6): "112", (1, 7): "12", (2, 3): "1212", (4, 5): "11", (8, 9): "1-2"}  # verdicts, - = tie
    rows = [
        (ids[a] if verdict != "2" else ids[b], ids[b] if verdict != "2" else ids[a], f"r{n}", "empathy", verdict != "-")
        for (a, b), verdicts in cases.items()
        for n, verdict in enumerate(verdicts)
    ]
    columns = ["chosen_id", "rejected_id", "rater_id", "dimension", "strength"]
    preferences = pd.DataFrame(rows, columns=columns).astype({"strength": float})
    page = inspected(None, NO_RATINGS, preferences)
    # 2/3 against the most frequent verdict, 1/2 of four, 1/2 of two, 1/3
    assert re.findall(
        r"(\d\. pair-\d\d or pair-\d\d\?) (\d) preferred the first, (\d) the second, (\d) neither", page.text
    ) == [
        ("1. pair-08 or pair-09?", "1", "1", "1"),
        ("2. pair-02 or pair-03?", "2", "2", "0"),
        ("3. pair-01 or pair-07?", "1", "1", "0"),
        ("4. pair-00 or pair-06?", "2", "1", "0"),
    ]
    # Couples of one group (0 and 6, 1 and 7) have one context, the others two
    players = [player["aria-label"] for player in page.all("audio")]
    assert sum(label.startswith("Response of ") for label in players) == 8
    assert sum(label.startswith("Context (user) of ") for label in players) == 6
    pairs = {pair.pair_id: pair for pair in PairDataset.load(tmp_path / "data").pairs}
    for player in page.all("audio"):
        pair = pairs[player["aria-label"][-7:]]
        source = pair.response if player["aria-label"].startswith("Response") else pair.context[0].audio
        np.testing.assert_array_equal(decode(tmp_path / "page" / player["src"], RATE), decode(source, RATE))


def test_a_damaged_clip_is_named_and_the_rest_plays(inspected, tmp_path):
    folder = tmp_path / "data" / "audio"
    folder.mkdir(parents=True)
    rows = pair_rows()
    for row in rows:
        (folder / f"{row['pair_id']}.wav").write_bytes(row["response_audio"])
        row["response_audio"] = f"audio/{row['pair_id']}.wav"
    first = re.findall(r"1\. (pair-\d\d)", inspected(rows).text)[0]
    (folder / f"{first}.wav").write_bytes(b"no sound any more")
    page = write_page(tmp_path / "data", tmp_path / "page")
    assert len(page.all("audio")) == 39
    assert page.text.count("Cannot be played: ") == 1
    assert re.search(rf"In 1 pair: 1 \w+.*{first}", page.text)


def test_a_page_is_replaced_with_its_clips_and_nothing_else(inspected, tmp_path):
    first = inspected()
    (tmp_path / "page" / "audio" / "my-notes.txt").write_text("mine")
    assert write_page(tmp_path / "data", tmp_path / "page").source == first.source
    data = tmp_path / "other"
    card = DatasetCard("other", (EMPATHY,), "a test", "CC0-1.0")
    rows = [
        row | {"response_audio": encoded(tone(0.2, 900 + n, 0.4))} for n, row in enumerate(pair_rows(context=False))
    ]
    write_dataset(data, card, pd.DataFrame(rows, dtype=object), rating_rows())
    page = write_page(data, tmp_path / "page")
    players = page.all("audio")
    assert all(
        re.fullmatch(r"audio/clip-[0-9a-f]{16}\.wav", player["src"]) and "controls" in player for player in players
    )
    page.assert_alone()
    assert page.all("html") == [{"lang": "en"}]
    assert [svg for svg in page.all("svg") if svg.get("role") != "img" or not svg.get("aria-label")] == []
    played = {player["src"].removeprefix("audio/") for player in players}
    assert len(played) == 20
    assert {path.name for path in (tmp_path / "page" / "audio").iterdir()} == {*played, "my-notes.txt"}


@pytest.mark.long
@needs_chromium
def test_an_inspection_in_a_browser(inspected, tmp_path):
    """Long names, raters to ask about, clips to look at, skipped pairs, and eight systems that are in every split."""
    pairs = [
        row | {"system_id": f"system-{number % 8}-{'y' * 40}", "situation": f"Somewhere {'z' * 200}"}
        for number, row in enumerate(pair_rows())
    ]
    pairs[4]["response_audio"] = encoded(np.zeros(RATE, dtype=np.float32))  # silent
    dimensions = (EMPATHY, Dimension(f"perceived_{'w' * 60}", 1, 5, 1))
    ratings = rating_rows(dimensions)
    ratings["seconds"] = np.where(ratings["rater_id"] == "rater-2", 1.5, 9.0)
    ratings["rater_id"] = ratings["rater_id"].replace({"rater-1": f"annotator-{'x' * 60}@university.example.org"})
    splits = [("train", "test", "validation")[number // 8 % 3] for number in range(PAIRS)]
    page = inspected(pairs, ratings, dimensions=dimensions, splits=splits, name=f"tones-{'v' * 60}")
    assert "silent" in page.text
    assert "took less than a third" in page.text
    index = tmp_path / "page" / "index.html"
    durations = check_page(index, index.parent)
    assert len(durations) == 2 * 20 * 2
    assert min(durations) > 0.1
