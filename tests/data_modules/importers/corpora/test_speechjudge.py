"""SpeechJudge-Data: one preference per rater, from Parquet shards with embedded audio or from JSONL with paths."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from empathy_judge.data_modules.importers.corpora import speechjudge
from empathy_judge.data_modules.schema import PairDataset

from ...builders import Download, preferences, reasons

_AUDIO = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


class SpeechJudge(Download):
    """Comparisons in the layout of the card."""

    importer = speechjudge
    path = "rows.jsonl"

    def compare(self, hertz: tuple[int, int], entries: list[Any], **values: Any) -> dict[str, Any]:
        """Clips are called by their frequency; raters are r0, r1, ..."""
        voted = [entry[0] for entry in entries if isinstance(entry, str) and entry.startswith(("A", "B"))]
        row = {
            "index": str(len(self.rows)), "subset": "expressive", "language_setting": "en2zh",
            "prompt": self.tone("clips/voice.wav", hertz=90), "prompt_text": "Hello.", "target_text": "You did it.",
            "audioA": self.tone(f"clips/{hertz[0]}.wav", hertz=hertz[0]),
            "audioB": self.tone(f"clips/{hertz[1]}.wav", hertz=hertz[1]),
            "rater": [f"r{number}" for number in range(len(entries))],
            "audioA_text_accuracy": [1] * len(entries), "audioB_text_accuracy": [0] * len(entries),
            "naturalness_annotation": entries,
            "naturalness_label": max(set(voted), key=voted.count) if voted else "Tie",
            "chosen": True, "gemini-2.5-flash": "",
        } | values  # fmt: skip
        self.rows.append(row)
        return row

    def parquet(self, name: str, rows: list[dict[str, Any]]) -> None:
        audio = ("audioA", "audioB", "prompt")
        embedded = [
            {**row, **{k: {"bytes": (self.folder / row[k]).read_bytes(), "path": None} for k in audio}} for row in rows
        ]
        lists = pa.list_(pa.string())
        types = {**dict.fromkeys(audio, _AUDIO), "rater": lists, "naturalness_annotation": lists, "chosen": pa.bool_()}
        schema = pa.schema([(k, types.get(k, pa.string())) for k in rows[0] if not k.endswith("accuracy")])
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(embedded, schema), self.folder / name)

    def preferences(self, dataset: PairDataset) -> list[tuple[Any, ...]]:
        """Clip that was chosen, clip that was rejected, rater, strength."""
        return preferences(dataset, lambda pair: self.clip(pair.response))


SOURCE = SpeechJudge


def test_every_rater_has_a_preference_of_a_strength(source):
    ties = ["Tie (missing reason)", "Tie (both not good)", "Tie (both very good)"]
    source.compare((200, 300), ["A+1", "A+2", "B+1", "B+2", *ties])
    dataset = source.load()
    assert source.preferences(dataset) == [
        ("200", "300", "r0", 1.0), ("200", "300", "r1", 2.0), ("300", "200", "r2", 1.0), ("300", "200", "r3", 2.0),
        ("200", "300", "r4", 0.0), ("200", "300", "r5", 0.0), ("200", "300", "r6", 0.0),
    ]  # fmt: skip
    assert len(dataset.ratings) == 0
    assert [dimension.name for dimension in dataset.card.dimensions] == ["naturalness"]
    assert dataset.card.description.startswith(
        "Preferences without scores; A+1: 1, A+2: 1, B+1: 1, B+2: 1, Tie (missing reason): 1, Tie (both not good): 1, "
        "Tie (both very good): 1."
    )
    assert (dataset.card.licence, dataset.card.synthetic) == ("CC BY-NC 4.0; access on request", False)


def test_the_bool_chosen_is_no_clip(source):
    source.compare((200, 300), ["B+1"], chosen=False)
    source.compare((400, 500), ["B+1"], chosen=True)
    source.compare((600, 700), ["A+1"], chosen=False)
    assert [(c, r) for c, r, _, _ in source.preferences(source.load())] == [
        ("300", "200"),
        ("500", "400"),
        ("600", "700"),
    ]


def test_columns_of_a_pair(source):
    source.compare((200, 300), ["A+1"])
    source.compare((400, 500), ["A+1"], target_text="Go on.", subset="regular", language_setting="zh2mixed")
    source.tone("clips/other.wav", hertz=80)
    source.rows[1]["prompt"] = "clips/other.wav"
    dataset = source.load()
    first, second, third, fourth = dataset.pairs
    assert (first.context, first.situation, first.system_id, first.context_text) == ((), None, None, None)
    assert (first.setting, first.language, first.response_text) == ("expressive/en2zh", "zh", "You did it.")
    assert (third.setting, third.language, third.response_text) == ("regular/zh2mixed", "mixed", "Go on.")
    assert first.group_id == second.group_id != third.group_id == fourth.group_id
    assert first.response_speaker == second.response_speaker != third.response_speaker


def test_parquet_shards_in_a_folder(source):
    source.compare((200, 300), ["A+1", "B+2"])
    source.compare((400, 200), ["Tie (missing reason)"])
    source.compare((500, 600), ["B+1"], target_text="Go on.")
    for number, name in enumerate(("train-00000-of-00002", "train-00001-of-00002", "dev-00000-of-00001")):
        source.parquet(f"hub/{name}.parquet", source.rows[number : number + 1])
    (source.folder / "hub/README.md").write_text("card")
    (source.folder / "hub/.cache").mkdir()
    (source.folder / "hub/.cache/x.parquet").write_bytes(b"half a download")
    dataset = source.load("hub")
    assert sorted(source.preferences(dataset)) == [
        ("200", "300", "r0", 1.0), ("300", "200", "r1", 2.0), ("400", "200", "r0", 0.0), ("600", "500", "r0", 1.0),
    ]  # fmt: skip
    assert len(dataset.pairs) == 5
    assert len({pair.group_id for pair in dataset.pairs}) == 2
    assert len({pair.response_speaker for pair in dataset.pairs}) == 1
    ids = {pair.pair_id for pair in dataset.pairs}
    one = source.load("hub/dev-00000-of-00001.parquet")
    assert {pair.pair_id for pair in one.pairs} < ids


def test_a_path_beside_null_bytes(source):
    row = source.compare((200, 300), ["A+1"])
    row["audioA"] = {"bytes": None, "path": row["audioA"]}
    assert source.preferences(source.load()) == [("200", "300", "r0", 1.0)]


@pytest.mark.parametrize("entry", ["A", "A+3", "a+1", "Tie", "", None, 1, ["A+1"]])
def test_an_unknown_entry_is_skipped_alone(source, entry):
    source.compare((200, 300), ["A+1", entry, "B+1"])
    where = "rows.jsonl, row 1 (line 1), column 'naturalness_annotation', rater 'r1'"
    reason = f"{where}: value {entry!r}; expected A+1 | A+2 | B+1 | B+2 | Tie (missing reason) |"
    dataset = source.skips(where, reason)
    assert [rater for *_, rater, _ in source.preferences(dataset)] == ["r0", "r2"]


@pytest.mark.parametrize("rater", [None, "", " ", True, "a\nb"])
def test_a_rater_without_a_name_is_skipped_alone(source, rater):
    source.compare((200, 300), ["A+1", "B+1"])["rater"][0] = rater
    reason = f": rater {rater!r}; expected text without line breaks, not empty"
    dataset = source.skips("rows.jsonl, row 1", reason)
    assert source.preferences(dataset) == [("300", "200", "r1", 1.0)]


def test_whole_numbers_are_rater_ids_and_nobody_says_a_thing_twice(source):
    source.compare((200, 300), ["A+1", "B+1"])["rater"] = [7, 8]
    source.compare((200, 300), ["A+1", "A+1"])["rater"] = [7, 8]
    dataset = source.skips("rows.jsonl, row 2", ": rater '7' has compared these at")
    assert source.preferences(dataset) == [("200", "300", "7", 1.0), ("300", "200", "8", 1.0), ("200", "300", "8", 1.0)]


def test_no_option_is_named_that_the_command_has_not(source):
    source.compare((200, 300), ["A+1"])
    source.compare((400, 500), ["A+1"]).update(audioA=__file__)
    ((_, reason),) = reasons(source.skips("rows.jsonl, row 2 (line 2)", "leaves the folder"))
    assert reason.endswith("; expected a path relative to it")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rater": None}, "expected a list of rater ids"),
        ({"rater": []}, "expected a list of rater ids"),
        ({"naturalness_annotation": ["A+1", "A+1"]}, "expected a list of 1 entries, one per rater"),
        ({"naturalness_annotation": "A+1"}, "expected a list of 1 entries, one per rater"),
        ({"audioA": "../x.wav"}, "leaves the folder"),
        ({"audioB": "clips/400.wav"}, "the same clip as audioA"),
        ({"target_text": 5}, "value 5; expected text"),
    ],
)
def test_a_bad_row_is_skipped(source, change, reason):
    source.compare((200, 300), ["A+1"])
    source.compare((400, 500), ["A+1"]).update(change)
    dataset = source.skips("rows.jsonl, row 2 (line 2)", reason)
    assert source.preferences(dataset) == [("200", "300", "r0", 1.0)]
    assert len(dataset.pairs) == 2
