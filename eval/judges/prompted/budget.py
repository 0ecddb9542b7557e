"""The budget of a prompted judge: what was spent, what is reserved, and how many requests may be under way."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

from .prices import Price
from .provider import Provider
from .questions import Question
from .replies import Usage

BYTES_PER_TOKEN = 3.5
"""Of English text, before an answer says more; a little low, so that estimates are a little high."""
HEADROOM = 4
"""Requests run at the same time only where the limit holds even if they read this many times the tokens of the dearest
so far. Between models that hear, tokens per second of audio differ by less (10 to 32)."""


@dataclass(frozen=True)
class RequestSize:
    """What decides how much a request may cost."""

    text: int  # bytes
    seconds: float  # of audio
    out: int  # tokens, the longest answer that is allowed


class Budget:
    """Counts what was spent, and holds a limit by the counts of the server, whatever they are.

    A request is reserved at the highest rates so far: the most tokens for a byte of text, for a second of audio, and
    written, that any answer reported, or that are assumed before the first one. It starts

    - alone, where the limit holds at these rates;
    - at the same time as others, where the limit holds even if all of them read `HEADROOM` times as much as that, and
      where no more requests are under way than were confirmed: one at first, one more with each answer within the
      highest rates (or without counts), and one again after an answer above its reservation.

    The guarantee: no request starts once the limit is reached, and `spent` passes the limit by at most the amount by
    which answers cost more than was reserved for them. With ``concurrency=1``, and with a server that is dear from its
    first answer on, or dearer with each answer, that is one request's amount. With several requests at a time it is
    the amount of those under way together; it is 0 unless answers read more than `HEADROOM` times as many tokens as any
    answer before, or write more than they may.

    `spent` holds the counts of the server. Of an answer without them (absent, impossible, or not split into text and
    audio where their prices differ) the reservation counts, and more where a part that is reported is above it. So
    does the reservation of a request without an answer that may be billed.

    Args:
        provider: Gives the expected number of tokens of a clip and an answer.
        price: Price of tokens; None = unknown: nothing is counted, and no limit can be kept.
        limit: Dollars; None = no limit: nothing waits.

    Attributes:
        spent: Dollars.
        lost: Dollars of that for requests without an answer that may be billed.
    """

    def __init__(self, provider: Provider, price: Price | None, limit: float | None = None) -> None:
        self.price, self.limit = price, limit
        self.spent = self.lost = 0.0
        self._provider = provider
        self._per_byte, self._per_second, self._longest = 1 / BYTES_PER_TOKEN, provider.audio_tokens_per_second, 0
        self._confirmed = 1  # requests that may be under way
        self._limited = limit is not None and price is not None and any(price)
        self._under_way = self._text = self._out = 0  # requests, and the sums of their sizes
        self._seconds = 0.0
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def one_by_one(self) -> bool:
        """Whether each request waits for the one before, since no answer yet says what requests cost."""
        return self._limited and self._confirmed == 1

    def size(self, question: Question) -> RequestSize:
        """The size of the request for a question."""
        texts = [question.system, *question.texts]
        if question.mode in ("schema", "function", "levels"):
            texts.append(json.dumps(question.form.schema()))
        text = sum(len(text.encode(errors="replace")) for text in texts)
        return RequestSize(text, self._provider.seconds(question), question.max_tokens)

    def estimate(self, question: Question, likely: bool = True) -> float:
        """Dollars for one request: likely, or with the longest answer that is allowed; 0 without a price."""
        text, audio, out = self._expected(self.size(question))
        return self._dollars(text, audio, self._provider.likely_tokens if likely else out)

    async def reserve(self, size: RequestSize) -> bool:
        """Waits until a request may start, and reserves it; False where the limit does not allow it."""
        # In a loop, since whoever was woken may find the budget taken by another one
        while self._limited and self.limit is not None:
            text, audio, out = self._expected(size)
            if self.spent + self._dollars(text, audio, out) > self.limit:
                return False
            # Alone, the worst is one answer above its reservation, which the promise allows
            if not self._under_way:
                break
            # What is under way may turn out dearer than all before, and then all of it at once
            held = self._dollars(
                HEADROOM * (text + self._text * self._per_byte),
                HEADROOM * (audio + self._seconds * self._per_second),
                out + max(self._out, self._under_way * self._longest),
            )
            if self._under_way < self._confirmed and self.spent + held <= self.limit:
                break
            self._waiting.append(asyncio.get_running_loop().create_future())
            await self._waiting[-1]
        self._count(size, 1)
        return True

    def release(self, size: RequestSize) -> None:
        """Ends what `reserve` began; wakes those who wait."""
        self._count(size, -1)
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)

    def lose(self, size: RequestSize) -> None:
        """Counts a request that may be billed although no answer came."""
        reserved = self._dollars(*self._expected(size))
        self.spent += reserved
        self.lost += reserved

    def charge(self, usage: Usage, size: RequestSize) -> float | None:
        """Counts an answer, and raises the rates to its own; to be called before `release`.

        Returns:
            What the answer cost (dollars); None where the price or its tokens are unknown.
        """
        price = self.price
        if price is None:
            return None
        if not any(price):
            return 0.0
        text, audio, out = self._expected(size)
        reserved = self._dollars(text, audio, out)
        read, sound, written = usage.text_in, usage.audio_in, usage.out
        alike = price.text_in == price.audio_in or not size.seconds
        known = read is not None and written is not None and (sound is not None or alike)
        if read is not None and sound is None and size.seconds:
            read, sound = min(read, text), max(0.0, read - text)  # what our text does not explain is audio
        if known:
            counted = (read or 0, sound or 0, written or 0)
        else:
            # A server that leaves out a count must not be cheaper for it
            counted = (max(text, read or 0), max(audio, sound or 0), max(out, written or 0))
        cost = self._dollars(*counted)
        self.spent += cost
        rates = self._per_byte, self._per_second, self._longest
        self._per_byte = max(self._per_byte, (read or 0) / size.text if size.text else 0.0)
        self._per_second = max(self._per_second, (sound or 0) / size.seconds if size.seconds else 0.0)
        self._longest = max(self._longest, written or 0)
        if cost > reserved * (1 + 1e-9):
            self._confirmed = 1
        # One more at a time, and only while answers stay within what was known: a dear surprise then meets few
        # requests
        elif rates[:2] == (self._per_byte, self._per_second) and self._longest <= max(size.out, rates[2]):
            self._confirmed += 1
        return cost if known else None

    def spent_in_words(self) -> str:
        """For a progress bar."""
        limit = "" if self.limit is None else f" of ${self.limit:.2f}"
        return "" if self.price is None else f"${self.spent:.2f}{limit}"

    def assumed_in_words(self) -> str:
        """The rates that estimates and reservations begin with."""
        return (
            f"{self._per_second:g} tokens for a second of audio, 1 for {1 / self._per_byte:g} bytes of text, "
            f"{self._provider.likely_tokens} in an answer"
        )

    def _expected(self, size: RequestSize) -> tuple[float, float, int]:
        """Tokens of a request at the highest rates: of text, of audio, of the answer."""
        return size.text * self._per_byte, size.seconds * self._per_second, max(size.out, self._longest)

    def _count(self, size: RequestSize, sign: int) -> None:
        self._under_way += sign
        self._text += sign * size.text
        self._out += sign * size.out
        # Set to 0 when nothing is under way: sums of fractions do not return to it by themselves
        self._seconds = self._seconds + sign * size.seconds if self._under_way else 0.0

    def _dollars(self, *tokens: float) -> float:
        price = self.price or Price(0, 0, 0)
        return sum(count * dollars for count, dollars in zip(tokens, price, strict=True)) / 1e6
