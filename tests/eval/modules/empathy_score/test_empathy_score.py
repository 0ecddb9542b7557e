"""Scores as a measurement of the evaluate library, loaded as its users load it."""

from __future__ import annotations

import numpy as np
import pytest
import soundfile
from empathy_judge.eval.modules import SCORE

evaluate = pytest.importorskip("evaluate")  # the library; `conftest.py` says where it keeps its cache


def test_scores_are_those_of_the_scorer(scorer, judge_folder, tmp_path):
    clips = [str(tmp_path / f"{number}.wav") for number in range(3)]
    for number, clip in enumerate(clips):
        soundfile.write(clip, 0.3 * np.sin(np.arange(8_000) * (0.05 + 0.02 * number)), 16_000)
    module = evaluate.load(SCORE)
    measured = module.compute(data=clips[1:], contexts=[clips[0]] * 2, judge=str(judge_folder))
    expected = scorer.score([clips[0]] * 2, clips[1:])
    for dimension in scorer.dimensions:
        values = [own[dimension.name] for own in expected]
        assert measured["scores"][dimension.name] == pytest.approx(values, abs=1e-5)
        assert measured["mean"][dimension.name] == pytest.approx(sum(values) / 2, abs=1e-5)
    assert module.module_type == "measurement"
