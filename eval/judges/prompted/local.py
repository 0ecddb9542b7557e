"""Generative backbones on this machine, asked the same questions: the level of a judge before fine-tuning."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ....data_modules.errors import AudioError, TextError, UserError
from ....models import NANO
from ....models.backbones.audio_language_model import Message
from ....models.backbones.base import Checkpoint
from ....models.generate import AnsweringModel, Chat, identity
from ....models.scoring import SPREAD, choose_device
from ....models.settings import Quantization
from .provider import ANSWERED, CUT_OFF, EMPTY, Provider, Reply, RequestError, Usage
from .questions import Parts, Question
from .settings import AnswerMode

_DIGITS = tuple("0123456789")


class LocalProvider(Provider):
    """A backbone of this package; nothing leaves the machine, and nothing is paid.

    For probabilities, it reads the question once and generates nothing. The weights are loaded at the first question
    and stay loaded; what can be checked without them is checked before. Questions are answered one at a time.

    Args:
        model: ``nano``, a folder, or a hub id, which may be followed by ``@`` and a revision.
        device: "cpu", "cuda", ...; "auto" = all GPUs, then main memory; None = a GPU if there is one. On a GPU the
            weights are bfloat16, else float32.
        quantization: Of the language model.
        by_digit: Whether it will be asked for probabilities of scores, which are those of single tokens.

    Raises:
        UserError: If there is no such model or it cannot answer in words, there is no such device, or probabilities
            are wanted and the tokenizer does not write each digit as one token.
    """

    name = "local"
    free = True
    modes: tuple[AnswerMode, ...] = ("logprobs", "text")
    audio_tokens_per_second = 0.0
    likely_tokens = 60
    max_tokens = 400

    def __init__(
        self, model: str, device: str | None = None, quantization: Quantization = "none", by_digit: bool = True
    ) -> None:
        self._device = choose_device(None if device == SPREAD else device)
        dtype = torch.float32 if self._device.type == "cpu" else torch.bfloat16
        precision = str(dtype).removeprefix("torch.") if quantization == "none" else quantization
        name, _, revision = (model, "", "") if _is_here(model) else model.partition("@")
        identifier = identity(Checkpoint(name, revision or None))
        revision = None if _is_here(name) else identifier
        self._checkpoint = Checkpoint(
            name, revision, dtype, quantization=quantization, device_map="auto" if device == SPREAD else None
        )
        # the model without weights: shows before a run whether it can answer, without loading gigabytes
        sketch = AnsweringModel(Checkpoint(name, revision, weights=False), self._device)
        self._digits = sketch.spellings(_DIGITS) if by_digit else {}
        self.version = f"{identifier[:16]}:{precision}"
        self.model = f"{Path(name).name}@{self.version}"  # answers of different weights are cached separately
        self.place = f"this machine ({self._device.type}, {precision})"
        self._loaded: AnsweringModel | None = None

    def request(self, question: Question) -> dict[str, Any]:
        """See `Provider.request`: the input of the model's own chat template."""
        return {"model": self.model, "messages": _chat(question).messages, "answers": question.mode}

    async def ask(self, question: Question) -> Reply:
        return await asyncio.to_thread(self._answer, question)

    def _answer(self, question: Question) -> Reply:
        model = self._loaded = self._loaded or AnsweringModel(self._checkpoint, self._device)
        try:
            return self._rated(model, question) if question.mode == "logprobs" else self._written(model, question)
        except UserError as error:
            # otherwise too many tokens, or a transcript that contains a special token
            of_clips = isinstance(error, AudioError) and not isinstance(error, TextError)
            raise RequestError("clips too long" if of_clips else "question cannot be read", str(error)) from None
        except torch.OutOfMemoryError:
            advice = "use shorter clips, fewer examples, another --device or --quantization nf4"
            raise RequestError("out of memory", advice, final=True) from None

    def _rated(self, model: AnsweringModel, question: Question) -> Reply:
        scores, text, audio = model.first_token(_chat(question))
        logarithms: dict[str, list[float]] = {}  # several tokens may spell one digit
        for token, digit in self._digits.items():
            logarithms.setdefault(digit, []).append(scores[token].item())
        combined = {digit: float(np.logaddexp.reduce(values)) for digit, values in logarithms.items()}
        likeliest = model.text_of(int(scores.argmax()))
        return Reply(ANSWERED, likeliest, self.version, Usage(text, audio, 0), combined)

    def _written(self, model: AnsweringModel, question: Question) -> Reply:
        written, text, audio = model.write(_chat(question), question.max_tokens, question.temperature)
        kind = CUT_OFF if not written.complete else ANSWERED if written.text.strip() else EMPTY
        return Reply(kind, written.text, self.version, Usage(text, audio, written.tokens))


def _is_here(model: str) -> bool:
    return model == NANO or Path(model).is_dir()


def _chat(question: Question) -> Chat:
    messages: list[Message] = [{"role": "system", "content": [{"type": "text", "text": question.system}]}]
    messages += [{"role": message.role, "content": _content(message.parts)} for message in question.messages]
    return Chat(messages, [sound.wav for sound in question.sounds])


def _content(parts: Parts) -> list[dict[str, Any]]:
    """Puts each text and each clip on its own line; chat templates join the parts without a separator."""
    content: list[dict[str, Any]] = []
    text = ""
    for part in parts:
        if isinstance(part, str):
            text += f"{part}\n"
        else:
            content += [{"type": "text", "text": text}, {"type": "audio"}] if text else [{"type": "audio"}]
            text = "\n"
    return [*content, {"type": "text", "text": text.removesuffix("\n")}] if text.strip() else content
