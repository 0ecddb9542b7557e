"""Pairs by what they are: a response that is compared several times is one pair; what belongs together is one group."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ..audio import audio_hash
from .clips import ClipCell, Content, read_clip

_ID_LENGTH = 16  # hexadecimal digits: 64 bits


class PairPool:
    """Collects pairs; ids that a source does not give are hashes of the content and tell neither system nor label."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, Any]] = {}
        self._links: dict[str, set[str]] = {}
        self._digests: dict[Content, str] = {}

    def digest(self, cell: ClipCell) -> str:
        """SHA-256 (hex) of the encoded bytes of a clip; each file is read once.

        Raises:
            AudioError: If there is no such file or it cannot be read.
        """
        content = cell.content
        if content not in self._digests:
            self._digests[content] = audio_hash(read_clip(content))
        return self._digests[content]

    def add(self, row: Mapping[str, Any], links: Collection[str], pair_id: str | None = None) -> str:
        """Takes a pair in, once: what comes again under its id is the first again.

        Args:
            row: Columns of ``pairs.parquet`` as `Imported.pairs` has them, without ``pair_id`` and ``group_id``.
            links: What the pair has in common with others (script, prompt, context). Pairs that share a link, directly
                or through other pairs, are one group.
            pair_id: The source's own id; None = a hash of system, situation and clips.

        Returns:
            The pair's id.

        Raises:
            AudioError: If a clip cannot be read.
        """
        if pair_id is None:
            context = [(turn["role"], self.digest(turn["audio"])) for turn in row.get("context_audio") or ()]
            key = [row.get("system_id"), row.get("situation"), context, self.digest(row["response_audio"])]
            pair_id = _short_hash(json.dumps(key))
        self._rows.setdefault(pair_id, {**row, "pair_id": pair_id})
        self._links.setdefault(pair_id, {pair_id}).update(links)
        return pair_id

    def rows(self) -> list[dict[str, Any]]:
        """The pairs in the order they came in, each with its ``group_id``."""
        groups = group_by_links(self._links)
        return [{**row, "group_id": groups[pair_id]} for pair_id, row in self._rows.items()]


def group_by_links(links: Mapping[str, Collection[str]]) -> dict[str, str]:
    """Groups of pairs: the connected components of "has a link in common".

    Args:
        links: Pair id -> what it has in common with others, at least one each.

    Returns:
        Pair id -> group id, the same whatever the order of pairs.
    """
    names = sorted({link for own in links.values() for link in own})
    number = {name: index for index, name in enumerate(names)}
    edges = [(number[min(own)], number[link]) for own in links.values() for link in own]
    ends = np.array(edges, dtype=np.int64).reshape(-1, 2)
    graph = coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(len(names), len(names)))
    _, component = connected_components(graph, directed=False)
    first: dict[int, str] = {}
    for name, index in zip(names, component.tolist(), strict=True):
        first.setdefault(index, _short_hash(name))
    return {pair_id: first[int(component[number[min(own)]])] for pair_id, own in links.items()}


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_ID_LENGTH]
