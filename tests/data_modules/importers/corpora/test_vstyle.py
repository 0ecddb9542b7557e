"""VStyle: responses and per-rater files joined by ``id_instruct_id``; the instruction as the raters met it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from empathy_judge.audio.decode import audio_hash
from empathy_judge.data_modules.importers.corpora import vstyle
from empathy_judge.data_modules.ratings import Dimension

from ...builders import Download, by_id, reasons, scores


class VStyle(Download):
    """Both downloads in one folder: two English prompts and a Chinese one, answered by two systems each."""

    importer = vstyle

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.given: dict[str, list[dict[str, Any]]] = {"en/a1": [], "en/a2": [], "zh/a3": []}
        prompts = [
            (1, "empathy/anger", "They lost my luggage again!"),
            (2, "acoustic_attributes/speed", "Say it slowly."),
            (3, "empathy/anger", "他们又弄丢了我的行李。"),
        ]
        for instruct_id, ability, text in prompts:
            for number, system in enumerate(("first", "second")):
                key = {"id": 10 * (instruct_id - 1) + 1 + number, "instruct_id": instruct_id}
                name = f"{system}/{instruct_id}.mp3"
                self.tone(f"VStyle-responses/{name}", hertz=200 + 10 * instruct_id + number)
                row = {**key, "model_name": system, "ability": ability, "instruct_text": text}
                self.rows.append({**row, "response_audio_path": name, "response_text": f"Oh, {instruct_id}."})
                for rater in ("zh/a3",) if instruct_id == 3 else ("en/a1", "en/a2"):
                    mos = 1 + (instruct_id + number + len(self.given[rater])) % 5
                    self.given[rater].append({**key, "ability": ability, "mos": mos})

    def write(self) -> None:
        self.table("VStyle-responses/metadata.jsonl", self.rows)
        for rater, rows in self.given.items():
            self.table(f"VStyle-eval-results/human_eval_res/{rater}.jsonl", rows)
        judge = self.folder / "VStyle-eval-results/model_eval_res"
        judge.mkdir(exist_ok=True)
        (judge / "en_res.jsonl").write_text('{"id": 1, "instruct_id": 1, "gemini_score": 5}\n')


SOURCE = VStyle


def test_an_instruction_without_a_clip_is_the_situation_one_with_a_clip_is_heard(source):
    clip = source.tone("VStyle-responses/ask.wav", hertz=90)
    for row in source.rows[:2]:
        row["instruction_audio_path"] = clip.removeprefix("VStyle-responses/")
    source.rows[2]["instruction_audio_path"] = None
    pairs = by_id(source.load())
    heard, read = pairs["2_1"], pairs["11_2"]
    assert [(turn.role, audio_hash(turn.audio)) for turn in heard.context] == [
        ("user", audio_hash(source.folder / clip))
    ]
    assert (heard.situation, heard.context_text) == (None, "They lost my luggage again!")
    assert (read.context, read.situation, read.context_text) == ((), "Say it slowly.", None)


def test_only_one_category(source):
    dataset = source.load(category="empathy")
    assert sorted(by_id(dataset)) == ["1_1", "21_3", "22_3", "2_1"]
    assert len(dataset.ratings) == 6
    assert not (dataset.root / "skipped.csv").exists()
    assert "2 responses of others left out" in dataset.card.description
    source.refuses("no ability of category 'empaty'; it has acoustic_attributes, empathy", category="empaty")


def test_of_responses_that_are_all_unusable_the_first_is_named(source):
    for row in source.rows:
        del row["instruct_id"]
        row["instruct_id"] = None
    for category in ({}, {"category": "empathy"}):
        source.refuses(r"row 1 \(line 1\), column 'instruct_id': value None; expected text", **category)


def test_a_key_that_both_languages_use_is_two_responses(source):
    for row, number in zip(source.rows[4:], (1, 2), strict=True):
        row.update(id=number, instruct_id=1)
    for row, number in zip(source.given["zh/a3"], (1, 2), strict=True):
        row.update(id=number, instruct_id=1)
    dataset = source.load()
    pairs = by_id(dataset)
    assert sorted(pairs) == ["11_2", "12_2", "1_1", "2_1", "zh-1_1", "zh-2_1"]
    assert (pairs["1_1"].group_id, pairs["zh-1_1"].group_id) == ("en-1", "zh-1")
    assert scores(dataset)["1_1", "a1", "mos"] == 2
    assert scores(dataset)["zh-1_1", "a3", "mos"] == 4
    assert ("1_1", "a3", "mos") not in scores(dataset)


def test_a_folder_says_the_language_even_of_a_response_in_the_other_script(source):
    source.rows[0]["instruct_text"] = "Say 你好 kindly."
    for row in source.rows[:2]:
        name = row["response_audio_path"]
        row["response_audio_path"] = f"en/{name}"
        source.tone(f"VStyle-responses/en/{name}")
    assert {pair.language for pair in source.load().pairs if pair.group_id == "en-1"} == {"en"}


def test_a_folder_above_the_source_says_nothing_about_the_language(tmp_path):
    dataset = VStyle(tmp_path / "zh/en/source").load()
    assert {pair.group_id for pair in dataset.pairs} == {"en-1", "en-2", "zh-3"}


def test_bad_ratings_are_skipped_with_their_place(source):
    key = {"id": 1, "instruct_id": 1}
    source.given["en/a1"][0]["mos"] = 6
    source.given["en/a1"] += [
        {"id": 99, "instruct_id": 1, "mos": 3},  # nobody's id
        {"id": 21, "instruct_id": 3, "mos": 3},  # the id of a Chinese response
        {"id": 2, "instruct_id": 1, "mos": 5},  # a second time
        {**key, "mos": None},
        {**key, "mos": True},
        {**key, "mos": "4"},
        {"id": None, "instruct_id": 1, "mos": 4},
    ]
    dataset = source.load(max_skipped=0.7)
    assert len(dataset.ratings) == 9
    assert ("1_1", "a1", "mos") not in scores(dataset)
    assert scores(dataset)["2_1", "a1", "mos"] == 4
    found = reasons(dataset)
    bad = [(1, "mos"), (5, "id"), (6, "id"), (7, "mos"), (8, "mos"), (9, "mos"), (10, "mos"), (11, "id")]
    assert [where for where, _ in found] == [f"a1.jsonl, row {n} (line {n}), column {name!r}" for n, name in bad]
    why = [reason for _, reason in found]
    assert why[0] == "value 6; expected a number from 1 to 5"
    assert why[1:3] == [f"no response {key} (id_instruct_id) in en" for key in ("99_1", "21_3")]
    assert "has scored this at" in why[3]
    assert [reason.split(";")[0] for reason in why[4:7]] == ["value None", "value True", "value '4'"]


def test_ratings_between_whole_numbers_make_a_scale_without_steps(source):
    source.given["zh/a3"][0]["mos"] = 3.5
    assert source.load().card.dimensions == (Dimension("mos", 1, 5, None),)


def test_a_response_that_nobody_rated_stays(source):
    source.given["zh/a3"].pop()
    dataset = source.load()
    assert len(dataset.pairs) == 6
    assert "1 of 6 responses have no rating" in dataset.card.description


def test_bad_responses_are_skipped_with_their_ratings(source):
    source.rows[0]["response_audio_path"] = "../../secret.mp3"
    source.rows[1]["response_audio_path"] = "second/none.mp3"
    (source.folder / "VStyle-responses/second/3.mp3").write_bytes(b"no audio")
    source.rows.append(dict(source.rows[2]))
    source.rows.append({**source.rows[2], "id": 77, "model_name": ""})
    dataset = source.load(max_skipped=0.9)
    assert sorted(by_id(dataset)) == ["11_2", "12_2", "21_3"]
    assert len(dataset.ratings) == 5
    expected = ["11_2 stands at", "value ''; expected text", "leaves the folder", "no such file", "not a sound file"]
    for (_, reason), part in zip(reasons(dataset), expected, strict=True):
        assert part in reason


def test_other_folders_are_an_error(source):
    source.refuses(
        "a file; expected the folder that holds human_eval_res",
        ratings=source.folder / "VStyle-responses/metadata.jsonl",
    )
    source.refuses(r"holds no file metadata\.jsonl", "VStyle-eval-results")
