"""Packs several pairs into a row, in which their common beginning is read once.

Several responses to one context begin with the same tokens, which a causal language model turns into the same states
whatever follows. A row holds this beginning once and the rest of each pair behind it; a mask
(`attention_layout`) and the positions let each pair see what it would see alone. A row may hold several
beginnings, for less padding.

Attention also computes what the mask excludes, and so grows with the square of a row's width. The largest width of rows
is therefore chosen by the cost of a layer: about 24 h^2 operations for a token in its linear layers and 4 w h in its
attention, where h is the hidden size and w the width (Narayanan et al., 2021, without the LM head).
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .attention import PADDING, SHARED
from .inputs import Packed, Pieces

_WIDTHS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
"""Largest widths of rows that are tried, in lengths of the longest pair."""
MAX_PACKED_FRACTION = 0.85
"""Largest share of the unpacked batch's tokens, and of its cost, at which it is packed."""


@dataclass(frozen=True)
class _Row:
    """The real tokens of a pair."""

    ids: np.ndarray
    states: np.ndarray  # the audio state of each audio token, -1 for text
    places: np.ndarray  # in the batch
    start: int  # the first token that no other pair has


class _Tree(NamedTuple):
    """Pairs with the same beginning, and how many tokens they have together."""

    members: list[int]
    size: int


class _Piece(NamedTuple):
    """Tokens that stand together: a beginning, or what follows it in a pair."""

    tree: int
    branch: int
    row: _Row  # of the pair, or of the first that has this beginning
    part: slice  # of the tokens of the row


def pack(
    ids: Tensor, mask: Tensor, states: Tensor, in_response: Tensor, hidden_size: int, one_row: bool = False
) -> Packed | None:
    """Pack the tokens of a batch into fewer positions.

    Args:
        ids: Token ids `(batch, tokens)`.
        mask: 1 for real tokens and 0 for padding `(batch, tokens)`.
        states: The audio state of each audio token, -1 for text `(batch, tokens)`.
        in_response: True at the audio tokens of the response `(batch, tokens)`. Beginnings end there.
        hidden_size: Of the language model.
        one_row: Whether attention needs neither mask nor padding (`Pieces`): all pairs stand in one row.

    Returns:
        None where little would be saved.
    """
    rows = []
    # NumPy, since an operation of torch takes longer than these few hundred numbers
    tensors = (tensor.numpy() for tensor in (ids, states, mask, in_response))
    for own_ids, own_states, real, response in zip(*tensors, strict=True):
        places = np.flatnonzero(real)
        # The response and what follows it belong to one pair, also where two pairs have the same words there
        begun = np.flatnonzero(response[places])
        start = int(begun[0]) if len(begun) else len(places)
        rows.append(_Row(own_ids[places], own_states[places], places, start))
    groups = _by_beginning(rows)
    trees = list(_trees(rows, groups, math.inf))
    real, packed = sum(len(row.places) for row in rows), sum(tree.size for tree in trees)
    if one_row and all(rows[tree.members[0]].start for tree in trees):
        return _filled(rows, [trees], ids.shape, one_row) if packed <= MAX_PACKED_FRACTION * ids.numel() else None
    # Padding alone costs less than an explicit mask, which rules out flash attention
    if packed > MAX_PACKED_FRACTION * real:
        return None
    longest = max(len(row.places) for row in rows)
    # Wide rows waste less on padding, narrow ones less on what the mask excludes: several are tried
    layouts = [_layout(rows, groups, int(share * longest)) for share in _WIDTHS]
    batch, tokens = ids.shape
    # Not by tokens alone: attention computes what the mask excludes, too, and grows with the square of a row
    cost, best = min(
        ((_cost(len(layout), _width(layout), hidden_size), layout) for layout in layouts), key=lambda pair: pair[0]
    )
    if cost > MAX_PACKED_FRACTION * _cost(batch, tokens, hidden_size):
        return None
    return _filled(rows, best, ids.shape)


def _cost(rows: int, width: int, hidden_size: int) -> float:
    return rows * width * (24 * hidden_size + 4 * width)


def _width(layout: Sequence[Sequence[_Tree]]) -> int:
    return max(sum(tree.size for tree in row) for row in layout)


def _layout(rows: Sequence[_Row], groups: Sequence[list[int]], width: int) -> list[list[_Tree]]:
    """The trees of each row of at most `width` tokens: each tree goes into the first row that has room, the largest
    first."""
    layout: list[list[_Tree]] = []
    used: list[int] = []  # tokens of each row
    # Largest first: small ones fill the gaps that they leave
    for tree in sorted(_trees(rows, groups, width), key=lambda tree: -tree.size):
        number = next((number for number, size in enumerate(used) if size + tree.size <= width), len(used))
        if number == len(used):
            layout.append([])
            used.append(0)
        layout[number].append(tree)
        used[number] += tree.size
    return layout


def _by_beginning(rows: Sequence[_Row]) -> list[list[int]]:
    """Numbers of pairs, those with the same beginning together."""
    groups: dict[tuple[bytes, bytes], list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        groups[row.ids[: row.start].tobytes(), row.states[: row.start].tobytes()].append(number)
    return list(groups.values())


def _trees(rows: Sequence[_Row], groups: Sequence[list[int]], width: float) -> Iterator[_Tree]:
    """Pairs by their beginning; as many together as fit into the width."""
    for members in groups:
        beginning = rows[members[0]].start
        total = sum(len(rows[number].places) - beginning for number in members)
        # trees of about equal size: a small one would be padded to a large one
        target = total / max(1, math.ceil(total / max(width - beginning, 1)))
        subset, size = list[int](), beginning
        for number in members:
            rest = len(rows[number].places) - beginning
            if subset and (size + rest > width or size >= beginning + target):
                yield _Tree(subset, size)
                subset, size = [], beginning
            subset.append(number)
            size += rest
        yield _Tree(subset, size)


def _filled(
    rows: Sequence[_Row], layout: Sequence[Sequence[_Tree]], shape: tuple[int, ...], one_row: bool = False
) -> Packed:
    width = _width(layout)
    ids, mask, positions = (np.zeros((len(layout), width), np.int64) for _ in range(3))
    states, numbers = (np.full((len(layout), width), -1) for _ in range(2))
    branches = np.full((len(layout), width), PADDING)
    where = np.zeros(shape, np.int64)
    trees = itertools.count()
    pieces = list[_Piece]()
    for line, row_trees in enumerate(layout):
        pieces = list[_Piece]()
        for tree in row_trees:
            number, first = next(trees), rows[tree.members[0]]
            # The common beginning comes once, and behind it the rest of each pair
            pieces.append(_Piece(number, SHARED, first, slice(0, first.start)))
            pieces += [_Piece(number, n, rows[n], slice(first.start, len(rows[n].places))) for n in tree.members]
        if one_row:
            pieces.sort(key=lambda piece: piece.branch != SHARED)
        end, begun = 0, dict[int, int]()
        for number, branch, row, part in pieces:
            to = slice(end, end + part.stop - part.start)
            ids[line, to], states[line, to] = row.ids[part], row.states[part]
            mask[line, to], positions[line, to] = 1, np.arange(part.start, part.stop)
            numbers[line, to], branches[line, to] = number, branch
            if branch == SHARED:
                begun[number] = end
            else:
                # Where the tokens of this pair are found again: in the beginning, then in its own part
                spots = [*range(begun[number], begun[number] + row.start), *range(to.start, to.stop)]
                where[branch, row.places] = line * width + np.array(spots)
            end = to.stop
        # padding attends to the last beginning, too: states that nothing was added to may have no gradient
        last = pieces[-1]
        numbers[line, end:], positions[line, end:] = last.tree, last.row.start
    return Packed(
        input_ids=torch.from_numpy(ids),
        attention_mask=torch.from_numpy(mask),
        positions=torch.from_numpy(positions),
        tree=torch.from_numpy(numbers),
        branch=torch.from_numpy(branches),
        audio_index=torch.from_numpy(states[states >= 0]),
        audio_positions=torch.from_numpy(np.flatnonzero(states >= 0)),
        where=torch.from_numpy(where),
        pieces=_ends(pieces) if one_row else None,
    )


def _ends(pieces: Sequence[_Piece]) -> Pieces:
    """Where the pieces of one row end: all beginnings come first."""
    sizes = [piece.part.stop - piece.part.start for piece in pieces]
    trees = pieces[-1].tree + 1
    following = np.bincount([piece.tree for piece in pieces[trees:]], sizes[trees:], trees).astype(int).tolist()

    def ends(sizes: Sequence[int]) -> Tensor:
        return torch.tensor([0, *itertools.accumulate(sizes)], dtype=torch.int32)

    longest = max(sizes), max(sizes[:trees]), max(following)
    return Pieces(ends(sizes), ends(sizes[:trees]), ends(following), longest, sum(sizes[:trees]))
