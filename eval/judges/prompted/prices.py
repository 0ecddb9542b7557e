"""What questions cost: prices, estimates before the first call, and a budget that is kept."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from .asking import Price
from .provider import Provider, Question, Usage

AS_OF = "November 2026"
PRICES = {
    "openai:gpt-audio-1.5": Price(2.5, 32.0, 10.0),
    "openai:gpt-audio": Price(2.5, 32.0, 10.0),
    "gemini:gemini-3.1-pro-preview": Price(2.0, 2.0, 12.0),
}
"""Dollars for a million tokens, as of `AS_OF`; vendors change them, a spec can say ``price=...``."""

CHARACTERS_PER_TOKEN = 3.5  # of English text; a little low, so that estimates are a little high
_NOTHING = 1e-12  # dollars


@dataclass(frozen=True)
class Estimate:
    """What requests would cost.

    Attributes:
        requests: That have no answer yet.
        seconds: Of audio in them.
        megabytes: Of audio as it is sent.
        dollars: None = no price is known.
    """

    requests: int
    seconds: float
    megabytes: float
    dollars: float | None


class Bill:
    """Counts what was spent and what is under way, and never lets both pass the budget.

    Args:
        provider: How many tokens a clip and an answer make.
        price: Of tokens; None = unknown: nothing is counted, and no budget can be kept.
        budget: Dollars; None = no limit.
    """

    def __init__(self, provider: Provider, price: Price | None, budget: float | None = None) -> None:
        self.price, self.budget = price, budget
        self._tokens_per_second = provider.audio_tokens_per_second
        self._likely = provider.likely_tokens
        self.spent = 0.0
        self._reserved = 0.0

    def estimate(self, question: Question, likely: bool = True) -> float | None:
        """Dollars for one request: likely, or with the longest answer that is allowed."""
        if self.price is None:
            return None
        audio = sum(sound.seconds for sound in question.sounds) * self._tokens_per_second
        out = self._likely if likely else question.max_tokens
        return self._dollars(question.characters / CHARACTERS_PER_TOKEN, audio, out)

    async def reserve(self, question: Question) -> float | None:
        """Sets aside what a request may cost at most; None where the budget does not allow it.

        Where it would but for what others set aside, waits until they know what they cost.
        """
        most = self.estimate(question, likely=False) or 0.0
        while self.budget is not None and self.spent + self._reserved + most > self.budget:
            if self.spent + most > self.budget or self._reserved < _NOTHING:
                return None
            await asyncio.sleep(0.02)
        self._reserved += most
        return most

    def release(self, reserved: float) -> None:
        """Gives back what `reserve` set aside."""
        self._reserved -= reserved

    def charge(self, usage: Usage, question: Question) -> float | None:
        """Counts what an answer cost (dollars); None where the price or the tokens are unknown.

        Where clips make more tokens than was thought, all that follows is expected to.
        """
        if self.price is None or usage.out is None or (usage.text_in is None and usage.audio_in is None):
            return None
        cost = self._dollars(usage.text_in or 0, usage.audio_in or 0, usage.out)
        self.spent += cost
        seconds = sum(sound.seconds for sound in question.sounds)
        if usage.audio_in and seconds:
            self._tokens_per_second = max(self._tokens_per_second, usage.audio_in / seconds)
        return cost

    def spent_in_words(self) -> str:
        """For a progress bar."""
        limit = "" if self.budget is None else f" of ${self.budget:.2f}"
        return "" if self.price is None else f"${self.spent:.2f}{limit}"

    def _dollars(self, text_in: float, audio_in: float, out: float) -> float:
        assert self.price is not None
        return (text_in * self.price.text_in + audio_in * self.price.audio_in + out * self.price.out) / 1e6
