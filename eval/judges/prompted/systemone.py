"""Servers of the System One protocol that hear: vLLM, ollajev, llama.cpp, Cloudflare (``@cf/cloudflare/clef-omni``)."""

from __future__ import annotations

import base64
import sys
from typing import Any

from .decisions import DecisionProvider
from .questions import Question
from .replies import Reply, Usage, tokens
from .settings import PromptedSettings

_WORKERS = "@cf/"  # models of Cloudflare, which have an address each


class SystemOneProvider(DecisionProvider):
    """See `DecisionProvider`.

    The protocol has no place for audio. Most servers take a list ``audio``, llama.cpp a list ``files``, and all put it
    before the text, so that the text names each clip by its position. One that only reads may leave it out silently.
    """

    name = "systemone"
    most_levels = 10
    most_questions = 64
    clip_forms = ("audio", "files")
    audio_tokens_per_second = 32.0
    official = ""
    domains = ("api.cloudflare.com",)
    url_variable = ""
    key_variables = ("EMPATHY_JUDGE_API_KEY",)

    def __init__(self, model: str, settings: PromptedSettings, dry_run: bool = True) -> None:
        super().__init__(model, settings, dry_run)
        self._counted: dict[tuple[str, ...], tuple[float, int]] = {}  # texts -> seconds of audio, and tokens
        self._warned = False

    def request(self, question: Question) -> dict[str, Any]:
        lines, clips = [question.system], []
        for part in question.messages[-1].parts:
            if isinstance(part, str):
                lines.append(part)
            else:
                clips.append(f"data:audio/wav;base64,{base64.b64encode(part.wav).decode()}")
                lines[-1] += f" clip {len(clips)} of {len(question.sounds)}"
        body = {"model": self.model.rpartition("/")[2] if self.model.startswith(_WORKERS) else self.model}
        body |= {"state": "\n".join(lines), "questions": question.form.schema()}
        return {**body, self.clips: clips} if clips else body

    def route(self) -> tuple[str, dict[str, str]]:
        if self.model.startswith(_WORKERS):
            path = f"{'' if self._url.endswith('/ai/run') else '/ai/run'}/{self.model}"
        else:
            path = "/systemone" if self._url.endswith("/v1") else "/v1/systemone"
        return path, {"authorization": f"Bearer {self.key or 'none'}"}

    async def ask(self, question: Question) -> Reply:
        reply = await super().ask(question)
        self._check_hearing(question, reply.usage.text_in)
        return reply

    def reply(self, body: Any) -> Reply:
        return super().reply(_unwrapped(body))

    def usage(self, body: Any) -> Usage:
        read, written = (tokens(_unwrapped(body), f"usage.{name}_tokens") for name in ("input", "output"))
        return Usage(read, None, written if read is None else written or 0)

    def _check_hearing(self, question: Question, read: int | None) -> None:
        """Warns once on standard error where longer clips with the same words take no more tokens."""
        if read is None or not question.sounds or self._warned:
            return
        seconds = self.seconds(question)
        before, counted = self._counted.setdefault((question.system, *question.texts), (seconds, read))
        # An encoder of windows gives clips of a similar length the same number of tokens
        if read == counted and abs(seconds - before) >= 1:
            self._warned = True
            lengths = f"{min(seconds, before):.1f} s and {max(seconds, before):.1f} s"
            other = "files" if self.clips == "audio" else "audio"
            print(
                f"{self.name}:{self.model}: warning: {read:,} tokens for clips of {lengths} alike; the server may not "
                f"hear them (clips={other} sends them in another field)",
                file=sys.stderr,
                flush=True,
            )


def _unwrapped(body: Any) -> Any:
    """Cloudflare may put an answer into ``result``."""
    inner = body.get("result") if isinstance(body, dict) and "answers" not in body else None
    return inner if isinstance(inner, dict) else body
