"""Samples as other libraries hold them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from empathy_judge.audio.samples import decoded
from empathy_judge.core.errors import AudioError

from ..decoders import RATE, Cell, Decoder

LEFT = (0.1 * np.sin(np.arange(8_000) / 20)).astype(np.float32)


@pytest.mark.parametrize("kind", [Decoder, Cell])
def test_a_decoder_is_a_clip(kind):
    found = decoded(kind(LEFT, 22_050))
    assert found is not None
    assert found.rate == 22_050
    np.testing.assert_array_equal(found.samples, LEFT)


def test_channels_of_a_decoder_are_averaged_as_those_of_a_file():
    found = decoded(Decoder(np.stack([LEFT, 0.5 * LEFT])))
    assert found is not None
    np.testing.assert_allclose(found.samples, 0.75 * LEFT, rtol=1e-6)
    with pytest.raises(AudioError, match=r"shape \(2, 8000\)"):
        decoded({"array": np.stack([LEFT, LEFT]), "sampling_rate": RATE})


@pytest.mark.parametrize("channels", [1, 2])
def test_a_decoder_of_integers_is_told_so(channels):
    integers = np.ones((channels, 8_000), np.int16)
    with pytest.raises(AudioError, match=r"^samples have dtype int16; expected float samples in -1 to 1$") as error:
        decoded(Decoder(integers))
    assert error.value.kind == "not supported"


def test_what_is_no_decoder_is_none():
    for value in (None, 5, "a.wav", b"x", [1, 2], LEFT, torch.from_numpy(LEFT), {}, {"array": LEFT}, float("nan")):
        assert decoded(value) is None


def test_what_cannot_be_decoded_is_one_line():
    class Broken:
        def get_all_samples(self) -> Any:
            raise RuntimeError("Failed to decode: Invalid data found when processing input\nException raised from ...")

    with pytest.raises(AudioError, match=r"^the clip cannot be decoded \(Failed to decode: Invalid data .* input\)$"):
        decoded(Broken())


def test_the_real_decoder(tmp_path):
    import soundfile

    try:
        from torchcodec.decoders import AudioDecoder  # pyright: ignore[reportMissingImports]
    except (ImportError, OSError, RuntimeError):
        pytest.skip("torchcodec is not installed, or finds no FFmpeg")
    soundfile.write(tmp_path / "a.wav", np.stack([LEFT, 0.5 * LEFT], axis=1), RATE, "FLOAT")
    found = decoded(AudioDecoder(str(tmp_path / "a.wav")))
    assert found is not None
    np.testing.assert_allclose(found.samples, 0.75 * LEFT, rtol=1e-6)
