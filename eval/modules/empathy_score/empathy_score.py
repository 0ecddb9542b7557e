"""Scores of spoken responses by a trained judge, as a measurement of the ``evaluate`` library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate
from empathy_judge.scoring.audio_inputs import Audio
from empathy_judge.scoring.scorer import Scorer

_DESCRIPTION = """Scores of vocal empathy (how a reply sounds, not what it says) by a trained judge, on the scale of its
raters. What such a score is worth is stated in the judge's model card: agreement with people, and its ceiling."""

_INPUTS = """
Args:
    data: Paths of the audio files with the responses.
    contexts: Paths of what they answer, one per response; None = without.
    judge: Folder of an exported judge.
    backbone, device: See `empathy_judge.scoring.scorer.Scorer.from_pretrained`.

Returns:
    ``scores``: dimension -> one score per response; ``mean``: dimension -> their mean. Rating points.
"""


class EmpathyScore(evaluate.Measurement):
    """See `_INPUTS`."""

    def _info(self) -> evaluate.MeasurementInfo:
        return evaluate.MeasurementInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description=_INPUTS,
            features=datasets.Features({"data": datasets.Value("string")}),
        )

    def _compute(  # pyright: ignore[reportIncompatibleMethodOverride]  # the library calls it by these names
        self,
        data: Sequence[str],
        judge: str,
        contexts: Sequence[str | None] | None = None,
        backbone: str | None = None,
        device: str | None = None,
    ) -> dict[str, Any]:
        scorer = Scorer.from_pretrained(judge, backbone=backbone, device=device)
        audio_contexts: list[Audio | None] = [None] * len(data) if contexts is None else list(contexts)
        results = scorer.score(audio_contexts, list(data))
        scores = {dimension.name: [row[dimension.name] for row in results] for dimension in scorer.dimensions}
        return {"scores": scores, "mean": {name: sum(values) / len(values) for name, values in scores.items()}}
