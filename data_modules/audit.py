"""Finds what several splits have in common, and decides by a rule which of it is a leak.

**The rule.** Refused, whatever the splits were made by:

- a value of a column that they were made by, in two splits;
- a response clip that is in two splits as a response, by its bytes or as a near-identical copy: the answer is known.

A context clip in two splits (as context in one at least), by its bytes or near-identical, is refused where
``group_id`` is among the columns. Splits by another column (systems on the same contexts, say) share contexts on
purpose: there it is listed, as are near-identical responses of one group (systems that degrade one recording).

A loud, long and lively enough clip is compared by its sound (`near_identical`); all are by their bytes.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from ..core.errors import DataError, first_problem, place, shown
from ..core.yaml_files import read_yaml
from .near_duplicates import NearIdentical, near_identical
from .schema import Pair, PairDataset
from .storage import PAIRS_FILE, TAG_PREFIX

SPLIT_FILE = "split.yaml"

COLUMNS = (
    "group_id", "context_speaker", "response_speaker", "system_id", "setting", "language", "situation", "context_text",
    "response_text",
)  # fmt: skip
"""Columns that every dataset can have; tags (``tag:NAME``) come on top."""
LISTED = ("group_id", "context_speaker", "response_speaker", "system_id")
"""Columns whose crossings are listed even where the splits were made by others."""

RESPONSE, CONTEXT = "response_clip", "context_clip"
NEAR_RESPONSE, NEAR_CONTEXT = "near_identical_response_clip", "near_identical_context_clip"
NEAR_IN_GROUP = "near_identical_response_clip_in_one_group"
_SHOWN_CROSSINGS = 10

Values = Mapping[str, Sequence[Collection[str]]]
"""Kind -> for each pair its values of this kind."""


def is_column(name: str) -> bool:
    """Whether the name is one of `COLUMNS` or that of a tag."""
    return name in COLUMNS or name.startswith(TAG_PREFIX)


def read_column(pair: Pair, name: str) -> str | None:
    """The value of a column of which `is_column` holds; None where there is none."""
    return pair.tag(name.removeprefix(TAG_PREFIX)) if name.startswith(TAG_PREFIX) else getattr(pair, name)


def tag_columns(pairs: Iterable[Pair]) -> list[str]:
    """The names of all tags of these pairs as columns, sorted."""
    return sorted({f"{TAG_PREFIX}{name}" for pair in pairs for name, _ in pair.tags})


def known_columns(pairs: Iterable[Pair]) -> str:
    """The columns that these pairs can have, for messages."""
    return ", ".join([*COLUMNS, *tag_columns(pairs)])


@dataclass(frozen=True)
class SplitAudit:
    """The contents of each split, and what several splits share."""

    by: tuple[str, ...]  # the columns that the splits were made by
    # split -> ``pairs``, ``share`` (of all pairs), ``groups``, ``systems``, ``speakers`` (of responses),
    # ``comparisons`` (of two pairs in it) and ``mean_scores`` (dimension -> mean of the pairs' mean scores, rating
    # points; None = nothing rated)
    splits: Mapping[str, Mapping[str, Any]]
    unsplit: int  # pairs without a split
    comparisons_between: int  # comparisons that are in no split, because their two pairs are not in the same one
    # kind -> value -> the splits it is in. Kinds are the columns of `LISTED` and of `by`, and five of audio: the value
    # of `RESPONSE` and `CONTEXT` is a SHA-256, that of the near-identical ones the first SHA-256 of the cluster
    crossings: Mapping[str, Mapping[str, tuple[str, ...]]]
    clips: int  # number of distinct clips
    not_comparable: int  # how many of them were compared by their bytes only
    split_hash: str  # `PairDataset.split_hash`
    content_hash: str  # of the dataset

    @property
    def leaks(self) -> dict[str, Mapping[str, tuple[str, ...]]]:
        """The crossings that are refused; empty if there is no leak."""
        return {kind: self.crossings[kind] for kind in refused_kinds(self.by) if self.crossings[kind]}

    def to_dict(self) -> dict[str, Any]:
        """For JSON and YAML; of the crossings the count and the first 10."""
        crossings = {
            kind: {
                "refused": kind in refused_kinds(self.by),
                "count": len(values),
                "first": {value: values[value] for value in sorted(values)[:_SHOWN_CROSSINGS]},
            }
            for kind, values in self.crossings.items()
        }
        return {**vars(self), "crossings": crossings}


def audit_splits(dataset: PairDataset, by: Sequence[str] = ("group_id",)) -> SplitAudit:
    """Counts what is in each split of a dataset (all pairs), made by some columns, and lists what is in several.

    Nothing is refused here. Decodes all clips where `near_identical` has no stored result.
    """
    means = dataset.mean_scores()
    near = near_identical(dataset)
    splits = [pair.split for pair in dataset.pairs]
    split_of = {pair.pair_id: pair.split for pair in dataset.pairs}
    both_ends = () if dataset.preferences is None else dataset.preferences[["chosen_id", "rejected_id"]].to_numpy()
    # A comparison between splits is in none: to train on it would show the tested pair
    compared = [(split_of[chosen], split_of[rejected]) for chosen, rejected in both_ends]
    comparisons = Counter(first for first, second in compared if first is not None and first == second)
    by_split: dict[str, dict[str, Any]] = {}
    for name in sorted({split for split in splits if split is not None}):
        pairs = [pair for pair in dataset.pairs if pair.split == name]
        averages = means.loc[[pair.pair_id for pair in pairs]].mean()
        by_split[name] = {
            "pairs": len(pairs),
            "share": len(pairs) / len(dataset.pairs),
            "groups": len({pair.group_id for pair in pairs}),
            "systems": len({pair.system_id for pair in pairs} - {None}),
            "speakers": len({pair.response_speaker for pair in pairs} - {None}),
            "comparisons": comparisons[name],
            "mean_scores": {str(name): None if math.isnan(mean) else float(mean) for name, mean in averages.items()},
        }
    return SplitAudit(
        by=tuple(by),
        splits=by_split,
        unsplit=sum(split is None for split in splits),
        comparisons_between=len(compared) - comparisons.total(),
        crossings={kind: find_crossings(values, splits) for kind, values in values_of(dataset, by, near).items()},
        clips=near.clips,
        not_comparable=len(near.not_comparable),
        split_hash=dataset.split_hash(),
        content_hash=dataset.card.content_hash,
    )


def check_splits(dataset: PairDataset) -> SplitAudit:
    """The audit of a dataset (all pairs) that training begins with: no split is used that was not audited.

    It is cheap where `near_identical` has a stored result for this content, as it has after ``empathy-judge split`` and
    ``empathy-judge inspect``; otherwise all audio is decoded now.

    Raises:
        DataError: If there is a leak, or ``split.yaml`` belongs to other splits than ``pairs.parquet`` has.
    """
    audit = audit_splits(dataset, split_columns(dataset))
    refuse_leaks(dataset, audit)
    return audit


def refuse_leaks(dataset: PairDataset, audit: SplitAudit) -> None:
    """Raises a DataError that names the first leak and how many there are, if the audit of this dataset found any."""
    for kind, crossings in audit.leaks.items():
        # The first by name, so that the message is the same in every run
        value, splits = min(crossings.items())
        values = values_of(dataset, audit.by, near_identical(dataset))[kind]
        rows = [
            (row, pair)
            for row, (pair, pair_values) in enumerate(zip(dataset.pairs, values, strict=True), start=1)
            if value in pair_values and pair.split is not None
        ]
        first = rows[0][1]
        row, other = next((row, pair) for row, pair in rows if pair.split != first.split)
        more = f" ({len(crossings) - 1} more)" if len(crossings) > 1 else ""
        name = kind if is_column(kind) else kind.replace("_", " ")
        subject = shown(value) if is_column(kind) else f"of pairs {shown(first.pair_id)} and {shown(other.pair_id)}"
        raise DataError(
            f"{place(dataset.root / PAIRS_FILE, row, 'split')}: {name} {subject} is in {' and '.join(splits)}{more}; "
            f"expected each {name} in one split, as `empathy-judge split --overwrite` makes them"
        )


def split_columns(dataset: PairDataset) -> tuple[str, ...]:
    """The columns that the splits of a dataset (all pairs) were made by, from ``split.yaml``; else ``group_id``.

    Raises:
        DataError: If ``split.yaml`` belongs to other splits than ``pairs.parquet`` has.
    """
    path = dataset.root / SPLIT_FILE
    if not path.exists():
        return ("group_id",)
    try:
        stored = _SplitFile.model_validate(read_yaml(path))
    except (DataError, ValidationError) as error:
        reason = first_problem(error) if isinstance(error, ValidationError) else str(error).removeprefix(f"{path}: ")
        raise DataError(f"{path}: {reason}; expected the file that `empathy-judge split` writes") from None
    if stored.split_hash != dataset.split_hash() or not stored.by or not all(map(is_column, stored.by)):
        raise DataError(f"{path}: belongs to other splits than {PAIRS_FILE} has; run `empathy-judge split --overwrite`")
    return stored.by


class _SplitFile(BaseModel):
    """What is read of ``split.yaml``."""

    by: tuple[str, ...]
    split_hash: str


def refused_kinds(by: Sequence[str]) -> tuple[str, ...]:
    """The kinds of which no value may be in two splits that were made by these columns; see the rule above."""
    return (*by, RESPONSE, NEAR_RESPONSE, *((CONTEXT, NEAR_CONTEXT) if "group_id" in by else ()))


def values_of(dataset: PairDataset, by: Sequence[str], near: NearIdentical) -> Values:
    """For each pair of a dataset (all pairs) what may be in several splits by some columns: values of columns, clips,
    clusters of near-identical clips."""
    values: dict[str, Sequence[Collection[str]]] = {
        column: [() if (value := read_column(pair, column)) is None else (value,) for pair in dataset.pairs]
        for column in dict.fromkeys((*LISTED, *by))
    }
    clips = [dataset.fingerprints[pair.pair_id] for pair in dataset.pairs]
    contexts = {clip for hashes in clips for clip in hashes[:-1]}
    cluster_of = {clip: cluster[0] for cluster in near.clusters for clip in cluster}
    near_contexts = {cluster_of[clip] for clip in contexts if clip in cluster_of}
    groups: dict[str, set[str]] = defaultdict(set)  # cluster -> groups of the responses in it
    for pair, hashes in zip(dataset.pairs, clips, strict=True):
        if hashes[-1] in cluster_of:
            groups[cluster_of[hashes[-1]]].add(pair.group_id)
    # Systems that degrade one recording give near-identical responses of one group on purpose
    allowed = set() if "group_id" in by else {cluster for cluster, ids in groups.items() if len(ids) == 1}
    pair_clusters = [[cluster_of[clip] for clip in hashes if clip in cluster_of] for hashes in clips]
    near_responses = [[cluster_of[hashes[-1]]] if hashes[-1] in cluster_of else [] for hashes in clips]
    values[RESPONSE] = [hashes[-1:] for hashes in clips]
    values[CONTEXT] = [[clip for clip in hashes if clip in contexts] for hashes in clips]
    values[NEAR_RESPONSE] = [[cluster for cluster in clusters if cluster not in allowed] for clusters in near_responses]
    values[NEAR_CONTEXT] = [[cluster for cluster in clusters if cluster in near_contexts] for clusters in pair_clusters]
    values[NEAR_IN_GROUP] = [[cluster for cluster in clusters if cluster in allowed] for clusters in near_responses]
    return values


def find_crossings(values: Iterable[Collection[str]], splits: Iterable[str | None]) -> dict[str, tuple[str, ...]]:
    """Value -> its splits, where there are several; one collection of values and one split (None = none) per pair."""
    splits_of: dict[str, set[str]] = defaultdict(set)
    for pair_values, split in zip(values, splits, strict=True):
        for value in pair_values:
            if split is not None:
                splits_of[value].add(split)
    return {value: tuple(sorted(names)) for value, names in splits_of.items() if len(names) > 1}
