"""The trained judge as a Python call."""

from __future__ import annotations

import asyncio
import functools
import itertools
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args, overload

import numpy as np

from ..core.errors import AudioError, UserError, shown
from ..data_modules.schema import Pair
from ..models.settings import OF_LEVELS, Quantization
from . import KEPT_BYTES
from .assessment import Assessment, Ranked, Scale, Score, cautions, in_order, label
from .audio_inputs import Audio, Question, clip, column, numbered, pairs_of
from .calibration import DEFAULT_LEVEL, LEVELS, preference, uncalibrated
from .score_table import Column, score_columns
from .three_way import OverNext, Preference

if TYPE_CHECKING:
    from .artifact import LoadedJudge
    from .predictor import Predictor, ScoredPair

Scores = dict[str, float]
"""Rating points by dimension."""


class Scorer:
    """Scores spoken responses. Build one with `from_pretrained` and keep it: loading takes longer than scoring.

    Safe to be called from several threads, which take turns: more of them do not make it faster, longer lists do.

    Attributes:
        name: Folder or hub id that it came from.
        description: What `judge.json` says: training data, hashes, versions.
        dimensions: What it scores and on which scale.
        calibration: What is known of its errors; None = nothing.
        sampling_rate: Hz of the clips that it reads; clips of any rate are resampled.
        max_seconds: Longest clip that it reads as a whole.
        windows: Whether longer ones are read in windows.
        batch_size: Most pairs per forward pass.
        knows_levels: Whether assessments have `levels`.
        judge: The network, on its device.
        predictor: Runs it.
    """

    def __init__(self, loaded: LoadedJudge, name: str, predictor: Predictor) -> None:
        """Put a judge to work; see `from_pretrained`."""
        self.name, self.loaded, self.predictor, self.judge = name, loaded, predictor, loaded.judge
        self.description, self.calibration, self.dimensions = (
            loaded.description,
            loaded.calibration,
            self.judge.dimensions,
        )
        self.batch_size, self.windows = predictor.batch_size, predictor.windows
        self.sampling_rate, self.max_seconds = self.judge.backbone.sampling_rate, self.judge.backbone.max_seconds
        # where a judge learned from comparisons alone, only the order of its scores has a meaning
        self._in_points = self.description["provenance"]["shares"].get("ratings", 1) > 0
        self.knows_levels = self._in_points and self.judge.settings.head in OF_LEVELS

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        *,
        backbone: str | None = None,
        device: str | None = None,
        quantization: Quantization | None = None,
        batch_size: int | None = None,
        cache: str | Path | None = None,
        compiled: bool = False,
        kept_bytes: int = KEPT_BYTES,
        revision: str | None = None,
        windows: bool = True,
    ) -> Scorer:
        """Load a judge.

        Args:
            folder: Folder of an exported judge (or of a training run), or `OWNER/NAME` on the Hugging Face hub where
                there is no such folder.
            backbone: Where the backbone lies now, if not where the judge found it.
            device: "cpu", "cuda", ...; "auto" spreads the backbone over all GPUs, then main memory; None = a GPU if
                there is one, of several processes on a machine to each its own.
            quantization: "nf4" keeps the language model in 4 bits, for small GPUs: scores change a little. None = as in
                training.
            batch_size: Most pairs per forward pass; scores do not depend on it. None = 16 on a CPU, 128 on a GPU, where
                its free memory also limits their tokens. Where memory runs out, batches are made smaller, and no pair
                is lost.
            cache: Folder that keeps the audio tower's output for each clip, at most 100 GB; training with
                `cache.folder` shares it. None = it stays in memory for as long as this scorer lives.
            compiled: Whether layers are compiled (`torch.compile`): the first batches take minutes, later ones less
                than otherwise. Scores change in the last digits.
            kept_bytes: Bytes of audio states that stay in memory, for clips that come again.
            revision: Commit, tag or branch on the hub.
            windows: Clips longer than `max_seconds` are read in windows of equal length; what the head reads is the
                mean over these, each weighted by the seconds in which it has a voice. False = they are refused.

        Raises:
            UserError: If the judge is incomplete or does not fit the backbone; the text names what is wrong.
        """
        # Before the weights, which take a minute: a wrong argument is refused at once
        if not isinstance(folder, str | os.PathLike):
            raise UserError(f"judge {shown(folder)}; expected a folder, or OWNER/NAME on the Hugging Face hub")
        if not isinstance(kept_bytes, int) or kept_bytes < 0:
            raise UserError(f"kept_bytes {kept_bytes!r}; expected a whole number, 0 or more")
        if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
            raise UserError(f"batch_size {batch_size!r}; expected a whole number, 1 or more")
        if quantization not in (None, *get_args(Quantization)):
            raise UserError(f"quantization {quantization!r}; expected {', '.join(get_args(Quantization))}")
        # What loads a model stands here: who has mistyped an argument does not wait for transformers
        from ..core.disk_store import DiskStore
        from .predictor import Predictor, load_to_score

        loaded = load_to_score(Path(folder), backbone, device, quantization, revision)
        judge = loaded.judge
        if compiled:
            from ..models.backbones.layers import compile_layers

            compile_layers(judge.network, leave=[])
        store = None if cache is None else DiskStore(Path(cache))
        return cls(loaded, str(folder), Predictor(judge, batch_size, store, True, kept_bytes, windows))

    @overload
    def score(
        self,
        context: Audio | list[Audio | None] | None,
        response: list[Audio],
        *,
        situation: str | list[str | None] | None = None,
    ) -> list[Scores]: ...
    @overload
    def score(self, context: Audio | None, response: Audio, *, situation: str | None = None) -> Scores: ...
    def score(self, context, response, *, situation=None) -> Scores | list[Scores]:
        """Score one response, or several.

        Args:
            context: What the response answers: a clip, or None to judge the response alone. For several responses a
                list of the same length, or one clip that all of them answer, which is then encoded only once.
            response: The clip that is judged, or a list of clips.
            situation: Text about the situation, as raters were given it; for several responses one for all or a list.

        Returns:
            Rating points by dimension; a list of that for a list of responses, in the same order.

        Raises:
            AudioError: If a clip cannot be read, is not finite, or is too long (see `windows`).
            UserError: If lists differ in length.
        """
        assessed = self.assess(context, response, situation=situation)
        return [assessment.points for assessment in assessed] if isinstance(assessed, list) else assessed.points

    @overload
    def assess(
        self,
        context: Audio | list[Audio | None] | None,
        response: list[Audio],
        *,
        situation: str | list[str | None] | None = None,
        level: float = DEFAULT_LEVEL,
    ) -> list[Assessment]: ...
    @overload
    def assess(
        self, context: Audio | None, response: Audio, *, situation: str | None = None, level: float = DEFAULT_LEVEL
    ) -> Assessment: ...
    def assess(self, context, response, *, situation=None, level=DEFAULT_LEVEL) -> Assessment | list[Assessment]:
        """As `score`, with all that is known of each score: standard error, interval, a word for it, warnings.

        Args:
            context: As for `score`.
            response: As for `score`.
            situation: As for `score`.
            level: Share of pairs that the intervals of a calibrated judge shall cover: 0.5, 0.8, 0.9 or 0.95.

        Raises:
            AudioError: As `score`.
            UserError: As `score`; also if there are no intervals of this level.
        """
        assessments = []
        pairs, several = pairs_of(context, response, situation)
        # A caller of one or few pairs wants an exception; `assess_each` returns errors in their place
        for number, outcome in enumerate(self.assess_pairs(pairs, level)):
            if isinstance(outcome, AudioError):
                raise outcome.at(f"pair {number}") if several else outcome
            assessments.append(outcome)
        return assessments if several else assessments[0]

    def rank(
        self,
        context: Audio | None,
        responses: Sequence[Audio],
        *,
        situation: str | None = None,
        by: Sequence[str] | None = None,
    ) -> list[Ranked]:
        """Put responses to one context in order, the best first; the context is encoded once.

        Responses whose audio cannot be used come last, in the order in which they were given, as do those of equal
        merit.

        Args:
            context: What they answer; None = they are judged alone.
            responses: One or more.
            situation: Text about the situation.
            by: Dimensions that count, equally; None = all.

        Raises:
            UserError: If there is no response, or no such dimension.
            AudioError: If the context cannot be used.
        """
        names = self.dimension_names(by)
        listed = list(responses) if isinstance(responses, tuple) else column(responses)
        if listed is None:
            raise UserError(f"best of {shown(responses)}; expected a list of responses")
        if not listed:
            raise UserError("best of 0 responses; expected at least one")
        decoded = None if context is None else clip(context)
        if decoded is not None:
            self.check_clip(decoded)  # otherwise every response would fail for it
        questions = ({"context": decoded, "response": own, "situation": situation} for own in listed)
        return in_order(list(self.assess_each(questions)), names)

    def preference(
        self, context: Audio | None, first: Audio, second: Audio, *, situation: str | None = None, by: str | None = None
    ) -> Preference:
        """Which of two responses to a context people would prefer, or whether they would see no difference.

        `scoring.three_way` says what the probabilities mean; those of `PreferenceModel.verdict` come with a promise.

        Args:
            context: What both answer; None = they are judged alone.
            first: A response.
            second: Another one.
            situation: Text about the situation.
            by: The dimension; None = the only one.

        Raises:
            UserError: If the judge was not calibrated on responses to the same contexts, or knows several dimensions
                and none is named.
            AudioError: As `score`.
        """
        dimension = self.compared_on(None if by is None else [by])
        of_first, of_second = self.assess(context, [first, second], situation=situation)
        model = None if self.calibration is None else self.calibration.dimensions[dimension].three_way
        estimate = None if model is None else preference(model, of_first.scores[dimension], of_second.scores[dimension])
        assert estimate is not None  # `compared_on` has looked
        return estimate

    def compared_on(self, by: Sequence[str] | None) -> str:
        """The one dimension on which two responses are compared.

        Raises:
            UserError: As `preference`.
        """
        names = self.dimension_names(by)
        if len(names) != 1:
            raise UserError(f"preference on {', '.join(names)}; expected one dimension")
        self.require_calibration()
        assert self.calibration is not None
        if self.calibration.dimensions[names[0]].three_way is None:
            raise UserError(
                f"{self.name}: nothing is known of preferences on {names[0]}; calibrate it on a split in which 20 "
                "groups or more have several rated responses to a context"
            )
        return names[0]

    @property
    def knows_preferences(self) -> bool:
        """Whether `preference` is known on every dimension."""
        calibrations = () if self.calibration is None else self.calibration.dimensions.values()
        return bool(calibrations) and all(calibration.three_way is not None for calibration in calibrations)

    def over_next(
        self, ranked: Sequence[Ranked], by: Sequence[str], max_error: float | None = None
    ) -> list[OverNext | None]:
        """What people will say of each response in a ranking when they compare it with the next one.

        Args:
            ranked: The ranking.
            by: The dimensions that it follows.
            max_error: Largest share of verdicts that may be wrong, see `PreferenceModel.verdict`.

        Returns:
            None = not known: the response is the last one, one of the two has no score, the ranking follows several
            dimensions, or the calibration knows nothing of preferences.
        """
        results: list[OverNext | None] = [None] * len(ranked)
        model = None if self.calibration is None or len(by) != 1 else self.calibration.dimensions[by[0]].three_way
        for position, (response, following) in enumerate(itertools.pairwise(ranked)):
            if model is not None and isinstance(response.found, Assessment) and isinstance(following.found, Assessment):
                estimate = preference(model, response.found.scores[by[0]], following.found.scores[by[0]])
                results[position] = None if estimate is None else model.over_next(estimate, max_error)
        return results

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of a table of its scores."""
        names = [dimension.name for dimension in self.dimensions]
        return score_columns(names, self.calibration, self.knows_levels)

    async def score_async(self, context, response, *, situation=None):
        """`score` in a thread, while the event loop goes on."""
        # The network computes without the event loop, which meanwhile answers others
        return await asyncio.to_thread(self.score, context, response, situation=situation)

    def assess_each(
        self, questions: Iterable[Question], level: float = DEFAULT_LEVEL
    ) -> Iterator[Assessment | AudioError]:
        """Go through any number of pairs, a few batches at a time: a list, a generator, rows of a dataset.

        Args:
            questions: `(context, response)`, or mappings with `response`, and optionally `context` and `situation`.
            level: As for `assess`.

        Returns:
            In order, the assessment of each pair, or what is wrong with its audio.

        Raises:
            UserError: If an item is not a question; also if there are no intervals of this level.
        """
        return self.assess_pairs(numbered(questions), level)

    def assess_pairs(
        self, pairs: Iterable[Pair | AudioError], level: float = DEFAULT_LEVEL
    ) -> Iterator[Assessment | AudioError]:
        """What the judge says of each pair, in order, in rating points, with intervals of this level (one of
        `calibration.LEVELS`).

        Pairs are taken from the iterable a few batches at a time, so that it may be endless. One whose audio cannot be
        used gets the error instead; the others are not affected. An error in place of a pair comes out as it is.

        Raises:
            UserError: If there are no intervals of that level.
        """
        if level not in LEVELS:
            raise UserError(f"level {shown(level)}; expected {', '.join(map(str, LEVELS))}")
        return map(functools.partial(self._assessment, level=level), self.predictor.run(pairs))

    def _assessment(self, scored: ScoredPair, level: float) -> Assessment | AudioError:
        if isinstance(scored.outcome, AudioError):
            return scored.outcome
        score, dimensions = scored.outcome.score.numpy(), self.dimensions
        for dimension, points in zip(dimensions, score.tolist(), strict=True):
            # NaN compares as nothing: it would be sorted anywhere and pass every threshold
            if not math.isfinite(points):
                reason = f"{dimension.name}: the judge's score is {points}; expected a finite number"
                return AudioError(reason, "no finite score")
        deviation = None if scored.outcome.deviation is None else scored.outcome.deviation.numpy()
        if (calibration := self.calibration) is None:
            result, domain = uncalibrated(score), None
        else:
            result, domain = calibration.apply(score, deviation, dimensions, level), calibration.domain
        # NaN, which stands for unknown in arrays, becomes None
        rows = np.array(result[:4], dtype=np.float32).T.tolist()
        scores = {
            dimension.name: Score(
                points,
                Scale(dimension.minimum, dimension.maximum, dimension.higher_is_better),
                *(value if np.isfinite(value) else None for value in errors),
                abstained=abstained,
                label=label(dimension, points) if self._in_points else None,
            )
            for dimension, (points, *errors), abstained in zip(dimensions, rows, result.abstained.tolist(), strict=True)
        }
        # The response is the last clip of a pair
        seconds = scored.facts[-1].seconds if scored.facts else math.nan
        levels = scored.outcome.levels(dimensions) if self.knows_levels else None
        warnings = cautions(scored.facts, domain) if scored.facts else ()
        return Assessment(scores, warnings, scored.windows, seconds, levels)

    def check_clip(self, audio: Audio) -> None:
        """Check that the judge can read this clip.

        Raises:
            AudioError: If it cannot be read, is not finite, or is too long (see `windows`).
        """
        self.judge.decode(clip(audio), self.predictor.long_clips)

    def check_text(self, pair: Pair) -> None:
        """Check that the judge can read the text of a pair, whatever its clips are.

        Raises:
            TextError: If not.
        """
        self.judge.check_text(pair)

    def dimension_names(self, names: str | Sequence[str] | None) -> tuple[str, ...]:
        """The given names of dimensions (one may stand without a list), or the names of all.

        Raises:
            UserError: If the judge does not know one of them.
        """
        every = tuple(dimension.name for dimension in self.dimensions)
        names = [names] if isinstance(names, str) else names
        for name in names or ():
            if name not in every:
                raise UserError(f"dimension {name!r}; expected {', '.join(every)}")
        return tuple(names or every)

    def require_calibration(self) -> None:
        """Check that something is known of the errors of this judge.

        Raises:
            UserError: If not; the text says why.
        """
        if self.calibration is None:
            raise UserError(f"{self.name}: no intervals: {self.loaded.not_calibrated}")
