"""Preferences in columns `chosen`, `rejected` and `prompt`, in all forms that people have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import soundfile
from empathy_judge.audio.decode import audio_hash
from empathy_judge.cli import main
from empathy_judge.data_modules.schema import PairDataset

from ...conftest import output_of

Row = dict[str, Any]
ROWS = [("q0.wav", "a.wav", "b.wav"), ("q0.wav", "b.wav", "c.wav"), ("q1.wav", "d.wav", "e.wav")]
"""Prompt, chosen, rejected; two comparisons share a prompt and a response."""


@pytest.fixture
def clips(tmp_path) -> Path:
    for number, name in enumerate(sorted({name for row in ROWS for name in row})):
        tone = 0.5 * np.sin(np.arange(4_000) * (0.1 + 0.01 * number))
        soundfile.write(tmp_path / name, tone, 16_000)
    return tmp_path


def said(role: str, clip: str, text: str | None = None) -> Row:
    words = [] if text is None else [{"type": "text", "text": text, "audio": None}]
    return {"role": role, "content": [{"type": "audio", "audio": clip, "text": None}, *words]}


def plain(prompt: str, chosen: str, rejected: str) -> Row:
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def forms(prompt: str, chosen: str, rejected: str) -> dict[str, Row]:
    """One comparison in every form."""
    asked, answers = (
        said("user", prompt),
        {"chosen": said("assistant", chosen), "rejected": said("assistant", rejected)},
    )
    messages = {"prompt": [asked], **{name: [answer] for name, answer in answers.items()}}
    without_prompt = {name: [asked, answer] for name, answer in answers.items()}
    return {
        "plain": plain(prompt, chosen, rejected),
        "messages": messages,
        "a column messages": {"messages": [asked], **{name: [answer] for name, answer in answers.items()}},
        "without prompt": without_prompt,
        "prompt twice": {"prompt": [asked], **without_prompt},
        "other spellings": {
            "prompt": [{"role": "user", "audio": prompt}],
            "chosen": {"role": "assistant", "content": [{"type": "audio", "path": chosen}]},
            "rejected": [{"role": "assistant", "content": [{"type": "audio_url", "audio_url": {"url": rejected}}]}],
        },
    }


def write(path: Path, rows: list[Row]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def compared(dataset: PairDataset) -> set[tuple[str, ...]]:
    """The clips of each comparison, as names of files."""
    names = {audio_hash(path): path.name for path in Path(str(dataset.root)).parent.glob("*.wav")}
    pairs = {pair.pair_id: [names[audio_hash(clip)] for clip in pair.clips] for pair in dataset.pairs}
    rows = zip(dataset.preferences["chosen_id"], dataset.preferences["rejected_id"], strict=True)
    return {(*pairs[chosen], pairs[rejected][-1]) for chosen, rejected in rows}


@pytest.mark.parametrize("form", list(forms("", "", "")))
def test_every_form_is_recognised_and_gives_the_same_dataset(form, clips, capsys):
    source = write(clips / "own.jsonl", [forms(*row)[form] for row in ROWS])
    facts = json.loads(output_of(capsys, "import", "table", source, "--out", clips / "out", "--json"))
    assert (facts["pairs"], facts["preferences"], facts["groups"], facts["ratings"]) == (5, 3, 2, 0)
    assert facts["description"].startswith("Recognised as preferences: 'chosen' (")
    dataset = PairDataset.load(clips / "out")
    assert compared(dataset) == set(ROWS)
    assert [own.name for own in dataset.card.dimensions] == ["preference"]
    source = write(clips / "plain.jsonl", [plain(*row) for row in ROWS])
    assert main(["import", "table", str(source), "--out", str(clips / "plain")]) == 0
    assert PairDataset.load(clips / "plain").card.content_hash == facts["content_hash"]


def test_other_columns_and_text(clips, capsys):
    head = [{"role": "system", "content": "A friend calls."}]
    rows = [
        {
            "prompt": [*head, said("user", prompt, "Hello?")], "better": [said("assistant", chosen, "Oh dear.")],
            "rejected": [said("assistant", rejected)], "rater_id": 7, "strength": strength, "model": "x",
        }
        for (prompt, chosen, rejected), strength in zip(ROWS, (0, 1.5, 2), strict=True)
    ]  # fmt: skip
    words = ["--column", "chosen=better", "--dimension", "warmth=0:1", "--out", str(clips / "out")]
    out = output_of(capsys, "import", "table", write(clips / "p.jsonl", rows), *words)
    assert "'better' (messages), 'rejected' (messages), 'prompt' (messages), rater_id from 'rater_id'" in out
    assert "Columns not imported: model.\nTo import one, with --overwrite: --column OURS=THEIRS" in out
    dataset = PairDataset.load(clips / "out")
    assert sorted(dataset.preferences["strength"]) == [0, 1.5, 2]
    assert set(dataset.preferences["rater_id"]) == {"7"}
    assert set(dataset.preferences["dimension"]) == {"warmth"}
    assert {pair.situation for pair in dataset.pairs} == {"A friend calls."}
    assert {pair.context_text for pair in dataset.pairs} == {"Hello?"}
    assert "Oh dear." in {pair.response_text for pair in dataset.pairs}


def test_a_prompt_in_words_is_the_situation(clips, capsys):
    rows = [plain("I lost my job.", *row[1:]) for row in ROWS]
    out = output_of(capsys, "import", "table", write(clips / "p.jsonl", rows), "--out", clips / "out")
    assert "'prompt' (text); the text of the prompt is the situation; the rater is called unknown" in out
    dataset = PairDataset.load(clips / "out")
    assert {pair.situation for pair in dataset.pairs} == {"I lost my job."}
    assert len({pair.group_id for pair in dataset.pairs}) == 1
    assert not any(pair.context for pair in dataset.pairs)


@pytest.mark.usefixtures("hub_cache")
def test_audio_columns_of_hugging_face_are_recognised(clips, capsys):
    clip = datasets.Audio(decode=False)
    part = {"type": datasets.Value("string"), "text": datasets.Value("string"), "audio": clip}
    nested = [{"role": datasets.Value("string"), "content": [part]}]
    names = ("prompt", "chosen", "rejected")

    def stored(name: str) -> Row:
        return {"bytes": (clips / name).read_bytes(), "path": None}

    def message(role: str, name: str) -> list[Row]:
        parts = [
            {"type": "text", "text": "Well.", "audio": None},
            {"type": "audio", "text": None, "audio": stored(name)},
        ]
        return [{"role": role, "content": parts}]

    columns = list(zip(*ROWS, strict=True))
    roles = ("user", "assistant", "assistant")
    for folder, kind, values in (
        ("flat", clip, [[stored(name) for name in own] for own in columns]),
        ("nested", nested, [[message(role, name) for name in own] for role, own in zip(roles, columns, strict=True)]),
    ):
        features = datasets.Features(dict.fromkeys(names, kind))
        made = datasets.table.InMemoryTable.from_pydict(dict(zip(names, values, strict=True)), features.arrow_schema)
        (clips / folder).mkdir()
        datasets.Dataset(made).to_parquet(clips / folder / "train.parquet")
        words = [str(clips / folder), "--out", str(clips / f"{folder}-out")]
        assert "Columns not imported" not in output_of(capsys, "import", "hugging-face", *words)
        assert compared(PairDataset.load(clips / f"{folder}-out")) == set(ROWS)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (plain("q0.wav", "a.wav", "none.wav"), "column 'rejected': value 'none.wav': no such file"),
        (plain("q0.wav", "a.wav", "a.wav"), "both clips are the same"),
        (plain("none.wav", "a.wav", "b.wav"), "column 'prompt': value 'none.wav': no such file"),
        ({"chosen": "a.wav", "rejected": None}, "column 'rejected': value None; expected a clip, or messages"),
        (plain("q0.wav", "I am sorry", "So what"), "column 'chosen': value 'I am sorry': no such file"),
        ({"chosen": [{"role": "assistant", "content": "Hm."}], "rejected": "a.wav"}, "0 clips in the response"),
        ({"chosen": [{"content": "Hm."}], "rejected": "a.wav"}, 'expected {"role": ..., "content": ...}'),
        ({"chosen": [{"role": "user", "content": ["x"]}], "rejected": "a.wav"}, 'expected {"type": "audio", "audio"'),
        ({"chosen": [{"role": "user", "content": 3}], "rejected": "a.wav"},
         "value 3; expected text or a list of parts"),
        ({"chosen": [said("user", "q0.wav"), said("assistant", "a.wav")], "rejected": "b.wav"},
         "column 'rejected': another context than that of chosen"),
        ({**plain("q0.wav", "a.wav", "b.wav"), "strength": -1}, "column 'strength': value -1; expected a number, 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_named(row, message, clips, capsys):
    source = write(clips / "p.jsonl", [row])
    assert main(["import", "table", str(source), "--out", str(clips / "out")]) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"error: {source}, row 1 (line 1)")
    assert message in line
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ratings", "SOURCE"], "expected no --ratings"),
        (["--dimension", "a=1:5", "--dimension", "b=1:5"], "expected one --dimension at most"),
        (["--scores", "a"], "no --rating-column or --scores"),
        (["--column", "prompt=question"], "no column 'question' (mapped to prompt)"),
        (["--column", "pair_id=prompt"], "expected to the left of '=': chosen, rejected, prompt"),
    ],
)
def test_options_of_ratings_are_refused(words, message, clips, capsys):
    source = str(write(clips / "p.jsonl", [plain(*ROWS[0])]))
    options = [source if word == "SOURCE" else word for word in words]
    assert main(["import", "table", source, "--out", str(clips / "out"), *options]) == 2
    assert message in capsys.readouterr().err
