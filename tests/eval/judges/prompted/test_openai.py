"""A real server of the protocol, `transformers serve`, with the shipped backbone: audio gets in, an answer gets out.

It needs what `pip install 'transformers[serving]' soxr` installs.
"""

from __future__ import annotations

import asyncio
import importlib.util
import io
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import soundfile
from empathy_judge.data_modules.schema import Pair, Turn
from empathy_judge.eval.judges.prompted.judges import PointwiseJudge
from empathy_judge.eval.judges.prompted.openai import OpenAIProvider
from empathy_judge.eval.judges.prompted.questions import Question, score_question
from empathy_judge.eval.judges.prompted.replies import Reply
from empathy_judge.eval.judges.prompted.runner import Session
from empathy_judge.eval.judges.prompted.settings import PromptedSettings, parse_settings
from empathy_judge.models.backbones import NANO_FOLDER
from transformers import AutoProcessor, Qwen2AudioForConditionalGeneration

from .conftest import EMPATHY, clip

pytestmark = pytest.mark.long
LACKING = [name for name in ("fastapi", "uvicorn", "httpx", "soxr") if importlib.util.find_spec(name) is None]


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[str]:
    """The address of one that serves the nano backbone."""
    if LACKING:
        pytest.skip(f"transformers serve needs {', '.join(LACKING)}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("serve") / "log"
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(NANO_FOLDER), "--device", "cpu"]
    with open(log, "w") as out:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            stdout=out,
            stderr=out,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        )
        try:
            _wait(process, f"http://127.0.0.1:{port}/health", log)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            process.wait(30)


def _wait(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    end = time.monotonic() + 180
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, TimeoutError):
            time.sleep(0.5)
    pytest.fail(f"the server did not start: {log.read_text()[-2_000:]}")


PAIRS = [
    Pair(f"{hertz} Hz", clip(hertz, 1.0, 16_000), (Turn("user", clip(90, 1.0, 16_000)),), group_id="g")
    for hertz in (140, 500, 3_000)
]


def settings_of(server: str, answers: str = "text") -> PromptedSettings:
    return parse_settings([f"base_url={server}", "samples=1", "timeout=120", f"answers={answers}"], "openai")


async def ask(server: str, question: Question) -> Reply:
    provider = OpenAIProvider(str(NANO_FOLDER), settings_of(server))
    try:
        return await provider.ask(question)
    finally:
        await provider.close()


def test_the_server_answers_what_the_model_says_of_the_same_audio(server):
    processor, answers = AutoProcessor.from_pretrained(NANO_FOLDER), set()
    model = Qwen2AudioForConditionalGeneration.from_pretrained(NANO_FOLDER).eval()
    for pair in PAIRS:
        question = score_question(pair, [EMPATHY], settings_of(server), 60)
        (message,) = question.messages
        content = [{"type": "text", "text": p} if isinstance(p, str) else {"type": "audio"} for p in message.parts]
        turns = [{"role": "system", "content": question.system}, {"role": "user", "content": content}]
        chat = processor.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        clips = [soundfile.read(io.BytesIO(sound.wav), dtype="float32")[0] for sound in question.sounds]
        inputs = processor(text=chat, audio=clips, sampling_rate=16_000, return_tensors="pt")
        read = inputs["input_ids"].shape[1]  # text and audio: the server does not tell them apart
        written = model.generate(**inputs, max_new_tokens=60, do_sample=False)[0, read:]
        reply = asyncio.run(ask(server, question))
        assert reply.content == processor.tokenizer.decode(written, skip_special_tokens=True)
        assert reply.usage.text_in == read
        answers.add(reply.content)
    assert len(answers) > 1


@pytest.mark.parametrize("answers", ["text", "logprobs"])
def test_words_that_are_no_score_count_as_unreadable(answers, server, store):
    """The server knows no probabilities and leaves the wish for them unheard."""
    settings = settings_of(server, answers)
    judge = PointwiseJudge("nano", Session(OpenAIProvider(str(NANO_FOLDER), settings), settings, store), [EMPATHY])
    table = judge.score(PAIRS[:2])
    assert table["score"].isna().all()
    assert table["status"].tolist() == ["unreadable answer"] * 2
    assert [meta["requests"] for meta in table["meta"]] == [1, 1]
    assert [meta["versions"] for meta in table["meta"]] == [[f"{NANO_FOLDER}@main"]] * 2
