"""Who is asked, how, and what it costs: what pointwise and pairwise judges share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ....data_modules.errors import AudioError, UserError
from .answers_store import AnswersStore
from .asking import Asking, Manner
from .prices import PRICES, Bill, Estimate
from .provider import Provider, Question, Sound, Text
from .runner import Job, Outcome, Runner, key_of


@dataclass(frozen=True)
class Plan:
    """What asking would do.

    Attributes:
        jobs: Requests in all.
        missing: Those that have no answer yet.
        unusable: Jobs whose clips cannot be used.
        example: The first question, if there is one.
    """

    jobs: int
    missing: Estimate
    unusable: int
    example: Question | None


class Session:
    """Asks one model in one manner.

    Args:
        provider: Who is asked.
        asking: The settings.
        store: Where answers are kept.
        budget: Dollars that may be spent; None = no limit.

    Raises:
        UserError: If the model cannot be asked for answers of that form.
    """

    def __init__(self, provider: Provider, asking: Asking, store: AnswersStore, budget: float | None = None) -> None:
        mode = provider.modes[0] if asking.answers == "auto" else asking.answers
        if mode not in provider.modes:
            raise UserError(f"{provider.name}:{provider.model}: answers={mode}; accepted: {', '.join(provider.modes)}")
        self.provider = provider
        self.manner = Manner(asking, mode, provider.max_tokens)
        self._store = store
        price = asking.price or (PRICES.get(f"{provider.name}:{provider.model}") if not provider.elsewhere else None)
        self.bill = Bill(provider, price, budget)

    def ask(self, jobs: Sequence[Job], title: str) -> list[Outcome]:
        """See `Runner.ask`."""
        return Runner(self.provider, self.manner.asking, self._store, self.bill).ask(jobs, title)

    def plan(self, jobs: Sequence[Job]) -> Plan:
        """Looks at every question once, and asks none."""
        requests, seconds, size, dollars, unusable = 0, 0.0, 0, 0.0, 0
        example = question = built = None
        for job in jobs:
            if job.build is not built:  # samples of one question share its clips
                built, question = job.build, _built(job)
            if question is None:
                unusable += 1
                continue
            example = example or question
            if self._store.get(key_of(self.provider, question, job.sample)) is None:
                requests += 1
                seconds += sum(sound.seconds for sound in question.sounds)
                size += sum(len(sound.wav) for sound in question.sounds)
                dollars += self.bill.estimate(question) or 0.0
        known = self.bill.price is not None
        return Plan(len(jobs), Estimate(requests, seconds, size / 1e6, dollars if known else None), unusable, example)


def _built(job: Job) -> Question | None:
    try:
        return job.build()
    except AudioError:
        return None


def shown_request(provider: Provider, question: Question) -> str:
    """The request as it would be sent, as indented JSON; audio is replaced by its length."""
    return json.dumps(_without_audio(provider.request(question)), indent=2, ensure_ascii=False)


_LONG = 400


def _without_audio(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: f"<{len(inner)} characters of base64>"
            if name == "data" and isinstance(inner, str) and len(inner) > _LONG
            else _without_audio(inner)
            for name, inner in value.items()
        }
    return [_without_audio(inner) for inner in value] if isinstance(value, list | tuple) else value


def what_leaves(question: Question) -> tuple[int, list[str]]:
    """The number of clips in a question, and its texts."""
    parts = [part for message in question.messages for part in message.parts]
    return sum(isinstance(part, Sound) for part in parts), [part.text for part in parts if isinstance(part, Text)]
