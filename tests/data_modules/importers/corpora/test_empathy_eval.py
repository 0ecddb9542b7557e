"""EmpathyEval in the layout of its release: what becomes a pair, what is preferred, and that no label survives."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from empathy_judge.data_modules.importers.corpora import empathy_eval

from ...builders import Download, contents, hertz, wav, write_files

CONTEXT_SET, TONE_SET = "empatheticDialogue_t_multi-context", "empatheticDialogue_n_multi-emotion"
ONE, TWO = "hit:1_conv:2", "hit:10062_conv:20125"
RATER = "how_the_audio_was_made"


class Release(Download):
    """The download: archives (name -> path in it -> content) and files beside them. Change it, then import."""

    importer = empathy_eval

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "EmpathyEval")
        self.archives: dict[str, dict[str, bytes]] = {}
        self.tables: dict[str, Any] = {}

    def write(self, wrapped: bool = False) -> Path:
        """Unpacked, each archive into a folder of its name; `wrapped`: it had one folder of that name in it."""
        files = {
            f"{name}/{name if wrapped else ''}/{path}": data
            for name, members in self.archives.items()
            for path, data in members.items()
        }
        write_files(self.folder, files)
        for name, rows in self.tables.items():
            text = json.dumps(rows) if name.endswith(".json") else "".join(json.dumps(row) + "\n" for row in rows)
            (self.folder / name).write_text(text)
        return self.folder

    def skipped(self) -> list[tuple[str, str]]:
        with (self.out / "skipped.csv").open(encoding="utf-8", newline="") as file:
            return [(where, reason) for where, reason in csv.reader(file)][1:]


@pytest.fixture
def training(tmp_path) -> Release:
    """Dialogue ONE in both sets, TWO in the first: 5 contests. Good clips are 400 Hz and more, bad ones less."""
    release = Release(tmp_path)
    context: dict[str, bytes] = {"__MACOSX/response_audio/._x_1_goodPara.wav": b"junk"}
    for number, (prefix, variant) in enumerate([(ONE, 1), (ONE, 2), (TWO, 1)]):
        context[f"response_audio/{prefix}_{variant}_goodPara.wav"] = wav(400 + 7 * number)
        context[f"response_audio/{prefix}_{variant}_badPara.wav"] = wav(200 + 7 * number)
    context |= {
        f"user_audio/{ONE}_1_sad.wav": wav(100), f"user_audio/{ONE}_2_sad.wav": wav(101),
        f"user_audio/{ONE}_2_happy.wav": wav(102), f"user_audio/{TWO}_1_angry.wav": wav(103),
        "response_audio/._hit:1_conv:2_1_goodPara.wav": b"junk", ".DS_Store": b"junk",
    }  # fmt: skip
    tone = {
        f"response_audio/{ONE}_{emotion}_{label}.wav": wav(hertz)
        for emotion, label, hertz in [
            ("happy", "goodPara", 500), ("happy", "badPara", 300), ("sad", "goodPara", 501), ("sad", "badPara", 301)
        ]
    }  # fmt: skip
    tone |= {f"user_audio/{ONE}_{emotion}.wav": wav(hertz) for emotion, hertz in [("happy", 110), ("sad", 111)]}
    release.archives = {CONTEXT_SET: context, TONE_SET: tone}
    release.tables = {
        f"{CONTEXT_SET}_flat.jsonl": [
            {
                "id": prefix,
                "text": f"I lost it. ({prefix})",
                **({"emotion": "sad"} if prefix == ONE else {}),
                "contexts": [{"context": f"{prefix} {n}", "response": f"I see, {n}."} for n in (1, 2)],
            }
            for prefix in (ONE, TWO, "hit:9_conv:9")
        ],
        f"{TONE_SET}_flat.jsonl": [
            {"id": ONE, "text": "Well.", "contexts": {"Context": "At work.", "sad_response": "Oh.", "neutral_": "x"}}
        ],
    }
    return release


class TestTraining:
    def test_values(self, training):
        data = training.load()
        assert (len(data.pairs), len(data.ratings)) == (10, 10)
        assert {pair.group_id for pair in data.pairs} == {ONE, TWO}
        assert sum(pair.group_id == ONE for pair in data.pairs) == 8  # across both sets
        assert [pair.setting for pair in data.pairs].count("context_variant") == 6
        assert [pair.setting for pair in data.pairs].count("tone_variant") == 4
        assert {pair.language for pair in data.pairs} == {"en"}
        assert {pair.system_id for pair in data.pairs} == {None}
        said = {hertz(p.response): (p.situation, p.context_text, p.response_text) for p in data.pairs}
        assert said[400] == said[200] == (f"{ONE} 1", f"I lost it. ({ONE})", "I see, 1.")
        assert said[407] == (f"{ONE} 2", f"I lost it. ({ONE})", "I see, 2.")
        assert said[500] == ("At work.", "Well.", None)
        assert said[301] == ("At work.", "Well.", "Oh.")
        heard = {hertz(pair.response): [(t.role, hertz(t.audio)) for t in pair.context] for pair in data.pairs}
        # The emotion of the table where there is a clip of it, else the only clip
        assert heard[400] == [("user", 100)]
        assert heard[407] == heard[207] == [("user", 101)]
        assert heard[414] == [("user", 103)]
        assert (heard[300], heard[501]) == ([("user", 110)], [("user", 111)])
        assert (data.card.synthetic, data.card.licence) == (True, "not stated by the source")
        assert [(d.name, d.minimum, d.maximum, d.step) for d in data.card.dimensions] == [("vocal_empathy", 0, 1, 1)]
        assert "no person rated" in data.card.description
        assert f"1 text of {CONTEXT_SET} has no complete pair of responses." in data.card.description

    def test_a_folder_in_the_folder_gives_the_same(self, training):
        expected = training.load().card.content_hash
        training.write(wrapped=True)
        assert training.load(fresh=False).card.content_hash == expected

    def test_one_archive_alone(self, training):
        data = training.load(TONE_SET)
        assert {pair.setting for pair in data.pairs} == {"tone_variant"}
        assert len(data.pairs) == 4
        shutil.rmtree(training.folder / CONTEXT_SET)
        assert len(training.load(fresh=False).pairs) == 4
        assert training.load(fresh=False).card.description.startswith(f"Read: {TONE_SET}. ")


class TestNoLabelSurvives:
    def test_in_no_file_and_no_name(self, training):
        data = training.load()
        for path in [data.root, *data.root.rglob("*")]:
            content = path.name.lower().encode() + (path.read_bytes().lower() if path.is_file() else b"")
            assert not any(word in content for word in (b"goodpara", b"badpara"))
        text = str(pq.read_table(data.root / "pairs.parquet").drop_columns(["situation", "context_text"]).to_pylist())
        assert not any(word in text.lower() for word in ("good", "bad", "para", RATER, "_1_", "response_audio/"))

    def test_swapped_labels_change_nothing_but_ratings_and_preferences(self, training):
        first = training.load()
        files = contents(first)
        scores = dict(zip(first.ratings["pair_id"], first.ratings["score"], strict=True))
        swap = {"goodPara": "badPara", "badPara": "goodPara"}
        for members in training.archives.values():
            names = {name: next((n for n in swap if n in name), "") for name in members}
            swapped = {name.replace(old, swap[old]) if old else name: members[name] for name, old in names.items()}
            members.clear()
            members.update(swapped)
        second = training.load()
        again = contents(second)
        assert {name for name in files if files[name] != again[name]} == {
            "ratings.parquet", "preferences.parquet", "dataset.yaml"
        }  # fmt: skip
        assert files.keys() == again.keys()
        assert dict(zip(second.ratings["pair_id"], second.ratings["score"], strict=True)) == {
            pair_id: 1 - score for pair_id, score in scores.items()
        }


class TestSkipped:
    def test_incomplete_contests_are_named_and_counted(self, training):
        members = training.archives[CONTEXT_SET]
        del members[f"response_audio/{ONE}_1_badPara.wav"]
        del members[f"user_audio/{TWO}_1_angry.wav"]
        members["response_audio/hit:3_conv:3_1_goodPara.wav"] = wav(600)
        members["response_audio/hit:3_conv:3_1_badPara.wav"] = wav(601)
        members["response_audio/hit:3_conv:3_3_badPara.wav"] = wav(602)
        members[f"response_audio/{ONE}_2_badPara.wav"] = members[f"response_audio/{ONE}_2_goodPara.wav"]
        data = training.load(max_skipped=0.9)
        assert (len(data.pairs), len(data.ratings)) == (4, 4)
        assert data.preferences is not None
        assert len(data.preferences) == 2
        archive = str(training.folder / CONTEXT_SET)
        assert sorted(training.skipped()) == [
            (f"{archive}, responses {TWO}_1", "0 clips in user_audio can be the user's turn; expected one"),
            (f"{archive}, responses {ONE}_1", "only one of the two responses is there"),
            (f"{archive}, responses {ONE}_2", "two of its responses are the same audio"),
            (f"{archive}, responses hit:3_conv:3_1", f"{CONTEXT_SET}_flat.jsonl has no row with this id"),
            (
                f"{archive}/response_audio/hit:3_conv:3_3_badPara.wav",
                r"the name has not the form (?P<prefix>.+)_(?P<variant>[12])_(?P<label>goodPara|badPara)\.wav",
            ),
        ]
        assert "5 pairs skipped" in data.card.description

    def test_the_voice_of_another_dialogue_is_not_taken(self, training):
        """``a_1_*.wav`` also fits the clips of a dialogue called ``a_1``."""
        members = training.archives[CONTEXT_SET]
        members[f"user_audio/{TWO}_1_2_angry.wav"] = members.pop(f"user_audio/{TWO}_1_angry.wav")
        training.load(max_skipped=0.5)
        assert [where.rpartition(" ")[2] for where, _ in training.skipped()] == [f"{TWO}_1"]

    def test_two_voices_and_none_of_the_emotion(self, training):
        training.archives[CONTEXT_SET][f"user_audio/{TWO}_1_happy.wav"] = wav(120)
        training.load(max_skipped=0.5)
        assert [reason for _, reason in training.skipped()] == [
            "2 clips in user_audio can be the user's turn; expected one"
        ]

    @pytest.mark.parametrize(
        "contexts", [None, [], [{"context": "x"}], [{}, {"context": " "}], {"Context": "x"}, [1, 2]]
    )
    def test_texts_without_the_context(self, training, contexts):
        training.tables[f"{CONTEXT_SET}_flat.jsonl"][0]["contexts"] = contexts
        training.load(max_skipped=0.5)
        assert (training.skipped()[-1][0].rpartition(" ")[2], training.skipped()[-1][1]) == (
            f"{ONE}_2", "its row has no text for context 2 in 'contexts'"
        )  # fmt: skip

    def test_rows_that_contradict_each_other(self, training):
        table = training.tables[f"{CONTEXT_SET}_flat.jsonl"]
        table.append(table[0])
        assert len(training.load().pairs) == 10
        table.append({**table[0], "text": "Something else."})
        training.load(max_skipped=0.5)
        assert [reason for _, reason in training.skipped()] == [
            f"{training.folder}/{CONTEXT_SET}_flat.jsonl, row 5 (line 5), column 'id': "
            "an earlier row with this id says something else"
        ] * 2

    @pytest.mark.parametrize("label", ["goodPara", "badPara"])
    @pytest.mark.parametrize(
        ("clip", "reason"),
        [
            (b"no audio at all", "a response: not a sound file; expected wav, flac, ogg, mp3, aiff, au"),
            (wav(400)[:-100], "a response: the file is cut off, its last 100 bytes are missing"),
            (wav(400, 0.01), "a response: lasts 0.010 s; expected at least 0.05 s"),
        ],
    )
    def test_a_broken_response_takes_the_other_along(self, training, label, clip, reason):
        training.archives[CONTEXT_SET][f"response_audio/{ONE}_1_{label}.wav"] = clip
        data = training.load(max_skipped=0.5)
        assert (len(data.pairs), len(data.ratings)) == (8, 8)
        assert data.preferences is not None
        assert len(data.preferences) == 4
        assert training.skipped() == [(f"{training.folder}/{CONTEXT_SET}, responses {ONE}_1", reason)]


class TestWrongInput:
    def test_nothing_of_the_part(self, training):
        training.refuses("holds nothing of --part phase1; expected phase1-test_multi-context_giga", part="phase1")
        training.refuses("--part phase2: this folder belongs to training", TONE_SET, part="phase2")
        training.refuses(r"nowhere: holds nothing of --part training; .*multi-emotion, unpacked", "nowhere")

    def test_no_table_beside(self, training):
        del training.tables[f"{CONTEXT_SET}_flat.jsonl"]
        training.refuses(rf"{CONTEXT_SET}_flat\.jsonl: no such file")

    def test_no_responses(self, training):
        training.archives = {TONE_SET: {"user_audio/x_sad.wav": wav(100)}}
        training.refuses("0 folders called response_audio; expected one, with wav files")


@pytest.fixture
def tests(tmp_path) -> Release:
    """Phase 1 with its tables inside the archives, phase 2 with them beside; paths start with ``./``."""
    release = Release(tmp_path)
    ids = {
        ("phase1", "context", "gigaspeech"): ("question_id", ["gigaspeech_0_1", "gigaspeech_0_2"], "AB"),
        ("phase1", "context", "meld"): ("question_id", ["meld_4_1", "meld_4_2", "meld_4_3"], "ABC"),
        ("phase1", "emotion", "emovdb"): ("question_id", ["emovdb_0012_e0", "emovdb_0013_e3"], "AB"),
        ("phase2", "context", "gigaspeech"): ("data_index", ["4_1", "4_2"], "AB"),
        ("phase2", "context", "meld"): ("data_index", ["4_1"], "ABC"),
    }
    pitch = 200
    for (phase, kind, source), (column, questions, letters) in ids.items():
        members, rows = {}, []
        for question in questions:
            pitch += 10
            user = f"{phase}-test_{source}/{question.rpartition('_')[0]}.wav"
            options = {f"opt-{x}": f"{phase}-test_{source}_options/{question}_opt-{x}.wav" for x in letters}
            members |= {user: wav(100), **{path: wav(pitch + n) for n, path in enumerate(options.values())}}
            members["__MACOSX/._x"] = b"junk"
            rows.append(
                {
                    column: question, "context": f"A night. {question}", "utterance": "Hm.",
                    "utterance_audio": f"./{user}", "response": "Right.",
                    "options": {name: f"./{path}" for name, path in options.items()},
                }
            )  # fmt: skip
        table = f"{phase}-test_{source}_release.json"
        if phase == "phase1":
            members[table] = json.dumps(rows).encode()
        else:
            release.tables[table] = rows
        release.archives[f"{phase}-test_multi-{kind}_{source}"] = members
    return release


class TestTests:
    def test_phase1(self, tests):
        data = tests.load(part="phase1")
        assert (len(data.pairs), len(data.ratings), data.preferences) == (2 * 2 + 3 * 3 + 2 * 2, 0, None)
        groups = [pair.group_id for pair in data.pairs]
        assert {group: groups.count(group) for group in groups} == {
            "gigaspeech_0": 4, "meld_4": 9, "emovdb_0012": 2, "emovdb_0013": 2
        }  # fmt: skip
        assert {pair.system_id for pair in data.pairs} == {None}
        settings = {pair.group_id: pair.setting for pair in data.pairs}
        assert (settings["meld_4"], settings["emovdb_0012"]) == ("context_variant", "tone_variant")
        pair = next(pair for pair in data.pairs if hertz(pair.response) == 221)
        assert (pair.situation, pair.context_text, pair.response_text) == ("A night. gigaspeech_0_2", "Hm.", "Right.")
        assert [hertz(turn.audio) for turn in pair.context] == [100]

    def test_phase2_has_other_ids(self, tests):
        data = tests.load(part="phase2")
        groups = [pair.group_id for pair in data.pairs]
        assert {group: groups.count(group) for group in groups} == {"gigaspeech_4": 4, "meld_4": 3}

    def test_option_order_does_not_survive(self, tests):
        first = tests.load(part="phase2")
        files = contents(first)
        assert not any(b"opt-" in content or "opt-" in name for name, content in files.items())
        for rows in tests.tables.values():
            for row in rows:
                letters, paths = list(row["options"]), list(row["options"].values())
                row["options"] = dict(zip(letters, reversed(paths), strict=True))
        second = tests.load(part="phase2")
        assert contents(second) == files

    def test_unusable_questions_are_skipped(self, tests):
        rows = tests.tables["phase2-test_gigaspeech_release.json"]
        good = rows[0]
        rows += [
            {**good, "data_index": "five_1"},
            {**good, "data_index": "4_1"},
            {**good, "data_index": "5_1", "options": {"opt-A": "../../x.wav", "opt-B": good["options"]["opt-B"]}},
            {**good, "data_index": "5_2", "options": {"opt-A": good["options"]["opt-A"]}},
            {**good, "data_index": "5_3", "context": ""},
            {**good, "data_index": "5_4", "options": dict.fromkeys(["opt-A", "opt-B"], good["options"]["opt-A"])},
            {**good, "data_index": "5_5", "utterance_audio": None},
            {"context": "x"},
        ]
        data = tests.load(part="phase2", max_skipped=0.9)
        assert len(data.pairs) == 7
        table = f"{tests.folder}/phase2-test_gigaspeech_release.json"
        form = r"expected the form (?:gigaspeech_)?(\d+)_\d+, each once"
        archive = f"{tests.folder}/phase2-test_multi-context_gigaspeech"
        assert tests.skipped() == [
            (f"{table}, row {row}, column {column!r}", reason)
            for row, column, reason in [
                (3, "data_index", f"value 'five_1'; {form}"),
                (4, "data_index", f"value '4_1'; {form}"),
                (5, "data_index", f"no such file in {archive}: '../../x.wav'"),
                (6, "data_index", f"options {dict(list(good['options'].items())[:1])}; "
                 "expected two or more clips"),
                (7, "data_index", "no text in 'context'"),
                (9, "data_index", f"no such file in {archive}: None"),
                (10, "question_id", f"value None; {form}"),
                (8, "data_index", "two of its responses are the same audio"),
            ]
        ]  # fmt: skip

    def test_no_table(self, tests):
        del tests.tables["phase2-test_meld_release.json"]
        tests.refuses(r"meld: 0 files phase2-test_meld_release\.json in it; expected one", part="phase2")
