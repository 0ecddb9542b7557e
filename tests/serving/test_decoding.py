"""Clips of strangers: the same samples as everywhere, and no way to hang, crash or fill what decodes them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable
from typing import TypeVar

import numpy as np
import pytest
from empathy_judge.data_modules.audio import decode
from empathy_judge.data_modules.errors import AudioError
from empathy_judge.serving import decoding
from empathy_judge.serving.decoding import Decoders, decode_safely

from ..conftest import encoded
from .services import RATE, wav

T = TypeVar("T")


def with_decoders(use: Callable[[Decoders], Awaitable[T]], seconds: float = 20.0) -> tuple[T, int]:
    """What `use` returns, and how many processes had to be replaced."""
    restarts = 0

    def count() -> None:
        nonlocal restarts
        restarts += 1

    async def run() -> T:
        decoders = Decoders(1, RATE, 10.0, seconds, count)
        await decoders.start()
        try:
            return await use(decoders)
        finally:
            await decoders.stop()

    return asyncio.run(run()), restarts


def process_of(decoders: Decoders) -> subprocess.Popen[bytes]:
    process = decoders.workers[0].process
    assert process is not None
    return process


def test_samples_are_those_of_the_package():
    clips = [wav(0.5, 1.0), wav(0.7, 0.5, rate=44_100, channels=2, kind="FLAC"), wav(0.3, 0.8, rate=8_000)]

    async def use(decoders: Decoders):
        return await asyncio.gather(*(decoders.decode(data, f"clip {n}") for n, data in enumerate(clips)))

    found, restarts = with_decoders(use)
    for (clip, seconds, clipped), data, wanted in zip(found, clips, (1.0, 0.5, 0.8), strict=True):
        assert clip.rate == RATE
        assert not clipped
        assert seconds == pytest.approx(wanted)
        np.testing.assert_array_equal(clip.samples, decode(data, RATE))
    assert restarts == 0


@pytest.mark.parametrize(
    ("number", "seconds", "message"),
    [(signal.SIGSTOP, 0.5, r"decoding took longer than 0\.5 s"), (signal.SIGKILL, 20.0, "the decoder crashed on it")],
)
def test_a_decoder_that_hangs_or_crashes_is_replaced(number, seconds, message):
    async def use(decoders: Decoders):
        harmed = process_of(decoders).pid
        os.kill(harmed, number)
        with pytest.raises(AudioError, match=f"^response: {message}$"):
            await decoders.decode(wav(), "response")
        with pytest.raises(ProcessLookupError):
            os.kill(harmed, 0)
        decoders.seconds = 20.0  # a new process takes its time
        return await decoders.decode(wav(), "response")

    (clip, *_), restarts = with_decoders(use, seconds)
    assert len(clip.samples) == RATE // 2
    assert restarts == 1


def test_a_decoder_that_ended_while_nothing_was_decoded_blames_no_clip():
    async def use(decoders: Decoders):
        process_of(decoders).kill()
        process_of(decoders).wait()
        return await decoders.decode(wav(), "response")

    (clip, *_), restarts = with_decoders(use)
    assert len(clip.samples) == RATE // 2
    assert restarts == 0


def test_who_does_not_wait_does_not_disturb_who_comes_next():
    async def use(decoders: Decoders):
        gone = asyncio.create_task(decoders.decode(wav(0.9, 9.0), "gone"))
        await asyncio.sleep(0.01)
        gone.cancel()
        return await decoders.decode(wav(0.5, 0.5), "stays")

    (clip, *_), restarts = with_decoders(use)
    assert clip.name == "stays"
    assert clip.samples.max() == pytest.approx(0.5, abs=1e-3)
    assert restarts == 0


def test_a_decoder_has_no_secrets_and_little_memory(monkeypatch):
    monkeypatch.setenv("EMPATHY_JUDGE_TOKEN", "sesame")

    async def use(decoders: Decoders):
        pid = process_of(decoders).pid
        with open(f"/proc/{pid}/environ", "rb") as environment, open(f"/proc/{pid}/limits") as limits:
            return environment.read(), limits.read()

    (environment, limits), _ = with_decoders(use)
    assert b"sesame" not in environment
    (line,) = [line for line in limits.splitlines() if line.startswith("Max data size")]
    assert line.split()[3] == str(decoding.MAX_MEMORY)


def test_a_small_file_that_holds_very_much_is_refused(monkeypatch):
    def silence(seconds: float) -> bytes:
        return encoded(np.zeros((round(seconds * 48_000), 8), np.float32), 48_000, "FLAC")

    monkeypatch.setattr(decoding, "MAX_SAMPLES", 48_000 * 8)
    bomb = silence(2.0)
    assert len(bomb) < 10_000
    with pytest.raises(AudioError, match=r"^r: holds 768000 samples; expected at most 384000$"):
        decode_safely(bomb, "r", 10.0)
    assert len(decode_safely(silence(0.9), "r", 10.0).samples) == 43_200
