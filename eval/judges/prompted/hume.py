"""Hume's Audio Decisions: shares of raters. It takes one file, so that context and response are joined."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import numpy as np
import soundfile

from ....audio.decode import resample
from ....core.errors import UserError
from .decisions import DecisionProvider
from .questions import Question, Sound
from .replies import Reply, RequestError, Usage, tokens
from .settings import PromptedSettings

_RATE = 16_000  # Hz; it hears no more
_PAUSE = 1.0  # seconds of silence between joined clips
# Its limits (dev.hume.ai, November 2026): seconds of audio, bytes of a request, characters of text
_SHORTEST, _LONGEST, _MOST_BYTES, _MOST_TEXT = 1.0, 300.0, 25_000_000, 1_000


class HumeProvider(DecisionProvider):
    """See `DecisionProvider`. All questions are answered together: an answer depends on the others and their order."""

    name = "hume"
    models = ("decisions",)
    most_levels = 255  # its pages name no largest number; this is Google's
    most_questions = 20
    clip_forms = ("joined", "response")
    audio_tokens_per_second = 32.0
    official = "https://api.cloud.hume.ai"
    url_variable = ""
    key_variables = ("HUME_API_KEY",)

    def __init__(self, model: str, settings: PromptedSettings, dry_run: bool = True) -> None:
        super().__init__(model, settings, dry_run)
        if settings.hears == "transcript":
            raise UserError("hume:decisions: hears=transcript; each request has a recording, expected audio or both")

    def request(self, question: Question) -> dict[str, Any]:
        """The two parts of the form, in the order that is demanded."""
        asked = {"context": _in_words(question), "questions": question.form.schema()}
        return {"request": asked, "file": base64.b64encode(_joined(question.sounds)).decode()}

    def body(self, question: Question) -> dict[str, Any]:
        parts = self.request(question)
        asked, clip = json.dumps(parts["request"]), base64.b64decode(parts["file"])
        form = [("request", (None, asked, "application/json")), ("file", ("clip.wav", clip, "audio/wav"))]
        return {"files": form}

    def route(self) -> tuple[str, dict[str, str]]:
        return "/v0/decisions/file", {"x-hume-api-key": self.key or "none"}

    def seconds(self, question: Question) -> float:
        return super().seconds(question) + _PAUSE * (len(question.sounds) - 1)

    def clips_in_words(self, question: Question) -> str:
        pauses = f", joined into one with a pause of {_PAUSE:g} s" if len(question.sounds) > 1 else ""
        return super().clips_in_words(question) + pauses

    async def ask(self, question: Question) -> Reply:
        seconds, text = self.seconds(question), _in_words(question)
        # Before the file is made: two bytes for each sample, as `_joined` writes them
        size = 2 * _RATE * seconds + len(json.dumps(question.form.schema()))
        if not _SHORTEST <= seconds <= _LONGEST or size > _MOST_BYTES:
            expected = f"expected {_SHORTEST:g} to {_LONGEST:g} s and at most {_MOST_BYTES / 1e6:g} MB"
            kind = "clips too short" if seconds < _SHORTEST else "clips too long"
            raise RequestError(kind, f"{seconds:.1f} s of audio, {size / 1e6:.1f} MB; {expected}")
        if len(text) > _MOST_TEXT:
            raise RequestError("text too long", f"{len(text):,} characters; expected at most {_MOST_TEXT:,}")
        return await super().ask(question)

    def usage(self, body: Any) -> Usage:
        read = tokens(body, "received.input_tokens")
        return Usage(read, None, None if read is None else 0)


def _in_words(question: Question) -> str:
    """What the file holds, then what is not in it: the situation, transcripts."""
    texts = [part for part in question.messages[-1].parts if isinstance(part, str)]
    labels = [text.removesuffix(" (audio):") for text in texts if text.endswith(" (audio):")]
    order = f"In the recording, with a pause between them: {', then '.join(labels)}." if len(labels) > 1 else ""
    rest = [text for text in texts if not text.endswith(" (audio):")]
    return "\n".join(line for line in (question.system, order, *rest) if line)


def _joined(sounds: list[Sound]) -> bytes:
    """One WAV file of all clips, with silence between them."""
    silence, pieces = np.zeros(round(_PAUSE * _RATE), np.float32), []
    for sound in sounds:
        samples, rate = soundfile.read(io.BytesIO(sound.wav), dtype="float32")
        pieces += [silence, resample(samples, rate, _RATE)]
    file = io.BytesIO()
    # Without the silence before the first clip
    soundfile.write(file, np.clip(np.concatenate(pieces[1:]), -1, 1), _RATE, format="WAV", subtype="PCM_16")
    return file.getvalue()
