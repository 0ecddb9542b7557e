"""EchoMind: what models answered to its scripts, in up to three voices of each of two recordings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

from ....core.errors import DataError, shown
from ...tables import plain_text, read_records, text_of
from ..assemble import Imported
from ..clips import ClipCell, folder_files
from ..collector import Collector
from .mapping import CorpusMapping

MAPPING = CorpusMapping.of(__file__)
__doc__, EXAMPLE = MAPPING.help, MAPPING.example

VOICES = ("target", "neutral", "alternative")
_CLASS_OF = {cue: name for name, cues in MAPPING.names.items() for cue in cues}
_ANSWERS = re.compile(
    r"(?P<folder>(?:.*/)?output_(?P<recording>synthesis|human)/response_output/(?P<model>[^/]+)/(?P<prompt>[^/]+)/)"
    r"(?P=model)_(?P=prompt)_output_responses\.json"
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of EchoMind.

    Attributes:
        recordings: answers to these only; by default to both
    """

    recordings: Literal["synthesis", "human"] | None = None


def read(path: Path, options: Options) -> Imported:
    """Reads the answers of all models."""
    files = folder_files(path)
    collector = Collector()
    rows: list[dict[str, Any]] = []
    unanswered: Counter[str] = Counter()
    scripts: dict[str, tuple[str, dict[str, Mapping[str, Any]]]] = {}  # recording -> folder of its audio, and scripts
    for name in files:
        match = _ANSWERS.fullmatch(name)
        if match is None or options.recordings not in (None, match["recording"]):
            continue
        recording, system = match["recording"], f"{match['model']}/{match['prompt']}"
        # Scripts of a recording that nobody answered may be missing: they are read only where there are answers
        if recording not in scripts:
            scripts[recording] = _scripts(path, files, recording)
        audio, cases = scripts[recording]
        answers: dict[str, tuple[str, Any]] = {}  # case -> where they stand, and the answers
        for row in read_records(files[name]):
            with collector.skipping(row.place("case_id")):
                case = plain_text(row.values.get("case_id"))
                if not isinstance(case, str) or case not in cases or case in answers:
                    raise row.error("case_id", f"a case of script_info_{recording}.json, each once")
                answers[case] = row.place("output_content"), row.values.get("output_content")
        # Over scripts and not over answers, so that what a model was not run on is counted
        for (case, script), voice in product(cases.items(), VOICES):
            # The cue is who speaks: such a script has no neutral voice, which is no answer that is missing
            if voice == "neutral" and script.get("spoken_info") in MAPPING.names["speaker"]:
                continue
            where, answer = answers.get(case, ("", None))
            answer = _part(answer, voice)
            if "file" not in answer:
                unanswered[system] += 1
                continue
            where = f"{where}, case {case}, {voice}"
            with collector.skipping(where):
                pair = _pair(files, script, voice, answer, audio, match["folder"], where)
                pair |= {"pair_id": f"{recording}-{case}-{system}-{voice}", "group_id": f"script_{case}"}
                pair["tags"]["recording"] = recording
                rows.append(pair | {"system_id": system, "setting": voice})
    if not rows and not collector.skipped:
        recordings = options.recordings or "synthesis|human"
        raise DataError(
            f"{path}: no answers; expected output_{recordings}/response_output/MODEL/PROMPT/"
            "MODEL_PROMPT_output_responses.json with answers in it"
        )
    notes = ["Nobody rated these answers."]
    notes += [f"{system} was not run on {count} recordings." for system, count in sorted(unanswered.items())]
    return collector.imported(MAPPING.card(" ".join(notes)), rows)


def _scripts(folder: Path, files: Mapping[str, Path], recording: str) -> tuple[str, dict[str, Mapping[str, Any]]]:
    """The folder of the recordings, and the scripts by their case id."""
    name = f"data_{recording}/script_info_{recording}.json"
    # With a slash before both, so that a folder such as `old_data_human` is not taken for it
    found = [path for path in files if f"/{path}".endswith(f"/{name}")]
    if len(found) != 1:
        raise DataError(f"{folder}: {len(found)} files {name}; expected one, because there are answers to it")
    scripts: dict[str, Mapping[str, Any]] = {}
    for row in read_records(files[found[0]]):
        case = plain_text(row.values.get("case_id"))
        if not isinstance(case, str) or case in scripts:
            raise row.error("case_id", "text or a whole number, each once")
        scripts[case] = row.values
    return found[0].removesuffix(f"script_info_{recording}.json") + "audio/", scripts


def _pair(
    files: Mapping[str, Path],
    script: Mapping[str, Any],
    voice: str,
    answer: Mapping[str, Any],
    audio: str,
    answers: str,
    where: str,
) -> dict[str, Any]:
    """The row of an answer, without its names; `audio` and `answers` are folders among the files."""
    cue = script.get("spoken_info")
    if not isinstance(cue, str) or cue not in _CLASS_OF:
        raise DataError(f"its script's 'spoken_info' is {shown(cue)}; expected one of {len(_CLASS_OF)} cues")
    audio_file = _part(script, f"{voice}_audio_info").get(f"{voice}_input_audio_file")
    if not isinstance(audio_file, str):
        raise DataError(f"its script names no recording in '{voice}_audio_info'; expected FOLDER/FILE.wav")
    # Answers lie in a folder for each cue, which is called like that of the recordings
    names = audio + audio_file, f"{answers}{audio_file.partition('/')[0]}/{answer['file']}"
    for name in names:
        if name not in files:
            raise DataError(f"no such file: {name}")
    recording, response = (ClipCell(files[name], where) for name in names)
    return {
        "context_audio": [{"role": "user", "audio": recording}],
        "response_audio": response,
        "tags": {"cue_class": _CLASS_OF[cue], "cue": cue},
        "language": "en",
        # The transcript of what was spoken comes first: the text that the model wrote may differ from it
        "response_text": text_of(answer.get("response_audio_transcript")) or text_of(answer.get("response_text")),
    }


def _part(value: Any, name: str) -> Mapping[str, Any]:
    """The object of this name in another one; empty where either is none."""
    part = value.get(name) if isinstance(value, Mapping) else None
    return part if isinstance(part, dict) else {}
