"""Closed-form regressions on what a frozen backbone makes of a set, each pair of which it runs on once: what
`small_data.py` and `real_ear.py` fit hundreds of times."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from empathy_judge import PairDataset
from empathy_judge.data_modules.schema import Pair
from empathy_judge.eval.judges.baselines.probe import ClipReader
from empathy_judge.models.head_input import HeadInput
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.models.probe import OfClips, Probe, Rated, shuffled, standardise
from empathy_judge.models.settings import BuiltHeadInput

COVERAGE = 0.9
Method = tuple[bool, BuiltHeadInput, bool]
"""Whether states of the language model are read, what is read of the clips, and whether only ridge may be chosen."""


@dataclass(frozen=True)
class Activations:
    """Activations of the frozen backbone for pairs, one row for each pair.

    Attributes:
        rows: Pair -> its row.
        states: Pooled states of the language model.
        layers: Of the audio encoder, see `HeadInput.raw`.
        functionals: Of the signal, see `HeadInput.raw`.
    """

    rows: dict[str, int]
    states: torch.Tensor
    layers: torch.Tensor
    functionals: torch.Tensor


def activations_of(dataset: PairDataset, judge: EmpathyJudge, file: Path) -> Activations:
    """Run the backbone on each pair once, or load the activations from `file`."""
    rows = {pair.pair_id: row for row, pair in enumerate(dataset.pairs)}
    if not file.exists():
        batches: list[tuple[np.ndarray, ...]] = []
        reader = ClipReader(judge)
        with torch.inference_mode():
            for _, inputs in reader.inputs(dataset.pairs):
                encoded = judge.with_encoded_audio(inputs)
                assert encoded.window_weights is None, "a clip is too long"
                layers, functionals = judge.head_input.raw(encoded)
                assert layers is not None
                assert functionals is not None
                if judge.backbone.untrained_states:  # no probe reads them
                    states = torch.zeros(len(layers), judge.backbone.hidden_size)
                else:
                    states = judge.pool_states(judge.backbone.hidden_states(encoded), encoded)
                batches.append((states.numpy(), layers.numpy(), functionals.numpy()))
        states, layers, functionals = (np.concatenate(parts) for parts in zip(*batches, strict=True))
        assert len(states) == len(rows), "a clip cannot be used"
        np.savez(file, states=states, layers=layers, functionals=functionals)
    with np.load(file) as arrays:
        return Activations(rows, *(torch.from_numpy(arrays[name]) for name in ("states", "layers", "functionals")))


@dataclass
class _StoredReader:
    """A `Reader` of activations that were computed before."""

    judge: EmpathyJudge
    activations: Activations
    states: bool

    def _of(self, pairs: Sequence[Pair]) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        rows, settings = [self.activations.rows[pair.pair_id] for pair in pairs], self.judge.head_input.settings
        layers = self.activations.layers[rows] if settings.audio != "none" else None
        functionals = self.activations.functionals[rows] if settings.functionals else None
        states = self.activations.states[rows]
        return states if self.states else torch.zeros_like(states), layers, functionals

    def clip_features(self, pairs: Sequence[Pair]) -> Iterator[OfClips]:
        """See `Reader`."""
        yield self._of(pairs)[1:]

    def features(self, pairs: Sequence[Pair]) -> Iterator[tuple[list[Pair], np.ndarray]]:
        """See `Reader`."""
        states, layers, functionals = self._of(pairs)
        with torch.inference_mode():
            head = self.judge.head_input
            features = head.standardised(states, layers, functionals) if head.settings.of_clips else states
        yield list(pairs), features.double().numpy()


class Study:
    """Fits and predicts on one set."""

    def __init__(self, dataset: PairDataset, judge: EmpathyJudge, activations: Activations) -> None:
        self.dataset, self.judge, self.activations = dataset, judge, activations
        self.names = [dimension.name for dimension in dataset.card.dimensions]
        self.human = dataset.mean_scores()[self.names]
        self._layers = activations.layers.shape[2], activations.layers.shape[4]

    def predict(
        self, method: Method, train: Sequence[Pair], test: Sequence[Pair], seed: int, with_reach: bool
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Scores of the test pairs `(pairs, dimensions)`; and, if asked for, how far from them a score is at most for
        `COVERAGE` of people's means: the quantile of residuals of training pairs whose group was left out."""
        pairs = shuffled(train, seed)
        targets = self.human.loc[[pair.pair_id for pair in pairs]].to_numpy(float)
        groups = np.array([pair.response_speaker for pair in pairs])
        states, settings, linear = method
        self.judge.head_input = HeadInput(settings, self.activations.states.shape[1], self._layers)
        reader = _StoredReader(self.judge, self.activations, states)
        if settings.of_clips:
            standardise(reader, pairs)
        probe = Probe(reader, Rated(pairs, targets, np.ones_like(targets), groups), linear, may_rank=not linear)
        ((_, features),) = reader.features(test)
        block_scale = None
        if with_reach:
            predicted = probe.left_out(torch.from_numpy(targets.mean(0)).float()).score.numpy()
            errors = np.sort(np.abs(predicted - targets), 0)
            block_scale = errors[min(len(errors), math.ceil(COVERAGE * (len(errors) + 1))) - 1]
        return probe.fit().predict(features), block_scale
