"""Durations and measures are stored beside the dataset, and found anew where that file was changed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from empathy_judge.data_modules import clip_measures
from empathy_judge.data_modules.clip_measures import DURATIONS_FILE, clip_seconds, measure_clips
from empathy_judge.data_modules.schema import PairDataset


def test_a_measure_that_was_changed_on_disk_is_measured_again(source):
    dataset = source.load()
    before = measure_clips(dataset)
    notes = dataset.root / clip_measures.MEASURED_FILE
    lines = notes.read_text().splitlines()
    for spoilt in ('"seconds": 9', '"seconds": "1"', '"seconds": NaN'):
        notes.write_text("\n".join(re.sub('"seconds": [0-9.]+', spoilt, line) for line in lines))
        assert measure_clips(PairDataset.load(dataset.root)) == before


def test_durations_are_read_once(dataset_folder, tmp_path, monkeypatch):
    folder = Path(shutil.copytree(dataset_folder, tmp_path / "data"))
    (folder / DURATIONS_FILE).unlink(missing_ok=True)
    dataset = PairDataset.load(folder)
    found = clip_seconds(dataset)
    for pair in dataset.pairs:
        for source in (pair.response, *(turn.audio for turn in pair.context)):
            assert found[source] == pytest.approx(clip_measures.probe(source).seconds)
    monkeypatch.setattr(clip_measures, "probe", None)
    assert clip_seconds(PairDataset.load(folder)) == found
