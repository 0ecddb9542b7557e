"""Scores for any number of pairs, in batches, with every clip encoded once."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..data_modules.audio import AudioSource
from ..data_modules.errors import AudioError, UserError
from ..data_modules.scales import same_range
from ..data_modules.schema import DatasetCard, Dimension, Pair
from . import shared_prefix
from .artifact import LoadedJudge
from .calibration import DEFAULT_LEVEL, Calibration, uncalibrated
from .feature_store import FeatureStore
from .heads.prediction import Prediction
from .judge import EmpathyJudge, EncodedClip, sources_of, tower_is_trained
from .kept_states import ClipStates
from .members import combine

_CACHE_BYTES = 512 * 2**20
_SORTED_BATCHES = 4
"""Pairs of so many batches are brought into the order of their lengths."""
SPREAD = "auto"
"""Device name of a judge that is spread over all GPUs, then main memory."""


class Scored(NamedTuple):
    """Scores of one pair with what is known of their errors, each `(dimensions,)`, float32, on the CPU.

    Attributes:
        score: Rating points; calibrated where the judge is.
        standard_error: Rating points; NaN = unknown.
        low: Lower end of the interval, rating points; NaN = unknown.
        high: Its upper end.
        abstained: True where the judge had better say nothing.
    """

    score: Tensor
    standard_error: Tensor
    low: Tensor
    high: Tensor
    abstained: Tensor


class PairScorer:
    """Runs a judge, or all members of an ensemble, over pairs. Audio states are kept, the oldest dropped beyond 512 MB:
    one context is often answered several times, and the listening checks hear the same clips again."""

    def __init__(
        self,
        judge: EmpathyJudge,
        batch_size: int = 16,
        calibration: Calibration | None = None,
        store: FeatureStore | None = None,
    ) -> None:
        """Put the judge to work.

        Args:
            judge: In evaluation mode, on the device where it shall run.
            batch_size: Pairs per forward pass; scores do not depend on it.
            calibration: Of this judge; None = scores are those of the head, and nothing is known of their errors.
            store: Where audio states are kept beyond this run, and shared with training; not used by a judge whose
                audio tower was trained.
        """
        self.judge = judge
        self.batch_size = batch_size
        self.calibration = calibration
        self._states: OrderedDict[Hashable, EncodedClip] = OrderedDict()
        self._bytes = 0
        self._kept = None if store is None or tower_is_trained(judge) else ClipStates(judge, store)

    def score(self, pairs: Iterable[Pair], level: float = DEFAULT_LEVEL) -> Iterator[tuple[Pair, Scored | AudioError]]:
        """Yield each pair, in order, with its scores.

        A pair whose audio cannot be used comes with the error instead of scores; the others are not affected.

        Args:
            pairs: What to score; taken a few batches at a time.
            level: Of the intervals, one of `calibration.LEVELS`.

        Raises:
            UserError: If there are no intervals of that level.
        """
        for pair, found in self.predict(pairs):
            yield pair, found if isinstance(found, AudioError) else self._calibrate(found, level)

    def _calibrate(self, predicted: Prediction, level: float) -> Scored:
        raw = predicted.score.numpy()
        deviation = None if predicted.deviation is None else predicted.deviation.numpy()
        found = uncalibrated(raw)
        if self.calibration is not None:
            found = self.calibration.apply(raw, deviation, self.judge.dimensions, level)
        score, error, low, high = (torch.from_numpy(values).float() for values in found[:4])
        return Scored(score, error, low, high, torch.from_numpy(found.abstained))

    def predict(self, pairs: Iterable[Pair]) -> Iterator[tuple[Pair, Prediction | AudioError]]:
        """As `score`, but score and deviation as the head makes them, not calibrated, each `(dimensions,)`."""
        waiting = iter(pairs)
        while some := list(itertools.islice(waiting, self.batch_size * _SORTED_BATCHES)):
            yield from zip(some, self._predict_some(some), strict=True)

    def _predict_some(self, batch: Sequence[Pair]) -> list[Prediction | AudioError]:
        members = self.judge.members
        if not len(members):
            return self._predict_once(batch, None)
        each = []
        for number in range(len(members)):
            self.judge.use(members.weights(number))
            each.append(self._predict_once(batch, number if tower_is_trained(self.judge) else None))
        return [_combined(outcomes) for outcomes in zip(*each, strict=True)]

    def _predict_once(self, batch: Sequence[Pair], member: int | None) -> list[Prediction | AudioError]:
        """With the weights that the judge has now; `member` says whose audio states these are, None = everyone's."""
        states, failed = self._encode(batch, member)
        errors = [[failed[source] for source in sources_of(pair) if source in failed] for pair in batch]
        found: list[Prediction | AudioError | None] = [of_pair[0] if of_pair else None for of_pair in errors]
        usable = [number for number, of_pair in enumerate(found) if of_pair is None]
        lengths = {n: sum(_states(states[source]) for source in sources_of(batch[n])) for n in usable}
        usable.sort(key=lambda number: -lengths[number])  # pairs of like length together: little padding
        for start in range(0, len(usable), self.batch_size):
            together = usable[start : start + self.batch_size]
            for number, made in zip(together, self._forward([batch[n] for n in together], states), strict=True):
                found[number] = made
        return [of_pair for of_pair in found if of_pair is not None]

    @torch.inference_mode()
    def _forward(self, pairs: Sequence[Pair], states: dict[AudioSource, EncodedClip]) -> list[Prediction]:
        judge, inputs = self.judge, self.judge.build_inputs(pairs, states)
        hidden = shared_prefix.hidden_states(judge.backbone, inputs, judge.device)
        return _by_pair(judge.head(judge.pool(hidden, inputs.to(judge.device))), len(pairs))

    def _encode(
        self, pairs: Sequence[Pair], member: int | None
    ) -> tuple[dict[AudioSource, EncodedClip], dict[AudioSource, AudioError]]:
        wanted = list(dict.fromkeys(source for pair in pairs for source in sources_of(pair)))
        states = {source: self._states[key] for source in wanted if (key := (member, _key(source))) in self._states}
        failed: dict[AudioSource, AudioError] = {}
        readable = []
        for source in wanted:
            if source not in states:
                try:
                    kept = self._kept.get(source) if self._kept is not None else None
                    if kept is None:
                        readable.append((source, self.judge.decode(source)))
                    else:
                        states[source] = kept
                        self._keep((member, _key(source)), kept)
                except AudioError as error:
                    failed[source] = error
        readable.sort(key=lambda clip: -len(clip[1][0]))
        for start in range(0, len(readable), self.batch_size):
            some = readable[start : start + self.batch_size]
            made = self.judge.encode_clips([windows for _, windows in some])
            for (source, _), encoded in zip(some, made, strict=True):
                states[source] = encoded
                self._keep((member, _key(source)), encoded)
                if self._kept is not None:
                    self._kept.put(source, encoded)
        return states, failed

    def forget(self) -> None:
        """Drop the audio states that are kept in this process.

        In which batch a clip was encoded shows in the last bits of its states. What is scored after this does not
        depend on what was scored before.
        """
        self._states.clear()
        self._bytes = 0

    def _keep(self, key: Hashable, encoded: EncodedClip) -> None:
        self._states[key] = encoded
        self._bytes += _bytes(encoded)
        while self._bytes > _CACHE_BYTES:
            _, dropped = self._states.popitem(last=False)
            self._bytes -= _bytes(dropped)


def _combined(outcomes: Sequence[Prediction | AudioError]) -> Prediction | AudioError:
    """Of all members for one pair: a clip that one cannot use, none can."""
    for outcome in outcomes:
        if isinstance(outcome, AudioError):
            return outcome
    return combine([outcome for outcome in outcomes if isinstance(outcome, Prediction)])


def _by_pair(predicted: Prediction, count: int) -> list[Prediction]:
    """Scores and deviations of each row of a batch, on the CPU."""
    score = predicted.score.cpu()
    if predicted.deviation is None:
        return [Prediction(score[row]) for row in range(count)]
    deviation = predicted.deviation.cpu()
    return [Prediction(score[row], deviation[row]) for row in range(count)]


def _states(encoded: EncodedClip) -> int:
    return sum(len(window.states) for window in encoded)


def _bytes(encoded: EncodedClip) -> int:
    return sum(window.states.nbytes for window in encoded)


def _key(source: AudioSource) -> Hashable:
    """What a clip is kept under; a file that was changed is another clip."""
    if isinstance(source, str | Path) and Path(source).is_file():
        facts = Path(source).stat()
        return str(source), facts.st_mtime_ns, facts.st_size
    return source


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
        raise UserError(f"device {name!r}: accepted: auto, cpu, or cuda where a GPU is usable: {reason}") from None
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
                f"{card.name} rates it from {other.minimum:g} to {other.maximum:g}; accepted: the same scale"
            )
