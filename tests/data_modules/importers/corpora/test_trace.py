"""TRACE: labels per dimension become preferences; ties are counted by kind; a response is one pair however often it is
compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from empathy_judge.data_modules.importers.corpora import trace
from empathy_judge.data_modules.schema import PairDataset

from ...builders import Download, preferences

HERTZ = {"moshi": 200, "diva": 300, "gpt": 400}


class Trace(Download):
    """SpeakBench with its audio in a folder per comparison, S2S-Arena with its audio in a folder per system."""

    importer = trace

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.speakbench: list[dict[str, Any]] = []
        self.s2sarena: list[dict[str, Any]] = []

    def compare(self, instruction: int, first: str, second: str, **labels: str) -> dict[str, Any]:
        """The same system answers the same instruction with the same audio, stored anew for each comparison."""
        index = len(self.speakbench)
        folder = f"audio_data/speakbench508_audio/{index}"
        row = {
            "index": index,
            "instruction_path": self.tone(f"{folder}/instruction.wav", hertz=90 + instruction),
            "instruction_text": f"Count to {instruction} and fade away.",
            "model_a": first,
            "model_b": second,
            "audio1_path": self.tone(f"{folder}/audio_a.wav", hertz=HERTZ[first] + instruction),
            "audio2_path": self.tone(f"{folder}/audio_b.wav", hertz=HERTZ[second] + instruction),
            "label": {**dict.fromkeys(trace.DIMENSIONS, "both_bad"), **labels},
            "instruction_id": instruction,
        }
        self.speakbench.append(row)
        return row

    def arena(self, emotion: str, name: str) -> dict[str, Any]:
        row = {
            "index": 100 + len(self.s2sarena),
            "instruction_path": self.tone(f"input/emotion/{name}.wav", hertz=120 + len(self.s2sarena)),
            "instruction_text": f"[emotion: {emotion}]What should I do now?",
            "model_a": "speechgpt",
            "model_b": "4o_cascade",
            "audio1_path": self.tone(f"output/SpeechGPT/emotion/{name}.wav", hertz=500 + len(self.s2sarena)),
            "audio2_path": self.tone(f"output/cascade/emotion/{name}.wav", hertz=600 + len(self.s2sarena)),
            "label": dict.fromkeys(trace.DIMENSIONS, "2"),
            "instruction_id": f"emotion_{name}",
        }
        self.s2sarena.append(row)
        return row

    def write(self) -> None:
        (self.folder / "data").mkdir(parents=True, exist_ok=True)
        for name, rows in (("speakbench", self.speakbench), ("s2sarena", self.s2sarena)):
            if rows:
                (self.folder / f"data/{name}.json").write_text(json.dumps(rows, indent=2))


SOURCE = Trace


def compared(dataset: PairDataset, dimension: str) -> list[tuple[str | None, str | None, str, float]]:
    return preferences(dataset, lambda pair: pair.system_id, dimension)


def test_preferences_of_every_dimension(source):
    source.compare(67, "moshi", "diva", content="1", voice_quality="2", overall="both_good")
    dataset = source.load()
    assert compared(dataset, "content") == [("moshi", "diva", "label-1", 1.0)]
    assert compared(dataset, "voice_quality") == [("diva", "moshi", "label-1", 1.0)]
    assert compared(dataset, "paralinguistics") == [("moshi", "diva", "label-1", 0.0)]
    assert compared(dataset, "overall") == [("moshi", "diva", "label-1", 0.0)]
    assert len(dataset.ratings) == 0
    assert dataset.card.synthetic is False
    assert dataset.card.licence == "unknown"
    assert (
        "content: 1 decided, 0 both_good, 0 both_bad; voice_quality: 1 decided, 0 both_good, 0 both_bad; "
        "paralinguistics: 0 decided, 0 both_good, 1 both_bad; overall: 0 decided, 1 both_good, 0 both_bad."
    ) in dataset.card.description


def test_a_response_is_one_pair_in_all_comparisons(source):
    source.compare(67, "moshi", "diva", overall="1")
    source.compare(67, "gpt", "moshi", overall="2")
    source.compare(5, "moshi", "diva", overall="2")
    dataset = source.load()
    assert len(dataset.pairs) == 5
    assert compared(dataset, "overall") == [
        ("moshi", "diva", "label-1", 1.0),
        ("moshi", "gpt", "label-1", 1.0),
        ("diva", "moshi", "label-1", 1.0),
    ]
    chosen = dataset.preferences[dataset.preferences["dimension"] == "overall"]["chosen_id"].tolist()
    assert chosen[0] == chosen[1]
    assert len({pair.group_id for pair in dataset.pairs}) == 2


def test_the_same_comparison_again_is_another_label(source):
    source.compare(67, "moshi", "diva", overall="1")
    source.compare(67, "diva", "moshi", overall="1")
    source.compare(67, "moshi", "diva", overall="both_bad")
    dataset = source.load()
    assert len(dataset.pairs) == 2
    assert compared(dataset, "overall") == [
        ("moshi", "diva", "label-1", 1.0),
        ("diva", "moshi", "label-2", 1.0),
        ("moshi", "diva", "label-3", 0.0),
    ]


def test_ids_depend_on_content_alone_and_tell_nothing(source, tmp_path):
    source.compare(67, "moshi", "diva", overall="1")
    source.compare(5, "moshi", "gpt", overall="1")
    other = Trace(tmp_path / "other/source")
    other.compare(5, "gpt", "moshi", overall="1")
    other.compare(67, "moshi", "diva", overall="2")
    first, second = source.load(), other.load()
    ids = {(pair.pair_id, pair.group_id) for pair in first.pairs}
    assert ids == {(pair.pair_id, pair.group_id) for pair in second.pairs}
    assert len(ids) == 4
    assert all(len(name) == 16 and int(name, 16) for pair_and_group in ids for name in pair_and_group)


def test_a_stage_direction_is_no_transcript_and_the_same_words_are_one_group(source):
    source.arena("sad", "emotion2-2")
    source.arena("happy", "emotion2-1")
    source.compare(67, "moshi", "diva")
    dataset = source.load()
    assert len(dataset.pairs) == 6
    arena = [pair for pair in dataset.pairs if pair.setting == "s2sarena"]
    assert len({pair.group_id for pair in arena}) == 1
    assert {pair.context_text for pair in arena} == {"What should I do now?"}
    assert all(pair.situation is None for pair in dataset.pairs)
    assert len({pair.group_id for pair in dataset.pairs}) == 2
    (moshi,) = [pair for pair in dataset.pairs if pair.system_id == "moshi"]
    assert moshi.context_text == "Count to 67 and fade away."


@pytest.mark.parametrize("audio", ["audio_data", "audio_data/speakbench508_audio"])
def test_audio_elsewhere(source, audio):
    source.compare(67, "moshi", "diva")
    source.compare(5, "moshi", "diva")
    assert len(source.load(audio=source.folder / audio).pairs) == 4


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"label": "1"}, "value '1'; expected an object with content, voice_quality, paralinguistics, overall"),
        ({"label": {"content": "1"}}, "expected an object with content"),
        ({"audio2_path": "../../b.wav"}, "leaves the folder"),
        ({"model_a": None}, "value None; expected text"),
        ({"audio2_path": "audio_data/speakbench508_audio/1/audio_a.wav"}, "the same clip as audio1_path"),
    ],
)
def test_a_bad_comparison_is_skipped(source, change, reason):
    source.compare(67, "moshi", "diva", overall="1")
    source.compare(5, "moshi", "gpt").update(change)
    dataset = source.skips("speakbench.json, row 2", reason)
    assert compared(dataset, "overall") == [("moshi", "diva", "label-1", 1.0)]
    assert len(dataset.pairs) == 2


@pytest.mark.parametrize("label", ["3", 1, None, "tie", ["1"]])
def test_an_unknown_label_is_skipped_alone(source, label):
    source.compare(67, "moshi", "diva", overall="2")["label"]["content"] = label
    where = "speakbench.json, row 1, column 'label', content"
    dataset = source.skips(where, f"{where}: value {label!r}; expected 1, 2, both_good, both_bad")
    assert compared(dataset, "content") == []
    assert compared(dataset, "overall") == [("diva", "moshi", "label-1", 1.0)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1}', r"speakbench\.json: .*expected a list of JSON objects"),
        ("[]", r"speakbench\.json: the table holds no rows"),
        ('[{"index": 1}]', r"speakbench\.json: no field 'instruction_text'; it has 'index'"),
    ],
)
def test_another_layout_is_an_error(source, text, message):
    source.refuses(r"source: holds no file speakbench\.json or s2sarena\.json")
    source.refuses("no such file or folder", "x")
    (source.folder / "data/speakbench.json").write_text(text)
    source.refuses(message)
