"""Inspection: the numbers are right, bad clips are listed instead of raised, and what was measured is kept."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
import soundfile
from empathy_judge.data_modules.overview import ClipProblem, NumberSummary, inspect_dataset
from empathy_judge.data_modules.ratings import PREFERENCE_COLUMNS, Dimension
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.data_modules.writing import write_splits


def test_counts_and_durations(source):
    source.tone("clips/001-1.wav", seconds=0.9)
    source.ratings = source.ratings[:5]
    source.load(synthetic=True)
    write_splits(source.out, ["train", "train", "test", None])
    found = inspect_dataset(PairDataset.load(source.out))
    assert found.synthetic
    assert found.counts["all"] == {
        "pairs": 4, "groups": 2, "systems": 2, "context_speakers": 0, "response_speakers": 0, "raters": 2,
        "ratings": 5, "rated_pairs": 3,
    }  # fmt: skip
    assert {name: (part["pairs"], part["ratings"]) for name, part in found.counts.items()} == {
        "all": (4, 5), "train": (2, 4), "test": (1, 1), "(none)": (1, 0),
    }  # fmt: skip
    response = found.seconds["response"]
    assert (response.count, response.minimum, response.maximum) == (4, 0.3, 0.9)
    assert (response.median, response.total) == (pytest.approx(0.3), pytest.approx(1.8))
    assert found.seconds["context"] == NumberSummary(2, 0.3, 0.3, 0.3, 0.6)
    assert found.scores["empathy"] == {
        "scale": "1 to 5 in steps of 1", "higher_is_better": True, "count": 5, "minimum": 1.0, "mean": 2.0,
        "maximum": 3.0,
    }  # fmt: skip
    assert found.raters_per_pair["empathy"] == NumberSummary(3, 1.0, 2.0, 2.0, 5.0)
    assert found.unrated == ("001-1",)
    assert found.split_by == ("group_id",)
    assert found.crossings["group_id"] == {}
    assert found.crossings["system_id"] == {"s0": ("test", "train")}
    assert found.problems == ()


def test_bad_clips_are_listed(source):
    rng = np.random.default_rng(0)
    soundfile.write(source.folder / "clips/000-0.wav", rng.normal(0, 1e-4, 16_000), 16_000)
    soundfile.write(source.folder / "clips/000-1.wav", np.clip(rng.normal(0, 0.5, 16_000), -1, 1), 16_000)
    source.tone("clips/001-0.wav", seconds=2)
    source.load()
    found = inspect_dataset(PairDataset.load(source.out), max_seconds=1.5)
    assert [(problem.kind, problem.pair_id, problem.clip) for problem in found.problems] == [
        ("silent", "000-0", "response"),
        ("clipped", "000-1", "response"),
        ("too_long", "001-0", "response"),
    ]
    assert found.problems[0].detail == "RMS -80 dBFS"
    assert found.problems[2].detail == "2.0 s"
    assert inspect_dataset(PairDataset.load(source.out)).problems == found.problems[:2]


def test_a_constant_signal_is_silent_and_full_scale_of_8_bit_files_is_seen(source):
    """An offset alone cannot be heard, nor does it hide speech."""
    time = np.arange(8_000)
    soundfile.write(source.folder / "clips/000-0.wav", np.full(8_000, 0.5), 16_000)
    soundfile.write(source.folder / "clips/000-1.wav", 0.4 + 0.1 * np.sin(time), 16_000)
    soundfile.write(source.folder / "clips/001-0.wav", np.sign(np.sin(time / 10)), 16_000, subtype="PCM_U8")
    source.load()
    silent, clipped = inspect_dataset(PairDataset.load(source.out)).problems
    assert (silent.kind, silent.pair_id, silent.detail) == ("silent", "000-0", "RMS -200 dBFS")
    assert (clipped.kind, clipped.pair_id) == ("clipped", "001-0")


def test_clips_that_changed_after_the_import(source):
    dataset = source.load()
    context, response = dataset.pairs[0].context[0].audio, dataset.pairs[2].response
    context.write_text("not audio any more")
    soundfile.write(response, 0.1 * np.sin(np.arange(8_000)), 16_000)
    found = inspect_dataset(PairDataset.load(source.out))
    assert [(problem.kind, problem.pair_id, problem.clip) for problem in found.problems] == [
        ("unreadable", "000-0", "context 1"),
        ("unreadable", "000-1", "context 1"),
        ("changed", "001-0", "response"),
    ]
    assert "not a sound file" in found.problems[0].detail
    assert found.seconds["context"].count == 1
    assert ClipProblem("changed", "001-0", "response", "the content is not what was imported") == found.problems[2]


def test_compared_pairs_are_not_unrated_and_a_scale_says_its_direction(source):
    dataset = source.load(dimensions=[Dimension("empathy", 1, 5, 1, False)])
    ids = [pair.pair_id for pair in dataset.pairs]
    compared = pd.DataFrame([(ids[0], ids[2], "r", "empathy", 1.0)], columns=list(PREFERENCE_COLUMNS))
    found = inspect_dataset(dataclasses.replace(dataset, ratings=dataset.ratings.iloc[:0], preferences=compared))
    assert found.unrated == (ids[1], ids[3])
    assert found.scores["empathy"]["scale"] == "1 to 5 in steps of 1 (lower is better)"
