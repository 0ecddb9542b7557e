"""Audio states that are kept: in memory up to a limit, and in a folder."""

from __future__ import annotations

import json

import pytest
import torch
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.scoring.clip_encoder import ClipEncoder

from ..conftest import failed, output_of
from ..models.conftest import clip


def test_the_oldest_states_are_dropped_beyond_a_limit(make_judge, monkeypatch):
    judge, (first, second, third) = make_judge().eval(), [clip(0.5, seed) for seed in range(3)]
    (window,) = ClipEncoder(judge, 4).encode([first]).states[first]
    encoder, decoded, decode = ClipEncoder(judge, 4, kept_bytes=2.5 * window.states.nbytes), [], EmpathyJudge.decode

    def counted(own, source, *how):
        decoded.append(source)
        return decode(own, source, *how)

    monkeypatch.setattr(EmpathyJudge, "decode", counted)
    for asked, computed in (
        ([first, second], [first, second]), ([first], []), ([third], [third]), ([second], []), ([first], [first]),
    ):  # fmt: skip
        decoded.clear()
        found = encoder.encode(asked)
        assert set(found.states) == set(asked)
        assert decoded == computed
    assert torch.equal(found.states[first][0].states, window.states)
    encoder.forget()
    encoder.encode([first])
    assert decoded == [first, first]


def test_audio_states_are_kept_in_a_folder(judge_folder, clips, tmp_path, monkeypatch, capsys):
    """What one command computed another reads; damaged files are computed again."""
    counted = []
    plain = EmpathyJudge._encoded
    monkeypatch.setattr(EmpathyJudge, "_encoded", lambda judge, made: counted.append(1) or plain(judge, made))
    words = ["score", str(judge_folder), str(clips / "c.wav"), str(clips / "r0.wav"), "--device", "cpu", "--json"]
    expected = json.loads(output_of(capsys, *words))
    kept = [*words, "--cache", str(tmp_path / "kept")]
    for computed in (True, False):
        counted.clear()
        assert json.loads(output_of(capsys, *kept)) == pytest.approx(expected, abs=1e-5)
        assert bool(counted) == computed
    files = list((tmp_path / "kept").rglob("*.safetensors"))
    assert len(files) == 2
    files[0].write_bytes(b"damaged")
    assert json.loads(output_of(capsys, *kept)) == pytest.approx(expected, abs=1e-5)
    assert counted
    files[0].unlink()
    (tmp_path / "file").write_text("")
    line = failed(capsys, *words, "--cache", str(tmp_path / "file" / "kept"))
    assert "no folder for a cache can be made here" in line
