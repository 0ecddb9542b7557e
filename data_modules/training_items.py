"""Training items: rated pairs, and comparisons of two pairs, by people or by construction.

"Chosen" always means the better pair. On a dimension where lower is better, the chosen pair therefore has the *lower*
rating: a judge's scores are multiplied by `directions` before they are compared.

Lightning is not imported, because it takes seconds to load: every new data-loader process imports this file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..core.errors import UserError
from .augmentation import augment_pair
from .ratings import Dimension
from .sampling import Key
from .schema import Pair, PairDataset
from .settings import NO_AUGMENTATION, Augmentation, TargetName, Weighting
from .targets import training_targets

MOST_PER_PAIR = 4
"""A rated pair is set against at most so many responses to other contexts; otherwise a large group would outweigh all
others."""

_Context = tuple[str | None, tuple[str, ...]]  # the situation, and the hash of each turn that a response answers
_NO_CONTEXT: _Context = (None, ())


@dataclass(frozen=True, eq=False)
class ComparedPair:
    """Two pairs of which one is better."""

    chosen: Pair  # the better pair
    rejected: Pair  # the other one
    # by how much `(dimensions,)`, float32, at least 0 (0 = tie, and then it says nothing which pair is chosen); NaN =
    # not compared on this dimension
    strength: Tensor


def directions(dimensions: Sequence[Dimension]) -> Tensor:
    """1 where higher is better, -1 where lower is, shape `(dimensions,)`, float32."""
    return torch.tensor([1.0 if dimension.higher_is_better else -1.0 for dimension in dimensions])


def human_comparisons(dataset: PairDataset) -> list[ComparedPair]:
    """The preferences of people: one item per chosen pair, rejected pair and rater, with all dimensions compared.

    A rater who finds one pair better on one dimension and the other on another gives two items. Sorted by the position
    of the chosen and the rejected pair in the dataset, then by rater.

    Returns:
        An empty list where nobody compared pairs.
    """
    if dataset.preferences is None or dataset.preferences.empty:
        return []
    index = pd.Index([pair.pair_id for pair in dataset.pairs], dtype=object)
    rows = dataset.preferences.assign(
        chosen=index.get_indexer(pd.Index(dataset.preferences["chosen_id"])),
        rejected=index.get_indexer(pd.Index(dataset.preferences["rejected_id"])),
    )
    # One item for all dimensions, so that both pairs are read once
    wide = rows.pivot(index=["chosen", "rejected", "rater_id"], columns="dimension", values="strength").sort_index()
    names = [dimension.name for dimension in dataset.card.dimensions]
    strengths = torch.from_numpy(wide.reindex(columns=names).to_numpy(np.float32, copy=True))
    chosen, rejected = (wide.index.get_level_values(name) for name in ("chosen", "rejected"))
    return [
        ComparedPair(dataset.pairs[better], dataset.pairs[worse], strength)
        for better, worse, strength in zip(chosen, rejected, strengths, strict=True)
    ]


def counterfactuals(dataset: PairDataset, min_score: float) -> list[ComparedPair]:
    """Comparisons made from ratings: a well rated response against one that was meant for another context.

    For a rated pair of context c and response r, the rejected pair is c with a response that the same system gave to
    another context of the same group (one that differs in a clip or in the situation). Combinations that people rated
    or compared are left to their judgement. Clips are the same where their content is (`PairDataset.fingerprints`).

    This is right where the contexts of a group call for different responses: the same words said sadly and cheerfully.
    It is wrong where one response suits several of them (a neutral answer to two neutral questions): such a pair is
    good but is trained as bad, a false negative. `min_score` keeps out pairs that were not good themselves, but cannot
    tell whether the other response would have been as good.

    Args:
        dataset: Pairs and their ratings: for training pass the training split alone.
        min_score: The mean rating that a chosen pair needs, as share of the scale: 0 = worst end, 1 = better end.

    Returns:
        In the order of the chosen pairs, `MOST_PER_PAIR` at most for each. The strength is 1 on the dimensions where
        the chosen pair reaches `min_score`, NaN on the others; pairs that reach it nowhere are left out. The rejected
        pair is called ``cf:ID:ID``, after the pair that gave the context and the one that gave the response; its tags
        are those of the chosen pair.

    Raises:
        UserError: If `min_score` is not a share.
    """
    if not 0 <= min_score <= 1:
        raise UserError(f"min_score {min_score:g}; expected 0 to 1, a share of the rating scale")
    dimensions, pairs = dataset.card.dimensions, dataset.pairs
    worst = np.array([d.minimum if d.higher_is_better else d.maximum for d in dimensions])
    best = np.array([d.maximum if d.higher_is_better else d.minimum for d in dimensions])
    good = np.asarray((dataset.mean_scores().to_numpy() - worst) / (best - worst) >= min_score)
    strengths = torch.from_numpy(np.where(good, 1, np.nan).astype(np.float32))
    fingerprints = [dataset.fingerprints[pair.pair_id] for pair in pairs]
    responses = [clips[-1] for clips in fingerprints]
    contexts: list[_Context] = [
        (pair.situation_or_none, clips[:-1]) for pair, clips in zip(pairs, fingerprints, strict=True)
    ]
    judged_ids = set(dataset.ratings["pair_id"])
    if dataset.preferences is not None:
        judged_ids |= {*dataset.preferences["chosen_id"], *dataset.preferences["rejected_id"]}
    # By content and not by id: a combination that people rated under another name is theirs to judge
    judged = {(contexts[index], responses[index]) for index, pair in enumerate(pairs) if pair.pair_id in judged_ids}
    # Of one system: otherwise the voice of the system would tell which response is out of place
    siblings: dict[tuple[str, str | None], list[int]] = {}
    for position, pair in enumerate(pairs):
        siblings.setdefault((pair.group_id, pair.system_id), []).append(position)

    def misplaced(position: int, own: list[int], at: int) -> Iterator[int]:
        """Positions in `own` of pairs whose response answers another context, each response once. Starts behind `at`
        and wraps around, so that no response is used more than others."""
        seen: set[str] = set()
        for candidate in chain(islice(own, at + 1, None), islice(own, at)):
            answers_other = contexts[candidate] not in (contexts[position], _NO_CONTEXT)
            response = responses[candidate]
            if answers_other and response not in seen and (contexts[position], response) not in judged:
                seen.add(response)
                yield candidate

    comparisons: list[tuple[int, ComparedPair]] = []
    for members in siblings.values():
        if len({contexts[position] for position in members}) == 1:
            continue
        for index, position in enumerate(members):
            # Without a context no response can be out of place
            if not good[position].any() or contexts[position] == _NO_CONTEXT:
                continue
            pair = pairs[position]
            for donor in islice(misplaced(position, members, index), MOST_PER_PAIR):
                rejected = dataclasses.replace(
                    pair,
                    pair_id=f"cf:{pair.pair_id}:{pairs[donor].pair_id}",
                    response=pairs[donor].response,
                    response_text=pairs[donor].response_text,
                    response_speaker=pairs[donor].response_speaker,
                )
                comparisons.append((position, ComparedPair(pair, rejected, strengths[position])))
    return [comparison for _, comparison in sorted(comparisons, key=lambda item: item[0])]


@dataclass(frozen=True)
class RatedPair:
    """A pair with the human score to predict per dimension."""

    index: int  # position among the items of `RatedPairs`; tells them apart when several ranks score them
    pair: Pair  # what is judged
    scores: Tensor  # rating points `(dimensions,)`, NaN where nobody rated
    weights: Tensor  # how much each score counts `(dimensions,)`, float32, 0 where nobody rated
    # how many raters gave each score of the scale `(dimensions, steps)`, int32; None where a dimension has no steps
    # (`Targets.histograms`)
    histogram: Tensor | None = None
    # position of the rater in `RatedPairs.rater_ids` where the item is the judgement of one; otherwise -1
    rater: int = -1


class RatedPairs(Dataset[RatedPair]):
    """The rated pairs of one or more splits. A key is an epoch and a position: augmentation differs between epochs.

    With the target ``single`` there is one item for each rater of a pair.

    Attributes:
        pairs: The pair of each item.
        scores: What to predict `(items, dimensions)`, float32, rating points; NaN = not rated.
        weights: How much each score counts `(items, dimensions)`, float32.
        histograms: As `Targets.histograms`.
        rater_ids: The raters, for ``single``; otherwise empty.
        rater_counts: Items of each rater `(raters,)`, int64; empty where there are none.
        notes: What was done to the targets that a person should know, one line each.
    """

    def __init__(
        self,
        dataset: PairDataset,
        augmentation: Augmentation = NO_AUGMENTATION,
        seed: int = 0,
        target: TargetName = "mean",
        weighting: Weighting = "equal",
    ) -> None:
        targets = training_targets(dataset, target, weighting)
        self.pairs = tuple(dataset.pairs[position] for position in targets.pairs)
        self.notes = targets.notes
        self.augmentation, self.seed = augmentation, seed
        self.scores = torch.from_numpy(np.array(targets.scores, dtype=np.float32, order="C"))
        self.weights = torch.from_numpy(np.array(targets.weights, dtype=np.float32, order="C"))
        self.histograms = None if targets.histograms is None else torch.from_numpy(targets.histograms)
        raters = np.full(len(self.pairs), -1) if targets.raters is None else targets.raters
        self._raters = torch.from_numpy(raters)
        self.rater_ids = targets.rater_ids
        self.rater_counts = torch.bincount(self._raters[self._raters >= 0], minlength=len(self.rater_ids))

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, key: Key) -> RatedPair:
        epoch, index = key
        pair = self.pairs[index]
        if self.augmentation.active:
            pair = augment_pair(pair, self.augmentation, self.seed, epoch)
        histogram = None if self.histograms is None else self.histograms[index]
        return RatedPair(index, pair, self.scores[index], self.weights[index], histogram, int(self._raters[index]))


class TrainingItems(Dataset[RatedPair | ComparedPair]):
    """Rated pairs, then comparisons, with consecutive positions. Keys are those of `RatedPairs`."""

    def __init__(self, rated: RatedPairs, comparisons: Sequence[ComparedPair]) -> None:
        self.rated, self.comparisons = rated, tuple(comparisons)

    def __len__(self) -> int:
        return len(self.rated) + len(self.comparisons)

    def __getitem__(self, key: Key) -> RatedPair | ComparedPair:
        epoch, position = key
        if position < len(self.rated):
            return self.rated[key]
        comparison = self.comparisons[position - len(self.rated)]
        augmentation, seed = self.rated.augmentation, self.rated.seed
        if not augmentation.active:
            return comparison
        chosen = augment_pair(comparison.chosen, augmentation, seed, epoch)
        rejected = augment_pair(comparison.rejected, augmentation, seed, epoch)
        return dataclasses.replace(comparison, chosen=chosen, rejected=rejected)
