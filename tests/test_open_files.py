"""Clips as open files, and as cells of tables."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile
from empathy_judge.audio.decode import Clip, load_clip
from empathy_judge.core.errors import AudioError
from empathy_judge.scoring.audio_inputs import clip

SAMPLES = np.random.default_rng(0).normal(0, 0.1, 1_600).astype(np.float32)


def stored() -> io.BytesIO:
    file = io.BytesIO()
    soundfile.write(file, SAMPLES, 16_000, "FLOAT", format="WAV")
    return file


def test_an_open_file_is_read_from_its_beginning():
    file = stored()
    for _ in range(2):  # at its end, as it was just written; and read once
        with pytest.raises(AudioError, match=r"at its end; expected one at its beginning: seek\(0\)"):
            clip(file)
        file.seek(0)
        np.testing.assert_array_equal(load_clip(clip(file)).samples, SAMPLES)


def test_a_file_that_may_not_be_read_is_said_as_such(tmp_path):
    file = stored()
    file.close()
    with pytest.raises(AudioError, match="an open file cannot be read"):
        clip(file)
    with open(tmp_path / "new.wav", "wb") as only_written, pytest.raises(AudioError, match="an open file cannot be"):
        clip(only_written)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_of_a_cell(kind):
    cell = {"bytes": kind(stored().getvalue()), "path": None}
    np.testing.assert_array_equal(load_clip(clip(cell)).samples, SAMPLES)


def test_what_is_too_large_for_float32_is_one_line(recwarn):
    with pytest.raises(AudioError, match=r"sample 0 .* is inf, 1600 such samples"):
        load_clip(Clip(np.full(1_600, 1e300), 16_000))
    assert not recwarn.list
