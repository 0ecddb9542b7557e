"""SDiaReward: two chats per row become a context with roles, a response, and a preference that nobody gave."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from empathy_judge.data_modules.importers.corpora import sdiareward
from empathy_judge.data_modules.schema import PairDataset

from ...builders import Download, preferences


def turn(role: str, text: str | None, *clips: Any) -> dict[str, Any]:
    texts = [] if text is None else [{"type": "text", "text": text}]
    return {"role": role, "content": [*texts, *({"type": "audio", "audio": clip} for clip in clips)]}


class SDiaReward(Download):
    """Rows of chats in the layout of the README."""

    importer = sdiareward
    path = "rows.jsonl"

    def called(self, hertz: int) -> str:
        return self.tone(f"clips/{hertz}.wav", hertz=hertz)

    def row(self, chosen: int, rejected: int, context: int = 90, text: str = "I lost it.") -> dict[str, Any]:
        user = turn("user", text, self.called(context))
        chats = (("chosen", chosen), ("rejected", rejected))
        made = {name: [user, turn("assistant", f"Oh, {hertz}.", self.called(hertz))] for name, hertz in chats}
        self.rows.append(made)
        return made

    def preferences(self, dataset: PairDataset) -> list[tuple[Any, ...]]:
        """Response that was chosen, response that was rejected."""
        found = preferences(dataset, lambda pair: self.clip(pair.response), "dialogue_quality")
        assert len(found) == len(dataset.preferences)
        assert {own[2:] for own in found} == {("construction", 1.0)}
        return [(chosen, rejected) for chosen, rejected, *_ in found]


SOURCE = SDiaReward


def test_the_place_in_the_dataset_does_not_tell_the_chosen_one(source):
    for number in range(20):
        source.row(200 + number, 300 + number, context=90 + number, text=f"Number {number}.")
    dataset = source.load()
    chosen = {chosen for chosen, _ in source.preferences(dataset)}
    first = [source.clip(pair.response) in chosen for pair in dataset.pairs[::2]]
    assert len(dataset.pairs) == 40
    assert 4 <= sum(first) <= 16


def test_turns_with_roles(source):
    row = source.row(200, 300)
    row["chosen"] = [
        {"role": "system", "content": "You are kind."},
        turn("user", "Hi.", source.called(80), source.called(81)),
        turn("assistant", "Hello.", source.called(82)),
        turn("user", "Only typed."),
        *row["chosen"],
    ]
    dataset = source.load()
    (pair,) = [pair for pair in dataset.pairs if source.clip(pair.response) == "200"]
    assert [(t.role, source.clip(t.audio)) for t in pair.context] == [
        ("user", "80"), ("user", "81"), ("assistant", "82"), ("user", "90"),
    ]  # fmt: skip
    assert pair.context_text == "user: Hi.\nassistant: Hello.\nuser: Only typed.\nuser: I lost it."
    assert "Left out: 1 system turn. Context turns without a clip: 1." in dataset.card.description


def test_a_response_in_two_rows_is_one_pair_and_links_their_groups(source):
    source.row(200, 300)
    source.row(200, 400)
    source.row(500, 600, context=91, text="Another.")
    source.row(700, 800, context=92, text="I lost it.")  # the same words, said by somebody else
    dataset = source.load()
    assert source.preferences(dataset) == [("200", "300"), ("200", "400"), ("500", "600"), ("700", "800")]
    assert len(dataset.pairs) == 7
    group = {source.clip(pair.response): pair.group_id for pair in dataset.pairs}
    assert group["200"] == group["300"] == group["400"] == group["700"] == group["800"]
    assert group["500"] == group["600"] != group["200"]


def test_the_same_response_after_another_context_is_another_pair(source):
    source.row(200, 300)
    source.row(300, 200, context=91, text="Another.")
    dataset = source.load()
    assert source.preferences(dataset) == [("200", "300"), ("300", "200")]
    assert len(dataset.pairs) == 4
    assert len({pair.group_id for pair in dataset.pairs}) == 1


def test_json_jsonl_and_parquet_in_a_folder(source):
    first, second, third = source.row(200, 300), source.row(400, 500, text="B", context=91), source.row(600, 700)
    folder = source.folder / "hub"
    (folder / "data").mkdir(parents=True)
    (folder / "clips").symlink_to(source.folder / "clips")
    (folder / "train.json").write_text(json.dumps([first]))
    (folder / "test.jsonl").write_text(json.dumps(second) + "\n")
    audio = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    part = pa.struct([("type", pa.string()), ("text", pa.string()), ("audio", audio)])
    chat = pa.list_(pa.struct([("role", pa.string()), ("content", pa.list_(part))]))
    third = json.loads(json.dumps(third))  # the chats share a turn
    for made in third.values():
        for one in made:
            for item in one["content"]:
                if item["type"] == "audio":
                    item["audio"] = {"bytes": (source.folder / item["audio"]).read_bytes(), "path": None}
    pq.write_table(
        pa.Table.from_pylist([third], pa.schema([("chosen", chat), ("rejected", chat)])), folder / "data/x.parquet"
    )
    dataset = source.load("hub", audio=source.folder)
    assert sorted(source.preferences(dataset)) == [("200", "300"), ("400", "500"), ("600", "700")]


@pytest.mark.parametrize(
    ("chat", "reason"),
    [
        (None, "value None; expected a list of"),
        ([turn("user", "Hi.", "clips/90.wav")], "whose last turn is the assistant's and holds one clip"),
        ([turn("assistant", "Two.", "clips/90.wav", "clips/200.wav")], "holds one clip"),
        ([turn("tool", "x")], "expected {\"role\": \"user\" or \"assistant\""),
        ([{"role": "user"}], "value {'role': 'user'}; expected a part with audio or text"),
        ([{"role": "user", "content": [{"type": "image", "image": "x.png"}]}], "'image'"),
        ([turn("assistant", None, "../../x.wav")], "leaves the folder"),
        ([turn("assistant", None, None)], "expected a part with audio or text"),
    ],
)  # fmt: skip
def test_a_bad_chat_is_skipped(source, chat, reason):
    source.row(200, 300)
    source.row(400, 500)["rejected"] = chat
    dataset = source.skips("rows.jsonl, row 2 (line 2)", reason)
    assert source.preferences(dataset) == [("200", "300")]
    assert len(dataset.pairs) == 2
