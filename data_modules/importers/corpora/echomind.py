"""EchoMind: what models answered to its scripts, in up to three voices of each of two recordings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...errors import DataError, shown
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
    loaded: dict[str, tuple[str, dict[str, Mapping[str, Any]]]] = {}  # recording -> folder of its audio, and scripts
    for name in files:
        match = _ANSWERS.fullmatch(name)
        if match is None or options.recordings not in (None, match["recording"]):
            continue
        recording, system = match["recording"], f"{match['model']}/{match['prompt']}"
        if recording not in loaded:
            loaded[recording] = _scripts(path, files, recording)
        audio, scripts = loaded[recording]
        answered = _answered(files[name], recording, scripts, collector)
        for case, script in scripts.items():
            where, answers = answered.get(case, ("", {}))
            for voice in VOICES:
                if voice == "neutral" and script.get("spoken_info") in MAPPING.names["speaker"]:
                    continue
                answer = _object(answers, voice)
                if "file" not in answer:
                    unanswered[system] += 1
                    continue
                place = f"{where}, case {case}, {voice}"
                with collector.skipping(place):
                    pair = _pair(files, script, voice, answer, audio, match["folder"], place)
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
    script_files = [path for path in files if f"/{path}".endswith(f"/{name}")]
    if len(script_files) != 1:
        raise DataError(f"{folder}: {len(script_files)} files {name}; expected one, because there are answers to it")
    scripts: dict[str, Mapping[str, Any]] = {}
    for row in read_records(files[script_files[0]]):
        case = plain_text(row.values.get("case_id"))
        if not isinstance(case, str) or case in scripts:
            raise row.error("case_id", "text or a whole number, each once")
        scripts[case] = row.values
    return script_files[0].removesuffix(f"script_info_{recording}.json") + "audio/", scripts


def _answered(
    file: Path, recording: str, scripts: Collection[str], found: Collector
) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Case -> where its answers stand, and the answers."""
    answered: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for row in read_records(file):
        with found.skipping(row.place("case_id")):
            case = plain_text(row.values.get("case_id"))
            if not isinstance(case, str) or case not in scripts or case in answered:
                raise row.error("case_id", f"a case of script_info_{recording}.json, each once")
            answered[case] = row.place("output_content"), _object(row.values, "output_content")
    return answered


def _pair(
    files: Mapping[str, Path],
    script: Mapping[str, Any],
    voice: str,
    reply: Mapping[str, Any],
    audio: str,
    answers: str,
    where: str,
) -> dict[str, Any]:
    """The row of an answer, without its names; `audio` and `answers` are folders among the files."""
    cue = script.get("spoken_info")
    cue_class = _CLASS_OF.get(cue) if isinstance(cue, str) else None
    if cue_class is None:
        raise DataError(f"its script's 'spoken_info' is {shown(cue)}; expected one of {len(_CLASS_OF)} cues")
    audio_file = _object(script, f"{voice}_audio_info").get(f"{voice}_input_audio_file")
    if not isinstance(audio_file, str):
        raise DataError(f"its script names no recording in '{voice}_audio_info'; expected FOLDER/FILE.wav")
    recording, answer = audio + audio_file, f"{answers}{audio_file.partition('/')[0]}/{reply['file']}"
    for name in (recording, answer):
        if name not in files:
            raise DataError(f"no such file: {name}")
    return {
        "context_audio": [{"role": "user", "audio": ClipCell(files[recording], where)}],
        "response_audio": ClipCell(files[answer], where),
        "tags": {"cue_class": cue_class, "cue": cue},
        "language": "en",
        "response_text": text_of(reply.get("response_audio_transcript")) or text_of(reply.get("response_text")),
    }


def _object(row: Mapping[str, Any], column: str) -> Mapping[str, Any]:
    value = row.get(column)
    return value if isinstance(value, dict) else {}
