"""What is said before the first question: what asking would send and cost."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ....core.errors import AudioError, UserError, counted
from ....data_modules.schema import Pair
from .cache import cache_key
from .judges import PromptedJudge
from .prices import AS_OF, NOTICE, RETIRED, days_left
from .questions import Question

_PRICE = "price=TEXT_IN:AUDIO_IN:OUT (dollars for a million tokens) and --budget DOLLARS, or price=0:0:0 if it is free"
_AUDIO = re.compile(r'(?<=[",])[A-Za-z0-9+/=]{401,}(?=")')  # longer base64 is not shown


@dataclass
class RequestPlan:
    """The requests that asking would send."""

    pairs: int
    questions: int  # in all
    requests: int = 0  # of these, without an answer yet
    seconds: float = 0.0  # of audio in the requests
    megabytes: float = 0.0  # of audio as it is sent
    dollars: float = 0.0  # what they would likely cost; 0 where no price is known
    anew: float = 0.0  # what all questions would likely cost, answered before or not: what a listening check takes
    equal: int = 0  # questions that are the same as one of these requests
    unusable: int = 0  # questions whose clips cannot be used
    example: Question | None = None  # the first question, if there is one


def planned(judge: PromptedJudge, pairs: Sequence[Pair]) -> RequestPlan:
    """Builds every question about the pairs once, and asks none."""
    session, tasks = judge.session, judge.tasks(pairs)
    plan, question, built = RequestPlan(len(pairs), len(tasks)), None, None
    keys: set[str] = set()
    for task in tasks:
        if task.build is not built:  # samples of one question share its clips
            built = task.build
            try:
                question = task.build()
            except AudioError:
                question = None
        if question is None:
            plan.unusable += 1
            continue
        plan.example = plan.example or question
        dollars = session.budget.estimate(question)
        plan.anew += dollars
        key = cache_key(session.provider, question, task.sample)
        # The stored answer to the first of them serves the others: they cost nothing
        if key in keys:
            plan.equal += 1
        elif session.answers.get(key) is None:
            keys.add(key)
            plan.requests += 1
            plan.seconds += sum(sound.seconds for sound in question.sounds)
            plan.megabytes += sum(len(sound.wav) for sound in question.sounds) / 1e6
            plan.dollars += dollars
    return plan


def disclosure(judge: PromptedJudge, plan: RequestPlan, passes: int) -> str:
    """Several lines of text: where questions go, what they contain, their number, and the estimated cost.

    `plan` is that of one pass over the pairs; `passes` are one, and one for each listening check.
    """
    provider, settings, budget = judge.session.provider, judge.session.settings, judge.session.budget
    lines = [f"{judge.name} asks {provider.host}{provider.access}", *_last_day(judge)]
    if plan.example is not None:
        sent = [provider.clips_in_words(plan.example)]
        sent.append("our instructions" if settings.hears == "audio" else "our instructions and transcripts")
        # Only some pairs have a situation, and the question alone shows whether it is sent
        if any(text.startswith("Situation: ") for text in plan.example.texts):
            sent.append("the text about the situation")
        examples = f"; but for the mean ratings of {counted(settings.examples, 'example')}" if settings.examples else ""
        lines.append(f"  leaves this machine: {', '.join(sent)}")
        lines.append(f"  stays here: names, ids, systems, ratings, tags, file names{examples}")
    checks = passes - 1
    repeated = f"; {counted(checks, 'listening check')} may ask {plan.questions:,} more each" if checks else ""
    cached = plan.questions - plan.requests - plan.equal - plan.unusable
    others = {"equal to another and asked once": plan.equal, "with clips that cannot be used": plan.unusable}
    more = "".join(f", {count:,} {what}" for what, count in others.items() if count)
    lines.append(
        f"  requests: {plan.requests:,} to send, {cached:,} answered before{more}{repeated}; "
        f"{plan.seconds / 60:.1f} min of audio, {plan.megabytes:.1f} MB"
    )
    if budget.price is not None:
        prices = "as given" if settings.price else f"as of {AS_OF}"
        limit = "" if budget.limit is None else f", budget ${budget.limit:.2f}"
        dollars = plan.dollars + checks * plan.anew
        rate = f"; 1,000 such pairs: ${1000 * plan.anew / plan.pairs:.2f}" if plan.pairs else ""
        lines.append(f"  estimate: ${dollars:.2f} (prices {prices}; {budget.assumed_in_words()}){limit}{rate}")
    else:
        lines.append(f"  estimate: no price is known of this model; give {_PRICE}")
    return "\n".join(lines)


def _last_day(judge: PromptedJudge) -> list[str]:
    """A line where the vendor retires the model, or has."""
    provider, model = judge.session.provider, judge.session.provider.listed
    # Days of retirement are the vendor's: another server may serve the model for as long as it likes
    left = None if provider.elsewhere else days_left(model)
    if left is None or left > NOTICE:
        return []
    soon = f"{model} retires on {RETIRED[model]}, in {counted(left, 'day')}"
    return [f"  warning: {soon if left > 0 else _gone(model)}"]


def _gone(model: str) -> str:
    return f"{model} was retired on {RETIRED[model]}; answers that are kept can be read, name another model to ask"


def example_request(judge: PromptedJudge, plan: RequestPlan) -> str:
    """The first request as indented JSON; audio is replaced by its length."""
    if plan.example is None:
        return f"{judge.name}: there is nothing to ask"
    request = json.dumps(judge.session.provider.request(plan.example), indent=2, ensure_ascii=False)
    return _AUDIO.sub(lambda match: f"<{len(match[0])} characters of base64>", request)


def check_budget(judge: PromptedJudge, plan: RequestPlan, passes: int) -> None:
    """Checks before the first question that the model is there, its price known, and a budget set unless it is 0.

    Without a price no budget can be held: the dollars of an answer are its tokens times the price.

    Raises:
        UserError: If the vendor has retired the model, or a price or a budget is missing.
    """
    provider, budget = judge.session.provider, judge.session.budget
    # All answers are stored and nothing is sent: those of a model that is retired can still be reported
    if not (plan.requests or passes > 1):
        return
    if not provider.elsewhere and (left := days_left(provider.listed)) is not None and left <= 0:
        raise UserError(f"judge {judge.name}: {_gone(provider.listed)}")
    if budget.price is None:
        server = f" on {provider.host}" if provider.elsewhere else ""
        raise UserError(f"judge {judge.name}: no price is known of this model{server}; give {_PRICE}")
    if any(budget.price) and budget.limit is None:
        dollars = plan.dollars + (passes - 1) * plan.anew
        raise UserError(f"judge {judge.name}: the questions would cost about ${dollars:.2f}; give --budget DOLLARS")
