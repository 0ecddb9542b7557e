"""Scores for any number of pairs, in batches, with every clip encoded once."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..data_modules.audio import AudioSource
from ..data_modules.errors import AudioError, UserError
from ..data_modules.ratings import same_range
from ..data_modules.schema import DatasetCard, Dimension, Pair
from . import prefix_caching
from .artifact import LoadedJudge
from .auto_batch import AutoBatch
from .calibration import DEFAULT_LEVEL, Calibrated, Calibration, uncalibrated
from .cautions import ClipFacts
from .clip_encoder import KEPT_BYTES, ClipEncoder
from .feature_cache import FeatureStore
from .heads import Prediction
from .judge import EmpathyJudge, EncodedClip, sources_of, tower_is_trained
from .members import combine

_SORTED_BATCHES = 4
"""Pairs of so many batches are brought into the order of their lengths."""
SPREAD = "auto"
"""Device name of a judge that is spread over all GPUs, then main memory."""


class Judged(NamedTuple):
    """What a pass over pairs finds of one.

    Attributes:
        outcome: Score and deviation as the head makes them, each `(dimensions,)`, or what is wrong with the audio.
        facts: Of each clip, the response last; empty unless the scorer measures clips, or if one cannot be used.
    """

    outcome: Prediction | AudioError
    facts: tuple[ClipFacts, ...] = ()


class PairScorer:
    """Runs a judge, or all members of an ensemble, over pairs; calls from several threads take turns.

    Each clip is encoded once (`ClipEncoder`), and prefixes that questions share are computed once (`prefix_caching`).
    """

    def __init__(
        self,
        judge: EmpathyJudge,
        batch_size: int = 16,
        calibration: Calibration | None = None,
        store: FeatureStore | None = None,
        measures: bool = False,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        """Put the judge to work.

        Args:
            judge: In evaluation mode, on the device where it shall run.
            batch_size: Most pairs per forward pass; scores do not depend on it. Where memory runs out, it is fewer.
            calibration: Of this judge; None = scores are those of the head, and nothing is known of their errors.
            store: Where audio states are kept beyond this run, and shared with training; not used by a judge whose
                audio tower was trained.
            measures: Whether clips are measured too (`clip_facts`).
            kept_bytes: Of audio states in memory, for clips that come again.
        """
        self.judge = judge
        self.batch_size = batch_size
        self.calibration = calibration
        self._encoder = ClipEncoder(judge, batch_size, store, measures, kept_bytes)
        self._batches = AutoBatch(batch_size)
        self._turn = threading.Lock()

    def score(
        self, pairs: Iterable[Pair], level: float = DEFAULT_LEVEL
    ) -> Iterator[tuple[Pair, Calibrated[Tensor] | AudioError]]:
        """Yield each pair, in order, with its scores.

        A pair whose audio cannot be used comes with the error instead of scores; the others are not affected.

        Args:
            pairs: What to score; taken a few batches at a time.
            level: Of the intervals, one of `calibration.LEVELS`.

        Raises:
            UserError: If there are no intervals of that level.
        """
        for pair, judged in self.run(pairs):
            yield pair, self.calibrated(judged.outcome, level)

    def predict(self, pairs: Iterable[Pair]) -> Iterator[tuple[Pair, Prediction | AudioError]]:
        """As `score`, but score and deviation as the head makes them, not calibrated, each `(dimensions,)`."""
        for pair, judged in self.run(pairs):
            yield pair, judged.outcome

    def calibrated(self, outcome: Prediction | AudioError, level: float) -> Calibrated[Tensor] | AudioError:
        """What a prediction means in rating points, each `(dimensions,)`, float32; errors stay what they are.

        Raises:
            UserError: If there are no intervals of that level.
        """
        if isinstance(outcome, AudioError):
            return outcome
        raw = outcome.score.numpy()
        deviation = None if outcome.deviation is None else outcome.deviation.numpy()
        found = uncalibrated(raw)
        if self.calibration is not None:
            found = self.calibration.apply(raw, deviation, self.judge.dimensions, level)
        score, error, low, high = (torch.from_numpy(values).float() for values in found[:4])
        return Calibrated(score, error, low, high, torch.from_numpy(found.abstained))

    def run(self, pairs: Iterable[Pair]) -> Iterator[tuple[Pair, Judged]]:
        """Yield each pair, in order, with all that was found of it."""
        waiting = iter(pairs)
        while some := list(itertools.islice(waiting, self.batch_size * _SORTED_BATCHES)):
            with self._turn:
                judged = self._judge(some)
            yield from zip(some, judged, strict=True)

    def forget(self) -> None:
        """Drop the audio states that are cached in this process.

        In which batch a clip was encoded shows in the last bits of its states. What is scored after this does not
        depend on what was scored before.
        """
        with self._turn:
            self._encoder.forget()

    def _judge(self, batch: Sequence[Pair]) -> list[Judged]:
        members = self.judge.members
        if not len(members):
            return self._judge_once(batch, None)
        each = []
        for number in range(len(members)):
            self.judge.use(members.weights(number))
            each.append(self._judge_once(batch, number if tower_is_trained(self.judge) else None))
        return [_combined(judged) for judged in zip(*each, strict=True)]

    def _judge_once(self, batch: Sequence[Pair], member: int | None) -> list[Judged]:
        """With the weights that the judge has now; `member` says whose audio states these are, None = everyone's."""
        clips = dict.fromkeys(source for pair in batch for source in sources_of(pair))
        states, facts, failed = self._encoder.encode(clips, member)
        errors = [[failed[source] for source in sources_of(pair) if source in failed] for pair in batch]
        usable = [number for number, of_pair in enumerate(errors) if not of_pair]
        order = _in_order([batch[number] for number in usable], states)
        pairs = [batch[usable[place]] for place in order]
        made = self._batches.run(
            pairs,
            [sum(_states(states[source]) for source in sources_of(pair)) for pair in pairs],
            lambda together: self._forward(together, states),
            lambda pair: AudioError(
                f"pair {pair.pair_id!r}: too long for the memory of {self.judge.device}", "too large for the memory"
            ),
        )
        outcomes = dict(zip((usable[place] for place in order), _fetched(made), strict=True))
        return [
            Judged(of_pair[0]) if of_pair else Judged(outcomes[number], _facts_of(batch[number], facts))
            for number, of_pair in enumerate(errors)
        ]

    @torch.inference_mode()
    def _forward(self, pairs: Sequence[Pair], states: dict[AudioSource, EncodedClip]) -> list[Prediction | AudioError]:
        judge, inputs = self.judge, self.judge.build_inputs(pairs, states)
        moved = inputs.to(judge.device)
        hidden = prefix_caching.hidden_states(judge.backbone, inputs, moved)
        predicted = judge.head(judge.pool(hidden, moved))
        deviations = [None] * len(pairs) if predicted.deviation is None else predicted.deviation
        return [Prediction(*row) for row in zip(predicted.score, deviations, strict=True)]


def _in_order(pairs: Sequence[Pair], states: Mapping[AudioSource, EncodedClip]) -> list[int]:
    """Places of pairs in the order in which they make batches, the longest first: little padding.

    Where contexts are shared, the responses to one stand together, so that it is read once.
    """
    contexts = [(tuple(turn.audio for turn in pair.context), pair.situation) for pair in pairs]
    numbers = {context: number for number, context in enumerate(dict.fromkeys(contexts))}
    before = [sum(_states(states[source]) for source in clips) for clips, _ in contexts]
    response = [_states(states[pair.response]) for pair in pairs]

    def alone(place: int) -> tuple[int, ...]:
        return (-before[place] - response[place],)

    def together(place: int) -> tuple[int, ...]:
        return -before[place], numbers[contexts[place]], -response[place]

    return sorted(range(len(pairs)), key=together if 2 * len(numbers) <= len(pairs) else alone)


def _combined(judged: Sequence[Judged]) -> Judged:
    """Of all members for one pair: a clip that one cannot use, none can."""
    for own in judged:
        if isinstance(own.outcome, AudioError):
            return own
    return Judged(combine([own.outcome for own in judged if isinstance(own.outcome, Prediction)]), judged[0].facts)


def _facts_of(pair: Pair, facts: Mapping[AudioSource, ClipFacts]) -> tuple[ClipFacts, ...]:
    return tuple(facts[source] for source in sources_of(pair) if source in facts)


def _fetched(made: Sequence[Prediction | AudioError]) -> list[Prediction | AudioError]:
    """Scores and deviations of several batches on the CPU: only here is a GPU waited for."""
    found = [own for own in made if isinstance(own, Prediction)]
    if not found:
        return list(made)
    scores = iter(torch.stack([own.score for own in found]).cpu())
    known = [own.deviation for own in found if own.deviation is not None]
    deviations = iter(torch.stack(known).cpu()) if known else itertools.repeat(None)
    return [Prediction(next(scores), next(deviations)) if isinstance(own, Prediction) else own for own in made]


def _states(encoded: EncodedClip) -> int:
    return sum(len(window.states) for window in encoded)


def placed(loaded: LoadedJudge, device: str | None) -> EmpathyJudge:
    """A judge on its device; one that was spread when it was loaded stays where it is.

    Raises:
        UserError: If torch knows no such device or cannot use it here.
    """
    return loaded.judge if device == SPREAD else loaded.judge.to(choose_device(device))


def choose_device(name: str | None) -> torch.device:
    """The device of that name; without a name a GPU if there is one.

    Raises:
        UserError: If torch knows no such device or cannot use it here.
    """
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device {name!r}: expected auto, cpu, or cuda where a GPU is usable: {reason}") from None
    return device


def check_scales(judge: str, dimensions: Sequence[Dimension], card: DatasetCard) -> None:
    """The dataset rates a judge's dimensions on the scales that the judge was trained on.

    Args:
        judge: Its name, for the message.
        dimensions: Of the judge.
        card: Of the dataset; dimensions that it does not rate are passed over.

    Raises:
        UserError: If one differs: scores and ratings would not be in the same points.
    """
    rated = {dimension.name: dimension for dimension in card.dimensions}
    for own in dimensions:
        other = rated.get(own.name, own)
        if not same_range(own, other):
            raise UserError(
                f"judge {judge}: trained on {own.name} from {own.minimum:g} to {own.maximum:g}, but dataset "
                f"{card.name} rates it from {other.minimum:g} to {other.maximum:g}; expected the same scale"
            )
