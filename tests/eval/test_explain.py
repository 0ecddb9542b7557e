"""What explains a score: a stretch on which a constructed judge depends is found, and nothing where nothing counts."""

from __future__ import annotations

import json
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
from empathy_judge.audio.decode import Clip
from empathy_judge.core.errors import UserError
from empathy_judge.data_modules.schema import Dimension
from empathy_judge.eval import explain as explaining
from empathy_judge.eval.explain import explain, noise_floor
from empathy_judge.scoring.scorer import Scorer

from ..conftest import output_of
from .conftest import Page

RATE = 16_000


@pytest.fixture(scope="module")
def speech() -> Clip:
    """Two seconds of a voice-like tone with harmonics and faint noise."""
    time = np.arange(2 * RATE) / RATE
    pitch = np.cumsum(150 + 30 * np.sin(2 * np.pi * time)) / RATE
    tone = sum(np.sin(2 * np.pi * k * pitch) / k for k in range(1, 8))
    gate = (np.sin(2 * np.pi * 2.5 * time) > -0.6).astype(float)
    noise = np.random.default_rng(0).normal(0, 0.001, len(time))
    return Clip((0.1 * tone * gate + noise).astype(np.float32), RATE)


def constructed(
    monkeypatch: pytest.MonkeyPatch, speech: Clip, first: float, last: float, sign: float, higher_is_better: bool = True
) -> None:
    """Every judge now hears by how much these seconds differ from those of the clip: 2 points at most."""
    known = slice(int(first * RATE), int(last * RATE))
    wanted = speech.samples[known]

    class Known:
        dimensions = (Dimension("d", 1, 5, None, higher_is_better),)

        def __init__(self, *rest, **others):
            del rest, others

        def assess_pairs(self, pairs):
            for pair in pairs:
                points = 3.0
                if last > first:
                    changed = np.square(pair.response.samples[known] - wanted).sum() / np.square(wanted).sum()
                    points += sign * 2 * float(min(1.0, changed))
                yield SimpleNamespace(points={"d": points})

    monkeypatch.setattr(explaining, "Scorer", Known)


@pytest.mark.parametrize("first", [0.1, 0.8, 1.5])
@pytest.mark.parametrize("higher_is_better", [True, False])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_stretch_that_alone_counts_is_found(monkeypatch, scorer, speech, first, sign, higher_is_better):
    constructed(monkeypatch, speech, first, first + 0.4, sign, higher_is_better)
    place = "worst" if (sign > 0) == higher_is_better else "best"
    curve = explain(scorer, None, speech, window=0.4).curves[0]
    (stretch, *_) = getattr(curve, place)
    assert min(stretch.end, first + 0.4) - max(stretch.start, first) > 0.3
    assert stretch.contribution * sign < -0.5
    assert getattr(curve, "best" if place == "worst" else "worst") == []
    raised = max(curve.edits[name][curve.starts.index(stretch.start)] * sign for name in curve.edits)
    verb = "raises" if sign > 0 else "lowers"
    assert stretch.reason.startswith(f"{stretch.start:.1f} to {stretch.end:.1f} s: ")
    assert stretch.reason.endswith(f"{verb} the score by {raised:.1f}")
    outside = np.array(curve.ends) <= first - 0.01
    assert np.abs(np.array(curve.contributions)[outside]).max(initial=0) < 1e-6


def test_nothing_stands_out_where_no_second_counts(monkeypatch, scorer, speech):
    constructed(monkeypatch, speech, 0.0, 0.0, 1.0)
    for curve in explain(scorer, speech, speech).curves:
        assert (curve.worst, curve.best) == ([], [])
        assert set(curve.contributions) == {0.0}


def test_the_noise_floor_has_the_level_of_the_pauses_nearby(speech):
    floor = noise_floor(speech.samples, np.random.default_rng(1))
    assert floor.shape == speech.samples.shape
    assert np.sqrt(np.square(floor).mean()) == pytest.approx(0.001, rel=0.3)
    assert not noise_floor(np.zeros(RATE, np.float32), np.random.default_rng(1)).any()


@pytest.mark.parametrize("seconds", [0.06, 0.3])
def test_short_and_silent_clips_are_explained(scorer, seconds):
    silence = Clip(np.zeros(int(seconds * RATE), np.float32), RATE)
    curve = explain(scorer, None, silence).curves[0]
    assert (curve.starts, curve.worst, curve.best) == ([0.0], [], [])
    assert np.isfinite(curve.contributions).all()


def test_what_cannot_be_explained_is_refused(scorer, speech):
    with pytest.raises(UserError, match=r"window 2; expected 0\.25 to 1 seconds"):
        explain(scorer, None, speech, window=2)


def test_command_prints_json_and_writes_a_page(judge_folder, speech, tmp_path, capsys):
    soundfile.write(tmp_path / "r.wav", speech.samples, RATE)
    words = ["explain", str(judge_folder), "-", str(tmp_path / "r.wav"), "--device", "cpu"]
    found = json.loads(output_of(capsys, *words, "--json", "--page", tmp_path / "w.html"))
    again = explain(Scorer.from_pretrained(judge_folder, device="cpu"), None, tmp_path / "r.wav")
    assert found == json.loads(json.dumps(asdict(again)))
    page = Page((tmp_path / "w.html").read_text(encoding="utf-8"))
    (audio,) = page.all("audio")
    assert audio["src"].startswith("data:audio/wav;base64,")
    named = [own for curve in found["curves"] for own in (*curve["worst"], *curve["best"])]
    assert [float(own["data-start"]) for own in page.all("button")] == [own["start"] for own in named]
    assert not {"link", "img", "iframe"} & set(page.tags)
    assert output_of(capsys, *words).startswith("response, empathy ")
