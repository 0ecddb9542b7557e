"""Predictions for any number of pairs, in batches that fit into memory. Every clip is decoded and encoded once."""

from __future__ import annotations

import itertools
import math
import threading
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from ..audio.decode import AudioSource
from ..audio.prosody import ClipFacts
from ..core.disk_store import DiskStore
from ..core.errors import AudioError, TextError, UserError
from ..core.processes import find_launch
from ..data_modules.ratings import same_range
from ..data_modules.schema import DatasetCard, Dimension, Pair
from ..models.backbones.inputs import Inputs
from ..models.backbones.packing import MAX_PACKED_FRACTION
from ..models.heads import Prediction, combine
from ..models.judge import EmpathyJudge
from ..models.settings import LongClips, Quantization
from ..models.windows import MOST_WINDOWS, EncodedClip
from . import KEPT_BYTES
from .artifact import LoadedJudge, Placement, load_any
from .batches import Workers, batch_tokens, batches_for, pinned
from .clip_encoder import ClipEncoder, KeptClips, OpenedClip

SPREAD = "auto"
"""Device name of a judge that is spread over all GPUs, then main memory."""
ON_CPU, ON_GPU = 16, 128
"""Most pairs of a forward pass, unless somebody says otherwise."""
_SORTED_BATCHES = 4
"""Batches whose pairs are sorted by length together, on a CPU."""
_SORTED_PAIRS, _FIRST_PAIRS = 1024, 32
"""Pairs that are sorted together on a GPU, and the first of them, which are fewer, so that it starts early."""


class ScoredPair(NamedTuple):
    """A pair after its pass through the judge."""

    # score, deviation and distribution as the head makes them, or what is wrong with the audio
    outcome: Prediction | AudioError
    # of each clip that can be used, the response last; empty unless clips are measured
    facts: tuple[ClipFacts, ...] = ()
    pair: Pair | None = None  # the pair; None where an error stood in its place
    windows: int = 1  # in which it was read, see `Assessment`


@dataclass
class _Window:
    """Pairs that are sorted and computed together."""

    given: list[Pair | AudioError]
    pairs: list[Pair]  # those of them that are no errors
    sources: list[tuple[AudioSource, ...]]  # the clips of each pair
    opened: dict[AudioSource, Future[OpenedClip | None]]  # clips that are read ahead
    members: list[_Computed] = field(default_factory=list)  # results of each member of an ensemble
    # clips that every member hears with an audio tower of its own; None = one hears for all
    kept: KeptClips | None = None


class _Computed(NamedTuple):
    """What one judge computed of the pairs of a window, on its device."""

    windows: Sequence[int]  # of each pair
    facts: Mapping[AudioSource, ClipFacts]
    failed: dict[int, AudioError]  # numbers of pairs
    predictions: list[tuple[list[list[int]], Prediction]]  # numbers of equal pairs for each row
    arrived: torch.cuda.Event | None  # after which the predictions are in main memory; None = they are read when needed


class Predictor:
    """Runs a judge, or all members of an ensemble, over pairs; calls from several threads take turns.

    Each clip is encoded once, and what pairs begin with is read once (`backbones.packing`). Audio states are cached,
    the oldest dropped beyond a limit: one context is often answered several times, and perturbations leave many clips
    as they are.

    On a GPU the host works ahead: while a window of pairs is computed, threads decode the clips of the next and make
    the inputs of the next passes (`batches`), audio states stay on the GPU, and scores are read once the passes of the
    next window were started. Nothing in between waits for the GPU.

    Attributes:
        judge: The judge, on its device.
        batch_size: Most pairs per forward pass.
        windows: Whether clips that are longer than the backbone reads at once are read in windows.
        long_clips: The same as a policy (`JudgeSettings.long_clips`).
        ahead: Whether the host works ahead; scores do not depend on it.
    """

    def __init__(
        self,
        judge: EmpathyJudge,
        batch_size: int | None = None,
        store: DiskStore | None = None,
        measures: bool = False,
        kept_bytes: float = KEPT_BYTES,
        windows: bool = True,
        tokens: float | None = None,
    ) -> None:
        """Put the judge to work.

        Args:
            judge: In evaluation mode, on the device where it shall run.
            batch_size: Most pairs per forward pass; scores do not depend on it. None = 16 on a CPU, 128 on a GPU. Where
                memory runs out, it is reduced.
            store: Where audio states stay beyond this run, shared with training; not used by a judge whose
                audio tower was trained, or that has none.
            measures: Whether clips are measured too (`clip_facts`), for warnings.
            kept_bytes: Bytes of audio states that stay in memory, for clips that come again.
            windows: Whether clips above the maximum audio length are read in windows (`JudgeSettings.long_clips`);
                False = they are refused.
            tokens: Most tokens per forward pass. None = as many as suit the device (`batch_tokens`).
        """
        self.judge, self.windows, self._device = judge, windows, judge.device
        self.ahead = self._device.type != "cpu"
        self.batch_size = batch_size or (ON_GPU if self.ahead else ON_CPU)
        self.long_clips: LongClips = "window" if windows else "refuse"
        tokens = batch_tokens(judge) if tokens is None else tokens
        self._counts_tokens = math.isfinite(tokens)
        self._encoder = ClipEncoder(
            judge, self.batch_size, store, measures=measures, kept_bytes=kept_bytes, windows=windows, tokens=tokens
        )
        per_second = judge.backbone.audio_tokens(judge.backbone.sampling_rate)
        self._batches = batches_for(judge, self.batch_size, per_second, tokens)
        # One judge, one set of weights: a member of an ensemble must not be put in while another thread computes
        self._turn, self._asking = threading.Lock(), threading.Lock()

    def predict(self, pairs: Iterable[Pair]) -> Iterator[tuple[Pair, Prediction | AudioError]]:
        """Each pair, in order, with its prediction as the head makes it, not calibrated `(dimensions,)`."""
        for scored in self.run(pairs):
            assert scored.pair is not None
            yield scored.pair, scored.outcome

    def run(self, pairs: Iterable[Pair | AudioError]) -> Iterator[ScoredPair]:
        """Yield all that was found of each pair, in order; an error in place of a pair comes out as it is."""
        judge, computed = self.judge, deque[_Window]()
        with Workers() if self.ahead else nullcontext() as workers:
            windows = self._read(iter(pairs), workers)
            try:
                for window in _one_ahead(windows) if self.ahead else windows:
                    with self._turn:
                        window.kept = KeptClips() if judge.members and judge.trains_tower else None
                        for member, weights in enumerate(judge.members or [None]):
                            if weights is not None:
                                judge.use(weights)
                            # where members share the tower, audio states are the same for all
                            number = member if judge.trains_tower else None
                            window.members.append(self._predict(window, number, workers))
                        window.kept = None
                    computed.append(window)
                    # One window behind: while its scores are read, the GPU has the next one to do
                    if len(computed) > self.ahead:
                        yield from _results(computed.popleft(), judge)
            except Exception:  # of a later window
                while computed:
                    yield from _results(computed.popleft(), judge)
                raise
            while computed:
                yield from _results(computed.popleft(), judge)

    def _read(self, pairs: Iterator[Pair | AudioError], workers: Workers | None) -> Iterator[_Window]:
        """Windows of pairs, whose clips the workers begin to decode."""
        size = min(self.batch_size, _FIRST_PAIRS) if self.ahead else self.batch_size * _SORTED_BATCHES
        before: dict[AudioSource, None] = {}
        # Not the whole table: its clips would not fit into memory, and the first score would come last
        while given := list(itertools.islice(pairs, size)):
            own = [pair for pair in given if isinstance(pair, Pair)]
            sources = [pair.clips for pair in own]
            opened = {}
            if workers is not None:
                member = 0 if self.judge.trains_tower else None  # of an ensemble, the first
                # what the window before holds is known by the time that it is asked for
                clips = dict.fromkeys(itertools.chain(*sources))
                new = [source for source in clips if source not in before]
                opened, before = workers.read(new, partial(self._encoder.open, member=member)), clips
                size = max(size, min(2 * size, _SORTED_PAIRS))
            yield _Window(given, own, sources, opened)

    def forget(self) -> None:
        """Drop the audio states that are cached in this process.

        The last bits of a clip's states depend on the batch in which it was encoded. Scores after this call do not
        depend on what was scored before.
        """
        with self._turn:
            self._encoder.forget()

    @torch.inference_mode()
    def _predict(self, window: _Window, member: int | None, workers: Workers | None) -> _Computed:
        """Predict with the judge's present weights; `member` = whose audio states these are, None = those of all."""
        judge, pairs, sources = self.judge, window.pairs, window.sources
        # A clip is encoded once, however many pairs it is in
        distinct = dict.fromkeys(itertools.chain(*sources))
        states, facts, failed = self._encoder.encode(distinct, member, workers, window.opened, window.kept)
        # A clip that cannot be read costs its own pairs and no others
        outcomes: dict[int, AudioError] = {}
        # equal pairs are computed once: otherwise rounding would rank one above the other
        equal: dict[Hashable, list[int]] = {}
        windows = []
        for number, (pair, clips) in enumerate(zip(pairs, sources, strict=True)):
            windows.append(math.prod(len(states[source]) for source in clips if source in states))
            error = next((failed[source] for source in clips if source in failed), None)
            # The number of windows is a product over clips: three clips of ten windows make a thousand rows
            if error is None and windows[-1] > MOST_WINDOWS:
                reason = f"pair {pair.pair_id!r}: its clips together make {windows[-1]} windows"
                error = AudioError(f"{reason}; expected at most {MOST_WINDOWS}: shorter clips", "too long")
            if error is None:
                try:
                    judge.check_text(pair, sum(max(len(own.states) for own in states[source]) for source in clips))
                except TextError as unreadable:
                    error = unreadable
            if error is None:
                key = clips, pair.situation, tuple(turn.role for turn in pair.context)  # all that its score depends on
                equal.setdefault(key, []).append(number)
            else:
                outcomes[number] = error
        # Pairs of about equal length, or of one context, go into one batch
        order, worth_packing = list(equal.values()), False
        if len(order) > 1:
            order, worth_packing = _in_order(pairs, sources, order, states)
        # Packed rows hold pairs of several lengths
        packed = worth_packing and judge.backbone.packs
        ordered = [pairs[first] for first, *_ in order]
        # On a CPU the number of pairs is the limit, and tokens of questions need not be counted
        if self._counts_tokens:
            lengths = _tokens(judge, ordered, states, packed)
        else:
            lengths = [_states(states, sources[first]) for first, *_ in order]

        def inputs(rows: slice) -> Inputs:
            with torch.inference_mode(), self._asking:  # a tokenizer serves one thread at a time
                made = judge.build_inputs(ordered[rows], states)
                return made if workers is None else pinned(made, self._device)

        predictions: list[tuple[list[list[int]], Prediction]] = []
        for batch in self._batches.split(lengths, inputs, workers, not packed):
            with batch:
                predictions.append((order[batch.rows], judge.head(judge.pooled(judge.on_device(batch.take())))))
        arrived = None
        if self._device.type == "cuda":
            # Begun here, read in `_results`: to read a score now would wait for the pass that makes it
            predictions = [(rows, prediction.to_host()) for rows, prediction in predictions]
            arrived = mark(self._device)
        return _Computed(windows, facts, outcomes, predictions, arrived)


def mark(device: torch.device) -> torch.cuda.Event:
    """An event of a GPU: when it happens, all that was begun before has been computed and copied."""
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event


def _one_ahead(windows: Iterator[_Window]) -> Iterator[_Window]:
    """Each window after the next one was read; an error comes after the windows before it."""
    ready = deque[_Window]()
    try:
        for window in windows:
            ready.append(window)
            if len(ready) > 1:
                yield ready.popleft()
    except Exception:
        yield from ready
        raise
    yield from ready


@torch.inference_mode()
def _results(window: _Window, judge: EmpathyJudge) -> list[ScoredPair]:
    """The results of a window in the order in which its pairs were given; here the host waits for a GPU."""
    members = [_scored(window, computed, judge) for computed in window.members]
    combined = iter(members[0]) if len(members) == 1 else map(_combined, zip(*members, strict=True))
    return [ScoredPair(pair) if isinstance(pair, AudioError) else next(combined) for pair in window.given]


def _scored(window: _Window, computed: _Computed, judge: EmpathyJudge) -> list[ScoredPair]:
    """What one judge says of each pair of a window."""
    if computed.arrived is not None:
        computed.arrived.synchronize()
    outcomes: dict[int, Prediction | AudioError] = {**computed.failed}
    for rows, prediction in computed.predictions:
        for numbers, of_row in zip(rows, prediction.each(), strict=True):
            outcomes |= dict.fromkeys(numbers, of_row)
    scored = []
    rows = zip(window.pairs, window.sources, computed.windows, strict=True)
    for number, (pair, clips, windows) in enumerate(rows):
        if (outcome := outcomes.get(number)) is None:
            reason = f"pair {pair.pair_id!r}: too long for the memory of {judge.device}"
            outcome = AudioError(reason, "too large for the memory")
        known = tuple(computed.facts[source] for source in clips if source in computed.facts)
        scored.append(ScoredPair(outcome, known, pair, windows))
    return scored


def _in_order(
    pairs: Sequence[Pair],
    sources: Sequence[Sequence[AudioSource]],
    rows: Sequence[list[int]],
    states: Mapping[AudioSource, EncodedClip],
) -> tuple[list[list[int]], bool]:
    """Rows, each the numbers of equal pairs, in the order in which they are batched, the longest first: little padding;
    and whether packing them is worth it. Where contexts are shared, the responses to one stand together, so that it is
    read once.
    """
    firsts = [first for first, *_ in rows]
    contexts = {first: (sources[first][:-1], pairs[first].situation) for first in firsts}
    group = {context: position for position, context in enumerate(dict.fromkeys(contexts.values()))}
    before = {first: _states(states, clips) for first, (clips, _) in contexts.items()}
    response = {first: _states(states, sources[first][-1:]) for first in firsts}
    # Most contexts have one response: there is little to share, and only the length counts
    if 2 * len(group) > len(rows):
        return sorted(rows, key=lambda row: -before[row[0]] - response[row[0]]), False
    order = sorted(rows, key=lambda row: (-before[row[0]], group[contexts[row[0]]], -response[row[0]]))
    of_each = {contexts[first]: before[first] for first in firsts}
    responses = sum(response.values())
    return order, sum(of_each.values()) + responses <= MAX_PACKED_FRACTION * (sum(before.values()) + responses)


def _combined(members: Sequence[ScoredPair]) -> ScoredPair:
    """The results of all members for one pair as one: a clip that one member cannot use, none can."""
    predictions = [member.outcome for member in members if isinstance(member.outcome, Prediction)]
    if len(predictions) < len(members):
        return next(member for member in members if isinstance(member.outcome, AudioError))
    return members[0]._replace(outcome=combine(predictions))


def _states(states: Mapping[AudioSource, EncodedClip], clips: Sequence[AudioSource]) -> int:
    """Number of audio states of some clips together, in all combinations of their windows."""
    rows = math.prod(len(states[clip]) for clip in clips)
    return sum(rows // len(states[clip]) * len(window.states) for clip in clips for window in states[clip])


def _tokens(
    judge: EmpathyJudge, pairs: Sequence[Pair], states: Mapping[AudioSource, EncodedClip], packed: bool
) -> list[int]:
    """Number of tokens that each pair adds to a pass; packed, what it shares with the pair before it adds none."""
    lengths, before = [], None
    for pair in pairs:
        rows = math.prod(len(states[clip]) for clip in pair.clips)
        context = pair.clips[:-1], pair.situation
        shared = packed and rows == 1 and context == before
        lengths.append(_states(states, pair.clips[-1:] if shared else pair.clips))
        lengths[-1] += 0 if shared else rows * judge.question_tokens(pair)
        before = context
    return lengths


def load_to_score(
    path: Path, backbone: str | None, device: str | None, quantization: Quantization | None, revision: str | None = None
) -> LoadedJudge:
    """A judge on its final device: adapters are merged into its weights where that is exact.

    Raises:
        UserError: As `load_any` and `placed`.
    """
    loaded = load_any(path, Placement(backbone, quantization, device == SPREAD), revision)
    placed(loaded, device).merge()
    return loaded


def placed(loaded: LoadedJudge, device: str | None) -> EmpathyJudge:
    """A judge on its device; one that was spread when it was loaded stays where it is.

    Raises:
        UserError: If torch knows no such device or cannot use it here.
    """
    return loaded.judge if device == SPREAD else loaded.judge.to(choose_device(device))


def choose_device(name: str | None) -> torch.device:
    """The device of that name; without a name a GPU if there is one: of processes that a launcher started on this
    machine (`LOCAL_RANK`), each has its own.

    Raises:
        UserError: If torch knows no such device or cannot use it here.
    """
    try:
        if not name and torch.cuda.is_available():
            launch = find_launch()
            name = f"cuda:{launch.local_rank % torch.cuda.device_count()}" if launch.world > 1 else "cuda"
        device = torch.device(name or "cpu")
        # torch takes any name that it knows; whether the device is there shows when it is used
        torch.zeros(1, device=device)
        if device.type == "meta":
            raise NotImplementedError("it holds no values")
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device {name!r}: expected auto, cpu, or cuda where a GPU is usable: {reason}") from None
    return device


def check_scales(judge: str, dimensions: Sequence[Dimension], card: DatasetCard) -> None:
    """Check that the dataset rates a judge's dimensions on the scales that the judge was trained on; dimensions that it
    does not rate are passed over.

    Raises:
        UserError: If a scale differs: scores and ratings would not be in the same points.
    """
    rated = {dimension.name: dimension for dimension in card.dimensions}
    for dimension in dimensions:
        scale = rated.get(dimension.name, dimension)
        # Means of ratings on 1 to 5 and scores on 1 to 7 correlate well, and every error between them is meaningless
        if not same_range(dimension, scale):
            raise UserError(
                f"judge {judge}: trained on {dimension.name} from {dimension.minimum:g} to {dimension.maximum:g}, "
                f"but dataset {card.name} rates it from {scale.minimum:g} to {scale.maximum:g}; expected the same scale"
            )
