"""Multiple annotation campaigns as one pair dataset, so that one judge can be trained on all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from .audio import AudioSource
from .audit import find_crossings, refused_kinds, split_columns, values_of
from .errors import UserError, counted, shown
from .importers.assemble import Imported, assemble
from .importers.clips import ClipCell
from .near_duplicates import NearIdentical
from .pairs_file import SHARD_ROWS
from .ratings import Dimension, is_name, onto_first_scale, same_range
from .rows import TAGS, TEXT_COLUMNS
from .schema import DatasetCard, PairDataset
from .stored_clips import CONTEXT, RESPONSE, StoredClip, StoredFile
from .tables import set_once

CAMPAIGN = "campaign"
"""Tag of every combined pair: the dataset that it comes from."""
SHAREABLE = ("group_id", "context_speaker", "response_speaker", "system_id", "rater_id")
"""Columns whose names may mean the same in several datasets; those of pairs never do."""


def combine(
    datasets: Sequence[PairDataset],
    out: str | Path,
    *,
    names: Sequence[str] | None = None,
    renames: Mapping[str, Mapping[str, str]] | None = None,
    shared: Collection[str] = (),
    overwrite: bool = False,
    embed_audio: bool = False,
    shard_rows: int = SHARD_ROWS,
) -> PairDataset:
    """Writes one dataset with the pairs, ratings and preferences of several.

    Pairs, groups, raters, speakers and systems are called ``NAME/...`` after their dataset: ``s1`` or ``rater 3`` of
    one annotation campaign is hardly ever that of another; if two were taken for one, their system means would mix.
    Where names do mean the same (a crowd with stable ids, a system under its public name), `shared` says so: only then
    does a split by that column keep them together across campaigns. Equal audio is found in any case.

    The tag `CAMPAIGN` says where a pair comes from; a pair that has the tag keeps its value behind ``NAME/``.
    Dimensions are the same where their names are; those that only some datasets rate stay, the others' pairs have no
    ratings there. Scores come onto the scale of the first dataset that has the dimension (`onto_first_scale`).
    Preferences stay as they are: which response was preferred does not depend on a scale. Splits stay where every
    dataset has some, all were made by the same columns, one dataset has the names of all, and nothing that belongs into
    one split would be in two. Every clip is read once, compared with its hash, decoded and stored once however often it
    occurs; see `assemble`, also for what happens after a kill.

    Args:
        datasets: The parts.
        out: The dataset folder to make.
        names: What the parts are called; by default what their cards say.
        renames: Name of a part -> its name of a dimension -> the new one.
        shared: Some of `SHAREABLE`, whose names are kept as they are.
        overwrite: As in `assemble`.
        embed_audio: As in `assemble`.
        shard_rows: As in `assemble`.

    Returns:
        The dataset as it loads. Its description says what was done to scales and splits.

    Raises:
        UserError: If names, renames or shared columns are not usable.
        DataError: If a clip cannot be read or is not what was imported, or `out` may not be written.
    """
    parts = _named(datasets, names, renames or {})
    for column in shared:
        if column not in SHAREABLE:
            raise UserError(f"shared column {shown(column)}; expected {', '.join(SHAREABLE)}")
    by, notes = _split_by(parts, shared)
    dimensions, ratings, scale_notes = _on_one_scale(parts)
    preferences = [_named_apart(part, part.preferences, shared) for part in parts if part.preferences is not None]
    cards = [part.card for part in parts]
    contents = [
        f"{part.card.name} ({counted(len(part.pairs), 'pair')}, {part.card.content_hash[:12]})" for part in parts
    ]
    descriptions = [f"{card.name}: {card.description}" for card in cards if card.description]
    combined = Imported(
        card=DatasetCard(
            name="",  # that of the folder
            dimensions=dimensions,
            source="; ".join(f"{card.name}: {card.source}" for card in cards),
            licence="; ".join(dict.fromkeys(card.licence for card in cards)),
            synthetic=any(card.synthetic for card in cards),
            description=" ".join([f"Combined from {', '.join(contents)}.", *notes, *scale_notes, *descriptions]),
        ),
        pairs=[row for part in parts for row in _rows(part, shared, keep_splits=by is not None)],
        ratings=pd.concat(
            [_named_apart(part, part_ratings, shared) for part, part_ratings in zip(parts, ratings, strict=True)],
            ignore_index=True,
        ),
        preferences=pd.concat(preferences, ignore_index=True) if preferences else None,
    )
    facts = None if by is None else {"by": list(by), "combined": [part.card.name for part in parts]}
    return assemble(
        combined,
        out,
        overwrite=overwrite,
        embed_audio=embed_audio,
        shard_rows=shard_rows,
        max_skipped=0.0,
        split_facts=facts,
    )


def parse_renames(items: Sequence[str]) -> dict[str, dict[str, str]]:
    """``["lab:warmth=empathy"]`` as name of a dataset -> its name of a dimension -> the new one.

    Raises:
        UserError: If an item has another form, or a dimension stands twice.
    """
    renames: dict[str, dict[str, str]] = {}
    for item in items:
        name, _, change = item.rpartition(":")
        old, _, new = change.partition("=")
        if not (name and old and new):
            raise UserError(f"--rename {item!r}: expected NAME:OLD=NEW, such as lab:warmth=empathy")
        set_once(renames.setdefault(name, {}), old, new, f"--rename {item!r}")
    return renames


def _named(
    datasets: Sequence[PairDataset], names: Sequence[str] | None, renames: Mapping[str, Mapping[str, str]]
) -> list[PairDataset]:
    """The datasets under the names of parts, their dimensions renamed."""
    names = [dataset.card.name for dataset in datasets] if names is None else names
    if len(names) != len(datasets):
        raise UserError(f"{counted(len(names), 'name')} for {counted(len(datasets), 'dataset')}; expected one for each")
    for name in names:
        if not is_name(name) or "/" in name or names.count(name) > 1:
            raise UserError(f"dataset name {shown(name)}; expected distinct ones without '/', as --names gives them")
    for name in renames:
        if name not in names:
            raise UserError(f"rename in dataset {shown(name)}; expected {', '.join(names)}")
    return [_renamed(dataset, name, renames.get(name, {})) for name, dataset in zip(names, datasets, strict=True)]


def _renamed(dataset: PairDataset, name: str, changes: Mapping[str, str]) -> PairDataset:
    for old in changes:
        dataset.card.dimension(old)  # names those that exist
    new_names = {dimension.name: changes.get(dimension.name, dimension.name) for dimension in dataset.card.dimensions}
    dimensions = tuple(dataclasses.replace(d, name=new_names[d.name]) for d in dataset.card.dimensions)

    def renamed(table: pd.DataFrame) -> pd.DataFrame:
        return table.assign(dimension=table["dimension"].map(new_names.__getitem__))

    return dataclasses.replace(
        dataset,
        card=dataclasses.replace(dataset.card, name=name, dimensions=dimensions),
        ratings=renamed(dataset.ratings),
        preferences=None if dataset.preferences is None else renamed(dataset.preferences),
    )


def _split_by(parts: Sequence[PairDataset], shared: Collection[str]) -> tuple[tuple[str, ...] | None, list[str]]:
    """The columns that all splits were made by, or None where splits cannot be kept, and why not."""
    unsplit = [part.card.name for part in parts if all(pair.split is None for pair in part.pairs)]
    if len(unsplit) == len(parts):
        return None, []
    if unsplit:
        return None, [f"Splits were dropped: {', '.join(unsplit)} had none."]
    made_by = {part.card.name: split_columns(part) for part in parts}
    if len({frozenset(by) for by in made_by.values()}) > 1:
        listed = "; ".join(f"{name} by {', '.join(by)}" for name, by in made_by.items())
        return None, [f"Splits were dropped, they were made differently: {listed}."]
    split_names = {part.card.name: {pair.split for pair in part.pairs if pair.split is not None} for part in parts}
    if set[str]().union(*split_names.values()) not in split_names.values():
        listed = "; ".join(f"{name} has {', '.join(sorted(names))}" for name, names in split_names.items())
        return None, [f"Splits were dropped, they are called differently: {listed}."]
    by = made_by[parts[0].card.name]
    if crossings := _crossings(parts, by, shared):
        listed = ", ".join(f"{count} of {kind}" for kind, count in crossings.items())
        return None, [f"Splits were dropped, some things would be in several: {listed}."]
    return by, []


def _crossings(parts: Sequence[PairDataset], by: Sequence[str], shared: Collection[str]) -> dict[str, int]:
    """Kinds of which no value may be in two splits -> how many values would be. Clips are compared by their bytes."""
    pairs = [dataclasses.replace(p, pair_id=f"{part.card.name}/{p.pair_id}") for part in parts for p in part.pairs]
    clips = {f"{part.card.name}/{key}": clip for part in parts for key, clip in part.fingerprints.items()}
    together = dataclasses.replace(parts[0], pairs=tuple(pairs), fingerprints=clips)
    nothing_near = NearIdentical(content_hash="", method="", clips=0, not_comparable=(), clusters=())
    values = values_of(together, by, nothing_near)
    # names that are not shared are those of one part alone
    kinds = [kind for kind in refused_kinds(by) if kind not in SHAREABLE or kind in shared]
    splits = [pair.split for pair in pairs]
    counts = {kind: len(find_crossings(values[kind], splits)) for kind in kinds}
    return {kind: count for kind, count in counts.items() if count}


def _on_one_scale(parts: Sequence[PairDataset]) -> tuple[tuple[Dimension, ...], list[pd.DataFrame], list[str]]:
    """The dimensions of all parts, the ratings of each part on them, and what was done."""
    scores = [part.ratings["score"].to_numpy(np.float64, copy=True) for part in parts]
    dimensions: list[Dimension] = []
    notes: list[str] = []
    for name in dict.fromkeys(dimension.name for part in parts for dimension in part.card.dimensions):
        scales = {number: d for number, part in enumerate(parts) for d in part.card.dimensions if d.name == name}
        masks = [(parts[number].ratings["dimension"] == name).to_numpy(bool) for number in scales]
        scores_to_map = [scores[number][mask] for number, mask in zip(scales, masks, strict=True)]
        scale, mapped_scores = onto_first_scale(list(scales.values()), scores_to_map)
        for number, mask, part_scores in zip(scales, masks, mapped_scores, strict=True):
            scores[number][mask] = part_scores
        dimensions.append(scale)
        notes += [
            f"{name} of {parts[number].card.name}: {original.described} mapped onto {scale.described}."
            for number, original in scales.items()
            if not same_range(original, scale)
        ]
        first_scale = next(iter(scales.values()))
        if first_scale.step is not None and scale.step is None:
            notes.append(f"{name} has no steps any more: scores fall between steps of {first_scale.step:g}.")
    ratings = [part.ratings.assign(score=values) for part, values in zip(parts, scores, strict=True)]
    return tuple(dimensions), ratings, notes


def _rows(part: PairDataset, shared: Collection[str], keep_splits: bool) -> Iterator[dict[str, Any]]:
    """The pairs as `Imported` has them."""
    name = part.card.name
    for pair in part.pairs:
        *context, response = part.fingerprints[pair.pair_id]
        where = f"{part.root}, pair {shown(pair.pair_id)}"
        earlier = pair.tag(CAMPAIGN)
        names = {column: getattr(pair, column) for column in SHAREABLE if column != "rater_id"}
        prefixed = {c: v if v is None or c in shared else f"{name}/{v}" for c, v in names.items()}
        yield {
            "pair_id": f"{name}/{pair.pair_id}",
            **prefixed,
            **{column: getattr(pair, column) for column in ("setting", "language", *TEXT_COLUMNS)},
            "split": pair.split if keep_splits else None,
            TAGS: {**dict(pair.tags), CAMPAIGN: f"{name}/{earlier}" if earlier else name},
            CONTEXT: [
                {"role": turn.role, "audio": ClipCell(_stored(turn.audio, sha256), where)}
                for turn, sha256 in zip(pair.context, context, strict=True)
            ],
            RESPONSE: ClipCell(_stored(pair.response, response), where),
        }


def _stored(audio: AudioSource, sha256: str) -> StoredClip:
    """The clip with its hash, so that equal ones count once and a changed one is noticed."""
    if isinstance(audio, StoredClip):
        return audio
    assert isinstance(audio, Path)  # `PairDataset.load` makes nothing else
    return StoredClip(sha256, StoredFile(audio, ""))


def _named_apart(part: PairDataset, table: pd.DataFrame, shared: Collection[str]) -> pd.DataFrame:
    """Ratings or preferences with the new names of pairs and raters."""
    prefixed = [name for name in ("pair_id", "chosen_id", "rejected_id") if name in table]
    prefixed += [] if "rater_id" in shared else ["rater_id"]
    return table.assign(**{name: f"{part.card.name}/" + table[name] for name in prefixed})
