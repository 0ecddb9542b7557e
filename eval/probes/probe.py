"""What a listening probe is: a stated change to the pairs, and what it must do to a judge that listens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from ...data_modules.schema import Pair

Expects = Literal["drop", "keep", "same"]
"""What the change must do to a judge that listens.

``drop``: what people rate is gone, so the judge agrees less with them. ``keep``: what people rate is still there, in
another sound, so the judge agrees as much as before; its scores may shift. ``same``: nothing that anybody could rate
has changed, so the scores stay as they are.
"""


def always_possible(pairs: Sequence[Pair]) -> str | None:
    """Refuses nothing."""
    del pairs
    return None


def needs_context(pairs: Sequence[Pair]) -> str | None:
    """Refuses pairs of which none has a context."""
    if any(pair.context or pair.situation or pair.context_text for pair in pairs):
        return None
    return "no pair has a context"


@dataclass(frozen=True)
class Probe:
    """A change to pairs, and its meaning. Sentences of a report are made of the texts.

    Attributes:
        name: Key in reports; ``<name>_score`` in tables of items.
        title: In headings.
        expects: What it must do to a judge that listens.
        change: What was done, as the beginning of a sentence: "With ..., Spearman falls ...".
        removes: What it takes away.
        keeps: What it leaves, and what it does besides.
        if_moves: What a fall of agreement (of ``same``: a change of scores) says of the judge; ends a sentence.
        if_stays: What it says that there is none; ends a sentence.
        apply: Changed pairs, with the same ids, from pairs and a seed. A pair that it leaves out cannot be changed.
        refuses: Why the probe is not possible with these pairs; None = possible.
        tolerance: Of ``same``: 95 % of the scores move by no more than this share of their standard deviation.
        by_clip: Each clip is changed by itself, so that the pairs can be taken in portions, which saves memory.
    """

    name: str
    title: str
    expects: Expects
    change: str
    removes: str
    keeps: str
    if_moves: str
    if_stays: str
    apply: Callable[[Sequence[Pair], int], tuple[Pair, ...]]
    refuses: Callable[[Sequence[Pair]], str | None] = always_possible
    tolerance: float | None = None
    by_clip: bool = False

    def __post_init__(self) -> None:
        if (self.expects == "same") != (self.tolerance is not None):
            raise ValueError(f"probe {self.name}: a tolerance goes with expects 'same', and only with it")
