"""Opens a prompted judge from a spec such as ``openai:gpt-audio-1.5,rubric=attunement``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from platformdirs import user_cache_path

from ....data_modules.errors import UserError, counted, shown
from ....data_modules.schema import PairDataset
from ...measurement import Asking
from .cache import AnswerCache
from .gemini import GeminiProvider
from .judges import PairwiseJudge, PointwiseJudge, PromptedJudge
from .openai import OpenAIProvider
from .questions import Example
from .runner import Session
from .settings import PromptedSettings, parse_settings

PROVIDERS = {provider.name: provider for provider in (OpenAIProvider, GeminiProvider)}
"""The vendors whose protocols are spoken, by the name in a spec."""
_IN_NAME = ("mode", "rubric", "hears", "examples", "samples", "opponents", "answers", "temperature")
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
    """The judge that a spec names: ``openai:MODEL`` or ``gemini:MODEL``, then `PromptedSettings`, each after a comma.

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
    if not model:
        raise UserError(f"judge {shown(spec)}: expected {name}:MODEL")
    settings = parse_settings(words, spec)
    dimensions = dataset.card.dimensions
    provider = PROVIDERS[name](model, settings, dry_run)
    cache = AnswerCache(Path(how.answers or user_cache_path("empathy-judge") / "answers.sqlite"))
    session = Session(provider, settings, cache, how.budget)
    # the name in reports: the model, its server if not the vendor's, and settings that answers depend on
    given = [f"{n}={getattr(settings, n)}" for n in _IN_NAME if getattr(settings, n) != _USUAL[n].default]
    server = f"@{provider.host}" if provider.elsewhere else ""
    judge_name = ",".join([f"{name}:{model}{server}", *given])
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
