"""What importers of corpora collect: groups by links, and each label once."""

from __future__ import annotations

import pytest
from empathy_judge.core.errors import DataError
from empathy_judge.data_modules.importers.clips import ClipCell
from empathy_judge.data_modules.importers.collector import Collector
from empathy_judge.data_modules.ratings import Dimension
from empathy_judge.data_modules.schema import DatasetCard

from ..builders import wav

WARMTH = Dimension("warmth", 1, 5, 1)
CARD = DatasetCard("made", (WARMTH,), "here", "none")


@pytest.fixture
def responses(tmp_path) -> list[dict[str, ClipCell]]:
    for hertz in (200, 300, 400, 500):
        (tmp_path / f"{hertz}.wav").write_bytes(wav(hertz))
    return [{"response_audio": ClipCell(tmp_path / f"{hertz}.wav", "row 1")} for hertz in (200, 300, 400, 500)]


def test_pairs_that_share_a_link_directly_or_not_are_one_group_and_ids_are_of_content(responses):
    found, links = Collector(), (["a"], ["b"], ["a", "b"], [])
    first, second, third, alone = map(found.add_pair, responses, links)
    assert found.add_pair(responses[0], ["c"]) == first
    groups = {pair["pair_id"]: pair["group_id"] for pair in found.imported(CARD).pairs}
    assert groups[first] == groups[second] == groups[third] != groups[alone]
    assert found.add_pair({**responses[0], "system_id": "v2"}, []) not in groups
    assert found.add_pair(responses[0], [], "its own") == "its own"


def test_a_label_is_given_once_and_on_the_scale(responses):
    found = Collector()
    one, other = (found.add_pair(response, []) for response in responses[:2])
    found.add_rating(one, "ann", "warmth", 4, "row 1", WARMTH)
    found.add_preference(one, other, "ann", "warmth", 0, "row 1")
    imported = found.imported(CARD, rated=True, compared=True)
    assert imported.ratings is not None
    assert imported.preferences is not None
    assert imported.ratings["score"].tolist() == [4.0]
    assert imported.preferences["strength"].tolist() == [0.0]
    for rater, score, part in (
        ("ann", 3, "row 1 already"),
        ("", 3, "rater ''"),
        ("b", 6, "1 to 5"),
        ("b", 2.5, "whole"),
    ):
        with pytest.raises(DataError, match=f"^row 2: .*{part}"):
            found.add_rating(one, rater, "warmth", score, "row 2", WARMTH, whole=True)
    for pair, part in ((one, "both clips are the same"), (other, "row 1 already")):
        with pytest.raises(DataError, match=part):
            found.add_preference(one, pair, "ann", "warmth", 1, "row 2")
