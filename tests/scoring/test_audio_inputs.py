"""Clips as users have them."""

from __future__ import annotations

import io

import numpy as np
import pandas as pd
import pytest
import soundfile
import torch
from empathy_judge import Scorer
from empathy_judge.audio.decode import Clip, load_clip
from empathy_judge.core.errors import AudioError
from empathy_judge.scoring.audio_inputs import clip

from ..decoders import Cell, Decoder
from .test_scorer import close

RATE = 16_000


@pytest.fixture(scope="module")
def scorer(judge_folder, device) -> Scorer:
    return Scorer.from_pretrained(judge_folder, device=device.type, batch_size=3)


def test_every_way_to_pass_a_clip_gives_the_same_score(scorer, clips):
    context, response = clips / "c.wav", clips / "r0.wav"
    expected = scorer.score(context, response)
    assert 1 < expected["empathy"] < 5
    assert 0 < expected["warmth"] < 10
    samples = [soundfile.read(path, dtype="float32")[0] for path in (context, response)]
    ways = [
        tuple(map(str, (context, response))),
        (context.read_bytes(), response.read_bytes()),
        tuple((array, RATE) for array in samples),
        tuple((torch.from_numpy(array), RATE) for array in samples),
        tuple((array.astype(np.float64), RATE) for array in samples),
        tuple(Clip(array, RATE) for array in samples),
        (str(context), (samples[1], RATE)),
        (context, {"array": samples[1], "sampling_rate": RATE, "path": None}),  # cells of data sets
        (Cell(samples[0]), Cell(samples[1])),
        (Decoder(samples[0]), Decoder(np.stack([1.5 * samples[1], 0.5 * samples[1]]))),
        (context, {"bytes": response.read_bytes(), "path": "elsewhere.wav"}),
        (context, {"bytes": None, "path": str(response)}),
        (context, {"bytes": None, "path": response}),
        (context, io.BytesIO(response.read_bytes())),
        (context, memoryview(response.read_bytes())),
    ]
    for first, second in ways:
        assert close(scorer.score(first, second), expected)


def test_a_column_of_a_hugging_face_dataset_is_a_list(scorer, clips):
    from datasets import Dataset

    paths = [str(clips / name) for name in ("r0.wav", "r1.wav")]
    column = Dataset.from_dict({"audio": paths})["audio"]
    assert not isinstance(column, list)
    expected = [scorer.score(clips / "c.wav", path) for path in paths]
    found = scorer.score(clips / "c.wav", column)
    assert all(close(one, other) for one, other in zip(found, expected, strict=True))
    assert [own.index for own in scorer.rank(None, column)] == [own.index for own in scorer.rank(None, paths)]


@pytest.mark.parametrize("kind", ["array", "tensor", "cell"])
def test_samples_are_those_of_the_moment_at_which_they_were_handed_over(kind, scorer, make_tone):
    """A stream fills one buffer again and again, and pairs wait until there is a batch of them."""
    blocks = [make_tone(0.5, hertz, 0.2) for hertz in (120, 240, 480)]
    buffer = np.empty_like(blocks[0])
    way = {
        "array": (buffer, RATE),
        "tensor": (torch.from_numpy(buffer), RATE),
        "cell": {"array": buffer, "sampling_rate": RATE},
    }

    def stream():
        for block in blocks:
            buffer[:] = block
            yield None, way[kind]

    expected = [scorer.score(None, (block, RATE)) for block in blocks]
    assert all(map(close, (own.points for own in scorer.assess_each(stream())), expected))
    assert not close(expected[0], expected[2])


def test_lists_may_be_arrays(scorer, make_tone):
    clips = [Clip(make_tone(0.6, 150 + 90 * n, 0.3), RATE) for n in range(2)]
    array = np.empty(2, object)
    array[:] = clips
    expected = scorer.score([clips[1], None], clips, situation=["Late.", None])
    contexts = pd.Series([clips[1], np.nan])
    assert scorer.score(contexts, array, situation=np.array(["Late.", None], object)) == expected


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
