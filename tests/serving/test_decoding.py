"""Clips of strangers: the same samples as everywhere, and no way to hang, crash or fill what decodes them."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import zipfile
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import numpy as np
import pytest
from empathy_judge.audio.decode import Clip, decode
from empathy_judge.core.errors import AudioError
from empathy_judge.serving import decoding
from empathy_judge.serving.decoding import Decoders, Worker, decode_safely

from ..conftest import encoded
from .services import RATE, error_of, wav

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
        (worker,), harmed = decoders.workers, process_of(decoders).pid

        def harm_and_decode(*given: Any) -> Clip:
            os.kill(harmed, number)
            return Worker.decode(worker, *given)

        # Only once the clip has its process: one that has ended before is replaced without a word
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(worker, "decode", harm_and_decode)
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


def zipped() -> bytes:
    """A bomb: 30 MB of zeros in 30 kB."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.wav", bytes(30_000_000))
    return file.getvalue()


def lying_wav(declared: int) -> bytes:
    """A WAV file of half a second that says it has so many bytes of samples."""
    head, mark, rest = wav().partition(b"data")
    return head + mark + declared.to_bytes(4, "little") + rest[4:]


NO_SOUND = "response: not a sound file; expected wav, flac, ogg, mp3, aiff, au"


@pytest.mark.parametrize(
    ("clip", "message"),
    [
        (b"", "response: the file is empty (0 bytes)"),
        (zipped(), NO_SOUND),
        (wav(0.5, 10.5), "response: lasts 10.5 s; expected at most 10 s"),
        (wav(0.5, 11.0, kind="FLAC"), "response: lasts 11.0 s; expected at most 10 s"),
        (wav(0.5, 0.02), "response: lasts 0.020 s; expected at least 0.05 s"),
        (wav(0.5, 1.0)[:-1000], "response: the file is cut off, its last 1000 bytes are missing"),
        (lying_wav(691_200_000), "response: the file is cut off"),
        (wav(0.5, 0.5, channels=9), "response: 9 channels; expected at most 8"),
        (b"RIFF\xff\xff\xff\xffWAVE", "response: "),
        (b"fLaC" + bytes(100), "response: "),
        (b"\xff\xfb" + bytes(1000), "response: "),
    ],
)
def test_a_clip_that_cannot_be_used_is_told_why(shared, clip, message):
    service, scorer = shared
    before = len(scorer.heard)
    status, code, found = error_of(service.score(clip))
    assert (status, code) == (422, "bad_audio")
    assert found.startswith(message)
    turn = error_of(service.score(wav(), context=[wav(), clip]))[2]
    assert turn.startswith(message.replace("response", "context 2"))
    assert len(scorer.heard) == before


def test_a_header_of_a_program_that_does_not_know_the_length_is_no_lie(shared):
    service, _ = shared
    assert service.score(lying_wav(2**32 - 1)).json()["seconds"]["responses"] == [0.5]
