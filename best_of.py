"""Best of N: the responses to a context in the order of the judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .assessment import Assessment
from .audio_inputs import Audio, clip, pairs_of
from .data_modules.errors import AudioError, UserError
from .data_modules.schema import Dimension
from .scorer import Scorer


@dataclass(frozen=True)
class Ranked:
    """A response and its place.

    Attributes:
        index: Where it stood among the responses, from 0.
        merit: What the order follows: the place of its score on the scale, 0 (bad end) to 1; the mean of several
            dimensions. None where it has no score.
        found: What the judge says of it, or what is wrong with its audio.
    """

    index: int
    merit: float | None
    found: Assessment | AudioError


def rank(
    scorer: Scorer,
    context: Audio | None,
    responses: Sequence[Audio],
    *,
    situation: str | None = None,
    by: Sequence[str] | None = None,
) -> list[Ranked]:
    """Put responses to one context in order, the best first; the context is heard once.

    Responses whose audio cannot be used come last, in the order in which they were given, as do those of equal merit.

    Args:
        scorer: The judge.
        context: What they answer; None = they are judged alone.
        responses: One or more.
        situation: Text about the situation.
        by: Dimensions that count, equally; None = all.

    Raises:
        UserError: If there is no response, or no such dimension.
        AudioError: If the context cannot be used.
    """
    dimensions = chosen_dimensions(scorer, by)
    if not responses:
        raise UserError("best of 0 responses; accepted: at least one")
    heard = None if context is None else clip(context)
    if heard is not None:
        scorer.check_clip(heard)  # otherwise every response would fail for it
    judged = [found for _, found in scorer.assess_pairs(pairs_of(heard, list(responses), situation))]
    return in_order(judged, dimensions)


def in_order(judged: Sequence[Assessment | AudioError], dimensions: Sequence[Dimension]) -> list[Ranked]:
    """What was found of several responses, the best first; see `rank`.

    Args:
        judged: In the order in which they were given.
        dimensions: That count, equally.
    """
    ranked = [
        Ranked(index, None if isinstance(found, AudioError) else merit(found, dimensions), found)
        for index, found in enumerate(judged)
    ]
    return sorted(ranked, key=lambda own: (own.merit is None, -(own.merit or 0.0)))


def merit(found: Assessment, dimensions: Sequence[Dimension], deviations: float = 0.0) -> float:
    """How good an assessment is: the mean place of its scores on their scales, 0 (bad end) to 1.

    Args:
        found: Of a response.
        dimensions: That count.
        deviations: Standard errors by which each score is taken to be worse; unknown ones count as 0.
    """
    places = []
    for dimension in dimensions:
        own = found.scores[dimension.name]
        width = dimension.maximum - dimension.minimum
        place = (own.score - dimension.minimum) / width
        place = place if dimension.higher_is_better else 1 - place
        places.append(place - deviations * (own.standard_error or 0.0) / width)
    return sum(places) / len(places)


def chosen_dimensions(scorer: Scorer, names: Sequence[str] | None) -> list[Dimension]:
    """The dimensions of a judge that have these names.

    Raises:
        UserError: If it has none of one of the names.
    """
    own = {dimension.name: dimension for dimension in scorer.dimensions}
    for name in names or ():
        if name not in own:
            raise UserError(f"dimension {name!r}; accepted: {', '.join(own)}")
    return [own[name] for name in names or own]
