"""EchoMind in the layout of its programs: answers become pairs, the voices of a script one group."""

from __future__ import annotations

import copy
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from empathy_judge.data_modules.importers.corpora import echomind

from ...builders import Download, by_id, hertz, reasons, wav, write_files

CUES = ("sad-toned expressive voice", "male", "sound of dog(s) barking")
PITCH = {"target": 100, "neutral": 200, "alternative": 300}


class Benchmark(Download):
    """Three scripts (ids 854, 104, 2478) in up to three voices, and models that answered them."""

    importer = echomind

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "EchoMind")
        self.files: dict[str, bytes] = {}
        self.scripts: dict[str, list[dict[str, Any]]] = {}
        self.answers: dict[str, list[dict[str, Any]]] = {}

    def record(self, recording: str) -> None:
        """Scripts and their recordings; a speaker cue has no neutral voice."""
        rows = []
        for case, cue in zip((854, 104, 2478), CUES, strict=True):
            row: dict[str, Any] = {"case_id": case, "topic": "school", "spoken_info": cue}
            for voice, pitch in PITCH.items():
                path = f"{voice}_voices/id_{case}_{voice}.wav"
                row[f"{voice}_audio_info"] = {f"{voice}_input_audio_file": path}
                if cue != "male" or voice != "neutral":
                    self.files[f"dataset/data_{recording}/audio/{path}"] = wav(pitch + case % 10)
            rows.append(row)
        self.scripts[recording] = rows

    def answer(self, recording: str, model: str, prompt: str, hertz: int) -> None:
        """What EchoMind's program writes for a model."""
        folder = f"output/output_{recording}/response_output/{model}/{prompt}"
        rows = copy.deepcopy(self.scripts[recording])
        for row in rows:
            row |= {"model": model, "ouput_prompt": prompt, "output_content": {voice: {} for voice in PITCH}}
            for voice, own in PITCH.items():
                if voice == "neutral" and row["spoken_info"] == "male":
                    continue
                name = f"{row['case_id']}_{model}_response_{voice}.wav"
                said = {"file": name, "response_audio_transcript": f"Oh, {voice}.", "response_text": "Oh."}
                row["output_content"][voice] = said
                self.files[f"{folder}/{voice}_voices/{name}"] = wav(hertz + own + row["case_id"] % 10)
        self.answers[f"{folder}/{model}_{prompt}_output_responses.json"] = rows

    def answered(self, part: str) -> list[dict[str, Any]]:
        """The rows of the table that has this in its path."""
        (rows,) = [rows for path, rows in self.answers.items() if part in path]
        return rows

    def write(self) -> Path:
        tables = {f"dataset/data_{r}/script_info_{r}.json": rows for r, rows in self.scripts.items()}
        texts = {path: json.dumps(rows).encode() for path, rows in {**tables, **self.answers}.items()}
        return write_files(self.folder, self.files | texts)


@pytest.fixture
def source(tmp_path) -> Benchmark:
    """Synthesis: two systems of one model; human: one."""
    made = Benchmark(tmp_path)
    made.record("synthesis")
    made.record("human")
    made.answer("synthesis", "qwen25omni", "basic", 1000)
    made.answer("synthesis", "qwen25omni", "enhance", 1500)
    made.answer("human", "gpt4o", "no", 2000)
    return made


class TestAnswers:
    def test_values(self, source):
        data = source.load()
        assert (len(data.pairs), len(data.ratings), data.preferences) == (24, 0, None)
        assert Counter(pair.system_id for pair in data.pairs) == {
            "qwen25omni/basic": 8, "qwen25omni/enhance": 8, "gpt4o/no": 8
        }  # fmt: skip
        pair = by_id(data)["human-2478-gpt4o/no-neutral"]
        assert hertz(pair.response) == 2208
        assert [pair.tag(name) for name in ("cue_class", "recording")] == ["environment", "human"]
        assert Counter(pair.group_id for pair in data.pairs) == {"script_854": 9, "script_104": 6, "script_2478": 9}
        assert (data.card.description, data.card.synthetic) == ("Nobody rated these answers.", False)

    def test_one_kind_of_recording(self, source):
        assert {pair.system_id for pair in source.load(recordings="human").pairs} == {"gpt4o/no"}
        assert len(source.load(recordings="synthesis").pairs) == 16

    def test_hidden_files_are_passed_over_and_links_that_leave_are_refused(self, source):
        expected = source.load().card.content_hash
        folder = source.folder
        for name in ("output/._x.json", ".cache/y.json", "__MACOSX/z.json"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(b"junk")
        (folder / "inside.json").symlink_to("output/._x.json")
        (folder / "loop.wav").symlink_to("loop.wav")
        assert source.load(fresh=False).card.content_hash == expected
        (folder / "out.json").symlink_to(__file__)
        source.refuses(r"EchoMind/out.json: a link that leaves the folder .*EchoMind; expected", fresh=False)
        (folder / "out.json").unlink()
        (folder / "more").symlink_to(Path(__file__).parent)
        source.refuses(r"EchoMind/more: a link to a folder; expected the folder itself", fresh=False)
        source.refuses(r"EchoMind\.zip: no such folder; expected what it holds, unpacked", "EchoMind.zip")


class TestLeftOut:
    def test_missing_clips_are_skipped_by_name(self, source):
        recording = "dataset/data_human/audio/target_voices/id_854_target.wav"
        answer = "output/output_human/response_output/gpt4o/no/neutral_voices/2478_gpt4o_response_neutral.wav"
        del source.files[recording], source.files[answer]
        data = source.load(max_skipped=0.2)
        assert len(data.pairs) == 22
        table = "gpt4o_no_output_responses.json"
        assert reasons(data) == [
            (f"{table}, row 1, column 'output_content', case 854, target", f"no such file: {recording}"),
            (f"{table}, row 3, column 'output_content', case 2478, neutral", f"no such file: {answer}"),
        ]

    def test_answers_in_text_alone_are_an_error(self, source):
        source.files = {n: d for n, d in source.files.items() if "/gpt4o/" not in n}
        source.refuses(r"no such file: .*_response_target\.wav \(7 more unusable of 24 pairs\)", max_skipped=0.01)

    @pytest.mark.parametrize("cue", ["Sad-toned expressive voice", "sound of raining ", "tired", None, ["male"]])
    def test_a_cue_of_another_spelling_is_skipped(self, source, cue):
        source.scripts["human"][0]["spoken_info"] = cue
        data = source.load(max_skipped=0.2)
        assert Counter(pair.system_id for pair in data.pairs)["gpt4o/no"] == 5
        assert {reason for _, reason in reasons(data)} == {
            f"its script's 'spoken_info' is {cue!r}; expected one of 45 cues"
        }
        assert len(reasons(data)) == 3

    def test_voices_without_a_run_are_counted(self, source):
        rows = source.answered("/enhance/")
        rows[0]["output_content"] |= {"neutral": {}, "alternative": {}}
        del rows[1]["output_content"]
        del rows[2]
        data = source.load()
        assert Counter(pair.system_id for pair in data.pairs)["qwen25omni/enhance"] == 1
        assert data.card.description == ("Nobody rated these answers. qwen25omni/enhance was not run on 7 recordings.")

    def test_rows_that_are_no_case(self, source):
        rows = source.answered("/gpt4o/")
        rows += [{**rows[0], "case_id": 7}, {**rows[0]}, {"case_id": None}]
        data = source.load(max_skipped=0.2)
        assert len(data.pairs) == 24
        assert [reason.partition(";")[0] for _, reason in reasons(data)] == [
            "value 7", "value 854", "value None"
        ]  # fmt: skip

    @pytest.mark.parametrize("file", ["../../../x.wav", "/etc/passwd", 3, None, ""])
    def test_a_file_elsewhere_is_no_answer(self, source, file):
        source.answered("/gpt4o/")[0]["output_content"]["target"]["file"] = file
        (source.folder.parent / "x.wav").write_bytes(wav(440))
        data = source.load(max_skipped=0.2)
        assert len(data.pairs) == 23
        ((_, reason),) = reasons(data)
        assert reason.startswith("no such file: ")


class TestWrongInput:
    def test_no_answers(self, source):
        source.answers.clear()
        source.refuses(r"EchoMind: no answers; expected output_synthesis\|human/response_output/")

    def test_no_scripts(self, source):
        del source.scripts["human"]
        source.refuses(r"EchoMind: 0 files data_human/script_info_human\.json; expected one")

    @pytest.mark.parametrize("case", [854, None, 1.5, True, ""])
    def test_a_script_without_an_id_of_its_own(self, source, case):
        source.scripts["human"][1]["case_id"] = case
        source.refuses(r"script_info_human\.json, row 2, column 'case_id': value ")
