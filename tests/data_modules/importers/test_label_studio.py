"""Importing Label Studio exports as the application writes them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from empathy_judge.data_modules.importers import label_studio
from empathy_judge.data_modules.importers.assemble import assemble
from empathy_judge.data_modules.schema import PairDataset

from ..builders import Given, parsed, reasons, scores

MAPPING = [
    "--response", "answer", "--context", "question", "--dimension", "empathy=1:5:1", "--rating", "empathy=stars",
    "--dimension", "warmth=0:100", "--field", "system_id=model", "--field", "situation=scene",
]  # fmt: skip


def result(control: str, kind: str, value: Any) -> dict[str, Any]:
    return {"id": "Dx_aB91", "from_name": control, "to_name": "clip", "type": kind, "origin": "manual", "value": value}


def annotation(number: int, rater: Any, *results: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "id": number, "completed_by": rater, "result": list(results), "was_cancelled": False, "ground_truth": False,
        "created_at": "2026-03-09T22:16:08.728353Z", "lead_time": 4.288, "prediction": {}, "result_count": 1, **more,
    }  # fmt: skip


def stars(count: Any) -> dict[str, Any]:
    return result("stars", "rating", {"rating": count})


def warm(points: Any) -> dict[str, Any]:
    return result("warmth", "number", {"number": points})


class Export(Given):
    """A folder with ``export.json`` and clips. Change the tasks, then import."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for number, name in enumerate(["q.wav", "r1.wav", "upload/3/ab-r2.wav", "r3 x.wav"]):
            path = folder / "media" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            soundfile.write(path, 0.5 * np.sin(np.arange(4_000) * (0.1 + 0.01 * number)), 16_000)
        question = "/data/local-files/?d=q.wav"
        self.tasks: list[dict[str, Any]] = [
            {
                "id": 11,
                "data": {"answer": "/data/local-files/?d=r1.wav", "question": question, "model": "a", "scene": "lost"},
                "annotations": [
                    annotation(101, 1, stars(4), warm(62.5)),
                    annotation(102, {"id": 2, "email": "b@example.org"}, stars(5), result("note", "textarea", {})),
                    annotation(103, 3, stars(1), was_cancelled=True),
                ],
                "drafts": [annotation(104, 4, stars(1))],
                "predictions": [{"model_version": "m", "result": [stars(1)], "score": 0.9}],
            },
            {
                "id": 12,
                "data": {"answer": "/data/upload/3/ab-r2.wav", "question": question, "model": "b", "scene": "lost"},
                "annotations": [annotation(105, 1, stars(2), warm(0))],
            },
            {
                "id": 13,
                "data": {"answer": "/data/local-files/?d=r3%20x.wav", "question": None, "model": "a", "odd": 1},
                "annotations": [],
            },
        ]

    def load(self, *words: str, **storing: Any) -> PairDataset:
        """Writes the export and imports it."""
        path = self.folder / "export.json"
        path.write_text(json.dumps(self.tasks))
        options = parsed(label_studio, [*(words or MAPPING), "--audio", str(self.folder / "media")])
        return assemble(label_studio.read(path, options), self.out, **storing)


@pytest.fixture
def export(tmp_path) -> Export:
    return Export(tmp_path / "source")


WANTED = {
    ("11", "1", "empathy"): 4.0, ("11", "1", "warmth"): 62.5, ("11", "2", "empathy"): 5.0,
    ("12", "1", "empathy"): 2.0, ("12", "1", "warmth"): 0.0,
}  # fmt: skip


class TestFullExport:
    def test_values(self, export):
        """Cancelled annotations, drafts and predictions do not count: each of them says 1."""
        dataset = export.load()
        assert scores(dataset) == WANTED
        columns = [(pair.pair_id, pair.system_id, pair.situation) for pair in dataset.pairs]
        assert columns == [("11", "a", "lost"), ("12", "b", "lost"), ("13", "a", None)]
        first, second, third = dataset.pairs
        assert first.group_id == second.group_id != third.group_id
        assert [len(pair.context) for pair in dataset.pairs] == [1, 1, 0]
        assert isinstance(second.response, Path)
        assert second.response.read_bytes() == (export.folder / "media/upload/3/ab-r2.wav").read_bytes()
        assert dataset.card.description == (
            "Fields not imported: odd. Controls not imported: note. 1 cancelled annotation left out."
        )

    def test_a_field_can_be_a_tag(self, export):
        dataset = export.load(*MAPPING, "--field", "tag:mood=odd")
        assert [pair.tags for pair in dataset.pairs] == [(), (), (("mood", "1"),)]
        assert "odd" not in dataset.card.description

    def test_every_rating_has_the_time_of_its_annotation(self, export):
        first, second = export.tasks[0]["annotations"][:2]
        first["lead_time"], second["lead_time"] = 12, None
        ratings = export.load().ratings
        assert ratings["seconds"].fillna(-1).tolist() == [12, 12, -1, 4.288, 4.288]
        first["lead_time"] = -1
        message = "task 11, annotation 101, control 'stars', lead_time of its annotation: value -1; expected a finite"
        export.refuses(message, overwrite=True)
        for task in export.tasks:
            for made in task["annotations"]:
                del made["lead_time"]
        assert "seconds" not in export.load(overwrite=True).ratings

    @pytest.mark.parametrize("moved", ["3/ab-r2.wav", "ab-r2.wav"])
    def test_uploads_may_lie_anywhere_below_the_folder(self, export, moved):
        target = export.folder / "media" / moved
        target.parent.mkdir(exist_ok=True)
        (export.folder / "media/upload/3/ab-r2.wav").rename(target)
        assert len(export.load().pairs) == 3

    def test_turns(self, export):
        export.tasks[0]["data"]["reply"] = "r1.wav"
        context = ["--context", "user=question", "--context", "assistant=reply", "--context", "question"]
        words = [*MAPPING[:2], *context, *MAPPING[4:]]
        dataset = export.load(*words)
        assert [turn.role for turn in dataset.pairs[0].context] == ["user", "assistant", "user"]
        assert [turn.role for turn in dataset.pairs[1].context] == ["user", "user"]

    def test_choices(self, export):
        for task, labels in zip(export.tasks, [["4"], ["very much"], ["none"]], strict=True):
            task["annotations"] = [annotation(1, 1, result("stars", "choices", {"choices": labels}), warm(1))]
        choices = ["--choice", "very much=5", "--choice", "none=1"]
        found = {
            pair: score for (pair, _, name), score in scores(export.load(*MAPPING, *choices)).items() if name[0] == "e"
        }
        assert found == {"11": 4.0, "12": 5.0, "13": 1.0}
        export.refuses(
            r"task 13, annotation 1, control 'stars': label 'none'; expected a", *MAPPING, *choices[:2], overwrite=True
        )


class TestComparisons:
    WORDS = (
        "--response", "answer", "--response", "other", "--context", "question", "--dimension", "empathy=1:5:1",
        "--preference", "empathy=better", "--rating", "empathy@other=stars", "--field", "system_id@answer=model",
        "--choice", "Both are fine=tie",
    )  # fmt: skip

    def tasks(self, export: Export) -> list[dict[str, Any]]:
        sides = [
            [result("better", "pairwise", {"selected": "left"}), stars(3)],
            [result("better", "pairwise", {"selected": "right"})],
            [result("better", "choices", {"choices": ["Both are fine"]})],
        ]
        for number, (task, results) in enumerate(zip(export.tasks, sides, strict=True)):
            task["data"]["other"] = "q.wav" if number else "r1.wav"
            task["annotations"] = [annotation(number, 7, *results)]
        return export.tasks

    def test_pairwise(self, export):
        self.tasks(export)
        dataset = export.load(*self.WORDS)
        assert list(dataset.preferences.itertuples(index=False, name=None)) == [
            ("11-answer", "11-other", "7", "empathy", 1.0),
            ("12-other", "12-answer", "7", "empathy", 1.0),
            ("13-answer", "13-other", "7", "empathy", 0.0),
        ]
        assert scores(dataset) == {("11-other", "7", "empathy"): 3.0}
        assert [pair.group_id for pair in dataset.pairs[:2]] == ["task-11", "task-11"]
        assert [pair.system_id for pair in dataset.pairs[:2]] == ["a", None]

    def test_comparison_with_an_unusable_clip_goes_with_it(self, export):
        self.tasks(export)[0]["data"]["other"] = "gone.wav"
        dataset = export.load(*self.WORDS, max_skipped=0.2)
        assert dataset.preferences["chosen_id"].tolist() == ["12-other", "13-answer"]
        assert len(dataset.ratings) == 0

    def test_a_task_that_stands_twice(self, export):
        self.tasks(export)[1].update(id=11)
        export.refuses(r"task 11, column 'pair_id': value '11-answer'; expected each id once", *self.WORDS)

    @pytest.mark.parametrize("value", [{"selected": "none"}, {"selected": None}, {"choices": ["better"]}, {}])
    def test_unknown_side(self, export, value):
        self.tasks(export)[1]["annotations"][0]["result"][0]["value"] = value
        export.refuses(r"task 12, annotation 1, control 'better': .*; expected ", *self.WORDS)


@pytest.mark.parametrize("url", ["/data/upload/3/ab-%C3%BC%20b.wav", "/data/local-files/?d=3/ab-%C3%BC%20b.wav"])
def test_names_of_audio_may_be_percent_encoded(export, url):
    (export.folder / "media" / "3").mkdir()
    shutil.copy(export.folder / "media" / "q.wav", export.folder / "media" / "3" / "ab-ü b.wav")
    export.tasks[1]["data"]["answer"] = url
    fingerprints = export.load().fingerprints
    assert fingerprints["12"][-1] == fingerprints["12"][0]


class TestRefused:
    @pytest.mark.parametrize(
        ("url", "reason"),
        [
            ("https://example.org/a.wav", "is on another machine; expected a file of the folder --audio"),
            ("s3://bucket/a.wav", "is on another machine"),
            ("/data/local-files/?d=../secret.wav", "leaves the folder"),
            ("/data/upload/../../secret.wav", "leaves the folder"),
            ("/data/upload/%2E%2E/%2E%2E/secret.wav", "leaves the folder|no such file"),
            ("/data/local-files/?d=gone.wav", "no such file"),
            ("/etc/hostname", "leaves the folder"),
            ("http://[", "is on another machine|no such file"),
            (5, "expected the path of an audio file"),
            (None, "expected the path of an audio file"),
        ],
    )
    def test_audio(self, export, url, reason):
        """One such clip stops a small import and is listed by a patient one."""
        soundfile.write(export.folder / "secret.wav", 0.1 * np.ones(4_000), 16_000)
        export.tasks[1]["data"]["answer"] = url
        export.refuses(rf"export\.json, task 12, field 'answer': .*({reason})")
        dataset = export.load(max_skipped=0.5)
        assert [pair.pair_id for pair in dataset.pairs] == ["11", "13"]
        assert [where for where, _ in reasons(dataset)] == ["export.json, task 12, field 'answer'"]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda t: t[0].pop("data"), r"export\.json: not a JSON export of Label Studio"),
            (lambda t: t[0].pop("id"), r"row 1, column 'id': value None"),
            (lambda t: t[1].update(id=11), r"task 11, column 'pair_id': value '11'; expected each id once"),
            (lambda t: t[1].update(annotations=3), r"row 2, column 'annotations': value 3"),
            (lambda t: t[1]["annotations"][0].update(result=None), r"task 12, annotation 105: result None"),
            (lambda t: t[1]["annotations"][0].update(result=[1]), r"task 12, annotation 105: result 1"),
            (lambda t: t[1]["annotations"][0].update(completed_by=None), r"annotation 105: completed_by None"),
            (lambda t: t[1]["annotations"][0].update(result=[stars(9)]), r"control 'stars': value 9; expected for emp"),
            (lambda t: t[1]["annotations"][0].update(result=[stars("4")]), r"control 'stars': value '4'; expected a"),
            (lambda t: t[1]["annotations"][0].update(result=[stars(1), stars(2)]), r"'stars': value '12'; .*once"),
            (lambda t: t[1]["annotations"][0].update(result=[result("stars", "rating", {"rating": 3, "start": 0})]),
             r"task 12, annotation 105, control 'stars': rates a region"),
            (lambda t: t[0]["data"].update(model=[1]), r"task 11, column 'system_id': value \[1\]"),
            (lambda t: [x["annotations"].clear() for x in t], r"no annotation that counts \(0 cancelled\)"),
        ],
    )  # fmt: skip
    def test_tasks(self, export, change, message):
        change(export.tasks)
        export.refuses(message)

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["--response", "x"], r"no task has a field 'x'; they have 'answer', 'question'"),
            (["--rating", "empathy=y"], r"no annotation has a control 'y'; they have 'note', 'stars', 'warmth'"),
            (["--rating", "kindness=stars"], r"--rating kindness=stars: 'kindness'; expected empathy"),
            (["--rating", "empathy@x=stars"], r"'x'; expected answer"),
            (["--preference", "empathy=stars"], r"--preference with 1 --response; expected two"),
            (["--field", "score=model"], r"--field score=model: 'score'; expected group_id"),
        ],
    )
    def test_options(self, export, words, message):
        base = ["--dimension", "empathy=1:5:1", *([] if words[0] == "--response" else ["--response", "answer"])]
        export.refuses(message, *base, *words)
