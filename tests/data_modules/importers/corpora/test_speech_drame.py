"""Speech-DRAME: lists of annotations become ratings of positional raters; what is no score is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from empathy_judge.data_modules.importers.corpora import speech_drame

from ...builders import Download, by_id, reasons, scores

PREFIX = "speech_drame/finetuning/data"  # in the publishers' paths, not in their repository


class Drame(Download):
    """Two realism and two archetype responses, in the layout of the samples in the repository."""

    importer = speech_drame

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.realism = [self._realistic(number) for number in range(2)]
        self.archetype = [self._archetypal(system) for system in ("Qwen2.5-Omni-7B", "Cascaded-Qwen3-CosyTTS")]
        answers = self.archetype[0]["annotations"]
        answers["content_pass"] = [False] * 6
        answers.update({name: [None] * 6 for name in (*speech_drame.ARCHETYPE, "confidence")})

    def _realistic(self, number: int) -> dict[str, Any]:
        self.tone(f"realism_data/r{number}.wav", hertz=200 + number)
        annotations: dict[str, Any] = {
            name: [1 + (place + number + dimension) % 5 for place in range(6)]
            for dimension, name in enumerate(speech_drame.REALISM)
        }
        annotations["annotator_confidence_rating"] = [4, 4, 3, 5, 4, 4]
        annotations["sufficient"] = [True] * 6
        annotations["comments"] = ["", "robotic", "", "", "", ""]
        annotations["prmopt_quality"] = ["valid"] * 6
        return {
            "id": f"role-eval_v1_000{number}", "local_scene": f"Scene {number}.", "char_age": "Adult",
            "char_style": "Warm", "char_profile": "Elena is kind.", "transcript": f"Line {number}.",
            "annotations": annotations, "wav_path": f"{PREFIX}/realism_data/r{number}.wav", "data_source": "unknown",
        }  # fmt: skip

    def _archetypal(self, system: str) -> dict[str, Any]:
        name = f"250814_zh_SocialIdentity_0051_{system}.wav"
        self.tone(f"archetype_data/{name}", hertz=300 + len(system))
        annotations = {
            "content_pass": [True] * 6, "audio_quality": [4, 5, 4, 4, 4, 4], "human_likeness": [3, 4, 3, 4, 4, 4],
            "appropriateness": [4, 4, 4, 4, 5, 5], "confidence": [2, 3, 3, 2, 3, 3],
            "human_likeness_comment": ["N/A"] * 6,
        }  # fmt: skip
        path = f"{PREFIX}/archetype_data/{name}"
        return {"id": name, "question": "你是拖延症患者。你说:", "annotations": annotations, "wav_path": path}

    def write(self) -> None:
        self.table("realism_data/test.jsonl", self.realism)
        self.table("archetype_data/test.jsonl", self.archetype)


SOURCE = Drame


def test_both_layouts_together_and_what_is_not_imported(source):
    dataset = source.load()
    assert len(dataset.pairs) == 4
    assert len(dataset.card.dimensions) == 13
    assert dataset.ratings["rater_id"].nunique() == 12
    assert not (dataset.root / "skipped.csv").exists()
    assert dataset.card.description == (
        "Annotators per response: 6 (4 responses). Null instead of a score (the content failed, or was not rated): 18. "
        "Not imported, since no scores: annotator_confidence_rating (12), comments (12), confidence (12), "
        "content_pass (12), human_likeness_comment (12), prmopt_quality (12), sufficient (12)."
    )
    assert (dataset.card.licence, dataset.card.synthetic) == ("Apache-2.0 (code); data unknown", False)


def test_one_null_is_one_rating_less(source):
    source.archetype[1]["annotations"]["appropriateness"][2] = None
    dataset = source.load("archetype_data")
    found = [scores(dataset).get((source.archetype[1]["id"], f"archetype-{n}", "appropriateness")) for n in range(1, 7)]
    assert found == [4, 4, None, 4, 5, 5]


def test_pairs_that_share_a_transcript_or_a_clip_are_one_group(source):
    source.realism.append(source._realistic(2))
    source.realism.append(source._realistic(3))
    source.realism[2]["transcript"] = source.realism[0]["transcript"]
    source.realism[3]["wav_path"] = source.realism[2]["wav_path"]  # the same clip under another scene
    groups = [pair.group_id for pair in source.load("realism_data").pairs]
    assert groups[0] == groups[2] == groups[3] != groups[1]


def test_scores_off_the_scale_are_skipped(source):
    annotations = source.realism[0]["annotations"]
    annotations["pitch_variation"] = [0, 6, True, "4", 4.5, 4]
    dataset = source.load("realism_data", max_skipped=0.9)
    assert scores(dataset)["role-eval_v1_0000", "realism-6", "pitch_variation"] == 4
    assert len(dataset.ratings) == 115
    found = reasons(dataset)
    assert [reason for _, reason in found] == [
        f"value {value}; expected a whole number from 1 to 5" for value in ("0", "6", "True", "'4'", "4.5")
    ]
    assert found[1][0] == "test.jsonl, row 1 (line 1), column 'annotations', pitch_variation, annotator 2"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"annotations": None}, "value None; expected an object of lists"),
        ({"annotations": {"pitch_variation": 3}}, "expected an object of lists"),
        ({"annotations": {"loudness": [1]}}, "questions ['loudness']; expected those of realism (pitch_variation"),
        ({"annotations": {"pitch_variation": [1, 2], "dynamic_range": [1]}}, "lists of [1, 2] answers"),
        ({"wav_path": "../r9.wav"}, "leaves the folder"),
        ({"wav_path": f"{PREFIX}/realism_data/../../r9.wav"}, "leaves the folder"),
        ({"wav_path": f"{PREFIX}/realism_data/r9.wav"}, "no such file"),
        ({"wav_path": None}, "expected the path of an audio file"),
        ({"id": "role-eval_v1_0000"}, "stands at"),
        ({"id": ""}, "expected text without line breaks"),
        ({"local_scene": 7}, "value 7; expected text"),
    ],
)
def test_a_bad_row_is_skipped(source, change, reason):
    source.realism[1].update(change)
    dataset = source.skips("test.jsonl, row 2 (line 2)", reason, "realism_data")
    assert (list(by_id(dataset)), len(dataset.ratings)) == (["role-eval_v1_0000"], 60)


def test_two_paths_never_become_one_file(source):
    source.tone("realism_data/x.wav")
    for number, row in enumerate(source.realism):
        row["wav_path"] = f"data/{number}/x.wav"
    source.refuses("no such file", "realism_data")
