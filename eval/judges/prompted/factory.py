"""Opens a prompted judge from a spec such as ``openai:gpt-audio-1.5,rubric=attunement``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from platformdirs import user_cache_path

from ....core.errors import UserError, counted, shown
from ....data_modules.ratings import Dimension
from ....data_modules.schema import PairDataset
from ...measurement import Asking
from .cache import AnswerCache
from .decisions import DecisionProvider
from .gemini import GeminiProvider
from .gemini_decision import GeminiDecisionProvider
from .hume import HumeProvider
from .judges import PairwiseJudge, PointwiseJudge, PromptedJudge
from .openai import OpenAIProvider
from .provider import Provider
from .questions import Example
from .qwen import QwenProvider
from .runner import Session
from .settings import PromptedSettings, parse_settings
from .systemone import SystemOneProvider

_SPOKEN = (OpenAIProvider, QwenProvider, GeminiProvider, GeminiDecisionProvider, SystemOneProvider, HumeProvider)
PROVIDERS: dict[str, type[Provider]] = {provider.name: provider for provider in _SPOKEN}
"""The vendors whose protocols are spoken, by the name in a spec."""
_IN_NAME = ("mode", "rubric", "hears", "examples", "samples", "opponents", "answers", "clips", "temperature")
_USUAL = PromptedSettings.model_fields
_COSTLY = "each listening check asks everything again; name those you want with --checks"


def open_prompted(
    spec: str,
    dataset: PairDataset,
    learn_from: Sequence[str],
    how: Asking,
    checks_named: bool = False,
    dry_run: bool = False,
) -> PromptedJudge:
    """The judge that a spec names: a name of `PROVIDERS` and a model, then `PromptedSettings`, each after a comma.

    Args:
        spec: The spec.
        dataset: Has the dimensions to score, and the pairs for rated examples.
        learn_from: The splits that examples may come from.
        how: Budget, and the file of answers.
        checks_named: Whether listening checks were asked for by name.
        dry_run: Whether nothing will be sent, so that no key is needed.

    Raises:
        UserError: If the spec has no model or a wrong setting, or SDK or key are missing.
    """
    name, _, rest = spec.partition(":")
    model, *words = rest.split(",")
    if not (model or PROVIDERS[name].models):
        raise UserError(f"judge {shown(spec)}: expected {name}:MODEL")
    if name == "gemini" and "decision" in model:
        raise UserError(f"judge {shown(spec)}: {model} is a decision model; expected gemini-decision:{model}")
    settings = parse_settings(words, spec)
    dimensions = dataset.card.dimensions
    provider = PROVIDERS[name](model, settings, dry_run)
    if isinstance(provider, DecisionProvider):
        settings = _for_levels(spec, provider, settings, dimensions)
    cache = AnswerCache(Path(how.answers or user_cache_path("empathy-judge") / "answers.sqlite"))
    session = Session(provider, settings, cache, how.budget)
    # the name in reports: the model, its server if not the vendor's, and settings that answers depend on
    usual = {setting: _USUAL[setting].default for setting in _IN_NAME}
    if isinstance(provider, DecisionProvider):
        usual["samples"] = 1
    given = [f"{one}={getattr(settings, one)}" for one in _IN_NAME if getattr(settings, one) != usual[one]]
    server = f"@{provider.host}" if provider.elsewhere else ""
    judge_name = ",".join([f"{name}:{provider.model}{server}", *given])
    only_given = None if checks_named else _COSTLY
    by_number = session.settings.answers == "logprobs"
    if settings.mode == "pairwise":
        if settings.examples:
            raise UserError(f"judge {shown(spec)}: examples are rated pairs; use them with mode=pointwise")
        if by_number:
            raise UserError(f"judge {shown(spec)}: answers=logprobs is for mode=pointwise alone")
        return PairwiseJudge(judge_name, session, dimensions, only_given)
    for dimension in dimensions if by_number else ():
        steps_of_one = dimension.step == 1 and float(dimension.minimum).is_integer()
        # the probabilities are those of one token; only digits are one everywhere
        if not (steps_of_one and dimension.minimum >= 0 and dimension.maximum <= 9):
            raise UserError(
                f"judge {shown(spec)}: answers=logprobs with {dimension.name} of {dimension.scale}; expected scales "
                "whose scores are single digits"
            )
    examples = choose_examples(dataset, learn_from, settings.examples) if settings.examples else []
    return PointwiseJudge(judge_name, session, dimensions, only_given, examples)


def _for_levels(
    spec: str, provider: DecisionProvider, settings: PromptedSettings, dimensions: Sequence[Dimension]
) -> PromptedSettings:
    """The settings as a decision model takes them: it writes nothing, and there is one answer to a question.

    Raises:
        UserError: If a setting was given that is for models that write, or the service does not take the scales.
    """
    for name, only in (("samples", 1), ("temperature", None), ("examples", 0)):
        if name in settings.model_fields_set and (value := getattr(settings, name)) != only:
            raise UserError(
                f"judge {shown(spec)}: {name}={value} is for models that write; {provider.name} answers once, with "
                "probabilities"
            )
    if len(dimensions) > provider.most_questions:
        limit = f"at most {provider.most_questions} of {provider.name}"
        raise UserError(f"judge {shown(spec)}: {len(dimensions)} dimensions; expected {limit}")
    for dimension in dimensions if settings.mode == "pointwise" else ():  # a choice has no levels
        if dimension.step is None or dimension.steps > provider.most_levels:
            has = "" if dimension.step is None else f", {dimension.steps} steps"
            raise UserError(
                f"judge {shown(spec)}: {dimension.name} of {dimension.scale}{has}; {provider.name} takes scales of 2 "
                f"to {provider.most_levels} steps, and scores are not put into bins"
            )
    return settings.model_copy(update={"samples": 1})


def choose_examples(dataset: PairDataset, splits: Sequence[str], count: int) -> list[Example]:
    """Chooses rated pairs of `splits` that span the scale: from the lowest mean rating to the highest in even steps.

    At most one pair of each group is chosen. The choice depends on the data alone.

    Raises:
        UserError: If there are too few.
    """
    subset = dataset.subset(splits)
    means = subset.mean_scores().dropna()
    rated = {pair.pair_id: pair for pair in subset.pairs if pair.pair_id in means.index}
    groups = {pair.group_id for pair in rated.values()}
    if len(groups) < count:
        raise UserError(
            f"{dataset.root}: {counted(len(groups), 'group')} with a rated pair in split {', '.join(splits)}; expected "
            f"at least one for each of the {counted(count, 'example')}"
        )
    scores = means[dataset.card.dimensions[0].name].to_dict()
    low, high = min(scores.values()), max(scores.values())
    used_groups: set[str] = set()
    chosen: list[str] = []
    for target in np.linspace(low, high, count) if count > 1 else [(low + high) / 2]:
        free = [pair_id for pair_id, pair in rated.items() if pair.group_id not in used_groups]
        best = min(free, key=lambda pair_id: (abs(scores[pair_id] - target), pair_id))
        used_groups.add(rated[best].group_id)
        chosen.append(best)
    # examples with neighbouring scores should not be adjacent in the conversation
    step = next(step for step in (7, 5, 3, 2, 1) if math.gcd(step, count) == 1)
    ordered = [chosen[(step * position) % count] for position in range(count)]
    return [Example(rated[pair_id], means.loc[pair_id].to_dict()) for pair_id in ordered]
