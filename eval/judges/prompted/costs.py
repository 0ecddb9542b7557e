"""Costs of questions: prices, a budget that is never exceeded, and the disclosure before the first question."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....data_modules.errors import UserError, counted
from .provider import Provider, Usage
from .questions import Question
from .settings import Price

if TYPE_CHECKING:
    from .judges import PromptedJudge

AS_OF = "November 2026"
PRICES = {
    "openai:gpt-audio-1.5": Price(2.5, 32.0, 10.0),
    "openai:gpt-audio": Price(2.5, 32.0, 10.0),
    "gemini:gemini-3.1-pro-preview": Price(2.0, 2.0, 12.0),
}
"""Dollars for a million tokens, as of `AS_OF`; vendors change them, a spec can say ``price=...``."""
_PRICE_SETTING = "price=TEXT_IN:AUDIO_IN:OUT in the spec, dollars for a million tokens"
_BYTES_PER_TOKEN = 3.5  # of English text; a little low, so that estimates are a little high
_NOTHING = 1e-12  # dollars
_AUDIO = re.compile(r'(?<="data": ")[A-Za-z0-9+/=]{401,}(?=")')  # longer base64 is not shown


class Budget:
    """Counts what was spent and what is reserved, and keeps their sum within the limit.

    Args:
        provider: Gives the expected number of tokens of a clip and an answer.
        price: Price of tokens; None = unknown: nothing is counted, and no limit can be kept.
        limit: Dollars; None = no limit.
    """

    def __init__(self, provider: Provider, price: Price | None, limit: float | None = None) -> None:
        self.price, self.limit = price, limit
        self._tokens_per_second = provider.audio_tokens_per_second
        self._likely = provider.likely_tokens
        self.spent = 0.0
        self.lost = 0.0  # of that, for requests without an answer that may be billed
        self._reserved = 0.0

    def estimate(self, question: Question, likely: bool = True) -> float:
        """Dollars for one request: likely, or with the longest answer that is allowed; 0 without a price."""
        audio = sum(sound.seconds for sound in question.sounds) * self._tokens_per_second
        size = sum(len(text.encode(errors="replace")) for text in (question.system, *question.texts))
        return self._dollars(size / _BYTES_PER_TOKEN, audio, self._likely if likely else question.max_tokens)

    async def reserve(self, question: Question) -> float | None:
        """Reserves the most that a request may cost; None where the limit does not allow it.

        If only the reservations of other requests stand in the way, it waits until their costs are known.
        """
        max_cost = self.estimate(question, likely=False)
        while self.limit is not None and self.spent + self._reserved + max_cost > self.limit:
            if self.spent + max_cost > self.limit or self._reserved < _NOTHING:
                return None
            await asyncio.sleep(0.02)
        self._reserved += max_cost
        return max_cost

    def release(self, reserved: float) -> None:
        """Releases what `reserve` reserved."""
        self._reserved -= reserved

    def lose(self, reserved: float) -> bool:
        """Counts a request that may be billed although no answer came; returns whether another like it is allowed."""
        self.spent += reserved
        self.lost += reserved
        return self.limit is None or self.spent + self._reserved <= self.limit

    def charge(self, usage: Usage, question: Question, reserved: float) -> float | None:
        """Counts what an answer cost and returns it (dollars); None where the price or the tokens are unknown.

        If the tokens are unknown, or how many of them are audio and that matters for the price, the whole reservation
        is counted. If clips have more tokens per second than expected, later estimates use the higher number.
        """
        price = self.price
        # how many of them are audio matters where that has a price of its own
        alike = price is not None and (price.text_in == price.audio_in or not question.sounds)
        if price is None or usage.out is None or (usage.audio_in is None and (usage.text_in is None or not alike)):
            self.spent += reserved
            return None
        cost = self._dollars(usage.text_in or 0, usage.audio_in or 0, usage.out)
        self.spent += cost
        seconds = sum(sound.seconds for sound in question.sounds)
        if usage.audio_in and seconds:
            self._tokens_per_second = max(self._tokens_per_second, usage.audio_in / seconds)
        return cost

    def spent_in_words(self) -> str:
        """For a progress bar."""
        limit = "" if self.limit is None else f" of ${self.limit:.2f}"
        return "" if self.price is None else f"${self.spent:.2f}{limit}"

    def _dollars(self, *tokens: float) -> float:
        price = self.price or Price(0, 0, 0)
        return sum(count * dollars for count, dollars in zip(tokens, price, strict=True)) / 1e6


# ---------------------------------------------------------------- before the first question


@dataclass
class RequestPlan:
    """The requests that asking would send."""

    questions: int  # in all
    requests: int = 0  # of these, without an answer yet
    seconds: float = 0.0  # of audio in the requests
    megabytes: float = 0.0  # of audio as it is sent
    dollars: float = 0.0  # what they would likely cost; 0 where no price is known
    equal: int = 0  # questions that are the same as one of these requests
    unusable: int = 0  # questions whose clips cannot be used
    example: Question | None = None  # the first question, if there is one


def disclosure(judge: PromptedJudge, plan: RequestPlan, passes: int) -> str:
    """Several lines of text: where questions go, what they contain, their number, and the estimated cost.

    Args:
        judge: The judge that is asked.
        plan: The plan of one pass.
        passes: Passes over the pairs: one, and one for each listening check.
    """
    provider, settings, budget = judge.session.provider, judge.session.settings, judge.session.budget
    lines = [f"{judge.name} asks {provider.place}{provider.told}"]
    if provider.free:
        lines.append(f"  nothing leaves this machine, and nothing is paid; answers: {settings.answers}")
    elif plan.example is not None:
        words = "our instructions" if settings.hears == "audio" else "our instructions and transcripts"
        has_situation = any(text.startswith("Situation: ") for text in plan.example.texts)
        situation = ", the text about the situation" if has_situation else ""
        clips = counted(len(plan.example.sounds), "clip")
        examples = f"; but for the mean ratings of {counted(settings.examples, 'example')}" if settings.examples else ""
        lines.append(f"  leaves this machine: {clips} for each question (WAV), {words}{situation}")
        lines.append(f"  stays here: names, ids, systems, ratings, tags, file names{examples}")
    repeated = "" if passes == 1 else f", for each of {passes} passes (listening checks change the clips)"
    cached = plan.questions - plan.requests - plan.equal - plan.unusable
    lines.append(
        f"  requests: {plan.requests:,} to send, {cached:,} answered before{repeated}; "
        f"{plan.seconds / 60:.1f} min of audio, {plan.megabytes:.1f} MB"
    )
    if plan.equal:
        same = counted(plan.equal, "question is the same as another and is", "questions are the same as others and are")
        lines.append(f"  {same} asked once")
    if plan.unusable:
        unusable = counted(plan.unusable, "question cannot be asked: its", "questions cannot be asked: their")
        lines.append(f"  {unusable} clips cannot be used")
    if budget.price is not None:
        prices = "as given" if settings.price else f"as of {AS_OF}"
        limit = "" if budget.limit is None else f", budget ${budget.limit:.2f}"
        lines.append(f"  estimate: ${passes * plan.dollars:.2f} (prices {prices}){limit}")
    elif not provider.free:
        lines.append(f"  estimate: no price is known of this model ({_PRICE_SETTING})")
    return "\n".join(lines)


def example_request(judge: PromptedJudge, plan: RequestPlan) -> str:
    """The first request as indented JSON; audio is replaced by its length."""
    if plan.example is None:
        return f"{judge.name}: there is nothing to ask"
    request = json.dumps(judge.session.provider.request(plan.example), indent=2, ensure_ascii=False)
    return _AUDIO.sub(lambda match: f"<{len(match[0])} characters of base64>", request)


def check_budget(judge: PromptedJudge, plan: RequestPlan) -> None:
    """Checks that a budget is set where requests cost money.

    Raises:
        UserError: If requests would cost money and there is no budget, or a budget cannot be kept without a price.
    """
    provider, budget = judge.session.provider, judge.session.budget
    if provider.free or not plan.requests:
        return
    if budget.price is None and (budget.limit is not None or not provider.elsewhere):
        raise UserError(
            f"judge {judge.name}: no price is known of this model, so that no budget can be kept; give {_PRICE_SETTING}"
            f"{', price=0:0:0 for a free server' if provider.elsewhere else ''}"
        )
    if plan.dollars and budget.limit is None:
        raise UserError(
            f"judge {judge.name}: {counted(plan.requests, 'request')} would cost about ${plan.dollars:.2f}; "
            "give --budget DOLLARS"
        )
