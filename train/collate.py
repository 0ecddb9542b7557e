"""Collates items into batches of inputs and labels, and gathers the batches of all devices."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional

from ..data_modules.schema import Dimension
from ..data_modules.training_items import ComparedPair, RatedPair
from ..models.backbones.inputs import Inputs, Movable
from ..models.heads import Prediction
from ..models.judge import EmpathyJudge
from ..models.settings import JudgeSettings
from .features import Features, rank_and_world_size
from .objective import Labels


@dataclass(frozen=True)
class Batch(Movable):
    """Inputs of the judge with human labels. Rated pairs are the first rows; `indices` `(rated,)` are their positions
    in their split."""

    indices: Tensor
    inputs: Inputs
    labels: Labels


class Collate:
    """Makes a batch of items, in the trainer or in a data worker.

    Where such processes do not begin as a copy of the trainer (forkserver, spawn) this object is pickled: it then takes
    the judge's settings along and no weights, and the other end builds the judge's shapes alone, which is all that
    reading takes.
    """

    def __init__(self, judge: EmpathyJudge, features: Features | None, *, with_counts: bool) -> None:
        """Put the pieces together; without cached `features` every clip is decoded. `with_counts` = a loss reads how
        many raters gave each step.
        """
        self._judge, self.features = judge, features
        self._with_counts = with_counts

    def __call__(self, items: Sequence[RatedPair | ComparedPair]) -> Batch:
        """Inputs and labels of several items: rated pairs, then the chosen, then the rejected pairs. Pairs of
        comparisons have no ratings here, also where people rated them."""
        rated = [item for item in items if isinstance(item, RatedPair)]
        compared = [item for item in items if isinstance(item, ComparedPair)]
        pairs = [item.pair for item in rated]
        pairs += [*(item.chosen for item in compared), *(item.rejected for item in compared)]
        dimensions, rest = self._judge.dimensions, 2 * len(compared)
        labels = Labels(
            targets=_stacked([item.scores for item in rated], rest, torch.nan, len(dimensions)),
            weights=_stacked([item.weights for item in rated], rest, 0.0, len(dimensions)),
            counts=_counts(rated, rest, dimensions) if self._with_counts else None,
            # A comparison is about which response is better, so it is trained for the mean rater
            raters=torch.tensor([item.rater for item in rated] + [-1] * rest),
            chosen=torch.arange(len(rated), len(rated) + len(compared)),
            rejected=torch.arange(len(rated) + len(compared), len(pairs)),
            strengths=_stacked([item.strength for item in compared], 0, torch.nan, len(dimensions)),
        )
        return Batch(
            # The type is named, since a batch of comparisons alone has an empty list, of which torch would make
            # floats
            indices=torch.tensor([item.index for item in rated], dtype=torch.int64),
            inputs=self._judge.build_inputs(pairs) if self.features is None else self.features.inputs(pairs),
            labels=labels,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        file = io.BytesIO()
        # Weights of gigabytes would travel to every data worker, which needs their shapes at most
        _WithoutWeights(file).dump(vars(self))
        return _unpickled, (file.getvalue(),)


class _WithoutWeights(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        return (_shapes, (obj.settings, obj.dimensions)) if isinstance(obj, EmpathyJudge) else NotImplemented


def _shapes(settings: JudgeSettings, dimensions: Sequence[Dimension]) -> EmpathyJudge:
    return EmpathyJudge(settings, dimensions, weights=False)


def _unpickled(values: bytes) -> Collate:
    collate = Collate.__new__(Collate)
    vars(collate).update(pickle.loads(values))
    return collate


def _counts(rated: Sequence[RatedPair], rest: int, dimensions: Sequence[Dimension]) -> Tensor:
    steps = max(dimension.steps for dimension in dimensions)
    nobody = torch.zeros(rest, len(dimensions), steps, dtype=torch.int32)
    histograms = [item.histogram for item in rated if item.histogram is not None]
    return torch.cat([torch.stack(histograms), nobody]) if histograms else nobody


def _stacked(rows: Sequence[Tensor], rest: int, filling: float, width: int) -> Tensor:
    """`(rows + rest, width)`; the rest is filled with a constant."""
    tail = torch.full((rest, width), filling)
    return torch.cat([torch.stack(list(rows)), tail]) if rows else tail


def gather(prediction: Prediction, labels: Labels) -> tuple[Prediction, Labels]:
    """Rows of all ranks, in the order of ranks; only those of this rank have a gradient.

    Where ranks average their gradients (DDP, FSDP, ZeRO), the loss over the gathered rows times the number of ranks has
    the gradient that one process would have on the whole batch. Every rank has equally many rows and comparisons, which
    `FixedSize` sees to.
    """
    (rank, ranks), rows = rank_and_world_size(), len(labels.targets)
    if ranks == 1:
        return prediction, labels
    # They count the rows of this rank, which come behind those of the ranks before it
    labels = replace(labels, chosen=labels.chosen + rank * rows, rejected=labels.rejected + rank * rows)
    predicted, label_tensors = _tensors(prediction), _tensors(labels)
    gathered = _gather([*predicted.values(), *label_tensors.values()])
    return (
        replace(prediction, **dict(zip(predicted, gathered, strict=False))),
        replace(labels, **dict(zip(label_tensors, gathered[len(predicted) :], strict=True))),
    )


def _tensors(rows: Prediction | Labels) -> dict[str, Tensor]:
    values = {f.name: getattr(rows, f.name) for f in fields(rows)}
    return {name: value for name, value in values.items() if value is not None}


def _gather(own: Sequence[Tensor]) -> list[Tensor]:
    """Each tensor with the rows of all ranks, by one collective: their bytes side by side, in words of 8."""
    # `view` takes bytes back to int64 or float64 only from an offset that is a multiple of 8
    flat = [value.detach().contiguous().flatten().view(torch.uint8) for value in own]
    sizes = [-(-len(value) // 8) * 8 for value in flat]
    # One message instead of one for each tensor: messages this small cost their latency, whatever they hold
    packed = torch.cat([functional.pad(value, (0, size - len(value))) for value, size in zip(flat, sizes, strict=True)])
    received = [torch.empty_like(packed) for _ in range(dist.get_world_size())]
    dist.all_gather(received, packed)
    parts = [
        [
            words[: len(bits)].view(value.dtype).view(value.shape)
            for words, bits, value in zip(buffer.split(sizes), flat, own, strict=True)
        ]
        for buffer in received
    ]
    parts[dist.get_rank()] = list(own)  # with their gradient
    return [torch.cat(values) for values in zip(*parts, strict=True)]
