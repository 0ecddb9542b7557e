"""From a spec such as ``openai:gpt-audio-1.5,rubric=attunement`` to a judge."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ....data_modules.errors import UserError, shown
from ....data_modules.ratings import Dimension
from ....data_modules.schema import PairDataset
from .answers_store import AnswersStore
from .asking import Asking, Example, parse_asking
from .gemini import GeminiProvider
from .openai import OpenAIProvider
from .pairwise import PairwiseJudge
from .pointwise import PointwiseJudge
from .provider import Provider
from .session import Session

if TYPE_CHECKING:
    from ....models.backbones.base import Quantization

PROVIDERS = ("openai", "gemini", "local")
PromptedJudge = PointwiseJudge | PairwiseJudge

_TELLING = ("mode", "rubric", "hears", "examples", "samples", "opponents", "answers", "temperature")
_COSTLY = "each listening check asks everything again; name those you want with --probes"


def is_prompted(spec: str) -> bool:
    """Whether a spec names a prompted judge."""
    return spec.partition(":")[0] in PROVIDERS


def open_prompted(
    spec: str,
    dataset: PairDataset,
    learn_from: Sequence[str],
    store: AnswersStore,
    budget: float | None = None,
    probes_asked_for: bool = False,
    device: str | None = None,
    quantization: Quantization | None = None,
) -> PromptedJudge:
    """The judge that a spec names.

    Args:
        spec: ``openai:MODEL``, ``gemini:MODEL`` or ``local:BACKBONE``, then settings of `Asking`, each after a comma.
        dataset: Its dimensions are asked for; rated examples come from it.
        learn_from: The splits that examples may come from.
        store: Where answers are kept.
        budget: Dollars.
        probes_asked_for: Whether listening checks were asked for by name.
        device: Of a local model, see `LocalProvider`.
        quantization: Of a local model.

    Raises:
        UserError: If the spec has no model or a setting that is not accepted, SDK or key are missing, or a local model
            cannot answer.
    """
    name, _, rest = spec.partition(":")
    model, *settings = rest.split(",")
    if not model:
        raise UserError(f"judge {shown(spec)}: accepted: {name}:MODEL")
    asking = parse_asking(settings, spec, here=name == "local")
    dimensions = dataset.card.dimensions
    provider: Provider
    if name == "local":
        from .local import LocalProvider  # torch and transformers, which no other provider needs

        provider = LocalProvider(model, device, quantization or "none")
        asking = _asking_here(asking, dimensions, spec)
        provider.check_mode("text" if asking.answers == "text" else "logprobs")
    else:
        provider = OpenAIProvider(model, asking) if name == "openai" else GeminiProvider(model, asking)
    session = Session(provider, asking, store, budget)
    only_given = None if probes_asked_for else _COSTLY
    if asking.mode == "pairwise":
        _check_pairwise(asking, spec, session)
        return PairwiseJudge(_name(session), session, dimensions, only_given)
    if session.manner.mode == "logprobs":
        _check_digits(dimensions, spec)
    examples = choose_examples(dataset, learn_from, asking.examples) if asking.examples else []
    return PointwiseJudge(_name(session), session, dimensions, examples, only_given)


def _name(session: Session) -> str:
    """For reports: the model, its server if it is not the vendor's, and the settings that answers depend on."""
    provider, asking = session.provider, session.manner.asking
    server = f"@{provider.place}" if provider.elsewhere else ""
    chosen, usual = dataclasses.asdict(asking), dataclasses.asdict(Asking())
    settings = [f"{name}={chosen[name]}" for name in _TELLING if chosen[name] != usual[name]]
    return ",".join([f"{provider.name}:{provider.model}{server}", *settings])


def _asking_here(asking: Asking, dimensions: Sequence[Dimension], spec: str) -> Asking:
    """How a local model is asked: for probabilities, unless they cannot say what is asked.

    Raises:
        UserError: If probabilities are asked for several times: they are the same each time.
    """
    if asking.answers == "auto":
        by_digit = asking.mode == "pointwise" and all(map(_is_a_digit, dimensions))
        asking = dataclasses.replace(asking, answers="logprobs" if by_digit and asking.samples == 1 else "text")
    if asking.answers == "logprobs" and asking.samples > 1:
        raise UserError(f"judge {shown(spec)}: probabilities do not vary; accepted: samples=1, or answers=text")
    return asking


def _check_pairwise(asking: Asking, spec: str, session: Session) -> None:
    if asking.examples:
        raise UserError(f"judge {shown(spec)}: examples are rated pairs; accepted: mode=pointwise with examples")
    if session.manner.mode == "logprobs":
        raise UserError(f"judge {shown(spec)}: answers=logprobs; accepted: mode=pointwise with it")


def _check_digits(dimensions: Sequence[Dimension], spec: str) -> None:
    """The probabilities are those of one token, and only single digits are one token everywhere."""
    for dimension in dimensions:
        if not _is_a_digit(dimension):
            raise UserError(
                f"judge {shown(spec)}: answers=logprobs with {dimension.name} of {dimension.scale}; accepted: scales "
                "whose scores are single digits"
            )


def _is_a_digit(dimension: Dimension) -> bool:
    """Whether every score on a scale is one."""
    whole = dimension.step == 1 and float(dimension.minimum).is_integer()
    return whole and dimension.minimum >= 0 and dimension.maximum <= 9


def choose_examples(dataset: PairDataset, splits: Sequence[str], count: int) -> list[Example]:
    """Rated pairs of other splits that span the scale: from the lowest mean rating to the highest in even steps.

    At most one of a group. They depend on the data alone.

    Raises:
        UserError: If there are too few.
    """
    part = dataset.subset(splits)
    means = part.mean_scores().dropna()
    groups = {pair.group_id for pair in part.pairs if pair.pair_id in means.index}
    if len(groups) < count:
        raise UserError(
            f"{dataset.root}: {len(groups)} groups with a rated pair in split {', '.join(splits)}; accepted: examples "
            f"of at most so many (asked for {count})"
        )
    known = {pair.pair_id: pair for pair in part.pairs}
    ordered = _spread(part, means[dataset.card.dimensions[0].name].to_dict(), count)
    return [Example(known[pair_id], means.loc[pair_id].to_dict()) for pair_id in ordered]


def _spread(part: PairDataset, scores: dict[str, float], count: int) -> list[str]:
    """For each of evenly spaced ratings the nearest pair of a group that was not taken; neighbours are set apart."""
    low, high = min(scores.values()), max(scores.values())
    taken: set[str] = set()
    chosen: list[str] = []
    for wanted in np.linspace(low, high, count) if count > 1 else [(low + high) / 2]:
        free = [pair for pair in part.pairs if pair.pair_id in scores and pair.group_id not in taken]
        best = min(free, key=lambda pair: (abs(scores[pair.pair_id] - wanted), pair.pair_id))
        taken.add(best.group_id)
        chosen.append(best.pair_id)
    # neighbours on the scale shall not be neighbours in the conversation
    step = next(step for step in (7, 5, 3, 2, 1) if math.gcd(step, count) == 1)
    return [chosen[(step * number) % count] for number in range(count)]
