"""From a row to a pair, or to the reason why there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from empathy_judge.manifests.rows import RowReader

WHERE = "m.csv, row 3"


def test_every_form_of_a_clip(clips):
    reader = RowReader(clips)
    data = (clips / "r1.wav").read_bytes()
    path = (clips / "r0.wav").resolve()
    for value, clip in (
        ("r0.wav", path),
        (data, data),
        ({"bytes": data, "path": "elsewhere.wav"}, data),
        ({"bytes": None, "path": "r0.wav", "sha256": "0"}, path),
    ):
        found = reader.row("a", {"response_audio": value, "context_audio": value, "situation": "Late."}, WHERE)
        assert found.problem is None
        assert found.pair is not None
        assert (found.pair.response, found.pair.context[0].audio, found.pair.context[0].role) == (clip, clip, "user")
        assert (found.pair_id, found.pair.situation) == ("a", "Late.")
    turns = [{"role": "user", "audio": "c.wav"}, {"role": "assistant", "path": "r0.wav", "bytes": None}]
    found = reader.row("a", {"response_audio": "r1.wav", "context_audio": turns}, WHERE)
    assert found.pair is not None
    assert [(turn.role, Path(str(turn.audio)).name) for turn in found.pair.context] == [
        ("user", "c.wav"),
        ("assistant", "r0.wav"),
    ]


@pytest.mark.parametrize(
    ("cells", "kind", "text"),
    [
        ({}, "empty cell", f"{WHERE}, column 'response_audio': empty; accepted: a clip"),
        ({"response_audio": "absent.wav"}, "no such file", "'response_audio': value 'absent.wav': no such file in "),
        ({"response_audio": "../outside.wav"}, "leaves the folder", "value '../outside.wav' leaves the folder "),
        ({"response_audio": "/etc/passwd"}, "leaves the folder", "value '/etc/passwd' leaves the folder "),
        ({"response_audio": "link.wav"}, "leaves the folder", "value 'link.wav' leaves the folder "),
        ({"response_audio": " leaves"}, "no such file", "value ' leaves': no such file"),
        ({"response_audio": "a\x00b"}, "no such file", r"value 'a\x00b': no such file"),
        ({"response_audio": 7}, "not a clip", "value 7; accepted: path of an audio file, or its bytes"),
        ({"response_audio": {"url": "x"}}, "not a clip", "accepted: path of an audio file, or its bytes"),
        ({"response_audio": {"bytes": b"", "path": None}}, "empty cell", "empty"),
        ({"response_audio": "r0.wav", "context_audio": "x"}, "no such file", "'context_audio': value 'x': no such"),
        ({"response_audio": "r0.wav", "context_audio": [{"audio": "c.wav"}]}, "not a turn", '{"role": "user", '),
        ({"response_audio": "r0.wav", "context_audio": ["c.wav"]}, "not a turn", "value 'c.wav'; accepted"),
        ({"response_audio": "r0.wav", "situation": 5.5}, "not text", "'situation': value 5.5; accepted: text"),
    ],
)
def test_what_cannot_be_used_is_named(cells, kind, text, clips):
    (clips / "link.wav").symlink_to(clips.parent / "outside.wav")
    found = RowReader(clips).row("a", cells, WHERE)
    assert found.pair is None
    assert found.problem is not None
    assert found.problem.kind == kind
    assert found.problem.text.startswith(WHERE)
    assert text in found.problem.text
    assert "\n" not in found.problem.text


def test_a_path_without_a_folder_is_a_problem(clips):
    found = RowReader(None).row("a", {"response_audio": str(clips / "r0.wav")}, WHERE)
    assert found.problem is not None
    assert found.problem.kind == "a path"
