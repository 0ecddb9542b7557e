"""The inspection page: its numbers, its disputed items, its players, and hostile or missing data."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from empathy_judge.data_modules.audio import decode
from empathy_judge.data_modules.overview import inspect_dataset
from empathy_judge.data_modules.ratings import Dimension
from empathy_judge.data_modules.schema import DatasetCard, PairDataset
from empathy_judge.data_modules.writing import write_dataset, write_splits
from empathy_judge.eval import rendering
from empathy_judge.eval.inspection import inspection_facts, most_disputed, rating_bins
from empathy_judge.eval.other_views import inspection_tables
from empathy_judge.eval.pages import charts
from empathy_judge.eval.pages.inspection import write_inspection_page

from ...conftest import encoded, tone
from ..conftest import HOSTILE, Page, printed_at

EMPATHY = Dimension("empathy", 1, 5, 1)
RATE = 16_000
PAIRS, GROUPS, RATERS = 30, 6, 4


def pair_rows(context: bool = True) -> list[dict[str, Any]]:
    """Pairs with different responses, in groups that share a context."""
    return [
        {
            "pair_id": f"pair-{number:02d}",
            "group_id": f"group-{number % GROUPS}",
            "system_id": f"system-{number % 2}",
            "response_audio": encoded(tone(0.2 + number / 100, 300 + 10 * number, 0.4)),
            **({"context_audio": encoded(tone(0.2, 150 + number % GROUPS, 0.4))} if context else {}),
        }
        for number in range(PAIRS)
    ]


def rating_rows(dimensions: tuple[Dimension, ...] = (EMPATHY,), raters: int = RATERS) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = []
    for dimension in dimensions:
        for number in range(PAIRS):
            for rater in range(raters):
                share = np.clip((number % 5) / 4 + rng.normal(0, 0.25), 0, 1)
                steps = (dimension.maximum - dimension.minimum) / (dimension.step or 1e-6)
                score = dimension.minimum + round(share * steps) * (dimension.step or 1e-6)
                rows.append((f"pair-{number:02d}", f"rater-{rater}", dimension.name, min(score, dimension.maximum)))
    return pd.DataFrame(rows, columns=["pair_id", "rater_id", "dimension", "score"])


NO_RATINGS = rating_rows().iloc[:0]
Inspected = Callable[..., Page]


@pytest.fixture
def inspected(tmp_path) -> Inspected:
    """Writes a dataset, inspects it, and reads the page back."""

    def inspect(
        pairs: list[dict[str, Any]] | None = None,
        ratings: pd.DataFrame | None = None,
        preferences: pd.DataFrame | None = None,
        dimensions: tuple[Dimension, ...] = (EMPATHY,),
        splits: list[str | None] | None = None,
        **card: Any,
    ) -> Page:
        data = tmp_path / "data"
        written = DatasetCard(
            **{"name": "tones", "source": "a test", "licence": "CC0-1.0", **card, "dimensions": dimensions}
        )
        frame = pd.DataFrame(pair_rows() if pairs is None else pairs, dtype=object)
        write_dataset(data, written, frame, rating_rows(dimensions) if ratings is None else ratings, preferences)
        if splits is not None:
            write_splits(data, splits)
        return write_page(data, tmp_path / "page")

    return inspect


def write_page(data: Path, out: Path) -> Page:
    dataset = PairDataset.load(data)
    write_inspection_page(dataset, inspect_dataset(PairDataset.load(data)), inspection_facts(dataset), out)
    return Page((out / "index.html").read_text(encoding="utf-8"))


# ---------------------------------------------------------------- facts


def ratings_of(**scores: list[float]) -> pd.DataFrame:
    rows = [(pair_id, f"r{n}", score) for pair_id, own in scores.items() for n, score in enumerate(own)]
    return pd.DataFrame(rows, columns=["pair_id", "rater_id", "score"])


def test_the_most_disputed_items_in_their_order():
    ratings = ratings_of(
        single=[5], agreed=[3, 3, 3], mild=[3, 4], wide=[1, 5], tied_b=[2, 4, 2, 4], tied_a=[4, 2, 4, 2],
        three=[1, 3, 2],
    )  # fmt: skip
    found = most_disputed(ratings)
    # mild (2 raters) has sqrt(1/2), three has 1, the tied ones sqrt(4/3), wide sqrt(8)
    assert [item.pair_id for item in found] == ["wide", "tied_a", "tied_b", "three", "mild"]
    assert [item.spread for item in found] == pytest.approx([8**0.5, (4 / 3) ** 0.5, (4 / 3) ** 0.5, 1, 0.5**0.5])
    assert found[1].ratings == (("r1", 2.0), ("r3", 2.0), ("r0", 4.0), ("r2", 4.0))
    equal = most_disputed(ratings_of(a=[2, 3, 4], b=[2, 2, 3, 4, 4], c=[1, 2, 3]))  # all have exactly 1: more raters
    assert [(item.pair_id, item.spread) for item in equal] == [("b", 1.0), ("a", 1.0), ("c", 1.0)]


@pytest.mark.parametrize(
    ("dimension", "edges"),
    [
        (EMPATHY, [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]),
        (Dimension("half", -1, 0, 0.5), [-1.25, -0.75, -0.25, 0.25]),
        (Dimension("fine", 0, 100, 1), list(np.linspace(0, 100, 21))),
        (Dimension("free", 0, 1), list(np.linspace(0, 1, 21))),
        (Dimension("twenty-one", 0, 20, 1), list(np.arange(22) - 0.5)),
    ],
)
def test_bins_of_a_scale(dimension, edges):
    np.testing.assert_allclose(rating_bins(dimension), edges, atol=1e-12)


def test_facts_of_ratings_and_preferences(tmp_path):
    ratings = rating_rows().query("pair_id != 'pair-07'")
    ratings = ratings.drop(ratings.query("pair_id == 'pair-03' and rater_id == 'rater-0'").index)
    compared = [
        ("pair-00", "pair-01", "a", 1.0), ("pair-01", "pair-00", "b", 2.0),  # they differ
        ("pair-02", "pair-03", "a", 1.0), ("pair-02", "pair-03", "b", 2.0),  # alike
        ("pair-04", "pair-05", "a", 0.0), ("pair-05", "pair-04", "b", 0.0),  # both call it a tie
        ("pair-06", "pair-08", "c", 1.0),
    ]  # fmt: skip
    preferences = pd.DataFrame(
        [(*row[:3], "empathy", row[3]) for row in compared],
        columns=["chosen_id", "rejected_id", "rater_id", "dimension", "strength"],
    )
    card = DatasetCard("tones", (EMPATHY,), "a test", "CC0-1.0")
    write_dataset(tmp_path / "data", card, pd.DataFrame(pair_rows(), dtype=object), ratings, preferences)
    (tmp_path / "data" / "skipped.csv").write_text('where,reason\n"a.csv, row 3","cut off, ""badly"""\n')
    facts = inspection_facts(PairDataset.load(tmp_path / "data"))
    own = facts.ratings["empathy"]
    assert own.pairs_by_raters == {0: 1, 3: 1, 4: 28}
    expected = [int((ratings["score"] == step).sum()) for step in (1, 2, 3, 4, 5)]
    assert [*own.scores.counts] == expected
    assert np.sum(list(own.scores_by_rater.values()), axis=0).tolist() == expected
    assert sum(own.scores_by_rater["rater-0"]) == 28
    assert [rater.n_ratings for rater in own.raters] == [28, 29, 29, 29]
    assert facts.preferences["empathy"].as_json() == {
        "comparisons": 7, "raters": 3, "ties": 2, "couples": 4, "shared_couples": 3, "unanimous_couples": 2,
        "disputed": [{"pair_ids": ["pair-00", "pair-01"], "votes": [1, 0, 1]}],
    }  # fmt: skip
    assert [*facts.skipped] == [{"where": "a.csv, row 3", "reason": 'cut off, "badly"'}]
    assert json.loads(json.dumps(facts.as_json(), allow_nan=False))["ratings"]["empathy"]["pairs_by_raters"]["0"] == 1


def test_tables_for_the_terminal(inspected, tmp_path):
    """Names come from outside and are no markup; long lists are cut."""
    silence = {"response_audio": encoded(np.zeros(RATE, np.float32))}
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
    lines = [[cell.strip() for cell in line.strip("│┃ ").split("│")] for line in text.splitlines()]
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


# ---------------------------------------------------------------- charts


def test_a_histogram_writes_shares_that_are_those_of_its_counts():
    chart = charts.histogram((0.5, 1.5, 2.5, 3.5), (30, 0, 10), "rating", "in <words>", ticks=(1, 2, 3))
    texts = [text for text in re.findall(r">([^<]*)</text>", chart) if text]
    assert texts == ["1", "2", "3", "rating", "75 %", "0", "25 %"]
    assert 'aria-label="in &lt;words&gt;"' in chart


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
