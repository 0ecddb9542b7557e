"""A small valid source for every importer, several where it reads several formats."""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import soundfile

RATE = 16_000


class Source(NamedTuple):
    """Something to import."""

    importer: str  # its name on the command line
    # writes it into a folder that may not exist yet; returns its path and the rest of the command line
    write: Callable[[Path], tuple[Path, Sequence[str]]]


def clip(path: Path, number: int = 0, seconds: float = 0.1) -> str:
    """A decaying tone, 100 ms by default."""
    time = np.arange(round(seconds * RATE)) / RATE
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, 0.5 * np.exp(-5 * time) * np.sin(2 * np.pi * (200 + 50 * number) * time), RATE)
    return path.name


def _pairs(folder: Path) -> list[dict[str, Any]]:
    contexts = [clip(folder / f"context{number}.wav", number) for number in range(2)]
    return [
        {
            "pair_id": f"p{number}", "context_audio": contexts[number % 2],
            "response_audio": clip(folder / f"response{number}.wav", 3 + number), "group_id": f"g{number % 2}",
            "system_id": f"s{number // 2}", "situation": "lost keys",
        }
        for number in range(4)
    ]  # fmt: skip


def _ratings() -> list[dict[str, Any]]:
    return [
        {
            "pair_id": f"p{pair}", "rater_id": f"r{rater}", "dimension": "empathy", "score": 1 + (pair + rater) % 5,
            "seconds": 2.5 + rater,
        }
        for pair in range(4)
        for rater in range(2)
    ]  # fmt: skip


def _table(folder: Path) -> tuple[Path, Sequence[str]]:
    pd.DataFrame(_pairs(folder)).to_csv(folder / "pairs.csv", index=False)
    pd.DataFrame(_ratings()).to_csv(folder / "ratings.csv", index=False)
    return folder / "pairs.csv", ["--ratings", str(folder / "ratings.csv"), "--dimension", "empathy=1:5:1"]


def _table_of_turns(folder: Path) -> tuple[Path, Sequence[str]]:
    pairs = _pairs(folder)
    for number, pair in enumerate(pairs):
        pair["context_audio"] = [{"role": role, "audio": pair["context_audio"]} for role in ("user", "assistant")]
        pair["empathy:anna"] = 1 + number
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return folder / "pairs.jsonl", ["--dimension", "empathy=1:5:1"]


def _parquet_table(folder: Path) -> tuple[Path, Sequence[str]]:
    _embedded(folder).to_parquet(folder / "pairs.parquet")
    pd.DataFrame(_ratings()).to_parquet(folder / "ratings.parquet")
    words = ["--ratings", str(folder / "ratings.parquet"), "--dimension", "empathy=1:5:1"]
    return folder / "pairs.parquet", words


def _embedded(folder: Path) -> pd.DataFrame:
    """Pairs with audio as Hugging Face datasets store it."""
    rows = _pairs(folder / "clips")
    for number, row in enumerate(rows):
        for column in ("context_audio", "response_audio"):
            row[column] = {"bytes": (folder / "clips" / row[column]).read_bytes(), "path": "x.wav"}
        row["empathy:anna"] = 1 + number
    shutil.rmtree(folder / "clips")
    return pd.DataFrame(rows)


def _label_studio(folder: Path) -> tuple[Path, Sequence[str]]:
    tasks = [
        {
            "id": number,
            "data": {"a": f"/data/local-files/?d={pair['response_audio']}", "b": pair["context_audio"], "m": "x"},
            "annotations": [
                {
                    "id": 10 * number + rater, "completed_by": rater, "was_cancelled": rater == 2, "lead_time": 3.5,
                    "result": [
                        {"from_name": "stars", "to_name": "a", "type": "rating", "value": {"rating": 1 + rater}},
                        {"from_name": "kind", "to_name": "a", "type": "choices", "value": {"choices": ["4"]}},
                        {"from_name": "better", "to_name": "a", "type": "pairwise", "value": {"selected": "left"}},
                    ],
                }
                for rater in range(3)
            ],
        }
        for number, pair in enumerate(_pairs(folder))
    ]  # fmt: skip
    (folder / "export.json").write_text(json.dumps(tasks))
    words = [
        "--response", "a", "--response", "b", "--dimension", "empathy=1:5:1", "--dimension", "kindness=1:5",
        "--rating", "empathy@a=stars", "--rating", "kindness@a=kind", "--preference", "empathy=better",
        "--field", "system_id@a=m",
    ]  # fmt: skip
    return folder / "export.json", words


def _hugging_face_parquet(folder: Path) -> tuple[Path, Sequence[str]]:
    _embedded(folder).to_parquet(folder / "train.parquet")
    return folder, ["--dimension", "empathy=1:5:1"]


def _hugging_face_saved(folder: Path) -> tuple[Path, Sequence[str]]:
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset.from_pandas(_embedded(folder)).save_to_disk(str(folder))
    return folder, ["--dimension", "empathy=1:5:1"]


def _hugging_face_audio(folder: Path) -> tuple[Path, Sequence[str]]:
    rows = [
        {"file_name": pair["response_audio"], "pair_id": pair["pair_id"], "empathy:anna": 1 + number}
        for number, pair in enumerate(_pairs(folder))
    ]
    pd.DataFrame(rows).to_csv(folder / "metadata.csv", index=False)
    return folder, ["--dimension", "empathy=1:5:1", "--column", "response_audio=audio"]


def _builder(test: str, name: str) -> Any:
    """What the importer's own test writes its sources with."""
    return getattr(importlib.import_module(f"empathy_judge.tests.data_modules.importers.corpora.test_{test}"), name)


def _written(test: str, name: str, folder: Path) -> tuple[Path, Sequence[str]]:
    _builder(test, name)(folder).write()
    return folder, []


def _trace(folder: Path) -> tuple[Path, Sequence[str]]:
    source = _builder("trace", "Trace")(folder)
    source.compare(67, "moshi", "diva", overall="1", content="2")
    source.compare(5, "gpt", "moshi", overall="both_good")
    source.arena("sad", "1")
    source.write()
    return folder, []


def _speechjudge(folder: Path, in_parquet: bool = False) -> tuple[Path, Sequence[str]]:
    source = _builder("speechjudge", "SpeechJudge")(folder)
    source.compare((200, 300), ["A+1", "A+2", "B+1", "Tie (both very good)"])
    source.compare((400, 300), ["B+2"])
    if in_parquet:
        source.parquet("train.parquet", source.rows)
        shutil.rmtree(folder / "clips")
    else:
        source.table("rows.jsonl", source.rows)
    return folder, []


def _sdiareward(folder: Path) -> tuple[Path, Sequence[str]]:
    source = _builder("sdiareward", "SDiaReward")(folder)
    source.row(200, 300)
    source.row(400, 500, context=91)
    source.table("rows.jsonl", source.rows)
    return folder / "rows.jsonl", []


def _echomind(folder: Path) -> tuple[Path, Sequence[str]]:
    benchmark = _builder("echomind", "Benchmark")(folder)
    benchmark.record("synthesis")
    benchmark.answer("synthesis", "model-a", "zero", 400)
    return benchmark.write(), []


def _empathy_eval(folder: Path) -> tuple[Path, Sequence[str]]:
    wav = _builder("empathy_eval", "wav")
    release = _builder("empathy_eval", "Release")(folder)
    folder.mkdir()
    for name, part, other in (("t_multi-context", "1", "_sad"), ("n_multi-emotion", "sad", "")):
        clips = {f"response_audio/hit:1_{part}_{label}.wav": wav(400 + len(label)) for label in ("goodPara", "badPara")}
        clips[f"user_audio/hit:1_{part}{other}.wav"] = wav(100)
        release.archives[f"empatheticDialogue_{name}"] = clips
    contexts = [{"context": "Lost.", "response": "Oh."}] * 2
    release.tables = {
        "empatheticDialogue_t_multi-context_flat.jsonl": [{"id": "hit:1", "text": "Well.", "contexts": contexts}],
        "empatheticDialogue_n_multi-emotion_flat.jsonl": [
            {"id": "hit:1", "text": "Well.", "contexts": {"Context": "At work.", "sad_response": "Oh."}}
        ],
    }
    return release.write(), []


SOURCES = {
    "table": Source("table", _table),
    "table of turns": Source("table", _table_of_turns),
    "table in Parquet": Source("table", _parquet_table),
    "label-studio": Source("label-studio", _label_studio),
    "hugging-face Parquet": Source("hugging-face", _hugging_face_parquet),
    "hugging-face saved": Source("hugging-face", _hugging_face_saved),
    "hugging-face audio": Source("hugging-face", _hugging_face_audio),
    "vstyle": Source("vstyle", partial(_written, "vstyle", "VStyle")),
    "trace": Source("trace", _trace),
    "speech-drame": Source("speech-drame", partial(_written, "speech_drame", "Drame")),
    "speechjudge": Source("speechjudge", _speechjudge),
    "speechjudge in Parquet": Source("speechjudge", partial(_speechjudge, in_parquet=True)),
    "sdiareward": Source("sdiareward", _sdiareward),
    "echomind": Source("echomind", _echomind),
    "empathy-eval": Source("empathy-eval", _empathy_eval),
}
"""Each importer at least once."""
