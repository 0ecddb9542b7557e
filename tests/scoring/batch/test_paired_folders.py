"""Two folders as a manifest."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from empathy_judge.cli import main
from empathy_judge.core.errors import UserError
from empathy_judge.scoring.batch.paired_folders import manifest_of_folders

from ...conftest import output_of


def folder(parent: Path, *names: str) -> Path:
    parent.mkdir()
    for name in names:
        (parent / name).write_bytes(b"x")
    return parent


def test_files_pair_by_name(tmp_path, capsys):
    contexts = folder(tmp_path / "contexts", "a.wav", "b.flac", "c.wav")
    responses = folder(tmp_path / "responses", "b.wav", "a.mp3", "notes.txt", "._a.mp3")
    with manifest_of_folders(contexts, responses) as (manifest, root):
        _, *rows = csv.reader(manifest.open())
        named = [(*ids, Path(response).name, Path(context).name) for *ids, response, context in rows]
        assert named == [
            ("responses/a", "a", "responses", "a.mp3", "a.wav"),
            ("responses/b", "b", "responses", "b.wav", "b.flac"),
        ]
        assert root == tmp_path.resolve()
    assert not manifest.exists()
    assert "1 context of" in capsys.readouterr().err
    with manifest_of_folders(None, responses) as (manifest, _):
        assert next(csv.reader(manifest.open())) == ["pair_id", "group_id", "system_id", "response_audio"]


def test_what_does_not_pair_is_named(tmp_path):
    contexts = folder(tmp_path / "contexts", "a.wav", "a.flac")
    responses = folder(tmp_path / "responses", "a.wav", "b.wav")
    empty = folder(tmp_path / "empty")
    for one, other, message in [
        (contexts, responses, r"a\.wav: a\.flac has the same name; expected each name once"),
        (responses, empty, "empty: holds no audio; expected .wav"),
        (contexts, folder(tmp_path / "spaced", "a .wav"), r"a \.wav'?: expected folder and file named by text"),
        (empty / "none", responses, "none: no such folder; expected two folders, or two files"),
    ]:
        with pytest.raises(UserError, match=message), manifest_of_folders(one, other):
            pass
    (contexts / "a.flac").unlink()
    message = r"no context for 1 response of .*, such as 'b\.wav'"
    with pytest.raises(UserError, match=message), manifest_of_folders(contexts, responses):
        pass


def test_the_command_scores_two_folders(judge_folder, clips, tmp_path, capsys):
    folders = [tmp_path / "contexts", tmp_path / "responses"]
    for one in folders:
        one.mkdir()
        for name in ("x", "y"):
            (one / f"{name}.wav").write_bytes((clips / f"r{'xy'.index(name)}.wav").read_bytes())
    rows = list(csv.DictReader(output_of(capsys, "score", str(judge_folder), *map(str, folders)).splitlines()))
    said = [(row["pair_id"], row["group_id"], row["system_id"], row["status"]) for row in rows]
    assert said == [("responses/x", "x", "responses", "ok"), ("responses/y", "y", "responses", "ok")]
    assert main(["score", str(judge_folder), *map(str, folders), "--audio-root", str(clips)]) == 2
    assert "expected a folder, with --manifest FILE" in capsys.readouterr().err
    assert main(["score", str(judge_folder), *map(str, folders), "--situation", "at the vet"]) == 2
    assert "--situation with folders; expected --manifest FILE with a column situation" in capsys.readouterr().err
